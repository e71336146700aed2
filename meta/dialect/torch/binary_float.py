"""More elementwise operators of two operands on ATen, computed in float32 at least.

Every kernel fills the result given to it, which makes it compact whatever the operands' strides.
"""

import torch

from meta import op
from meta.dialect.torch import torch as dialect


def _tensors(dtype, *operands):
    """Return tensors of a dtype, half precision as float32."""
    wide = torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype
    device = next(x.device for x in operands if isinstance(x, torch.Tensor))
    return [torch.as_tensor(x, device=device).to(wide) for x in operands]


def _fill(function, x1, x2, out):
    out.copy_(function(*_tensors(out.dtype, x1, x2)))


@dialect.kernel(op.fmod)
def fmod(x1, x2, out):
    x1, x2 = _tensors(out.dtype, x1, x2)
    if out.is_floating_point():
        out.copy_(torch.fmod(x1, x2))
    else:  # by 0, and of the least integer by -1, processors trap
        trapped = (x2 == 0) | (x2 == (-1 if x2.dtype.is_signed else 0))
        out.copy_(torch.fmod(x1, x2.masked_fill(trapped, 1)))


@dialect.kernel(op.copysign)
def copysign(x1, x2, out):
    _fill(torch.copysign, x1, x2, out)


@dialect.kernel(op.hypot)
def hypot(x1, x2, out):
    _fill(torch.hypot, x1, x2, out)


@dialect.kernel(op.fmax)
def fmax(x1, x2, out):
    _fill(torch.fmax, x1, x2, out)


@dialect.kernel(op.fmin)
def fmin(x1, x2, out):
    _fill(torch.fmin, x1, x2, out)


@dialect.kernel(op.logaddexp)
def logaddexp(x1, x2, out):
    _fill(torch.logaddexp, x1, x2, out)


@dialect.kernel(op.logaddexp2)
def logaddexp2(x1, x2, out):
    _fill(torch.logaddexp2, x1, x2, out)


@dialect.kernel(op.heaviside)
def heaviside(x1, x2, out):
    _fill(torch.heaviside, x1, x2, out)


@dialect.kernel(op.ldexp)
def ldexp(x1, x2, out):
    _fill(lambda a, b: a * torch.exp2(b), x1, x2, out)


@dialect.kernel(op.isclose)
def isclose(x1, x2, rtol, atol, equal_nan, out):
    own = next(x.dtype for x in (x1, x2) if isinstance(x, torch.Tensor))
    a, b = _tensors(own if own.is_floating_point else torch.float64, x1, x2)
    distance = (a - b).abs()  # `torch.isclose` refuses tolerances below 0 and NaN
    near = (distance <= atol + rtol * b.abs()) & (distance < torch.inf)
    both_nan = a.isnan() & b.isnan() if equal_nan else near
    torch.logical_or((a == b) | near, both_nan, out=out)


@dialect.kernel(op.nextafter)
def nextafter(x1, x2, out):
    torch.nextafter(x1, x2, out=out)  # in the dtype itself, whose numbers are counted
