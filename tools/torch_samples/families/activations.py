"""Activation functions and softmax."""

from __future__ import annotations

from typing import Any

import meta
from tools.torch_samples.compose import axes, in_dtype, like_1d, number_for, of_reals
from tools.torch_samples.decline import decline_if


def softmax(function: Any, sign: int = 1) -> Any:
    """Return torch's form of softmax and its kin; softmin is softmax of -x."""

    def normalised(
        input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None, half: bool = False
    ) -> Any:
        x = in_dtype(input, dtype)
        return like_1d(function, x if sign > 0 else -x, dim)

    return normalised


def safe_softmax(input: Any, dim: int, dtype: Any = None) -> Any:
    """Softmax that gives 0 where all elements are -inf."""
    x = in_dtype(input, dtype)
    none = meta.equal(meta.max(x, axes(x, dim), True), float("-inf"))
    return meta.where(none, 0, like_1d(meta.softmax, meta.where(none, 0, x), dim))


def inplace(function: Any) -> Any:
    """Return a function whose torch form can be told to overwrite its argument."""
    return lambda input, *args, inplace=False, **kwargs: function(input, *args, **kwargs)


def gelu(input: Any, *, approximate: str = "none") -> Any:
    """Gaussian error linear unit."""
    return meta.gelu(input, approximate)


def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    """Bound below and above."""
    return meta.clip(input, number_for(min_val, input), number_for(max_val, input))


def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """x where x > 0, else alpha * (exp(x) - 1)."""
    return meta.elu(input, alpha)


def softmax_backward(grad: Any, output: Any, dim: int, input_dtype: Any) -> Any:
    """The gradient of softmax from its result."""
    decline_if(input_dtype is not None and str(input_dtype)[6:] != grad.dtype, "another dtype")
    return like_1d(meta.softmax_dx, output, grad, dim)


ADAPTERS = {
    "log_softmax": softmax(meta.log_softmax),
    "log_softmax|with_dtype": softmax(meta.log_softmax),
    "nn.functional.celu": inplace(meta.celu),
    "nn.functional.elu": elu,
    "nn.functional.gelu": gelu,
    "nn.functional.glu": lambda input, dim=-1: meta.glu(input, dim),
    "nn.functional.hardshrink": meta.hardshrink,
    "nn.functional.hardsigmoid": inplace(meta.hardsigmoid),
    "nn.functional.hardswish": inplace(meta.hardswish),
    "nn.functional.hardtanh": hardtanh,
    "nn.functional.leaky_relu": inplace(meta.leaky_relu),
    "nn.functional.logsigmoid": meta.logsigmoid,
    "nn.functional.mish": inplace(meta.mish),
    "nn.functional.prelu": meta.prelu,
    "nn.functional.relu": inplace(meta.relu),
    "nn.functional.relu6": lambda input, inplace=False: hardtanh(input, 0.0, 6.0),
    "nn.functional.selu": inplace(meta.selu),
    "nn.functional.silu": inplace(meta.silu),
    "nn.functional.softmin": softmax(meta.softmax, -1),
    "nn.functional.softmin|with_dtype": softmax(meta.softmax, -1),
    "nn.functional.softplus": meta.softplus,
    "nn.functional.softshrink": meta.softshrink,
    "nn.functional.softsign": of_reals(meta.softsign),
    "nn.functional.tanhshrink": of_reals(meta.tanhshrink),
    "nn.functional.threshold": inplace(meta.threshold),
    "softmax": softmax(meta.softmax),
    "softmax|with_dtype": softmax(meta.softmax),
    "torch.ops.aten._safe_softmax.default": safe_softmax,
    "_softmax_backward_data": softmax_backward,
}
