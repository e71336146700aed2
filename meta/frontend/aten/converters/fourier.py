"""Complex numbers, their parts, angles and conjugates, and Fourier transforms, of which torch has
three operators. Numbers that are made of their parts are in `creation`.
"""

from math import pi

from meta import fft, op
from meta.base.dtype import COMPLEX, REAL_OF, has_gradient
from meta.frontend.aten.arguments import promote
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible


@aten("real", op.real)
def real(x):
    return op.real(x) if x.dtype in COMPLEX else x


aten.same("imag", op.imag)


@aten("angle", op.angle, op.where, op.less, op.isnan)
def angle(x):
    """Of real numbers 0 or pi, and NaN of NaN."""
    if x.dtype in COMPLEX:
        return op.angle(x)
    (y,) = promote(x, floating=True)
    turned = op.where(op.less(y, 0.0), op.full_like(y, pi), op.zeros_like(y))
    return op.where(op.isnan(y), y, turned) if has_gradient(x.dtype) else turned


CONJUGATES = ("conj", "_conj", "_conj_copy", "conj_physical", "_conj_physical")


@aten(*CONJUGATES, op.conj)
def conj(x):
    return op.conj(x) if x.dtype in COMPLEX else x


@aten("_neg_view", "_neg_view_copy", op.negative)
def neg_view(x):
    return op.negative(x)


# Transforms.

# What a sum is divided by, as torch numbers it: nothing, the root of the number of elements, or
# their number; a transform and the inverse one call this by other names.
FORWARD = ("backward", "ortho", "forward")
INVERSE = ("forward", "ortho", "backward")


def transforms(x):
    if x.dtype not in ("float32", "float64", *REAL_OF):
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


# What torch composes of them, where a program keeps it whole.


def float_or_complex(x):
    (x,) = promote(x, floating=True)
    return transforms(x)


def along_axis(transform):
    def converted(x, *, n, dim, norm):
        return transform(float_or_complex(x), n=n, axis=dim, norm=norm or "backward")

    return converted


def along_several(transform):
    def converted(x, *, s, dim, norm):
        x, axes = float_or_complex(x), (dim,) if isinstance(dim, int) else dim
        if s is not None:
            axes = tuple(range(-len(s), 0)) if axes is None else axes
            # -1 keeps an extent.
            pairs = zip(s, axes, strict=True)
            s = tuple(x.shape[a] if isinstance(n, int) and n == -1 else n for n, a in pairs)
        return transform(x, s=s, axes=axes, norm=norm or "backward")

    return converted


TRANSFORMS = (op.fft_c2c, op.fft_r2c, op.fft_c2r)
for _name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
    aten(f"fft_{_name}", *TRANSFORMS)(along_axis(getattr(fft, _name)))
for _name in ("fftn", "ifftn", "rfftn", "irfftn"):
    aten(f"fft_{_name}", *TRANSFORMS)(along_several(getattr(fft, _name)))
    aten(f"fft_{_name[:-1]}2", *TRANSFORMS)(along_several(getattr(fft, _name)))


@aten("fft_fftshift", op.roll)
def fftshift(x, *, dim):
    return fft.fftshift(x, axes=dim)


@aten("fft_ifftshift", op.roll)
def ifftshift(x, *, dim):
    return fft.ifftshift(x, axes=dim)
