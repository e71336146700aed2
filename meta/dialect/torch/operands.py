"""Operands as ATen's kernels take them: numbers as tensors, half precision as float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, Signature
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor

from meta.base import config
from meta.base.dtype import TO_TORCH, has_gradient
from meta.dialect.core import LIBRARY
from meta.dialect.core.kernel_signature import bind_kernel
from meta.dialect.core.openv import Kernel, OpEnv
from meta.dialect.core.plevel import Levels
from meta.dialect.torch import torch as dialect
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.op import Op

Operand = Tensor | float
"""What stands for a ``Scalar | Tensor`` of a schema."""
Kernels = Mapping[Op, Kernel]
When = Callable[[CallValues], str | None]
_OF_NUMBERS = (torch.add, torch.sub, torch.mul)
_ROUNDED_BY_ATEN = ("float32", "float64")
"""Functions that round a number to the dtype of the tensor before it, if it is one of these."""
HALF = (torch.float16, torch.bfloat16)
ON_CPU = {"cpu": LIBRARY}
"""Where fused patterns are used. They were measured beside what runs without them on an AMD EPYC,
one thread, float32; not on CUDA.
"""


def single_or_double(x: TensorType) -> str | None:
    """Decline half precision, whose results would not be rounded in between, and integers."""
    return None if x.dtype in ("float32", "float64") else f"not for {x.dtype}"


def kernels(functions: Kernels, **options: Any) -> None:
    """Define the kernels ``functions[op]``, with options of `Dialect.kernel` that they share."""
    for base, function in functions.items():
        dialect.kernel(base, **options)(function)


def of_unary(functions: Kernels, plevel: Levels | None = None) -> None:
    """Define kernels of one compact operand: ``functions[op](x)``."""
    for base, function in functions.items():
        dialect.op(base, plevel=plevel)(_unary_kernel(function))


def _unary_kernel(function: Kernel) -> Callable[[CallValues], OpEnv]:
    def applied(x: Tensor) -> Any:
        return function(x)

    def make(call: CallValues) -> OpEnv:
        fresh = function if isinstance(call.args.x, TensorType) else None
        return OpEnv(bind_kernel(applied, call), allocates=True, fresh=fresh)

    return make


def rounded_once(
    base: Op, plevel: Levels | None = None, when: When | None = None
) -> Callable[[Kernel], Kernel]:
    """Define a kernel of compact operands, which it is given in at least float32: a function of all
    arguments of the operator, in order. What it returns is rounded to the dtype of the result.
    """

    def register(function: Kernel) -> Kernel:
        dialect.kernel(base, plevel=plevel, when=when, strided=False)(_widening(base, function))
        return function

    return register


def all_rounded_once(
    functions: Kernels, plevel: Levels | None = None, when: When | None = None
) -> None:
    """Define the kernel ``functions[op](*arguments)`` of each operator by `rounded_once`."""
    for base, function in functions.items():
        rounded_once(base, plevel, when)(function)


def in_wide(function: Kernel, x1: Operand, x2: Operand, out: Tensor) -> None:
    """Compute a function of two operands in the dtype that is `wide` of the result's."""
    function(*as_operands(wide(out.dtype), out, x1, x2), out=out)


def of_rounded(function: Kernel, x1: Operand, x2: Operand, out: Tensor) -> None:
    """Compute the same of numbers that are rounded to the dtype of the result first."""
    x1, x2 = rounded_numbers(out, x1, x2)
    in_wide(function, x1, x2, out)


def of_binary(functions: Kernels, fill: Kernel = in_wide, plevel: Levels | None = None) -> None:
    """Define kernels of two operands: ``fill(functions[op], x1, x2, out)``; see `binary_kernel`."""
    for base, function in functions.items():
        dialect.op(base, plevel=plevel)(binary_kernel(function, fill))


def binary_kernel(function: Kernel, fill: Kernel = in_wide) -> Callable[[CallValues], OpEnv]:
    """Return the maker of kernels ``fill(function, x1, x2, out)``.

    ``fill`` brings the operands to where they are computed, which takes longer than a small sum.
    Where they are there already, ``function`` gets them as they are: tensors of one dtype in which
    it computes, or a tensor and a number that it rounds as `meta.astype` does.
    """

    def direct(x1: Tensor, x2: Operand, out: Tensor) -> None:
        function(x1, x2, out=out)

    def of_number(x1: Tensor, x2: float) -> Any:
        return function(x1, x2)

    def make(call: CallValues) -> OpEnv:
        x1, x2 = call.args.x1, call.args.x2
        if not _as_they_are(function, x1, x2, call.out):
            return OpEnv(bind_kernel(partial(fill, function), call), False, strided=True)
        fresh: Kernel | None = None
        if isinstance(function, BuiltinFunctionType):  # ATen's; ours need ``out``
            fresh = function if isinstance(x2, TensorType) else bind_kernel(of_number, call)
        return OpEnv(bind_kernel(direct, call), False, strided=True, fresh=fresh)

    return make


def _as_they_are(function: Kernel, x1: Any, x2: Any, out: Any) -> bool:
    if not isinstance(x1, TensorType) or x1.dtype == "uint64":  # of which ATen has few functions
        return False
    if not isinstance(x2, TensorType):
        return function in _OF_NUMBERS and x1.dtype == out.dtype and x1.dtype in _ROUNDED_BY_ATEN
    if x1.dtype != x2.dtype:
        return False
    return out.dtype == "bool" or (out.dtype == x1.dtype and TO_TORCH[out.dtype] not in HALF)


def _at_least_single(x: Any) -> Any:
    if not isinstance(x, Tensor) or x.dtype == torch.float64 or x.is_complex():
        return x
    return x.float()


def _widening(base: Op, function: Kernel) -> Kernel:
    names = (*base.schema.names, "out")

    def run(*values: Any, **named: Any) -> Tensor:
        if named:
            given = dict(zip(names, values, strict=False)) | named
            values = tuple(given[name] for name in names)
        *operands, out = values
        result: Tensor = out.copy_(function(*map(_at_least_single, operands)))
        return result

    kind = Parameter.POSITIONAL_OR_KEYWORD
    return with_signature(run, Signature([Parameter(n, kind) for n in names]))


def with_signature(function: Callable[..., Any], signature: Signature) -> Callable[..., Any]:
    """Return a function whose parameters dispatch sees as this signature has them."""
    function.__signature__ = signature  # type: ignore[attr-defined]  # where `inspect` looks
    return function


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which values of a dtype are computed and accumulated."""
    return torch.float32 if dtype in HALF else dtype


def widened(*tensors: Tensor | None) -> Any:
    """Return tensors in at least float32, in which half precision is computed; None stays."""
    found = [t if t is None or t.dtype == torch.float64 else t.float() for t in tensors]
    return found if len(found) > 1 else found[0]


def number(x: float, dtype: torch.dtype | None, device: torch.device) -> Tensor:
    """Return a number, rounded to a dtype (None: torch's own), as a 0-d tensor on a device.

    On CUDA it is filled there: a copy from the host would make the host wait for the device, and
    could not be captured in a graph.
    """
    value = torch.tensor(x, dtype=dtype)
    if device.type == "cpu":
        return value
    return torch.full((), value.item(), dtype=value.dtype, device=device)


def rounded_number(x: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a number as a 0-d tensor of a dtype, to which it goes as by `meta.astype`."""
    return number(x, torch.float64 if isinstance(x, float) else torch.int64, device).to(dtype)


def rounded_numbers(out: Tensor, *operands: Operand) -> list[Tensor]:
    """Return operands, numbers as 0-d tensors of the dtype of the result, where it is."""
    return [x if isinstance(x, Tensor) else number(x, out.dtype, out.device) for x in operands]


def own_dtype(*operands: Operand) -> torch.dtype:
    """Return the dtype that the tensors among operands have, which numbers take."""
    return next(x.dtype for x in operands if isinstance(x, Tensor))


def as_operands(dtype: torch.dtype, out: Tensor, *operands: Operand) -> list[Tensor]:
    """Return operands in a dtype; numbers become 0-d tensors where ``out`` is."""
    return [
        x.to(dtype) if isinstance(x, Tensor) else number(x, dtype, out.device) for x in operands
    ]


# Float32 stays float32 in ATen's libraries on CUDA, TensorFloat-32 only if META_TF32 allows it;
# float64 stays float64.
#
# ATen's own default rounds the operands of float32 convolutions to 10 bits of mantissa. Wrap a
# function of ATen that calls such a library with `in_float32`. What ATen computes in less than the
# dtype of its arguments is declined; add a reason here.


def in_float32(function: Callable[..., Any], switch: Any) -> Callable[..., Any]:
    """Return ``function``, of a tensor first, with the library's precision as META_TF32 says.

    ``switch``: ``torch.backends.cudnn.conv`` or ``torch.backends.cuda.matmul``. It belongs to the
    process, as torch has it, and is set for the call alone.
    """

    def run(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not x.is_cuda:
            return function(x, *args, **kwargs)
        wanted = "tf32" if config.get("META_TF32") else "ieee"
        before = switch.fp32_precision
        if before == wanted or (before == "none" and wanted == "ieee"):
            return function(x, *args, **kwargs)
        switch.fp32_precision = wanted
        try:
            return function(x, *args, **kwargs)
        finally:
            switch.fp32_precision = before

    return run


def no_sixth_in_double(call: CallValues) -> str | None:
    """Decline float64 on CUDA where ATen divides by six: 3e-8 of the result are lost."""
    if call.device.kind == "cuda" and call.args.x.dtype == "float64":
        return "ATen's CUDA kernel rounds 1/6 to float32"
    return None


def no_integers_on_cuda(what: str) -> Callable[[CallValues], str | None]:
    """Return what declines a call of integers, of which ATen has no such kernel on CUDA."""

    def when(call: CallValues) -> str | None:
        dtype = next(call.tensors()).dtype
        if call.device.kind == "cuda" and not has_gradient(dtype):
            return f"ATen has no {what} of {dtype} on CUDA"
        return None

    return when
