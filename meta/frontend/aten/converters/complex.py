"""Complex numbers: their parts, conjugates, and how they are seen as pairs of real numbers."""

from meta import op
from meta.base.dtype import COMPLEX, has_gradient
from meta.frontend.aten.promotion import promoted
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible


@aten("real", op.real)
def real(x):
    return op.real(x) if x.dtype in COMPLEX else x


aten.same("imag", op.imag)


@aten("complex", op.complex)
def complex_(re, im):
    if "float16" in (re.dtype, im.dtype):
        raise Unconvertible("complex numbers of half precision are no dtype here")
    return op.complex(re, im)


@aten("polar", op.complex, op.cos, op.sin, op.multiply)
def polar(size, angle):
    return op.complex(op.multiply(size, op.cos(angle)), op.multiply(size, op.sin(angle)))


@aten("angle", op.angle, op.where, op.less, op.isnan)
def angle(x):
    """Of real numbers 0 or pi, and NaN of NaN."""
    if x.dtype in COMPLEX:
        return op.angle(x)
    (y,) = promoted(x, floating=True)
    turned = op.where(op.less(y, 0.0), op.full_like(y, 3.141592653589793), op.zeros_like(y))
    return op.where(op.isnan(y), y, turned) if has_gradient(x.dtype) else turned


CONJUGATES = ("conj", "_conj", "_conj_copy", "conj_physical", "_conj_physical")


@aten(*CONJUGATES, op.conj)
def conj(x):
    return op.conj(x) if x.dtype in COMPLEX else x


@aten("resolve_conj", "resolve_neg")
def resolved(x):
    """The tensor: here none is marked as the conjugate or negative of another."""
    return x


@aten("_neg_view", "_neg_view_copy", op.negative)
def neg_view(x):
    return op.negative(x)


@aten("view_as_real", "view_as_real_copy", op.real, op.imag, op.stack)
def view_as_real(x):
    return op.stack((op.real(x), op.imag(x)), -1)


@aten("view_as_complex", "view_as_complex_copy", op.complex, op.split, op.squeeze)
def view_as_complex(x):
    if x.dtype == "float16":
        raise Unconvertible("complex numbers of half precision are no dtype here")
    re, im = (op.squeeze(part, -1) for part in op.split(x, 2, -1))
    return op.complex(re, im)
