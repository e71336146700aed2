"""Operands as ATen's kernels take them: numbers as tensors, half precision as float32."""

import torch

from meta.dialect.core import REFERENCE
from meta.dialect.torch import torch as dialect

HALF = (torch.float16, torch.bfloat16)


def compact(base, plevel=REFERENCE):
    """Define the kernel of an operator whose operands have to be compact."""
    return dialect.kernel(base, plevel=plevel, strided=False)


def of_one(functions, plevel=REFERENCE, wide=False):
    """Define kernels of compact operands: ``functions[op](x)``, ``wide`` in at least float32."""
    for base, function in functions.items():
        compact(base, plevel)(_widening(function) if wide else _plain(function))


def of_two(functions, fill):
    """Define kernels of two operands: ``fill(functions[op], x1, x2, out)``."""
    for base, function in functions.items():
        dialect.kernel(base)(_filling(function, fill))


def _filling(function, fill):
    def run(x1, x2, out):
        fill(function, x1, x2, out)

    return run


def _plain(function):
    def run(x):
        return function(x)

    return run


def _widening(function):
    def run(x, out):
        return out.copy_(function(widened(x)))

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


def own_dtype(*operands):
    """Return the dtype that the tensors among operands have, which numbers take."""
    return next(x.dtype for x in operands if isinstance(x, torch.Tensor))


def as_operands(dtype, out, *operands):
    """Return operands in a dtype; numbers become 0-d tensors where ``out`` is."""
    return [
        x.to(dtype) if isinstance(x, torch.Tensor) else number(x, dtype, out.device)
        for x in operands
    ]
