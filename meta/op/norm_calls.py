"""Normalisations as torch calls them: by the shape of the last axes, with weight and bias."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from meta import op
from meta.base.dtype_info import finfo
from meta.base.errors import TypeInferError
from meta.op.core.check import shapes_compatible
from meta.op.core.function import as_operand, device_of, function
from meta.op.core.op import ComposedOp
from meta.op.norm import group_norm, instance_norm, layer_norm, rms_norm, statistics_dtype


def _error(name: str, what: str, **more: Any) -> TypeInferError:
    return TypeInferError(what, op=name, **more)


def _parameters(name: str, weight: Any, bias: Any) -> tuple[Any, Any]:
    """Return both as arrays, a weight of ones beside a bias alone."""
    for given, what in ((weight, "weight"), (bias, "bias")):
        if given is not None and not hasattr(given, "shape"):
            expected = "an array or None"
            raise _error(name, f"{what} is no array", expected=expected, found=repr(given))
    bias = None if bias is None else as_operand(bias)
    if weight is None:
        return (None if bias is None else op.ones_like(bias)), bias
    return as_operand(weight), bias


def _over_last(
    base: ComposedOp, x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float
) -> Any:
    """Return what a normalisation along one axis gives along the last axes as one."""
    x = as_operand(x)
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
    if not isinstance(shape, tuple | list) or not shape:
        what = "normalized_shape is the extents of the last axes"
        raise _error(base.name, what, expected="an int or ints", found=repr(normalized_shape))
    last = tuple(x.shape[max(x.ndim - len(shape), 0) :])
    weight, bias = _parameters(base.name, weight, bias)
    for given, what in ((tuple(shape), "normalized_shape"), (weight, "weight"), (bias, "bias")):
        extents = given if isinstance(given, tuple) else None if given is None else given.shape
        if extents is not None and (
            len(shape) > x.ndim or not shapes_compatible(tuple(extents), last)
        ):
            expected, found = str(list(last)), str(list(extents))
            raise _error(base.name, f"{what} does not fit x", expected=expected, found=found)
    if len(shape) == 1:
        return base.plain(x, weight, bias, -1, eps)
    size = math.prod(last)
    weight, bias = (None if t is None else op.reshape(t, (size,)) for t in (weight, bias))
    y = base.plain(op.reshape(x, (*x.shape[: x.ndim - len(shape)], size)), weight, bias, -1, eps)
    return op.reshape(y, tuple(x.shape))


@layer_norm.calls
def _layer_norm(
    x: Any,
    normalized_shape: int | Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    return _over_last(layer_norm, x, normalized_shape, weight, bias, eps)


@rms_norm.calls
def _rms_norm(
    x: Any, normalized_shape: int | Sequence[int], weight: Any = None, eps: float | None = None
) -> Any:
    x = as_operand(x)
    bound = finfo(statistics_dtype(x.dtype)).eps if eps is None else eps
    return _over_last(rms_norm, x, normalized_shape, weight, None, bound)


@group_norm.calls
def _group_norm(
    x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    weight, bias = _parameters("group_norm", weight, bias)
    return group_norm.plain(x, num_groups, weight, bias, eps)


@instance_norm.calls
def _instance_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    weight, bias = _parameters("instance_norm", weight, bias)
    if not use_input_stats:
        return op.batch_norm(x, running_mean, running_var, weight, bias, eps=eps)
    if running_mean is not None or running_var is not None:
        what = "running statistics of single examples are not updated"
        hint = "weight and bias follow behind them: weight=..., bias=..."
        raise _error("instance_norm", what, expected="None for both", hint=hint)
    return instance_norm.plain(x, weight, bias, eps)


@function
def batch_norm(
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Normalise each channel, axis 1 of x, as torch's function.

    training: by the statistics of the batch, with which running_mean and running_var, unless None,
    are updated in place (`batch_norm_train`); otherwise by these (`batch_norm_infer`).
    weight, bias: (c,), 1 and 0 unless given. Result: x's type.

    Raises TypeInferError for shapes or dtypes that do not fit, and for statistics that are missing.

    >>> x = meta.array([[1.0], [3.0]])
    >>> meta.batch_norm(x, meta.zeros(1), meta.ones(1), eps=0.0).tolist()
    [[1.0], [3.0]]
    """
    x = as_operand(x)
    weight, bias = _parameters("batch_norm", weight, bias)
    missing = running_mean is None or running_var is None
    if not training and missing:
        what = "running_mean and running_var are needed"
        raise _error("batch_norm", what, expected="arrays, or training=True", found=None)
    if not training:
        return op.batch_norm_infer(x, running_mean, running_var, weight, bias, momentum, eps)
    if missing and running_mean is not running_var:
        raise _error("batch_norm", "one of running_mean and running_var is missing")
    if missing:
        running_mean, running_var = (
            op.full((x.shape[1],), n, x.dtype, device_of(x)) for n in (0, 1)
        )
    return op.batch_norm_train(x, running_mean, running_var, weight, bias, momentum, eps)[0]
