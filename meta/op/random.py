"""Operators that draw random numbers. Add one here, with ``@op(random=True)``.

Every draw is identified by a 63-bit key. Without one among its arguments a call takes a fresh key
from `meta.runtime.random.default` when it is launched, so `meta.random.seed` reproduces a run.
"""

from meta.op.core import DeviceName, Tensor, TensorType, op
from meta.op.core.check import require, require_float


def _probability(p: float) -> None:
    require(0 <= p < 1, "p is not a probability of dropping", expected="0 <= p < 1", found=p)


@op(random=True)
def _contrib_dropout(
    x: Tensor, p: float = 0.5, in_states: Tensor | None = None
) -> tuple[TensorType, TensorType, TensorType]:
    """Zero elements with probability ``p`` and scale the others: ``y = mask ? x / (1 - p) : 0``.

    x: floating point. in_states: int64 tensor of one element, the key; the mask is a pure function
    of key, p and position, the same on every backend and device. None: a fresh key at every run.
    Element i (in row-major order) is kept if word i % 4 of Philox4x32-10(counter=i // 4, key) is at
    least p * 2**32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
    Results: y of x's type; mask, bool, of x's shape, True where kept; reserve_space, uint8[0], for
    libraries that return state of their own in it.

    Raises TypeInferError if p is outside [0, 1), x not floating point or in_states no key.
    """
    require_float(x, "x")
    _probability(p)
    if in_states is not None:
        fits = in_states.dtype == "int64" and (not in_states.is_static or in_states.size == 1)
        require(fits, "in_states is no key", expected="int64, one element", found=str(in_states))
    return x, x.with_dtype("bool"), TensorType((0,), "uint8")


@op
def _contrib_dropout_dx(dy: Tensor, mask: Tensor, reserve_space: Tensor, p: float = 0.5) -> Tensor:
    """Gradient of `_contrib_dropout`: ``mask ? dy / (1 - p) : 0``.

    dy: gradient of y. mask, reserve_space: the forward call's further results. p: as there.
    Result: dy's type.
    """
    require_float(dy, "dy")
    _probability(p)
    expected = dy.with_dtype("bool")
    fits = mask == expected or not (mask.is_static and dy.is_static)
    require(fits, "mask does not fit", expected=expected, found=str(mask))
    return dy


@op
def dropout_mask(key: Tensor, shape: tuple[int, ...], p: float = 0.5) -> Tensor:
    """The elements that `_contrib_dropout` keeps of an array of ``shape``: bool, True where kept.

    key, p: its in_states and p. Of x and the mask, `_contrib_dropout_dx` computes what
    `_contrib_dropout` does, element by element.
    """
    _probability(p)
    fits = key.dtype == "int64" and (not key.is_static or key.size == 1)
    require(fits, "key is no key", expected="int64, one element", found=str(key))
    require(all(n >= 0 for n in shape), "an extent is negative", found=shape)
    return TensorType(shape, "bool")


@op(random=True)
def random_key(device: DeviceName = "cpu") -> Tensor:
    """A fresh key, for calls that are to draw the same numbers: int64[1], on ``device``.

    The next key of `meta.runtime.random.default`, which a call without a key would take.
    """
    return TensorType((1,), "int64")
