"""Gradients of indexing by several tensors."""

from typing import Any

from meta import op
from meta.grad.core import gradient


@gradient(op.adv_index)
def adv_index(inputs: Any, dy: Any) -> Any:
    """dx = dy added up by index; indices have none."""
    return (op.adv_index_dx(dy, inputs), *(None for _ in inputs[1:]))


@gradient(op.adv_index_dx)
def adv_index_dx(dy_: Any, inputs: Any) -> Any:
    """Linear in dy, and independent of the values of x."""
    indices = inputs[1:]
    return op.adv_index((dy_, *indices)), (op.zeros_like(dy_), *(None for _ in indices))
