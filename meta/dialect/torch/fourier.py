"""Complex numbers and Fourier transforms on ATen, which calls MKL, pocketfft or cuFFT."""

import torch

from meta import op
from meta.base.dtype import TO_TORCH
from meta.dialect.core import LIBRARY
from meta.dialect.torch import torch as dialect


@dialect.kernel(op.complex, plevel=LIBRARY)
def complex(real, imag, out):
    parts = torch.view_as_real(out)
    parts[..., 0].copy_(real)
    parts[..., 1].copy_(imag)


@dialect.kernel(op.real, plevel=LIBRARY)
def real(x, out):
    out.copy_(x.real)


@dialect.kernel(op.imag, plevel=LIBRARY)
def imag(x, out):
    out.copy_(x.imag)


@dialect.kernel(op.angle, plevel=LIBRARY)
def angle(x, out):
    torch.angle(x, out=out)


@dialect.kernel(op.conj, plevel=LIBRARY)
def conj(x, out):
    torch.conj_physical(x, out=out)


def _axes(axes):
    return (axes,) if isinstance(axes, int) else axes


@dialect.kernel(op.fft_c2c, plevel=LIBRARY)
def fft_c2c(x, axes, inverse, norm):
    if not x.numel():  # of which libraries have no plan
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    transform = torch.fft.ifftn if inverse else torch.fft.fftn
    return _own(transform(x, dim=_axes(axes), norm=norm), x)


@dialect.kernel(op.fft_r2c, plevel=LIBRARY)
def fft_r2c(x, axes, norm, call):
    if not x.numel():
        return torch.empty(call.out.shape, dtype=TO_TORCH[call.out.dtype], device=x.device)
    return torch.fft.rfftn(x, dim=_axes(axes), norm=norm).contiguous()


@dialect.kernel(op.fft_c2r, plevel=LIBRARY)
def fft_c2r(x, axes, n, norm, call):
    axes = _axes(axes)
    if not x.numel():
        return torch.empty(call.out.shape, dtype=TO_TORCH[call.out.dtype], device=x.device)
    # The libraries differ in what they make of imaginary parts that have to be 0.
    for axis in axes[:-1]:
        x = torch.fft.ifft(x, dim=axis, norm=norm)
    ends = [0, n // 2] if n % 2 == 0 else [0]
    x = x.clone()
    x.imag.index_fill_(axes[-1], torch.tensor(ends, device=x.device), 0)
    return torch.fft.irfft(x, n, dim=axes[-1], norm=norm).contiguous()


def _own(y, x):
    """Return a result in compact memory of its own."""
    shares = y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    return y.clone(memory_format=torch.contiguous_format) if shares else y.contiguous()
