"""Special functions and the Fourier transform on ATen.

Where generated code calls the C library for each element and ATen is vectorised, it is LIBRARY: for
a million float32 on one core erfc takes 2.6 ms instead of 22, ndtr 1.9 instead of 26, exp2 0.6
instead of 8, digamma 23 instead of 55. The others are slower than generated code, or no faster.
"""

import math

import torch

from meta import op
from meta.dialect.core import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.aten_calls import functions_of
from meta.dialect.torch.operands import all_rounded_once, of_binary, of_unary, rounded_once

of_unary(functions_of(op.erf))
all_rounded_once(functions_of(op.erfinv, op.lgamma, op.sinc, op.entr, op.logit))
all_rounded_once(functions_of(op.i0, op.i0e, op.i1, op.i1e))
all_rounded_once(functions_of(op.erfc, op.digamma, op.ndtr), plevel=LIBRARY)
of_binary(functions_of(op.xlogy, op.xlog1py))


@rounded_once(op.erf_dx)
def erf_dx(x, y, dy):
    return dy * torch.exp(-x * x) * (2 / math.sqrt(math.pi))


@rounded_once(op.trigamma)
def trigamma(x):
    # Hurwitz' zeta function has all digits, of which ATen's own trigamma has half.
    of_positive = torch.special.zeta(2, torch.where(x < 0, 1 - x, x))
    mirrored = (torch.pi / torch.sin(torch.pi * (x - x.trunc()))) ** 2 - of_positive
    found = torch.where(x < 0, mirrored, of_positive)
    return found.masked_fill(x == torch.inf, 0)  # zeta has NaN there


@dialect.kernel(op.dft, plevel=LIBRARY)
def dft(re, im, inverse):
    if re.numel() == 0:
        return re.clone(), im.clone()  # MKL refuses to transform nothing
    transform = torch.fft.ifft if inverse else torch.fft.fft
    y = torch.view_as_real(transform(torch.complex(re, im)))
    return y[..., 0].contiguous(), y[..., 1].contiguous()
