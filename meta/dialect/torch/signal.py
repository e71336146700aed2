"""Transforms of signals on ATen, which calls MKL, pocketfft or cuFFT."""

import torch

from meta import op
from meta.dialect import LIBRARY
from meta.dialect.torch import torch as dialect


@dialect.kernel(op.dft, plevel=LIBRARY)
def dft(re, im, inverse):
    if re.numel() == 0:
        return re.clone(), im.clone()  # MKL refuses to transform nothing
    transform = torch.fft.ifft if inverse else torch.fft.fft
    y = torch.view_as_real(transform(torch.complex(re, im)))
    return y[..., 0].contiguous(), y[..., 1].contiguous()
