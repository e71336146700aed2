"""A `torch.autograd.Function` in a module that is exported: it becomes a function with a derivative
of its own (`meta.passes.autodiff.custom_rule`).

torch.export has the operators of its forward only. So its forward is called, with a context of
ours, and what it computes goes through an operator, `RULE`, that stands for the backward. Where it
is converted, the backward is exported, as a module that takes gradients and what was saved.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import _SingleLevelFunction
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointFunction

from meta.base.bounded_cache import bounded_insert
from meta.base.dtype import FROM_TORCH, has_gradient
from meta.frontend.aten.definitions import define
from meta.frontend.aten.registry import AtenError

_MAX_CALLS = 4096


class _Context:
    """What forward and backward are given in place of torch's context."""

    def __init__(self, args: Sequence[Any]) -> None:
        self.needs_input_grad = tuple(isinstance(a, Tensor) and _is_float(a) for a in args)
        self.saved_tensors: tuple[Any, ...] = ()
        self.fixed: tuple[Tensor, ...] = ()
        self.materialize = True

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors

    save_for_forward = staticmethod(lambda *tensors: None)

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self.fixed = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize = value

    def mark_dirty(self, *_: Tensor) -> None:
        raise AtenError(
            "an autograd function writes to its input (mark_dirty), which is not imported",
            hint="let its forward return a new tensor",
        )


@dataclass(frozen=True)
class _Called:
    """A call of a function: what backward is given besides gradients and tensors that were saved.

    leaves, structure: what is in the context, but for tensors at these places. inputs: the places
    of the arguments that have a gradient, among ``count``. outputs: for each result, the number of
    its gradient, or the shape and dtype of one that has none, None for what is no tensor. models:
    what backward was imported as, by the types of what it takes.
    """

    function: type[Function]
    leaves: list[Any]
    places: tuple[int, ...]
    structure: pytree.TreeSpec
    count: int
    inputs: tuple[int, ...]
    outputs: tuple[Any, ...]
    models: dict[Any, Any] = field(default_factory=dict)


_CALLS: dict[int, _Called] = {}
_numbers = count()
RULE = define(
    "autograd_function(int number, Tensor[] xs, Tensor[] ys, Tensor[] kept) -> Tensor[]",
    lambda number, xs, ys, kept: [y.clone() for y in ys],
)


@contextlib.contextmanager
def imported_functions() -> Iterator[None]:
    """Let calls of functions in a block, in this thread, be exported with their backward. A
    checkpoint is what it computes.
    """
    own, thread = vars(Function)["apply"], threading.get_ident()
    outside = torch.is_grad_enabled()

    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread or (outside and not torch.is_grad_enabled()):
            return own.__func__(cls, *args, **kwargs)
        if issubclass(cls, CheckpointFunction):
            function, _, *inputs = args
            return function(*inputs)
        return _apply(cls, *args, **kwargs)

    Function.apply = classmethod(apply)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Function.apply = own  # type: ignore[method-assign]


def _apply(cls: type[Function], *args: Any) -> Any:
    """Return the results of a function, that go through `RULE` if they have a gradient."""
    context = _Context(args)
    if cls.setup_context is not _SingleLevelFunction.setup_context:
        found = cls.forward(*args)
        cls.setup_context(context, args, found)
    else:
        found = cls.forward(context, *args)
    results = list(found) if isinstance(found, tuple) else [found]
    outputs, moving = list[Any](), list[int]()
    for i, result in enumerate(results):
        if not isinstance(result, Tensor):
            outputs.append(None)
        elif _is_float(result) and not any(result is t for t in context.fixed):
            outputs.append(len(moving))
            moving.append(i)
        else:
            outputs.append((tuple(result.shape), result.dtype))
            results[i] = result.detach()
    inputs = tuple(i for i, needed in enumerate(context.needs_input_grad) if needed)
    if not inputs or not moving:
        return found
    context.fixed = ()
    leaves, structure = pytree.tree_flatten(vars(context))
    places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
    kept = [leaves[i] for i in places]
    held = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    called = _Called(cls, held, places, structure, len(args), inputs, tuple(outputs))
    number = next(_numbers)
    bounded_insert(_CALLS, number, called, _MAX_CALLS)
    made = RULE(number, [args[i] for i in inputs], [results[i] for i in moving], kept)
    for i, result in zip(moving, made, strict=True):
        results[i] = result
    return tuple(results) if isinstance(found, tuple) else results[0]


class Backward(torch.nn.Module):
    """The backward of a call, of the gradients of results and the tensors that were saved."""

    def __init__(self, number: int) -> None:
        super().__init__()
        if number not in _CALLS:
            raise AtenError(
                f"{_MAX_CALLS} calls of autograd functions were imported since this one",
                hint="import the module again",
            )
        self.called = _CALLS[number]

    def forward(self, *tensors: Tensor) -> list[Tensor | None]:
        """Return the gradients of the arguments that have one; None for zeros."""
        called, given = self.called, iter(tensors)
        context = _Context(())
        numbers = sum(isinstance(o, int) for o in called.outputs)
        dys = [next(given) for _ in range(numbers)]
        leaves = list(called.leaves)
        for place, tensor in zip(called.places, given, strict=True):
            leaves[place] = tensor
        vars(context).update(pytree.tree_unflatten(leaves, called.structure))
        of_results = [
            dys[o]
            if isinstance(o, int)
            else torch.zeros(o[0], dtype=o[1], device=dys[0].device)
            if o is not None and context.materialize
            else None
            for o in called.outputs
        ]
        found = _backward(called.function)(context, *of_results)
        gradients = tuple(found) if isinstance(found, tuple | list) else (found,)
        if len(gradients) < called.count or any(g is not None for g in gradients[called.count :]):
            raise AtenError(
                f"the backward of {called.function.__name__} returns the wrong number of gradients",
                expected=str(called.count),
                found=str(len(gradients)),
            )
        return [gradients[i] for i in called.inputs]


def _backward(cls: type[Function]) -> Callable[..., Any]:
    """Return the backward of a function, which may be differentiated again, whatever it says."""
    backward: Any = cls.vjp if cls.backward is Function.backward else cls.backward
    if backward.__code__.co_filename == torch.autograd.function.__file__:
        return backward.__wrapped__  # type: ignore[no-any-return]  # of once_differentiable
    return backward  # type: ignore[no-any-return]


def _is_float(tensor: Tensor) -> bool:
    return tensor.dtype in FROM_TORCH and has_gradient(FROM_TORCH[tensor.dtype])
