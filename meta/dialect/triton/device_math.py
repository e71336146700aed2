"""Functions of CUDA's ``libdevice`` for the interpreter: those that torch has, by torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice
from triton.runtime import interpreter

MODULES = (libdevice, cuda_libdevice)
_SAME = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh",
    "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "fmod", "hypot", "isinf", "isnan",
    "lgamma", "log", "log10", "log1p", "log2", "nextafter", "pow", "rsqrt", "signbit", "sin",
    "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {n: getattr(torch, n) for n in _SAME} | {
    "abs": torch.abs,
    "fabs": torch.abs,
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "nearbyint": torch.round,
    "rint": torch.round,
}


def interpreted(name: str) -> Callable[..., Any]:
    """Return a function of ``libdevice`` on tensors of the interpreter."""
    compute = FUNCTIONS.get(name)

    def function(*arguments: Any, **_: Any) -> Any:
        if compute is None:
            raise NotImplementedError(f"the interpreter has no {name} of libdevice")
        tensors = [interpreter.interpreter_semantic.to_tensor(a) for a in arguments]
        dtype = tensors[0].dtype
        values = [_values(one) for one in tensors]
        result = compute(*values).numpy()
        if result.dtype == np.bool_:
            dtype = tl.int1
        elif dtype == tl.bfloat16:
            result = result.astype(ml_dtypes.bfloat16).view(np.uint16)
        shapes = [one.shape for one in tensors if one.shape]
        type_ = tl.block_type(dtype, list(result.shape)) if shapes else dtype
        return tl.tensor(interpreter.TensorHandle(result, dtype), type_)

    return function


def _values(tensor: Any) -> torch.Tensor:
    data = np.array(tensor.handle.data)
    if tensor.dtype == tl.bfloat16:
        data = data.view(ml_dtypes.bfloat16).astype(np.float32)
    return torch.from_numpy(data)


def names(module: Any) -> list[str]:
    """Return the functions of one of `MODULES`."""
    found = inspect.getmembers(module, callable)
    return [n for n, value in found if getattr(value, "__module__", "").endswith("libdevice")]
