"""Float32 stays float32 in ATen's libraries on CUDA: TensorFloat-32 only if META_TF32 allows it.

ATen's own default rounds the operands of float32 convolutions to 10 bits of mantissa. Wrap a
function of ATen that calls such a library with `in_float32`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta.base import config


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
