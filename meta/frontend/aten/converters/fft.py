"""Fourier transforms, of which torch has three operators."""

from meta import op
from meta.base.dtype import PARTS
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible

# What a sum is divided by, as torch numbers it: nothing, the root of the number of elements, or
# their number; a transform and the inverse one call this by other names.
FORWARD = ("backward", "ortho", "forward")
INVERSE = ("forward", "ortho", "backward")


def transforms(x):
    if x.dtype not in ("float32", "float64", *PARTS):
        raise Unconvertible(f"there are no Fourier transforms of {x.dtype}", hint="float32")
    return x


@aten("_fft_c2c", op.fft_c2c)
def fft_c2c(x, *, dim, normalization, forward):
    if not dim:
        return x
    return op.fft_c2c(x, dim, not forward, (FORWARD if forward else INVERSE)[normalization])


@aten("_fft_r2c", op.fft_r2c, op.fft_c2c, op.complex, op.zeros_like)
def fft_r2c(x, *, dim, normalization, onesided):
    norm = FORWARD[normalization]
    if onesided:
        return op.fft_r2c(transforms(x), dim, norm)
    return op.fft_c2c(op.complex(transforms(x), op.zeros_like(x)), dim, False, norm)


@aten("_fft_c2r", op.fft_c2r)
def fft_c2r(x, *, dim, normalization, last_dim_size):
    return op.fft_c2r(transforms(x), dim, last_dim_size, INVERSE[normalization])
