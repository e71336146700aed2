"""A compiled graph: what AOTAutograd calls at every step, with tensors in and out.

Parameters and inputs are taken where they lie. What can be decided before a call is decided when
the graph is compiled, or at its first call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, fx

from meta.frontend.aten import AtenError
from meta.frontend.core import Failure
from meta.frontend.core.memory_order import (
    copy_with_strides,
    inverse,
    is_contiguous_order,
    order_of,
)
from meta.frontend.dynamo.calling_convention import (
    Arguments,
    InputAdapter,
    Returns,
    addresses,
    compact,
    picker,
)
from meta.frontend.dynamo.conversion import ConvertedGraph
from meta.frontend.dynamo.images import traced_value
from meta.frontend.dynamo.outputs import ConstantOutput
from meta.frontend.dynamo.saved_tensors import Bundle, SavedTensors
from meta.runtime.allocate import storage_address
from meta.runtime.buffer_replacement import replace_buffer
from meta.runtime.ndarray import ndarray
from meta.vm.executable import Executable
from meta.vm.graphs.borrowed_outputs import Loans

_aten = torch.ops.aten


class TorchGraph:
    """A graph that no program can express: PyTorch runs it, node by node.

    Attributes
    ----------
    calls_back: why, as the calls back of a program. executable: None.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        why: AtenError,
        kept: SavedTensors | None = None,
        role: str = "",
    ) -> None:
        first = next(iter(why.failures), None)
        text = why.what if first is None else f"{first.operator}: {first.why}"
        place = str(why.span or "") if first is None else first.place
        self.calls_back = [Failure("the whole graph", text.splitlines()[0], None, place)]
        self.executable: Executable | None = None
        self._graph = graph
        # A view shares the count of writes with what it is a view of, and an unsafe one does not:
        # autograd would not see that a result was written that is kept, too.
        for node in graph.graph.find_nodes(op="call_function", target=_aten._unsafe_view.default):
            node.target = _aten.view.default
        graph.recompile()
        # What a program of ours saves for a gradient is dense, whatever torch says of it, and may
        # have its channels last.
        places = [n for n in graph.graph.nodes if n.op == "placeholder"]
        self._strides = {
            i: traced_value(n).stride()
            for i, n in enumerate(places)
            if traced_value(n) is not n.meta.get("val") or _has_gaps(traced_value(n))
        }
        self._kept, self._role = kept, role

    def __call__(self, args: Sequence[Any], number: int | None = None) -> Any:
        """Run the graph on its inputs; return its outputs. See `CompiledGraph`."""
        given, kept = list(args), self._kept
        if kept is not None and self._role == "backward":
            part = slice(kept.first, kept.first + kept.count)
            given[part] = kept.permuted(given[part])
        for i, strides in self._strides.items():
            if given[i].stride() != strides:
                given[i] = copy_with_strides(given[i], strides)
        found = self._graph(*given)
        if kept is not None and self._role == "forward":
            values = kept.compact(found[kept.first :])
            return [*found[: kept.first], kept.token(Bundle(values))]
        return found


def _has_gaps(said: Any) -> bool:
    """Whether an input is a tensor of known sizes that is dense in no order of its axes."""
    if not isinstance(said, Tensor) or said.layout is not torch.strided:
        return False
    known = all(isinstance(n, int) for n in (*said.shape, *said.stride()))
    return known and order_of(said) is None


class CompiledGraph:
    """A program, and how a call of the graph becomes one of the program.

    Attributes
    ----------
    converted: the program as it was converted. executable: None where nothing is computed, and,
    where inputs are bound, before the first call: it is made with them. lent: the results that
    it may lend, and note in ``loans``. kept: of a forward graph the outputs that are returned as
    one token, and of a gradient's the inputs that come from one. lender: of a gradient, the loans
    of its forward graph.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        converted: ConvertedGraph,
        make: Callable[[Sequence[ndarray]], Executable] | None,
        lent: Collection[int] = (),
        loans: Loans | None = None,
        kept: SavedTensors | None = None,
        lender: Loans | None = None,
    ) -> None:
        self.converted, self._lent = converted, lent
        self._gives = kept if lender is None else None
        self._takes = kept if lender is not None else None
        self._loans = Loans() if loans is None else loans
        self.executable: Executable | None = None
        self._make = make
        # One call after the other: what is lent is given out before the next one looks at it.
        self._lock = threading.Lock()
        places = [n for n in graph.graph.nodes if n.op == "placeholder"]
        said = [n.meta.get("val") for n in places]
        self._inputs = converted.inputs
        device = torch.device(str(converted.device))
        fits = [
            _no_token if _is_token(places[i]) else _fit(said[i], order, device)
            for i, order in zip(converted.inputs, converted.orders, strict=True)
        ]
        given = len(fits) - converted.bound
        self._arguments = Arguments(self._inputs[:given], fits[:given], self._takes, lender)
        # Inputs that the program knows where to find: it is told if they moved.
        self._fits_bound, self._pick_bound = fits[given:], picker(self._inputs[given:])
        self._arrays: list[ndarray] = []
        self._addresses: list[int] | None = None
        self._device = device
        self._extents = _extents(said, converted)
        # What a call returns; None before the first call of a program.
        self._returns = self._returning(()) if make is None else None
        self._written: tuple[int, ...] = ()
        if make is not None and not converted.bound:
            self._compile(())

    @property
    def calls_back(self) -> list[Failure]:
        """The calls that PyTorch runs, and why."""
        return self.converted.calls_back

    def __call__(self, args: Sequence[Any], number: int | None = None) -> Any:
        """Run the graph on its inputs, with the values of a bundle, and that of the ``number``, in
        place of its token; return its outputs, a token in place of what is kept.
        """
        with self._lock:
            return self._called(args, number)

    def _called(self, args: Sequence[Any], number: int | None) -> list[Any]:
        tensors = self._arguments(args, number)
        converted = self.converted
        extents = {n: read(args) for n, read in self._extents.items()} if self._extents else {}
        for name in converted.sizes:  # nobody reads its elements
            memory = torch.zeros(1, dtype=torch.uint8, device=self._device)
            tensors.append(memory.expand(extents[name]))
        if converted.keys:
            drawn = torch.randint(0, 2**63 - 1, (converted.keys,), device=self._device)
            tensors += torch.split(drawn, 1)
        results: Sequence[Tensor] = ()
        if self._make is not None:
            if converted.bound:
                self._find(self._pick_bound(args))
            assert self.executable is not None
            results = self.executable.on_tensors(tensors, number)
            for i in self._written:
                self._bring_back(i, tensors[i], args[self._inputs[i]])
        if self._returns is None:
            copied = self._shared(results, [*tensors, *(a.tensor for a in self._arrays)])
            self._returns = self._returning(copied)
        return self._returns(args, results, extents)

    def _returning(self, copied: Collection[int]) -> Returns:
        return Returns(
            self.converted, self._lent, self._loans, copied, gives=self._gives, takes=self._takes
        )

    def _compile(self, arrays: Sequence[ndarray]) -> None:
        assert self._make is not None
        self.executable = self._make(arrays)
        given = len(self._inputs) - self.converted.bound  # those that are bound are written there
        self._written = tuple(sorted(i for i in self.executable.written if i < given))

    def _find(self, bound: Sequence[Tensor]) -> None:
        """Look where bound inputs are. One that is where it was lies there as it did: that is
        guarded.
        """
        found = list(addresses(bound))
        if found == self._addresses:
            return
        tensors = [fit(t).detach() for fit, t in zip(self._fits_bound, bound, strict=True)]
        if self.executable is None:
            self._arrays = [ndarray(t) for t in tensors]
            self._compile(self._arrays)
        else:
            for array, tensor in zip(self._arrays, tensors, strict=True):
                replace_buffer(array, tensor)
        # A copy of one is the copy for this call.
        self._addresses = found if found == list(addresses(tensors)) else None

    def _bring_back(self, number: int, tensor: Tensor, given: Tensor) -> None:
        """Copy what was written to an input, if it was not written where it lies."""
        if storage_address(tensor) != storage_address(given):
            given.copy_(tensor.permute(inverse(self.converted.orders[number])))

    def _shared(self, results: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[int]:
        """Return the results that lie where an input does, or another result, and torch says that
        they do not. That is so in all calls or in none: a program is a straight line.
        """
        assert self.executable is not None
        taken = {storage_address(t) for t in tensors}
        before = set(self.executable.kept_memory)
        among_kept: set[int] = set()
        copied = []
        for output, result in zip(self.converted.results, results, strict=True):
            where = storage_address(result)
            if where in before or (where in taken and not output.shares):
                copied.append(output.number)
            elif self._gives is not None and output.number in self._lent:
                among_kept.add(where)
            elif where in among_kept:
                copied.append(output.number)
            else:
                before.add(where)
        return copied


def _is_token(place: fx.Node) -> bool:
    """Whether an input only orders calls that have effects: None is given for it."""
    return bool(place.users) and all(
        isinstance(user.target, torch._ops.HigherOrderOperator)
        and str(user.target) == "with_effects"
        and user.args[0] is place
        for user in place.users
    )


def _no_token(_: Tensor | None) -> Tensor:
    return torch.empty(0)


def _fit(said: Tensor, order: tuple[int, ...], device: torch.device) -> InputAdapter:
    """Return what gives an input as the program takes it."""
    if (
        said.device == device
        and is_contiguous_order(order)
        and not said.is_conj()
        and not said.is_neg()
    ):
        return compact

    def fit(tensor: Tensor) -> Tensor:
        return compact(tensor.resolve_conj().resolve_neg().permute(order).to(device))

    return fit


def _extent(number: int, axis: int, args: Any) -> int:
    extent: int = args[number].shape[axis]
    return extent


def _extents(said: Sequence[Any], converted: ConvertedGraph) -> dict[str, Callable[[Any], int]]:
    """Return by the name of a symbol what finds its extent among a call's inputs."""
    found: dict[str, Callable[[Any], int]] = {}
    sizes = any(
        isinstance(o, ConstantOutput) and hasattr(o.value, "evaluate") for o in converted.outputs
    )
    if not sizes and not converted.sizes:
        return found
    for i, value in enumerate(said):
        if isinstance(value, torch.SymInt):
            found.setdefault(str(value.node.expr), itemgetter(i))
        elif isinstance(value, Tensor):
            for axis, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    name = str(size.node.expr)
                    found.setdefault(name, partial(_extent, i, axis))
    return found
