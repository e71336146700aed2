"""Gradients of the operators that move elements between buffers and devices, in their order."""

from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.grad.core import gradient, not_differentiable
from meta.ir.types import TensorType
from meta.op.memory import fused_layout


@gradient(op.fuse_tensor)
def fuse_tensor(data: tuple[TensorType, ...], dy: Any) -> Any:
    """Every part of dy goes to the tensor it came from."""
    return op.defuse_tensor(dy, *fused_layout(data))


@gradient(op.defuse_tensor)
def defuse_tensor(dy: Any) -> Any:
    """dx = the gradients of the parts, one after the other."""
    return op.fuse_tensor(dy if isinstance(dy, tuple) else (dy,))


@gradient(op.device_copy)
def device_copy(dy: Any, src_device: str, dst_device: str) -> Any:
    """dx = dy, copied back."""
    return op.device_copy(dy, dst_device, src_device)


@gradient(op.optimization_barrier)
def optimization_barrier(after: Any, dy: Any) -> Any:
    """dx = dy; what is waited for has no influence."""
    return dy, tuple(op.zeros_like(t) if is_float(t.dtype) else None for t in after)


not_differentiable(op.assign, op.assign_at, why="it writes in place")
