"""Initial values of arrays, under the names of `torch.nn.init`.

Each function overwrites an array, in place, and returns it: ``init.xavier_uniform(layer.weight)``.
Random numbers come from `meta.random`, so `meta.random.seed` reproduces them on every device. The
masters that an optimizer keeps of a half precision array are overwritten, too. Called while a
function is traced, all raise TraceError.

Of a weight (out, in, *kernel) fan in is in * kernel area and fan out is out * kernel area, as
of `Linear` and convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from meta import linalg, op, random
from meta.base.device import default_device
from meta.base.dtype import is_float
from meta.base.errors import ArgumentError, GradientError, TraceError, UnknownName
from meta.dialect.core.random_fill import fill
from meta.op.core.tracing import Value
from meta.runtime import trace_checks
from meta.runtime.deferred_values import (
    change_when_drawn,
    defer,
    deferred,
    deferred_array,
    draw,
    is_deferring,
)
from meta.runtime.inplace_writes import writable_buffer
from meta.runtime.master_weights import masters_of
from meta.runtime.ndarray import array as array_of
from meta.runtime.ndarray import ndarray
from meta.runtime.no_gradient import set_recording
from meta.runtime.torch_leaf import refuse_detach

__all__ = [
    "constant", "eye", "gain", "kaiming_normal", "kaiming_uniform", "normal", "ones", "orthogonal",
    "truncated_normal", "uniform", "xavier_normal", "xavier_uniform", "zeros",
]  # fmt: skip


def constant(array: ndarray, value: float) -> ndarray:
    """Fill with one number.

    >>> meta.model.init.constant(meta.zeros(2), 0.5).tolist()
    [0.5, 0.5]
    """
    if deferred(array) is None:
        return change(array, lambda tensor: tensor.fill_(value))
    return _write(array, lambda: op.full(array.shape, value, array.dtype), draws=False)


def zeros(array: ndarray) -> ndarray:
    """Fill with 0.

    >>> meta.model.init.zeros(meta.ones(2)).tolist()
    [0.0, 0.0]
    """
    return constant(array, 0)


def ones(array: ndarray) -> ndarray:
    """Fill with 1.

    >>> meta.model.init.ones(meta.zeros(2)).tolist()
    [1.0, 1.0]
    """
    return constant(array, 1)


def eye(array: ndarray) -> ndarray:
    """Write the identity into a matrix: 1 on the diagonal, else 0. ArgumentError for other axes.

    >>> meta.model.init.eye(meta.zeros((2, 2))).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if array.ndim != 2:
        raise ArgumentError("only a matrix can be the identity", found=f"shape {array.shape}")
    if deferred(array) is None:
        return change(array, lambda tensor: torch.eye(*array.shape, out=tensor))
    return _write(array, lambda: op.eye(*array.shape, dtype=array.dtype), draws=False)


def uniform(array: ndarray, low: float = 0.0, high: float = 1.0) -> ndarray:
    """Draw from the uniform distribution on [low, high).

    >>> meta.model.init.uniform(meta.zeros((4, 3)), -0.1, 0.1).shape
    (4, 3)
    """
    if low <= high and _fill(array, op.random_uniform, low, high):
        return array
    return _write(array, lambda: random.uniform(array.shape, low=low, high=high, **_kind(array)))


def normal(array: ndarray, mean: float = 0.0, std: float = 1.0) -> ndarray:
    """Draw from a normal distribution.

    >>> meta.model.init.normal(meta.zeros((4, 3)), std=0.02).shape
    (4, 3)
    """
    if std >= 0 and _fill(array, op.random_normal, mean, std):
        return array
    return _write(array, lambda: random.normal(array.shape, mean=mean, std=std, **_kind(array)))


def truncated_normal(
    array: ndarray, mean: float = 0.0, std: float = 1.0, low: float = -2.0, high: float = 2.0
) -> ndarray:
    """Draw from a normal distribution, as far as it lies in [low, high].

    By the inverse of the distribution function, in float32 within three deviations of an array of
    at most float32, and else in float64. ArgumentError unless std > 0 and
    low < high, and where the interval has almost none of the distribution.

    >>> weight = meta.model.init.truncated_normal(meta.zeros(100), std=0.5, low=-1.0, high=1.0)
    >>> meta.max(meta.abs(weight)).item() <= 1.0
    True
    """
    if not (std > 0 and low < high):
        raise ArgumentError(
            "no such distribution", expected="std > 0, low < high", found=(std, low, high)
        )
    first, last = (math.erf((bound - mean) / std / math.sqrt(2)) for bound in (low, high))
    if last - first < 1e-9:
        raise ArgumentError(
            "the interval has almost none of the distribution",
            found=f"[{low}, {high}] of mean {mean} and std {std}",
        )

    kind = _kind(array)
    if max(abs(low - mean), abs(high - mean)) > 3 * std:
        kind["dtype"] = "float64"

    def drawn() -> Any:
        places = random.uniform(array.shape, low=first, high=last, **kind)
        return op.clip(op.erfinv(places) * (std * math.sqrt(2)) + mean, low, high)

    return _write(array, drawn)


def gain(nonlinearity: str, slope: float | None = None) -> float:
    """Return the factor by which weights before an activation are scaled, as torch recommends it.

    nonlinearity: "linear", "conv1d" and the like, "sigmoid" (1), "tanh" (5/3), "relu" (sqrt(2)),
    "leaky_relu" (sqrt(2 / (1 + slope^2)), slope 0.01 unless given) or "selu" (3/4). ArgumentError
    for others.

    >>> meta.model.init.gain("tanh")
    1.6666666666666667
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if slope is None else slope) ** 2))
    if nonlinearity not in _GAINS:
        raise ArgumentError(
            "no gain is known for this activation",
            expected=", ".join([*_GAINS, "leaky_relu"]),
            found=repr(nonlinearity),
        )
    return _GAINS[nonlinearity]


_CONVOLUTIONS = [f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)]
_GAINS = {
    **dict.fromkeys(("linear", *_CONVOLUTIONS, "sigmoid"), 1.0),
    "tanh": 5 / 3,
    "relu": math.sqrt(2),
    "selu": 0.75,
}


def xavier_uniform(array: ndarray, gain: float = 1.0) -> ndarray:
    """Draw uniform on +-gain * sqrt(6 / (fan in + fan out)).

    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks",
    2010. ArgumentError for less than two axes.

    >>> meta.model.init.xavier_uniform(meta.zeros((4, 3))).shape
    (4, 3)
    """
    bound = gain * math.sqrt(6 / sum(_fans(array)))
    return uniform(array, -bound, bound)


def xavier_normal(array: ndarray, gain: float = 1.0) -> ndarray:
    """Draw normal with standard deviation gain * sqrt(2 / (fan in + fan out)); see
    `xavier_uniform`.

    >>> weight = meta.model.init.xavier_normal(meta.zeros((300, 500)))
    >>> round(meta.std(weight).item(), 2)  # sqrt(2 / (300 + 500))
    0.05
    """
    return normal(array, 0.0, gain * math.sqrt(2 / sum(_fans(array))))


def kaiming_uniform(
    array: ndarray, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> ndarray:
    """Draw uniform on +-gain * sqrt(3 / fan) (He et al., arXiv:1502.01852).

    a: the slope of "leaky_relu" where x < 0. mode: "fan_in" keeps the variance of activations,
    "fan_out" that of gradients. nonlinearity: what comes behind; see `gain`. ArgumentError for less
    than two axes and for unknown names.

    >>> weight = meta.model.init.kaiming_uniform(meta.zeros((4, 6)))  # bounded by sqrt(2 * 3 / 6)
    >>> meta.max(meta.abs(weight)).item() <= 1.0
    True
    """
    bound = math.sqrt(3) * _standard_deviation(array, a, mode, nonlinearity)
    return uniform(array, -bound, bound)


def kaiming_normal(
    array: ndarray, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> ndarray:
    """Draw normal with standard deviation gain / sqrt(fan); see `kaiming_uniform`.

    >>> layer = meta.model.Linear(64, 32)
    >>> meta.model.init.kaiming_normal(layer.weight, nonlinearity="relu") is layer.weight
    True
    """
    return normal(array, 0.0, _standard_deviation(array, a, mode, nonlinearity))


def orthogonal(array: ndarray, gain: float = 1.0) -> ndarray:
    """Write gain times a random matrix with orthonormal rows, or columns if there are more rows.

    Axes but the first count as one (Saxe et al., arXiv:1312.6120). The matrix is uniform over all
    of these: Q of the QR decomposition of normal numbers, with the signs of R's diagonal
    (Mezzadri, arXiv:math-ph/0609050). ArgumentError for less than two axes.

    >>> w = meta.model.init.orthogonal(meta.zeros((3, 3)))
    >>> abs(w @ w.mT - meta.eye(3)).max().item() < 1e-5
    True
    """
    _fans(array)
    rows, columns, kind = array.shape[0], math.prod(array.shape[1:]), _kind(array)

    def drawn() -> Any:
        shape = (max(rows, columns), min(rows, columns))
        q, r = linalg.qr(random.normal(shape, **kind))
        q = q * op.where(linalg.diagonal(r) < 0, -gain, op.full((shape[1],), gain, **kind))
        return op.reshape(op.permute_dims(q, (1, 0)) if rows < columns else q, array.shape)

    return _write(array, drawn)


def _standard_deviation(array: ndarray, a: float, mode: str, nonlinearity: str) -> float:
    modes = ("fan_in", "fan_out")
    if mode not in modes:
        raise ArgumentError("unknown mode", expected="fan_in or fan_out", found=repr(mode))
    fan = _fans(array)[modes.index(mode)]
    return gain(nonlinearity, a) / math.sqrt(fan)


def _fans(array: ndarray) -> tuple[int, int]:
    """Return fan in and fan out, at least 1."""
    if array.ndim < 2:
        raise ArgumentError(
            "this array has no fan in and fan out",
            expected="a weight of at least two axes",
            found=f"shape {array.shape}",
            hint="init.zeros, init.normal or init.uniform for a bias",
        )
    area = math.prod(array.shape[2:])
    return max(array.shape[1] * area, 1), max(array.shape[0] * area, 1)


def _kind(array: ndarray) -> dict[str, Any]:
    if not is_float(array.dtype):
        raise ArgumentError("random initial values are floating point", found=array.dtype)
    wide = "float64" if array.dtype == "float64" else "float32"
    later = deferred(array)
    return {"dtype": wide, "device": str(array.device if later is None else later.device)}


def drawn(draw: Callable[..., ndarray], shape: tuple[int, ...], **options: Any) -> ndarray:
    """Return a parameter in float32 with the values of ``draw(shape, **options)``, which draws one
    key; within `empty_init`, without values.
    """
    if is_deferring() and trace_checks.current_trace() is None:
        found = deferred_array(shape, "float32", default_device(), lambda: draw(shape, **options))
    else:
        found = draw(shape, **options)
    return parameter(found)


def parameter(x: object) -> ndarray:
    """Mark an array as trained and return it; of numbers, and of NumPy's or torch's arrays, a new
    one. GradientError for what was computed from an array that requires a gradient: a parameter is
    where gradients end.

    >>> meta.model.parameter(meta.zeros(3)).requires_grad
    True
    """
    if isinstance(x, Value):
        raise TraceError(
            "a parameter is made while a function is traced",
            hint="make layers and parameters in build, or outside of the traced function",
        )
    if isinstance(x, torch.Tensor):
        refuse_detach(x, "parameter()", "meta.model.parameter(t.detach())")
    made = x if isinstance(x, ndarray) else array_of(x)
    if made.requires_grad and made.node is not None:
        raise GradientError(
            "a parameter was computed from an array that requires a gradient",
            found=f"shape {made.shape}, dtype {made.dtype}",
            hint="x.detach()",
        )
    made.requires_grad = True
    return made


def draw_deferred(arrays: Iterable[ndarray]) -> None:
    """Give values to those arrays that have none, unless a block around lets them have none."""
    if not is_deferring():
        for array in arrays:
            if deferred(array) is not None:
                draw(array)


def change(array: ndarray, how: Callable[[torch.Tensor], object]) -> ndarray:
    """Change values, and masters, in place; of an array without values, when it has some."""
    trace_checks.refuse_write(array)
    if deferred(array) is not None:
        change_when_drawn(array, how)
        return array
    with set_recording(False), torch.no_grad():
        for written in (array, *masters_of(array)):
            how(writable_buffer(written, "an initializer", "initialize outside"))
    return array


def _fill(array: ndarray, operator: Any, *numbers: float) -> bool:
    """Draw into the memory of an array, and return whether that could be done: not where masters
    would have more digits, nor where values have a history, which `update` drops.
    """
    plain = deferred(array) is None and array.node is None and is_float(array.dtype)
    if not plain or masters_of(array):
        return False
    trace_checks.refuse_write(array)
    with set_recording(False):
        return fill(operator, array, *map(float, numbers))


def _write(array: ndarray, values: Callable[[], Any], draws: bool = True) -> ndarray:
    """Overwrite an array, and its masters, by what a function returns, which draws one key or none;
    of an array without values say so, or, behind `empty_init`, give it these.
    """
    trace_checks.refuse_write(array)
    if deferred(array) is not None:
        defer(array, values, draws)
        draw_deferred([array])
        return array
    new = values()
    for written in (array, *masters_of(array)):
        written.update(new)
    return array


def __getattr__(name: str) -> Any:
    if name.endswith("_") and name[:-1] in __all__:
        raise UnknownName(
            f"meta.model.init has no {name!r}", hint=f"it is called meta.model.init.{name[:-1]}"
        )
    raise AttributeError(f"module 'meta.model.init' has no attribute {name!r}")
