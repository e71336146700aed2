"""Where an array leaves the tape for torch: `ndarray.torch` of one that was recorded is a tensor
with history, whose backward pass runs the tape.

Torch sees one step from the tensors that entered (`meta.runtime.torch_leaf`), on which the array
depends, to this tensor. Of arrays of ours that require a gradient it knows nothing: a tensor
without elements, the anchor, stands for them. They get their gradients where torch would give that
its own, so `torch.autograd.grad`, which asks for others, leaves them alone.
"""

from __future__ import annotations

from contextvars import copy_context
from functools import partial
from typing import Any

import torch
from torch._C._autograd import _get_current_graph_task_keep_graph as keeps_graph

from meta.base.call_context import use
from meta.base.errors import GradientError
from meta.base.registry import OPERATORS
from meta.grad.core.functional import GradientAccumulator
from meta.grad.core.tape import (
    Edge,
    accumulate_grad,
    own_memory,
    propagate,
    source_id,
    source_of,
    sources_of,
)
from meta.runtime.array_export import ArrayExport
from meta.runtime.ndarray import array, as_array, ndarray
from meta.runtime.no_gradient import ClosureConstant, NoGradient, is_recording, set_recording
from meta.runtime.torch_leaf import TorchLeaf


class ArrayOfMeta(torch.autograd.Function):
    """The step of torch's graph that is a part of the tape; torch's messages have its name.

    ``left_at``: the source of the array. ``ends``: the tensors and arrays that it leads to.
    ``context``: the preferences of the call, as torch's threads for CUDA know nothing of them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        left: ndarray,
        leaves: list[ndarray | ClosureConstant],
        anchor: torch.Tensor,
        *tensors: torch.Tensor,
    ) -> torch.Tensor:
        ctx.left_at, ctx.ends = source_of(left), ([TorchLeaf(t) for t in tensors], leaves)
        ctx.context = copy_context()
        ctx.save_for_backward(anchor)
        # A view, which torch lets nobody write to while it records.
        return left.tensor.view_as(left.tensor)

    @staticmethod
    def backward(ctx: Any, *dys: torch.Tensor) -> Any:
        _ = ctx.saved_tensors  # an error of torch's where its graph was freed
        start, (entered, leaves) = ctx.left_at, ctx.ends
        if not keeps_graph():
            ctx.left_at, ctx.ends = None, ((), ())
        asked = leaves if _needs_gradient(ctx.next_functions[0][0]) else []
        run = partial(_run_tape, start, dys[0], entered, leaves, asked, torch.is_grad_enabled())
        return None, None, None, *ctx.context.copy().run(run)


def _needs_gradient(anchor: Any) -> bool:
    """Whether the backward pass that is under way gives a leaf of torch its gradient."""
    try:
        return torch._C._will_engine_execute_node(anchor)
    except RuntimeError:  # there is no answer in torch.autograd.grad, which names what it is for
        return False


def _run_tape(
    start: Any,
    dy: torch.Tensor,
    entered: list[TorchLeaf],
    leaves: list[ndarray | ClosureConstant],
    asked: list[ndarray | ClosureConstant],
    linked: bool,
) -> list[torch.Tensor | None]:
    """Return the gradients of the tensors that a source leads to; add to those of the leaves that
    are asked for.
    """
    sums = GradientAccumulator([*entered, *leaves])
    given: set[int] = set()
    with set_recording(linked), use(None):
        begin = as_array(dy)
        # Its memory is torch's, and may come back as a gradient.
        seed = OPERATORS["copy"](begin) if begin.tracked else array(begin)

        def accumulate(source: Any, gradient: ndarray) -> None:
            if source_id(source) not in sums.wanted:
                raise GradientError(
                    "a torch tensor that requires a gradient was computed inside of a "
                    "checkpointed block, whose second run computes another one",
                    hint="compute it with operators of meta, or before the block; or call "
                    "backward() of the array",
                )
            sums.add(source, gradient)

        propagate([(start, seed)], accumulate)
        for leaf in asked:
            gradient = sums.gradient(leaf)
            if gradient is not None:
                accumulate_grad(leaf, gradient, given)
        gradients = map(sums.gradient, entered)
        return [None if g is None else own_memory(g, given).torch() for g in gradients]


def to_torch(left: ndarray) -> torch.Tensor:
    """Return the buffer of an array as a tensor that shares memory, with the history of the array.

    Raises GradientError where torch could record no history: for memory of `torch.inference_mode`,
    and in a transform of `torch.func`.
    """
    start = source_of(left)
    if start is None or not is_recording():
        return left.tensor
    if torch.is_inference_mode_enabled() or left.tensor.is_inference():
        raise _no_history_error(left, "torch.inference_mode", "meta.array(x) outside of it")
    if torch._C._are_functorch_transforms_active():
        raise _no_history_error(left, "a transform of torch.func", "torch.autograd.grad")
    ends = {
        source_id(s): s for s in sources_of(start) if not isinstance(s, Edge | NoGradient)
    }.values()
    result: torch.Tensor = ArrayOfMeta.apply(
        left,
        [s for s in ends if not isinstance(s, TorchLeaf)],
        torch.zeros(0, device=left.tensor.device, requires_grad=True),
        *(s.tensor for s in ends if isinstance(s, TorchLeaf)),
    )
    return result


def _no_history_error(left: ndarray, where: str, other: str) -> GradientError:
    return GradientError(
        f"an array that requires a gradient leaves for torch, and {where} records no history",
        found=f"an array of shape {left.shape}",
        hint=f"x.detach().torch() for the values alone; or {other}",
    )


ArrayExport.to_torch = staticmethod(to_torch)
