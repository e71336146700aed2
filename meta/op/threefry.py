"""Random numbers from a splittable generator whose state is a tensor. Add an operator of it here.

`meta/runtime/threefry.py` is the generator and says what the ten words of a state are.
"""

from meta.op.core import DType, Ints, Tensor, TensorType, op
from meta.op.core.check import require
from meta.runtime.threefry import STATE_WORDS


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


@op
def bits_to_uniform(bits: Tensor, dtype: DType = "float32") -> Tensor:
    """Floats uniform on [0, 1), of random bits: multiples of 2**-23, or of 2**-52 in float64.

    bits: uint64 of any shape, as from `threefry_generate`; float32 is made of bits 9 to 31 of each,
    float64 of bits 12 to 63. Raises TypeInferError for other dtypes.
    """
    require(bits.dtype == "uint64", "bits must be uint64", expected="uint64", found=str(bits))
    fits = dtype in ("float32", "float64")
    require(fits, "no such uniform numbers", expected="float32 or float64", found=dtype)
    return bits.with_dtype(dtype)
