"""torch tensors as leaves of the tape: where one that requires a gradient enters, the tape has a
leaf whose gradient is torch's (`meta.grad.core.torch_autograd` is the way back).

A tensor of a transform of torch (`torch.func`, forward mode) has no memory of its own, or a tangent
beside it, of which no operator of `meta` would know: it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd import forward_ad

from meta.base.dtype import FROM_TORCH, has_gradient
from meta.base.errors import GradientError
from meta.runtime.no_gradient import is_recording

_transforms_active = torch._C._are_functorch_transforms_active
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_is_batch = torch._C._functorch.is_legacy_batchedtensor


class TorchLeaf:
    """What an array has in the place of a tape node that shares memory with a torch tensor which
    requires a gradient. It keeps the tensor.
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def backward(self, seed: Any, create_graph: bool) -> None:
        """Give the tensor its gradient."""
        backward_to_torch([(self.tensor, seed)], create_graph)


def backward_to_torch(gradients: Iterable[tuple[torch.Tensor, Any]], create_graph: bool) -> None:
    """Propagate the gradients of tensors that entered, as arrays, through torch's graph.

    That is kept, as the tape is: both may be gone through again.
    """
    pairs = list(gradients)
    if pairs:
        tensors, found = zip(*((t, g.torch()) for t, g in pairs), strict=True)
        torch.autograd.backward(tensors, found, retain_graph=True, create_graph=create_graph)


def torch_leaf(tensor: torch.Tensor) -> TorchLeaf | None:
    """Return what links an array to a tensor; None for one without a gradient, and where nothing is
    recorded.
    """
    if not tensor.requires_grad or not is_recording():
        return None
    dtype = FROM_TORCH.get(tensor.dtype)
    if dtype is not None and not has_gradient(dtype):
        raise GradientError(
            "a tensor of this dtype requires a gradient, and has none in meta",
            found=f"shape {tuple(tensor.shape)}, dtype {dtype}",
            hint="t.detach(); or t.to(torch.float32)",
        )
    return TorchLeaf(tensor)


def refuse_detach(tensor: torch.Tensor, what: str, hint: str) -> None:
    """Raise GradientError for a tensor that requires a gradient, of which ``what`` takes the values
    alone; nothing where nothing is recorded.
    """
    if tensor.requires_grad and is_recording():
        raise GradientError(
            f"{what} takes the values of a torch tensor that requires a gradient, which would end "
            "there",
            found=f"a tensor of shape {tuple(tensor.shape)}, dtype {tensor.dtype}",
            hint=hint,
        )


def detach_resolved(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without history whose memory holds its values: torch may negate or conjugate
    lazily.

    It shares memory with the given one where that can be. GradientError as `refuse_transform`.
    """
    refuse_transform(tensor)
    return tensor.detach().resolve_conj().resolve_neg()


def refuse_transform(tensor: torch.Tensor) -> None:
    """Raise GradientError for a tensor of a transform of torch."""
    if _transforms_active() and _is_wrapped(tensor):
        raise _transform_error("torch.func (grad, jacrev, jvp, hessian, vmap, ...)")
    if forward_ad._current_level >= 0 and _is_dual(tensor):
        raise _transform_error("torch.autograd.forward_ad")
    if _is_batch(tensor):
        raise _transform_error("torch.autograd (vectorize=True, is_grads_batched=True)")


def _is_dual(tensor: torch.Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def _transform_error(transform: str) -> GradientError:
    return GradientError(
        f"a tensor of a transform of {transform} is given to meta, which cannot follow it",
        hint="torch.autograd.grad and torch.autograd.functional go through meta, with create_graph="
        "True for higher orders; meta.grad.value_and_grad differentiates functions; a batch is an "
        "axis, which operators take. t.detach() is no way: it is a tensor of the transform, too",
    )
