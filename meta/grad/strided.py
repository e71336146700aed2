"""Gradients of the operators that write into slices."""

from typing import Any

from meta import op
from meta.grad.core import gradient


@gradient(op.strided_set)
def strided_set(dy: Any, begin: Any, end: Any, strides: Any) -> Any:
    """dv = the slice of dy; ddata = dy with 0 there."""
    dv = op.strided_slice(dy, begin, end, strides)
    return op.strided_set(dy, op.zeros_like(dv), begin, end, strides), dv
