"""What a forward graph keeps for its gradient, as one value.

Autograd takes a microsecond or two for each tensor that is kept. So the graphs that AOTAutograd
gets from the partitioner keep one tensor, a *token*, that stands for all that only the gradient
reads, and owns it: when autograd lets go of the token, they are free. While there are hooks on
saved tensors, which may copy the token or make it anew, it is one tensor of all bytes. What a user
may write, inputs and results, is kept by itself, as autograd looks whether it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, fx
from torch._dynamo import compiled_autograd
from torch._guards import detect_fake_mode
from torch.fx.experimental.symbolic_shapes import has_free_symbols

from meta.base.device import Device
from meta.base.errors import ArgumentError
from meta.frontend.core.memory_order import inverse, order_of
from meta.frontend.dynamo.fx_nodes import fake_value, is_tensor, storage_of
from meta.frontend.dynamo.outputs import View
from meta.vm.run.workspace import storage_uses

if TYPE_CHECKING:
    from meta.frontend.dynamo.training_memory import TrainingMemory

_ALIGNED = 16
_OPENED = "saved tensors"
"""What a graph has in its ``meta`` when it was opened, which may be compiled once more."""


@fx.has_side_effect
def token_of(values: Sequence[Tensor]) -> Tensor:
    """Stand in a forward graph for what makes a token of all values; nobody calls it."""
    raise unreadable_token_error()


@fx.has_side_effect  # a value that nobody needs keeps its number
def member_of(token: Tensor, number: int) -> Tensor:
    """Stand in a gradient's graph for a value of a token; nobody calls it."""
    raise unreadable_token_error()


def unreadable_token_error() -> ArgumentError:
    """Return the error for one who looks into what a model keeps, as compiled autograd does."""
    return ArgumentError(
        "a gradient, and what a model keeps for it, are what only the backend 'meta' knows",
        hint="torch's compiled autograd has to be on when the model is first called",
    )


def hooks() -> Any:
    """Return the hooks on saved tensors that are in force; None if there are none."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def bundle_saved_tensors(
    forward: fx.GraphModule, backward: fx.GraphModule, returned: int, device: Device
) -> None:
    """Let a forward graph return a token behind its first ``returned`` outputs, for what it keeps
    on a device, and its gradient's graph take that. Graphs with symbolic sizes stay as they are,
    and so do those into which hooks or torch's compiled autograd will look.
    """
    last = next(iter(forward.graph.find_nodes(op="output")))
    outputs: list[Any] = list(cast(Any, last.args[0]))
    saved, places = outputs[returned:], backward.graph.find_nodes(op="placeholder")
    inputs = forward.graph.find_nodes(op="placeholder")
    others = {storage_of(n) for n in (*inputs, *outputs[:returned])}
    values = [fake_value(n) for n in (*outputs, *places) if isinstance(n, fx.Node)]
    if not all(map(is_tensor, saved)) or any(map(has_free_symbols, values)):
        return
    kept = [n for n in saved if _is_plain(n, device) and storage_of(n) not in others]
    rest = [n for n in saved if n not in kept]
    if not kept or any(n.meta.get("saved_tensor_with_no_vc_check") for n in rest):
        return
    if hooks() is not None or is_traced_again():
        return
    with detect_fake_mode([n.meta["val"] for n in kept]) or nullcontext():
        said = torch.empty(1, dtype=torch.uint8)
    with forward.graph.inserting_before(last):
        token = forward.graph.call_function(token_of, (tuple(kept),))
    token.meta["val"] = said
    last.args = ((*outputs[:returned], *rest, token),)
    by_name = {n.name: n for n in places}
    with backward.graph.inserting_after(places[len(saved) - 1]):
        place = backward.graph.placeholder("kept")
    place.meta["val"] = said
    first = next(n for n in backward.graph.nodes if n.op != "placeholder")
    with backward.graph.inserting_before(first):
        for i, node in enumerate(kept):
            value = backward.graph.call_function(member_of, (place, i))
            value.meta = dict(by_name[node.name].meta)
            by_name[node.name].replace_all_uses_with(value)
            backward.graph.erase_node(by_name[node.name])
    for graph in (forward, backward):
        graph.recompile()


def is_traced_again() -> bool:
    """Whether torch's compiled autograd will look into gradients."""
    asked = torch._dynamo.config.compiled_autograd
    return bool(asked or compiled_autograd.compiled_autograd_enabled)


def _is_plain(node: fx.Node, device: Device) -> bool:
    """Whether a tensor is on a device, and its bytes are all of it."""
    said = node.meta["val"]
    plain = said.layout is torch.strided and not said.is_conj() and not said.is_neg()
    return plain and str(said.device) == str(device)


def open_forward(module: fx.GraphModule) -> SavedTensors | None:
    """Let a forward graph return what its token stands for, behind its other outputs; return what
    that is, None for a graph without a token.
    """
    for token in module.graph.find_nodes(op="call_function", target=token_of):
        (last,) = module.graph.find_nodes(op="output")
        outputs, kept = list(last.args[0])[:-1], list(cast(Any, token.args[0]))
        last.args = ((*outputs, *kept),)
        module.graph.erase_node(token)
        module.meta[_OPENED] = SavedTensors(len(outputs), [n.meta["val"] for n in kept])
    return module.meta.get(_OPENED)


def open_backward(module: fx.GraphModule) -> SavedTensors | None:
    """Let a gradient's graph take what its token stands for, in the token's place; return what that
    is, None for a graph without a token.
    """
    members = module.graph.find_nodes(op="call_function", target=member_of)
    if members:
        members.sort(key=lambda n: cast(int, n.args[1]))
        token: Any = members[0].args[0]
        first = module.graph.find_nodes(op="placeholder").index(token)
        module.meta[_OPENED] = SavedTensors(first, [n.meta["val"] for n in members])
        for node in members:
            with module.graph.inserting_before(token):
                place = module.graph.placeholder(node.name)
            place.meta = dict(node.meta)
            node.replace_all_uses_with(place)
            module.graph.erase_node(node)
        module.graph.erase_node(token)
    return module.meta.get(_OPENED)


@dataclass(frozen=True)
class _Lies:
    """How a tensor that is kept lies in memory: a program has it compact, its axes in an order."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class Bundle:
    """What a call of a forward graph keeps: tensors as programs have them.

    Attributes
    ----------
    memory: what they lie in at ``offsets``, by their numbers, but for ``moving``, which have memory
    of their own in each call; None if all have.
    """

    __slots__ = ("memory", "moving", "offsets", "values")

    def __init__(self, values: list[Tensor], memory: TrainingMemory | None = None) -> None:
        self.values, self.memory = values, memory
        self.offsets: dict[int, int] = {}
        self.moving: list[int] = []


class _Memory(np.ndarray[Any, np.dtype[np.uint8]]):
    """The memory of a token, which lives as long as that, and keeps a bundle so long."""

    bundle: Bundle


_alive: WeakValueDictionary[int, _Memory] = WeakValueDictionary()


def _token(bundle: Bundle) -> Tensor:
    """Return a tensor that owns a bundle."""
    own = np.empty(1, np.uint8).view(_Memory)
    own.bundle = bundle
    token = torch.from_numpy(own)
    _alive[token.data_ptr()] = own
    return token


class LastingToken:
    """A token of a bundle that one call after the other fills, given out as a tensor of its own."""

    def __init__(self, bundle: Bundle) -> None:
        self._token = _token(bundle)
        self._memory = self._token.untyped_storage()._cdata
        self._own = storage_uses(self._memory)

    def given(self) -> Tensor:
        """Return the token as a tensor that was not there before."""
        return self._token.data

    def is_out(self) -> bool:
        """Whether somebody has it."""
        return storage_uses(self._memory) != self._own


class SavedTensors:
    """The values that a token stands for.

    Attributes
    ----------
    first: the number of the first of them, among the outputs or inputs of a graph. count: how many.
    numbers: those of all of them.
    """

    def __init__(self, first: int, said: Sequence[Tensor]) -> None:
        self.first, self.count = first, len(said)
        orders = [order_of(t) or tuple(range(t.ndim)) for t in said]
        self._lies = [
            _Lies(tuple(t.shape[a] for a in order), order, t.dtype)
            for t, order in zip(said, orders, strict=True)
        ]
        self.numbers = range(first, first + self.count)
        sizes = [-(-lies.bytes // _ALIGNED) * _ALIGNED for lies in self._lies]
        self._offsets = [0, *accumulate(sizes)]

    def compact(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors of a graph as programs have them."""
        pairs = zip(values, self._lies, strict=True)
        return [t.permute(lies.order).contiguous() for t, lies in pairs]

    def permuted(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors of programs as graphs have them."""
        pairs = zip(values, self._lies, strict=True)
        return [t.permute(inverse(lies.order)) for t, lies in pairs]

    def view(self, values: Sequence[Tensor], of: int, number: int, view: View) -> Tensor:
        """Return the value of a number, a view of another one, as programs have it."""
        whole = values[of].permute(inverse(self._lies[of].order))
        found = view.make(whole, ())
        return found.permute(self._lies[number].order).contiguous()

    def copier(self, number: int) -> Callable[[Tensor], Tensor]:
        """Return what makes a graph's tensor, with memory of its own, of a value."""
        axes = inverse(self._lies[number].order)
        return lambda t: t.clone().permute(axes)

    def token(self, bundle: Bundle, lasting: LastingToken | None = None) -> Tensor:
        """Return a token that owns a bundle, ``lasting`` if there is one; or, for hooks, that is
        its bytes.
        """
        if hooks() is None:
            return _token(bundle) if lasting is None else lasting.given()
        memory = torch.zeros(self._offsets[-1], dtype=torch.uint8, device=bundle.values[0].device)
        for value, part in zip(bundle.values, self._parts(memory), strict=True):
            part.copy_(value)
        return memory

    def bundle(self, token: Tensor) -> Bundle:
        """Return what a token stands for. Raises ArgumentError for one that hooks changed."""
        own = _alive.get(token.data_ptr())
        if own is not None:
            return own.bundle
        if token.dtype is not torch.uint8 or token.shape != (self._offsets[-1],):
            raise ArgumentError(
                "what a forward pass keeps for its gradient came back as something else",
                expected=f"{self._offsets[-1]} bytes",
                found=f"{token.dtype}{list(token.shape)}",
                hint="hooks on saved tensors are to be in force during the forward pass, and to "
                "return what they were given",
            )
        return Bundle(self._parts(token.contiguous()))

    def _parts(self, memory: Tensor) -> list[Tensor]:
        starts = zip(self._offsets, self._lies, strict=False)
        return [
            memory[at : at + lies.bytes].view(lies.dtype).view(lies.shape) for at, lies in starts
        ]
