"""A training graph as one function of autograd, called without AOTAutograd's wrapper.

That wrapper is for graphs of all kinds, which write to inputs, return views of them, or take
subclasses of tensors. To look for that at each call takes as long as the kernels of a small step;
what a graph that does nothing of it needs is done here. What else is asked for at a call goes to
the wrapper: there are hooks on saved tensors, transforms of functorch's, compiled autograd, or the
gradient's graph is not compiled yet, as at the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._dynamo import compiled_autograd, disable
from torch.autograd import Function
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from meta.frontend.dynamo.calling_convention import picker
from meta.frontend.dynamo.saved_tensors import hooks, is_traced_again, unreadable_token_error

if TYPE_CHECKING:
    from meta.frontend.dynamo.compiler import GraphCompiler

Wrapper = Callable[..., Any]
_transforms = torch._C._are_functorch_transforms_active
_in_transform = torch._C._functorch.peek_interpreter_stack
NON_ALIAS_KINDS = ("non_alias", "unsafe_view_alias")
"""Kinds of outputs that are no views of what others have."""
_MUST_BE_EMPTY = (
    "dynamic_outputs",
    "indices_of_inputs_that_requires_grad_with_mutations_in_bw",
    "is_rng_op_functionalized",
    "num_backward_tokens",
    "num_graphsafe_rng_states",
    "num_intermediate_bases",
    "num_mutated_inp_runtime_indices",
    "num_opaque_objects_saved_for_bw",
    "num_outputs_aliased",
    "num_symints_saved_for_bw",
    "num_tensors_saved_with_no_vc_check",
    "tokens",
)
"""What AOTAutograd says of a graph that its wrapper has work with, unless it is 0 or empty."""


class TrainingGraph:
    """A graph of Dynamo's that is differentiated: what is called for it.

    Parameters
    ----------
    wrapper: AOTAutograd's. graphs: the forward graph, and its gradient's when it is compiled, by
    their roles. given: what it was compiled for.
    """

    def __init__(
        self, wrapper: Wrapper, graphs: Mapping[str, GraphCompiler], given: Sequence[Any]
    ) -> None:
        self._wrapper, self._graphs = wrapper, graphs
        self._without_autocast = torch._C._is_any_autocast_enabled()
        self._plain = all(map(_is_plain, given)) and not is_traced_again()
        self._count = len(given)
        self._apply: Callable[..., Any] | None = None
        self._written: Callable[[Sequence[Any]], Sequence[Tensor]] | None = None

    def __call__(self, *args: Any) -> Any:
        if self._plain and "backward" in self._graphs:
            self._look()
        apply = self._apply
        if (
            apply is None
            or hooks() is not None
            or _transforms()
            or compiled_autograd.compiled_autograd_enabled
        ):
            return self._wrapper(*args)
        if self._written is not None:
            increment_version(self._written(args))
        return apply(*args)

    def _look(self) -> None:
        """Find out whether the graph is one that needs no wrapper."""
        self._plain = False  # it is looked at once
        forward, backward = self._graphs["forward"], self._graphs["backward"]
        said = forward.metadata
        if said is None or not _is_simple(said, forward, backward, self._count):
            return
        function = _function(forward, backward, said, self._without_autocast)
        written = said.mutated_graph_handled_indices_seen_by_autograd
        self._written = picker(written) if written else None
        # What `Function.apply` does besides is for transforms.
        self._apply = super(Function, function).apply  # type: ignore[misc]


def _is_plain(value: Any) -> bool:
    """Whether an input is a tensor of no subclass."""
    if type(value) not in (Tensor, torch.nn.Parameter):
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(value)


def _is_simple(said: Any, forward: GraphCompiler, backward: GraphCompiler, count: int) -> bool:
    """Whether AOTAutograd's wrapper does nothing but what is done here."""
    if said.grad_enabled_mutation is not None or any(getattr(said, n) for n in _MUST_BE_EMPTY):
        return False
    metas = (said.subclass_inp_meta, said.subclass_fw_graph_out_meta, said.subclass_tangent_meta)
    if any(type(m).__name__ == "SubclassCreationMeta" for part in metas for m in part):
        return False
    kinds = [(output.output_type.name, output.raw_type) for output in said.output_info]
    if not all(name in NON_ALIAS_KINDS and issubclass(kind, Tensor) for name, kind in kinds):
        return False
    if not count == len(said.input_info) == len(forward.inputs) == len(backward.given):
        return False
    # The wrapper detaches these, so that nothing behind them is differentiated.
    infos = zip(backward.given, said.input_info, strict=True)
    if any(info.requires_grad and not info.is_leaf and not given for given, info in infos):
        return False
    saved: int = len(forward.given) - said.num_forward_returns
    return len(backward.inputs) - saved == len(_tangents(said))


def _tangents(said: Any) -> list[int]:
    """Return the numbers of the outputs for which the gradient's graph takes one."""
    return [
        i
        for i, output in enumerate(said.output_info)
        if getattr(output, "requires_grad_for_backward", output.requires_grad)
    ]


def _function(
    forward: GraphCompiler, backward: GraphCompiler, said: Any, without_autocast: bool
) -> type[Function]:
    """Return a graph and its gradient's as a function of autograd's."""
    returned = said.num_forward_returns
    constant = tuple(i for i, o in enumerate(said.output_info) if not o.requires_grad)
    places = _tangents(said)
    tangents = picker(places)
    strides = [t.stride() for t in backward.inputs[len(backward.inputs) - len(places) :]]
    undetermined = said.deterministic is not None and not said.deterministic
    autocast: Any = torch._C._DisableAutocast if without_autocast else nullcontext

    def run(args: list[Any]) -> tuple[Any, ...]:
        with autocast():
            return tuple(backward(args))

    class TrainingFunction(Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            with autocast():
                found = forward(list(args))
            # A view that autograd keeps would keep what it is a view of.
            ctx.save_for_backward(*[t.detach() if t._is_view() else t for t in found[returned:]])
            results = list(found[:returned])
            if constant:
                ctx.mark_non_differentiable(*[results[i] for i in constant])
            ctx._materialize_non_diff_grads = False
            return tuple(results)

        @staticmethod
        @partial(disable, reason="do not trace a gradient's program")
        def backward(ctx: Any, *gradients: Any) -> Any:
            if _in_transform() is not None:
                raise RuntimeError(
                    "a compiled gradient is called within a transform of functorch's (vmap, grad, "
                    "vjp), which is not supported; transform what is compiled instead"
                )
            if undetermined and torch.are_deterministic_algorithms_enabled():
                raise RuntimeError(
                    "a gradient is called with torch.use_deterministic_algorithms(True), and its "
                    "forward pass was compiled without"
                )
            args = list(ctx.saved_tensors)
            for tangent, stride in zip(tangents(gradients), strides, strict=True):
                args.append(_with_traced_strides(tangent, stride))
            ctx.maybe_clear_saved_tensors()
            call = partial(run, args)
            if torch._C._is_key_in_tls("context"):  # the caller's; this may be a thread of torch's
                context = torch._C._get_obj_in_tls("context")
                if context is not None:
                    call = partial(context.run, call)
            return call()

        @staticmethod
        def _compiled_autograd_key(ctx: Any) -> Any:
            raise unreadable_token_error()

    return TrainingFunction


def _with_traced_strides(tangent: Tensor, stride: tuple[int, ...]) -> Tensor:
    """Return a gradient of an output as it lay when its graph was traced."""
    if type(tangent) is not Tensor and is_traceable_wrapper_subclass(tangent):
        raise RuntimeError(
            f"a gradient was compiled for a plain tensor, and is given a {type(tangent).__name__}"
        )
    if tangent.stride() == stride:
        return tangent
    laid = torch.empty_strided(tangent.shape, stride, dtype=tangent.dtype, device=tangent.device)
    return laid.copy_(tangent)
