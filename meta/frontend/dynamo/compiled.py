"""A compiled graph: what AOTAutograd calls at every step, with tensors in and out.

Parameters and inputs are taken where they lie. What can be decided before a call is decided when
the graph is compiled, or at its first call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, fx
from torch._C._autograd import _get_current_graph_task_keep_graph
from torch.fx.experimental.symbolic_shapes import has_free_symbols

from meta.frontend.aten import AtenError
from meta.frontend.core import Failure
from meta.frontend.core.memory_order import (
    copy_with_strides,
    inverse,
    is_contiguous_order,
    order_of,
)
from meta.frontend.dynamo.calling_convention import Arguments, Returns, compact, picker
from meta.frontend.dynamo.conversion import ConvertedGraph
from meta.frontend.dynamo.images import traced_value
from meta.frontend.dynamo.outputs import ConstantOutput, Result, symbol_sources
from meta.frontend.dynamo.saved_tensors import Bundle, SavedTensors
from meta.frontend.dynamo.training_memory import MemoryPool, TrainingMemory
from meta.ir import TensorType, TupleType
from meta.runtime.allocate import storage_address
from meta.vm.bound_executable import BoundExecutable, InputAdapter, arrays_of
from meta.vm.compilation import LoweredProgram
from meta.vm.compiler.code_analysis import result_offsets, summaries
from meta.vm.executable import Executable
from meta.vm.run.workspace import LentTensors

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

    def __call__(self, args: Sequence[Any], bundle: Bundle | None = None) -> Any:
        """Run the graph on its inputs; return its outputs. See `CompiledGraph`."""
        given, kept = list(args), self._kept
        if kept is not None and self._role == "backward":
            part = slice(kept.first, kept.numbers.stop)
            given[part] = kept.permuted(given[part])
        for i, strides in self._strides.items():
            if given[i].stride() != strides:
                given[i] = copy_with_strides(given[i], strides)
        found = self._graph(*given)
        if kept is not None and self._role == "forward":
            values = kept.compact(found[kept.first :])
            return [*found[: kept.first], kept.token(Bundle(values))]
        if bundle is not None and bundle.memory is not None:
            lies = {storage_address(t) for t in bundle.values}
            return [
                t.clone() if isinstance(t, Tensor) and storage_address(t) in lies else t
                for t in found
            ]
        return found


def _has_gaps(said: Any) -> bool:
    """Whether an input is a tensor of known sizes that is dense in no order of its axes."""
    if not isinstance(said, Tensor) or said.layout is not torch.strided:
        return False
    return not has_free_symbols(said) and order_of(said) is None


@dataclass
class _Form:
    """A program of a graph: one that has memory in turn with another, or one of its own.

    Attributes
    ----------
    lowered: the program. places: the numbers of the graph's inputs that it takes. arguments: what
    they are for it. written: those that it writes. offsets: of its results in its workspace.
    returns: what a call returns; None before the first one.
    """

    lowered: LoweredProgram | None
    places: list[int]
    arguments: Arguments
    written: tuple[int, ...] = ()
    offsets: Sequence[int | None] = ()
    returns: Returns | None = None


Lower = Callable[..., LoweredProgram]


class CompiledGraph:
    """A program, and how a call of the graph becomes one of the program.

    Parameters
    ----------
    lower: compiles the program, for inputs that are bound, with options of `plan_memory`; None
    where nothing is computed. pool: the memory of a graph and its gradient; None of other graphs.
    kept: of a forward graph the outputs that are returned as one token, and of a gradient's the
    inputs that come from one.

    Attributes
    ----------
    converted: the program as it was converted. calls_back: the calls that PyTorch runs, and why.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        converted: ConvertedGraph,
        lower: Lower | None,
        role: str = "",
        pool: MemoryPool | None = None,
        kept: SavedTensors | None = None,
    ) -> None:
        self.converted, self._role, self._pool = converted, role, pool
        self.calls_back = converted.calls_back
        self._gives = kept if role == "forward" else None
        self._takes = kept if role == "backward" else None
        self._lower = lower
        # One call after the other: what is given out of a memory is out before the next one looks.
        self._lock = threading.Lock()
        places = [n for n in graph.graph.nodes if n.op == "placeholder"]
        said = [n.meta.get("val") for n in places]
        self._inputs = converted.inputs
        device = torch.device(str(converted.device))
        self._fits = [
            _no_token if _is_token(places[i]) else _fit(said[i], order, device)
            for i, order in zip(converted.inputs, converted.orders, strict=True)
        ]
        self._given = len(self._fits) - converted.bound
        self._fits_bound = self._fits[self._given :]
        self._pick_bound = picker(self._inputs[self._given :])
        self._device = device
        self._extents = _extents(places, converted)
        # By whether it has memory in turn with another one.
        self._forms: dict[bool, _Form] = {}
        self._alone: dict[str, BoundExecutable] = {}
        if not converted.bound and pool is None:
            self._form(None, ())

    @property
    def executable(self) -> Executable | None:
        """The program; None where nothing is computed, and before the first call where inputs are
        bound: it is compiled with them.
        """
        shared = None if self._pool is None else self._pool.first(self._role)
        found = self._alone.get(self._role) if shared is None else shared
        return None if found is None else found.executable

    def __call__(self, args: Sequence[Any], bundle: Bundle | None = None) -> Any:
        """Run the graph on its inputs, with the values of a bundle in the place of its token;
        return its outputs, a token in the place of what is kept.
        """
        with self._lock:
            return self._called(args, self._memory(bundle))

    def _memory(self, bundle: Bundle | None) -> TrainingMemory | None:
        """Return the memory that a call has in turn with others; None for one of its own."""
        if self._pool is None:
            return None
        if bundle is None:
            return self._pool.free(self.converted.device) if self._takes is None else None
        # What is saved stays as it is where a gradient may be computed once more: so it is with
        # backward(retain_graph=True), and outside of a backward pass.
        if bundle.memory is None or _get_current_graph_task_keep_graph():
            return None
        bundle.memory.spend()
        return bundle.memory

    def _called(self, args: Sequence[Any], memory: TrainingMemory | None) -> list[Any]:
        converted = self.converted
        bound = self._pick_bound(args)
        form = self._form(memory, bound)
        tensors = form.arguments(args)
        extents = {n: read(args) for n, read in self._extents.items()} if self._extents else {}
        for name in converted.sizes:  # nobody reads its elements
            carrier = torch.zeros(1, dtype=torch.uint8, device=self._device)
            tensors.append(carrier.expand(extents[name]))
        if converted.keys:
            drawn = torch.randint(0, 2**63 - 1, (converted.keys,), device=self._device)
            tensors += torch.split(drawn, 1)
        returns = form.returns
        if returns is None:  # what it returns of its inputs is known before
            returns = self._returning(form, ())
        given = returns.of_inputs(args)
        results: Sequence[Tensor] = ()
        if form.lowered is not None:
            binding = self._binding(form.lowered, memory, bound)
            binding.follow(bound)
            results = binding.executable.on_tensors(tensors)
            for i in form.written:
                input_ = args[form.places[i]]
                if storage_address(tensors[i]) != storage_address(input_):  # a copy was written
                    input_.copy_(tensors[i].permute(inverse(converted.orders[i])))
            if form.returns is None:
                taken = [*tensors, *(a.tensor for a in binding.arrays)]
                copied = self._shared(form, binding.executable, results, taken)
                returns = self._returning(form, copied)
        form.returns = returns
        copies = self._pool is not None and self._pool.copies_gradients
        if memory is not None and returns.lent and not memory.gradients.tensors:
            memory.gradients = self._lent(form, returns, memory)
        return returns(args, given, results, extents, memory, copies)

    def _form(self, memory: TrainingMemory | None, bound: Sequence[Tensor]) -> _Form:
        """Return the program for a call, compiled at the first one."""
        found = self._forms.get(memory is not None)
        if found is None:
            found = self._forms[memory is not None] = self._compiled(memory, bound)
        return found

    def _compiled(self, memory: TrainingMemory | None, bound: Sequence[Tensor]) -> _Form:
        resident: dict[int, int] = {}
        if memory is not None and self._takes is not None:
            first = self._takes.first
            resident = {first + i: at for i, at in memory.bundle.offsets.items()}
        own = [(i, p) for i, p in enumerate(self._inputs[: self._given]) if p not in resident]
        ready = range(0) if self._takes is None else self._takes.numbers
        places = [place for _, place in own]
        arguments = Arguments(places, [self._fits[i] for i, _ in own], ready)
        if self._lower is None:
            return _Form(None, places, arguments)
        plan: dict[str, Any] = {}
        if memory is not None:
            pairs = [(i, resident[p]) for i, p in enumerate(self._inputs) if p in resident]
            plan = {"results": self._staying(), "resident": pairs}
            plan["segment"] = memory.workspace.size
        lowered = self._lower(arrays_of(bound, self._fits_bound), plan)
        code = lowered.bound.code
        effects = summaries(code)[code.entry]
        written = tuple(sorted(i for i in effects.written if 0 <= i < len(own)))
        lowered = replace(lowered, arrays=())
        return _Form(lowered, places, arguments, written, result_offsets(code))

    def _staying(self) -> list[int]:
        """Return the results that may stay in memory that is used again: those that are kept for
        the gradient, which only that reads, and gradients, which are soon added up, or become a
        parameter's ``grad``. What is returned to the user is the user's.
        """
        if self._gives is not None:
            ours = self.converted.outputs[self._gives.first :]
            return [o.number for o in ours if isinstance(o, Result)]
        lies = [o for o in self.converted.results if o.strides is None and o.device is None]
        return [o.number for o in lies]

    def _binding(
        self, lowered: LoweredProgram, memory: TrainingMemory | None, bound: Sequence[Tensor]
    ) -> BoundExecutable:
        programs = self._alone if memory is None else memory.programs
        if self._role not in programs:
            workspace = None if memory is None else memory.workspace
            programs[self._role] = BoundExecutable(lowered, workspace, bound, self._fits_bound)
        return programs[self._role]

    def _lent(self, form: _Form, returns: Returns, memory: TrainingMemory) -> LentTensors:
        """Return the results in a memory that are lent, as tensors with storages of their own."""
        assert form.lowered is not None
        result, tensors = form.lowered.bound.code.result, []
        assert isinstance(result, TupleType)
        for output in returns.lent:
            type_, at = result.fields[output.number], form.offsets[output.number]
            assert isinstance(type_, TensorType)
            assert at is not None
            tensor = memory.workspace.outside(type_, at)
            tensors.append(tensor if output.axes is None else tensor.permute(output.axes))
        del tensor
        return LentTensors(tensors)

    def _returning(self, form: _Form, copied: Collection[int]) -> Returns:
        offsets = form.offsets if form is self._forms.get(True) else ()
        cut = {} if form.lowered is None else _cut(self.converted, form.lowered)
        return Returns(self.converted, copied, cut, offsets, self._gives, self._takes)

    def _shared(
        self,
        form: _Form,
        executable: Executable,
        results: Sequence[Tensor],
        tensors: Sequence[Tensor],
    ) -> list[int]:
        """Return the results that lie where an input does, or another result, and torch says that
        they do not. That is so in all calls or in none: a program is a straight line.
        """
        taken = {storage_address(t) for t in tensors}
        before = set(executable.kept_memory)
        staying = self._staying() if self._gives is not None else ()
        within = executable.workspace.addresses()
        among_kept: set[int] = set()
        copied = []
        for output, result in zip(self.converted.results, results, strict=True):
            where = storage_address(result)
            if where in within:
                if form.offsets[output.number] is None:  # as of a branch, which nobody looks after
                    copied.append(output.number)
                    continue
                where = result.data_ptr()
            if where in before or (where in taken and not output.shares):
                copied.append(output.number)
            elif output.number in staying:
                among_kept.add(where)
            elif where in among_kept:
                copied.append(output.number)
            else:
                before.add(where)
        return copied


def _cut(converted: ConvertedGraph, lowered: LoweredProgram) -> dict[int, int]:
    """Return the columns of results, by number, of which a program has more (`carry_padding`)."""
    said, made = converted.module.main.result_type, lowered.bound.code.result
    assert isinstance(said, TupleType) and isinstance(made, TupleType)
    pairs: Any = enumerate(zip(said.fields, made.fields, strict=True))
    return {i: s.shape[-1] for i, (s, m) in pairs if s.is_static and s != m}


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
    plain = said.device == device and not said.is_conj() and not said.is_neg()
    if plain and is_contiguous_order(order):
        return compact

    def fit(tensor: Tensor) -> Tensor:
        return compact(tensor.resolve_conj().resolve_neg().permute(order).to(device))

    return fit


def _extents(
    places: Sequence[fx.Node], converted: ConvertedGraph
) -> dict[str, Callable[[Any], int]]:
    """Return by the name of a symbol what finds its extent among a call's inputs."""
    known = (o.value for o in converted.outputs if isinstance(o, ConstantOutput))
    if not converted.sizes and not any(hasattr(value, "evaluate") for value in known):
        return {}

    def reader(number: int, axis: int | None) -> Callable[[Any], int]:
        return itemgetter(number) if axis is None else lambda args: args[number].shape[axis]

    at = {place: i for i, place in enumerate(places)}
    sources = symbol_sources(places).items()
    return {str(symbol): reader(at[node], axis) for symbol, (node, axis) in sources}
