"""Random numbers and dropout.

Every draw is identified by a 63-bit key. Without one among its arguments a call takes a fresh key
from `meta.runtime.random.default` when it is launched, so `meta.random.seed` reproduces a run. The
``threefry_`` operators pass their state explicitly: `meta/runtime/philox.py` is the generator and
says what the ten words of a state are.
"""

from typing import Any

from meta.base import dtype as dtypes
from meta.base.errors import TypeInferError
from meta.base.registry import OPERATORS
from meta.op.core import DeviceName, DType, Ints, Scalar, Tensor, TensorType, op
from meta.op.core.axes import last
from meta.op.core.check import (
    extents_of,
    require,
    require_float,
    require_like,
    require_representable,
)
from meta.op.core.function import as_operand, function
from meta.runtime.philox import STATE_WORDS


def require_probability(p: float) -> None:
    """Raise TypeInferError for what is no probability of dropping."""
    require(0 <= p < 1, "p is not a probability of dropping", expected="0 <= p < 1", found=p)


def require_key(key: TensorType, name: str) -> None:
    """Raise TypeInferError for what is no key."""
    fits = key.dtype == "int64" and (not key.is_static or key.size == 1)
    require(fits, f"{name} is no key", expected="int64, one element", found=str(key))


@function
def dropout(x: Any, p: float = 0.5, training: bool = True) -> Any:
    """Zero elements with probability ``p`` and scale the others by 1 / (1 - p), as torch's.

    x: floating point; so is the result, of its shape. Every call, and every run of a program, draws
    other elements; `meta.random.seed` reproduces them. training: False returns ``x`` as it is, as
    p=0 does. Srivastava et al., "Dropout", JMLR 2014.

    Raises TypeInferError for a p outside [0, 1] and an x that is not floating point.

    >>> meta.dropout(meta.ones(4), 0.5).shape
    (4,)
    """
    x = as_operand(x)
    fits = isinstance(p, int | float) and not isinstance(p, bool) and 0 <= p <= 1
    for given, what, expected in (
        (fits, "p is not a probability of dropping", "0 <= p <= 1"),
        (isinstance(training, bool), "training does not fit", "a bool"),
        (dtypes.is_float(x.dtype), "x must be floating point", "float16 to float64"),
    ):
        if not given:
            found = f"x={x.dtype}{list(x.shape)}, p={p!r}, training={training!r}"
            raise TypeInferError(what, op="dropout", expected=expected, found=found)
    if p == 0 or not training:
        return x
    if p == 1:
        return OPERATORS["where"](OPERATORS["zeros_like"](x, "bool"), x, 0.0)
    return dropout_train(x, p)[0]


@op(random=True)
def dropout_train(
    x: Tensor, p: float = 0.5, in_states: Tensor | None = None
) -> tuple[TensorType, TensorType, TensorType]:
    """`dropout` that also returns what it keeps: ``y = mask ? x / (1 - p) : 0``.

    x: floating point. in_states: int64 tensor of one element, the key; the mask is a pure function
    of key, p and position, the same on every backend and device. None: a fresh key at every run.
    Element i (in row-major order) is kept if word i % 4 of Philox4x32-10(counter=i // 4, key) is at
    least p * 2**32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
    Results: y of x's type; mask, bool, of x's shape, True where kept; reserve_space, uint8[0], for
    libraries that return state of their own in it.

    Raises TypeInferError if p is outside [0, 1), x not floating point or in_states no key.
    """
    require_float(x, "x")
    require_probability(p)
    if in_states is not None:
        require_key(in_states, "in_states")
    return x, x.with_dtype("bool"), TensorType((0,), "uint8")


@op(axes=last(dy=0, mask=0))
def dropout_dx(dy: Tensor, mask: Tensor, reserve_space: Tensor, p: float = 0.5) -> Tensor:
    """Gradient of `dropout_train`: ``mask ? dy / (1 - p) : 0``.

    dy: gradient of y. mask, reserve_space: the forward call's further results. p: as there.
    Result: dy's type.
    """
    require_float(dy, "dy")
    require_probability(p)
    require_like(mask, dy.with_dtype("bool"), "mask does not fit")
    return dy


@op
def dropout_mask(key: Tensor, shape: tuple[int, ...], p: float = 0.5) -> Tensor:
    """The elements that `dropout_train` keeps of an array of ``shape``: bool, True where kept.

    key, p: its in_states and p. Of x and the mask, `dropout_dx` computes what
    `dropout_train` does, element by element.
    """
    require_probability(p)
    require_key(key, "key")
    require(all(n >= 0 for n in shape), "an extent is negative", found=shape)
    return TensorType(shape, "bool")


@op(random=True)
def random_key(device: DeviceName = "cpu") -> Tensor:
    """A fresh key, for calls that are to draw the same numbers: int64[1], on ``device``.

    The next key of `meta.runtime.random.default`, which a call without a key would take.
    """
    return TensorType((1,), "int64")


def _drawn(key: TensorType, shape: Ints, dtype: str, floating: bool = True) -> TensorType:
    drawn = TensorType(extents_of(shape), dtype)
    if key.shape[:1] != drawn.shape[:1] or key.dtype != "int64" or key.ndim != 1:
        require_key(key, "key")
    fits = dtypes.is_float(dtype) if floating else not dtypes.is_float(dtype) and dtype != "bool"
    kind = "floating point" if floating else "integers"
    require(fits, f"the numbers are {kind}", expected=kind, found=dtype)
    return drawn


@op
def random_uniform(
    key: Tensor, shape: Ints, low: Scalar = 0.0, high: Scalar = 1.0, dtype: DType = "float32"
) -> Tensor:
    """Numbers uniform on [low, high), a pure function of the key and the position.

    key: int64 tensor of one element, from `random_key`; or [n], one for each slice along the first
    axis, which is what that key alone gives. shape: extents of the result.
    Element i (in row-major order) is low + (high - low) * w / 2**24, where w are the upper 24 bits
    of word i % 4 of Philox4x32-10(counter=i // 4, key); in float64 it has 53 bits, of words 0 and 1
    or 2 and 3 of counter i // 2. What is rounded to ``high`` becomes ``low``.
    low <= high is assumed; where they are equal, all numbers are ``low``.

    Raises TypeInferError for another key, a negative extent or a dtype that is not floating point.
    """
    return _drawn(key, shape, dtype)


@op
def random_normal(
    key: Tensor, shape: Ints, mean: Scalar = 0.0, std: Scalar = 1.0, dtype: DType = "float32"
) -> Tensor:
    """Numbers of a normal distribution, a pure function of the key and the position.

    key, shape: as of `random_uniform`. Two neighbours are the cosine and the sine of Box and
    Muller, "A note on the generation of random normal deviates", 1958, of two words of
    Philox4x32-10, in float64 of four; half precision is computed in float32. Each step is rounded
    to nearest (`meta/runtime/variates.py`), so that all devices have the same bits.

    Raises TypeInferError as `random_uniform` does.
    """
    return _drawn(key, shape, dtype)


@op
def random_integers(
    key: Tensor, shape: Ints, low: int, last: int, dtype: DType = "int64"
) -> Tensor:
    """Integers uniform on [low, last], both included, a pure function of the key and the position.

    key, shape: as of `random_uniform`. Element i is low + floor(x * (last - low + 1) / 2**128),
    where the 128 bits of x are the four words of Philox4x32-10(counter=i, key), the lowest first.

    Raises TypeInferError for another key, a negative extent, last < low or a dtype that is not of
    integers, and NumberOutOfRange if the dtype has not both bounds.
    """
    found = _drawn(key, shape, dtype, floating=False)
    require(low <= last, "there is no integer to draw", expected="low <= last", found=(low, last))
    require_representable(dtype, low, "the first number")
    require_representable(dtype, last, "the last number")
    return found


def _check(key: TensorType) -> TensorType:
    """Return the type of a state; TypeInferError if ``key`` is none."""
    state = TensorType((STATE_WORDS,), "uint64")
    require(key == state, "key is no state of the generator", expected=state, found=key)
    return state


@op
def threefry_generate(key: Tensor, shape: Ints) -> tuple[Tensor, Tensor]:
    """Random numbers, uniform on all of uint64, and the state with which to draw the next ones.

    key: a state, uint64[10]; one that starts a sequence has a seed in words 0 to 3, 2**63 in word
    8, and 0 elsewhere. It is used for one call only: the same key gives the same numbers, on every
    dialect and device, which are those of Relay's operator of this name.
    shape: extents of the numbers; an int is one axis.
    Results: the next state, uint64[10]; the numbers, uint64 of ``shape``.
    Raises TypeInferError for another type of key or a negative extent. Threefry-4x64-20: Salmon et
    al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    extents = (shape,) if isinstance(shape, int) else shape
    require(all(e >= 0 for e in extents), "a shape has no negative extents", found=extents)
    return _check(key), TensorType(extents, "uint64")


@op
def threefry_split(key: Tensor) -> tuple[Tensor, Tensor]:
    """Two states that give independent sequences, in place of one, which is not used any more.

    key: a state, see `threefry_generate`. Results: uint64[10] each. TypeInferError as there.
    """
    return _check(key), _check(key)


@op(axes=last(bits=0))
def bits_to_uniform(bits: Tensor, dtype: DType = "float32") -> Tensor:
    """Floats uniform on [0, 1), of random bits: multiples of 2**-23, or of 2**-52 in float64.

    bits: uint64 of any shape, as from `threefry_generate`; float32 is made of bits 9 to 31 of each,
    float64 of bits 12 to 63. Raises TypeInferError for other dtypes.
    """
    require(bits.dtype == "uint64", "bits must be uint64", expected="uint64", found=str(bits))
    fits = dtype in ("float32", "float64")
    require(fits, "no such uniform numbers", expected="float32 or float64", found=dtype)
    return bits.with_dtype(dtype)
