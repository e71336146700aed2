"""Float32 stays float32 in ATen's libraries on CUDA, TensorFloat-32 only if META_TF32 allows it;
float64 stays float64.

ATen's own default rounds the operands of float32 convolutions to 10 bits of mantissa. Wrap a
function of ATen that calls such a library with `in_float32`. What ATen computes in less than the
dtype of its arguments is declined; add a reason here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta.base import config
from meta.base.dtype import has_gradient
from meta.op.core.call import CallValues


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
