"""Gradients of operators on lists of tensors; steps of optimizers have none."""

from typing import Any

from meta import op
from meta.grad.core import gradient, not_differentiable
from meta.ir.types import TensorType
from meta.op.core.update import OPTIMIZERS, SINGLE_STEPS

not_differentiable(
    *OPTIMIZERS, *SINGLE_STEPS, why="it updates in place what the gradient was taken of"
)
not_differentiable(op.multi_tensor_axpby, why="it writes in place")
not_differentiable(op.multi_tensor_increment, why="it counts")
not_differentiable(
    op.multi_tensor_norm, why="it measures gradients; sum(x * x) has a gradient", missing=True
)


@gradient(op.multi_tensor_cast)
def multi_tensor_cast(x: tuple[TensorType, ...], dy: Any) -> Any:
    """dx = dy, each in the dtype of its x."""
    return tuple(op.astype(d, t.dtype) for d, t in zip(dy, x, strict=True))
