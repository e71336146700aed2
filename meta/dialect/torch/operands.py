"""Operands as ATen's kernels take them: numbers as tensors, half precision as float32."""

from functools import partial
from inspect import Parameter, Signature

import torch

from meta.dialect.core import LIBRARY
from meta.dialect.torch import torch as dialect

HALF = (torch.float16, torch.bfloat16)
ON_CPU = {"cpu": LIBRARY}
"""Where fused patterns are used. They were measured beside what runs without them on an AMD EPYC,
one thread, float32; not on CUDA.
"""


def single_or_double(x):
    """Decline half precision, whose results would not be rounded in between, and integers."""
    return None if x.dtype in ("float32", "float64") else f"not for {x.dtype}"


def kernels(functions, **options):
    """Define the kernels ``functions[op]``, with options of `Dialect.kernel` that they share."""
    for base, function in functions.items():
        dialect.kernel(base, **options)(function)


def of_one(functions, plevel=None):
    """Define kernels of one compact operand: ``functions[op](x)``."""
    each = {base: partial(_applied, function) for base, function in functions.items()}
    kernels(each, plevel=plevel, strided=False)


def _applied(function, x):
    return function(x)


def rounded_once(base, plevel=None, when=None):
    """Define a kernel of compact operands, which it is given in at least float32: a function of all
    arguments of the operator, in order. What it returns is rounded to the dtype of the result.
    """

    def register(function):
        dialect.kernel(base, plevel=plevel, when=when, strided=False)(_widening(base, function))
        return function

    return register


def all_rounded_once(functions, plevel=None, when=None):
    """Define the kernel ``functions[op](*arguments)`` of each operator by `rounded_once`."""
    for base, function in functions.items():
        rounded_once(base, plevel, when)(function)


def in_wide(function, x1, x2, out):
    """Compute a function of two operands in the dtype that is `wide` of the result's."""
    function(*as_operands(wide(out.dtype), out, x1, x2), out=out)


def of_two(functions, fill=in_wide, plevel=None):
    """Define kernels of two operands: ``fill(functions[op], x1, x2, out)``."""
    kernels({base: partial(fill, f) for base, f in functions.items()}, plevel=plevel)


def _at_least_single(x):
    return x.float() if isinstance(x, torch.Tensor) and x.dtype != torch.float64 else x


def _widening(base, function):
    names = (*base.schema.names, "out")

    def run(*values, **named):
        if named:
            given = dict(zip(names, values, strict=False)) | named
            values = [given[name] for name in names]
        *operands, out = values
        return out.copy_(function(*map(_at_least_single, operands)))

    run.__signature__ = Signature([Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in names])
    return run


def wide(dtype):
    """Return the dtype in which values of a dtype are computed and accumulated."""
    return torch.float32 if dtype in HALF else dtype


def widened(*tensors):
    """Return tensors in at least float32: half precision is rounded once, at the end. None stays;
    integers become float32.
    """
    found = [t if t is None or t.dtype == torch.float64 else t.float() for t in tensors]
    return found if len(found) > 1 else found[0]


def number(x, dtype, device):
    """Return a number, rounded to a dtype (None: torch's own), as a 0-d tensor on a device.

    On CUDA it is filled there: a copy from the host would make the host wait for the device, and
    could not be captured in a graph.
    """
    value = torch.tensor(x, dtype=dtype)
    if device.type == "cpu":
        return value
    return torch.full((), value.item(), dtype=value.dtype, device=device)


def rounded_number(x, dtype, device):
    """Return a number as a 0-d tensor of a dtype, to which it goes as `meta.cast` would take it."""
    return number(x, torch.float64 if isinstance(x, float) else torch.int64, device).to(dtype)


def own_dtype(*operands):
    """Return the dtype that the tensors among operands have, which numbers take."""
    return next(x.dtype for x in operands if isinstance(x, torch.Tensor))


def as_operands(dtype, out, *operands):
    """Return operands in a dtype; numbers become 0-d tensors where ``out`` is."""
    return [
        x.to(dtype) if isinstance(x, torch.Tensor) else number(x, dtype, out.device)
        for x in operands
    ]
