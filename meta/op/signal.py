"""Transforms of signals. Add one here; its file in `grad` and in each dialect has the same name.

There is no complex dtype: a complex tensor is two, its real and its imaginary part.
"""

from meta.op.core import Tensor, op
from meta.op.core.check import require
from meta.op.core.same_dtype import require_same_dtype


@op
def dft(re: Tensor, im: Tensor, inverse: bool = False) -> tuple[Tensor, Tensor]:
    """The discrete Fourier transform along the last axis: (real part, imaginary part) of
    ``y[j] = sum(x[k] * exp(-2i * pi * j * k / n))`` for x = re + i * im of n elements.

    inverse: with a positive exponent, and divided by n; so it undoes the other one.
    re, im: float32 or float64 of one shape with a last axis that is not empty; so are the results.
    Raises TypeInferError for other types.
    """
    require(re.dtype in ("float32", "float64"), "re must be float32 or float64", found=str(re))
    require_same_dtype(re, im)
    require(re.shape == im.shape, "re and im differ in shape", found=f"{re} and {im}")
    require(re.ndim >= 1 and re.shape[-1] != 0, "re has no last axis to transform", found=str(re))
    return re, im
