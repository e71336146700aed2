"""`CompiledProgram`: a program compiled for one device, called like the model it came from. What
looks at one is in `meta/vm/inspect/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from meta.base import config
from meta.base.config import current_overrides
from meta.base.device import Device
from meta.base.errors import ArgumentError, DeviceError, GradientError, OutOfMemory
from meta.base.registry import OPERATORS
from meta.dialect.core.preference import current as current_preference
from meta.ir import Dim, Module, TensorType, TupleType, Type, structural_equal
from meta.ir.types import bind_dims
from meta.runtime import buffer_replacement as replaced
from meta.runtime import num_threads, view_copies
from meta.runtime.allocate import retain_freed_memory, storage_address
from meta.runtime.array_key import array_key
from meta.runtime.inplace_writes import require_writable
from meta.runtime.master_weights import master_pairs
from meta.runtime.ndarray import ndarray
from meta.runtime.no_gradient import is_recording
from meta.runtime.num_threads import Pool
from meta.runtime.out_of_memory import is_out_of_memory, out_of_memory
from meta.runtime.torch_leaf import TorchLeaf
from meta.vm.compiler.calling_convention import Convention, DimRange, require_in_range
from meta.vm.compiler.code import KernelRef
from meta.vm.compiler.kernels import BoundProgram
from meta.vm.graphs.capture import GraphReport, Graphs, graphs_for, report
from meta.vm.run.launch_errors import launch_error, passed_on
from meta.vm.run.link import Linked, link
from meta.vm.run.preparation import Preparation
from meta.vm.run.sized_programs import SizedPrograms, is_sized
from meta.vm.run.workspace import MEMORY_HINT, Workspace

if TYPE_CHECKING:
    from meta.passes import PassRecord
    from meta.vm.compiler.recipe import Recipe


class CompiledProgram:
    """A compiled program.

    Calling it takes what the model takes (arrays of the same shapes, dtypes and device) and returns
    what the model returns, without a tape. Parameters and running statistics are those of the
    model: what the program writes in place, the model sees. Calls of several threads run beside one
    another on the CPU, in arenas of their own, as long as their threads have a core each (see
    `meta.set_num_threads`), if the program writes nothing in place and its kernels have no state;
    others take turns.

    Attributes
    ----------
    code: its instructions. device: where it runs. arena_bytes: memory kept for intermediates of
    a call.
    envs: the kernels that the code names, in order. arrays: parameters and running statistics.
    convention: how it is called.
    history: a record of each pass: name, seconds, the program after it (the first is the input);
    empty for a program that was loaded or found in the cache. recipe: how it is compiled again,
    None for a program that was loaded.
    preference: the choice of dialects that it was compiled with. prepared: what the program needs
    that depends on the arrays alone, as they are, if it was computed before. sized: programs of
    sizes of symbolic dimensions, of one that was loaded.

    What the program needs that depends on the arrays of a model in infer mode alone, such as casts
    of its weights, is computed before the first call and kept, and computed again after an array
    was written or exchanged. Writes that torch's counters do not see, through ``tensor.data`` or
    ``array.torch().numpy()``, are not seen; those through DLPack and `meta.from_dlpack` are.
    """

    def __init__(
        self,
        program: BoundProgram,
        arrays: Sequence[ndarray],
        convention: Convention,
        history: Sequence[PassRecord] = (),
        cuda_graph: bool | None = None,
        recipe: Recipe | None = None,
        workspace: Workspace | None = None,
        prepared: Sequence[torch.Tensor] = (),
        sized: Sequence[BoundProgram] = (),
    ) -> None:
        self.program, self.history = program, list(history)
        self.recipe = recipe
        self.code, self.envs, self.device = program.code, program.kernels, program.device
        code, device, preparation = program.code, program.device, program.preparation
        self.arrays, self.convention = tuple(arrays), convention
        self._flatten = convention.flatten
        self._unflatten = None if convention.returns_result else convention.unflatten
        self.preference = current_preference()
        if device.kind == "cpu":
            retain_freed_memory()
        kept = len(arrays) + code.prepared
        ranges = "off" if cuda_graph else config.get("META_RANGES")
        wanted = cuda_graph if ranges == "off" else False
        self._graphs, self._why_no_graph = graphs_for(code, kept, device, wanted)
        self.workspace = Workspace(device) if workspace is None else workspace
        if ranges == "off":
            self._linked, make = link(program, self._graphs, self.workspace), partial(link, program)
        else:
            from meta.vm.run.observers import observed, range_observer

            make = partial(observed, program, range_observer(ranges))
            self._linked = make(self.workspace)
        self._nans = config.get("META_DEBUG_NANS")
        self._verifying = config.get("META_VERIFY")
        self._compared: set[Any] = set()
        self.arena_bytes = self._linked.arena_bytes
        # None: the extents differ from call to call.
        self._keys = [keys_of(type_, device) for _, type_ in self.code.params]
        self._ranges = {name: DimRange(least, most) for name, least, most in code.dims}
        self._result = keys_of(self.code.result, device)
        self._first = len(self._keys) - kept
        self._written_arguments = [i for i in self._linked.written if i < self._first]
        self._returned_arguments = [i for i in self._linked.returned if i < self._first]
        self._shared_arguments = bool(self._written_arguments or self._returned_arguments)
        self._refuse_copies(self.arrays, self._first)
        self._masters = master_pairs(arrays)
        self._preparation: Preparation | None = None
        if preparation is not None:
            written = [
                self.arrays[i - self._first] for i in self._linked.written if i >= self._first
            ]
            types = [type_ for _, type_ in code.params[-code.prepared :]]
            self._preparation = Preparation(preparation, types, self.arrays, written, prepared)
        # Whether a call that saw old arrays may be made again: the device, which works on its own,
        # need not wait for the look at the arrays.
        kernels = [OPERATORS[k.base] for k in code.kernels if isinstance(k, KernelRef)]
        draws = any(op.random for op in kernels)
        self._repeats = device.kind == "cuda" and not self._linked.written and not draws
        # Addresses of memory that is kept between calls, where a result may be.
        self._kept_memory = self._linked.constants
        # The tensors of the arrays, and of what is prepared; None: one of the arrays is made
        # compact for each call.
        self._bound: list[Any] | None = None
        self._seen = -1
        several = device.kind == "cpu" and workspace is None and not self._linked.written
        several = several and not self._masters and not any(op.collective for op in kernels)
        several = several and all(env.state is None for env in self.envs)
        # What runs it, of which each call has one; who has all of them, has the arrays.
        self._runs: Pool[Linked] = Pool(
            [self._linked], make if several else None, num_threads.most_calls
        )
        self._is_shared = several and self._graphs is None
        self._in_order = self.workspace.in_order
        self._sized: SizedPrograms | None = None
        alone = workspace is None and not any(op.collective for op in kernels)
        if (recipe is not None or sized) and alone and is_sized(code, device):
            self._sized = SizedPrograms(self, recipe, cuda_graph, self._ranges, sized)
        elif not self.cuda_graph:
            self._require_no_graph()

    @property
    def module(self) -> Module:
        """The program as it is run; its calls name the dialect operators."""
        return self.program.module()

    def passes(self) -> list[PassRecord]:
        """Return `history`; of a program found in the cache, the passes are run once more for it.
        Empty for a program that was loaded.
        """
        return self.history or ([] if self.recipe is None else self.recipe.history())

    @cached_property
    def _observed(self) -> Linked:
        """The program with every kernel looked at (META_DEBUG_NANS)."""
        # Here and below only now: a process that runs saved programs is to be small.
        from meta.vm.run.observers import nan_observer, observed

        return observed(self.program, nan_observer(lambda: self.module), self.workspace)

    @cached_property
    def _one_by_one(self) -> Linked:
        """The program without CUDA graphs."""
        return link(self.program, workspace=self.workspace)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.on_arrays(self._flatten(*args, **kwargs))
        return result if self._unflatten is None else self._unflatten(result)

    def on_arrays(self, inputs: list[ndarray], into: Sequence[torch.Tensor | None] = ()) -> Any:
        """Run the program on the arrays among the arguments, in order; return its result, an array
        or a nested tuple of them.

        ``into``: for each array of the result a tensor, compact and of its type, or None. What the
        program can put there, it puts there at once; the caller looks what it did, and copies the
        rest. None of them is in memory of another one, of an argument, or of an array.
        """
        tensors = None
        if self._sized is not None:
            extents = self._sized.extents([a.shape for a in inputs])
            if extents not in self._sized.found:
                tensors = self._tensors(inputs)  # raises for what does not fit
            with self._for_size(extents) as own:
                if own is not None:
                    return own.on_arrays(inputs, into)
            self._require_no_graph()
        tensors = self._tensors(inputs) if tensors is None else tensors
        if self._shared_arguments:
            self._refuse_copies(inputs)
        verifies = self._verifying if current_overrides() is None else config.get("META_VERIFY")
        if verifies:
            with self._runs.all():
                result = self._verified(tensors)
        else:
            found = self._in_turn(tensors, into)
            result = wrapped(found, self._result, self._kept_memory)
        if self._shared_arguments:
            self._follow_up(inputs, tensors, result)
        return result

    @contextmanager
    def _for_size(
        self, extents: tuple[int, ...] | None, patience: int = 0
    ) -> Iterator[CompiledProgram | None]:
        """Have the program for extents that fit in a block, while none of another size runs; None
        if there is none.
        """
        assert self._sized is not None
        linked = self._runs.take()
        try:
            yield None if extents is None else self._sized.program(extents, patience)
        finally:
            self._runs.give(linked)

    def _require_no_graph(self) -> None:
        """Raise CaptureError if graphs are required of a call that has none."""
        if self._graphs is not None and self._graphs.required:
            self._graphs.refused(self.cuda_graph.why_not)

    def sized_programs(self) -> list[CompiledProgram]:
        """Return the programs of `sizes`."""
        return [] if self._sized is None else list(filter(None, self._sized.found.values()))

    @property
    def sizes(self) -> list[dict[str, int]]:
        """The extents of symbolic dimensions that have a program of their own, in the order in
        which calls brought them; none on the CPU.
        """
        return [] if self._sized is None else self._sized.sizes

    def share_preparation(self, other: CompiledProgram) -> None:
        """Keep what is computed of the arrays alone with another program of them, if it is equal:
        before the first call.
        """
        mine, its = self.program.preparation, other.program.preparation
        if mine is not None and its is not None and structural_equal(mine(), its()):
            self._preparation = other._preparation

    def _follow_up(self, inputs: list[ndarray], tensors: list[Any], result: Any) -> None:
        """Write back and mark, where arguments were made compact."""
        for i in self._written_arguments:
            if inputs[i].tensor is not tensors[i]:
                inputs[i].tensor.copy_(tensors[i])
        for i in self._returned_arguments:
            if inputs[i].tensor is not tensors[i] or view_copies.is_marked(tensors[i]):
                mark(result, tensors[i], self.convention.name)

    def _refuse_copies(self, arrays: Sequence[ndarray], first: int = 0) -> None:
        """Raise ArgumentError for an argument that is written and is a copy such as ``x[0]``."""
        for i, array in enumerate(arrays, first):
            if i in self._linked.written:
                view_copies.refuse_write(array.tensor, f"argument %{self.code.params[i][0]}")

    @contextmanager
    def between_runs(self) -> Iterator[None]:
        """Let a block write to the arrays: no run is under way on the host, and on CUDA what the
        current stream is given waits for the last one.
        """
        with self._runs.all():
            if self._in_order is not None:
                self._in_order()
            yield

    def on_tensors(self, tensors: list[Any]) -> Any:
        """Run the program on torch tensors, compact, on its device and of the types that it was
        compiled for, which nobody looks at; return tensors. One may lie in memory of an argument,
        of another result, in `kept_memory`, or, if `plan_memory` was told so, in the workspace. For
        callers that keep to the types.
        """
        if self._sized is not None:
            # Of sizes that TorchDynamo brings, many come once: the lengths of a text that grows.
            extents = self._sized.extents([t.shape for t in tensors])
            required = self._graphs is not None and self._graphs.required
            with self._for_size(extents, patience=0 if required else 2) as own:
                # The caller knows of this program what it writes, and where results may lie.
                if (
                    own is not None
                    and not own.code.prepared
                    and own.written <= self.written
                    and own.returned <= self.returned
                ):
                    return own.on_tensors(tensors)
            self._require_no_graph()
        return self._in_turn(tensors)

    def _in_turn(self, tensors: list[Any], into: Sequence[torch.Tensor | None] = ()) -> Any:
        """Run the program on tensors when it may run; return tensors."""
        slots = num_threads.slots
        if slots is not None and self.device.kind == "cpu":
            with slots.one():
                return self._beside_others(tensors, into)
        return self._beside_others(tensors, into)

    def _beside_others(self, tensors: list[Any], into: Sequence[torch.Tensor | None]) -> Any:
        if not self._is_shared:
            linked = self._runs.take()
            try:
                return self._launched(linked, tensors, into)
            finally:
                self._runs.give(linked)
        found = self._preparation
        is_stale = self._seen != replaced.replacement_count or (
            found is not None and not found.is_current()
        )
        if is_stale or self._looks_for_nans():
            with self._runs.all() as linked:  # others run on what is about to be written
                return self._launched(linked, tensors, into)
        linked = self._runs.take()
        try:
            return self._on_kernels(linked, tensors, into, True)
        finally:
            self._runs.give(linked)

    @property
    def kept_memory(self) -> frozenset[int]:
        """The addresses of memory that is kept between calls, where a result may be."""
        return self._kept_memory

    @property
    def written(self) -> frozenset[int]:
        """The numbers of the arguments, arrays among them, that a call may write in place."""
        return self._linked.written

    @property
    def returned(self) -> frozenset[int]:
        """The numbers of the arguments, arrays among them, in whose memory a result may be."""
        return self._linked.returned

    def _verified(self, inputs: list[Any]) -> Any:
        """Run the program; compare the values, if these are the first arguments of their shapes."""
        from meta.vm.run.verify_values import ComparedProgram, verified

        shapes = tuple(t.shape for t in inputs)
        if shapes in self._compared:
            return self._run(inputs)
        self._prepared_before(at_once=True)
        arrays = self._kept_tensors()
        kept, prepared = arrays[: len(self.arrays)], arrays[len(self.arrays) :]
        extents: dict[str, Dim] = {}
        for (_, type_), tensor in zip(self.code.params, inputs, strict=False):
            bind_dims(type_, TensorType(tuple(tensor.shape), type_.dtype), extents)
        program = ComparedProgram(self.program, self.history, extents)
        arguments = [*inputs, *kept]
        result = verified(
            program, arguments, prepared, self._linked.written, lambda: self._run(inputs)
        )
        self._compared.add(shapes)
        return result

    def _run(self, inputs: list[Any]) -> Any:
        """Run the program on tensors, alone; return arrays."""
        return wrapped(self._launched(self._linked, inputs), self._result, self._kept_memory)

    def _launched(
        self,
        linked: Linked,
        inputs: list[Any],
        into: Sequence[torch.Tensor | None] = (),
    ) -> Any:
        """Run the program on tensors, and what it needs before; return tensors."""
        for pair in self._masters:
            pair.follow()
        result = self._on_kernels(linked, inputs, into)
        for pair in self._masters:
            pair.note()
        return result

    def _looks_for_nans(self) -> str:
        nans: str = self._nans if current_overrides() is None else config.get("META_DEBUG_NANS")
        return nans

    def _on_kernels(
        self,
        linked: Linked,
        inputs: list[Any],
        into: Sequence[torch.Tensor | None],
        is_ready: bool = False,
    ) -> Any:
        """Run the program on tensors. is_ready: nothing is to be done before."""
        later = None
        try:
            if not is_ready:
                if self._in_order is not None:
                    self._in_order()
                nans = self._looks_for_nans()
                if nans:
                    return self._with_nans_named(inputs, nans)
                later = self._prepared_before()
                if self._graphs is not None and self._needs_kernels(self._graphs):
                    linked = self._one_by_one
            arrays = self._kept_tensors() if self._bound is None else self._bound
            run = partial(linked.fill, into=into) if into and linked.fill else linked.run
            result = run([*inputs, *arrays])
            if later is not None and later.update():
                result = run([*inputs, *arrays])
            return result
        except Exception as error:
            if not is_out_of_memory(error) or isinstance(error, OutOfMemory):
                if passed_on(error):
                    raise
                raise launch_error(error) from error
            from meta.analysis import memory

            planned = memory(self.module).peak
            failure = out_of_memory(
                error, self.device, "the program", planned=planned, hint=MEMORY_HINT
            )
        raise failure  # behind the block: what the first error holds is free by then

    def _with_nans_named(self, inputs: list[Any], nans: str) -> Any:
        """Run the program, and what prepares it, looking at all results; ``nans``: for what."""
        from meta.vm.eager.nan_checks import with_arguments_named

        with config.override(META_DEBUG_NANS=nans):
            if self._preparation is not None:
                self._preparation.forget()
            self._prepared_before(at_once=True)
            arguments = [*inputs, *self._kept_tensors()]
            names = (name for name, _ in self.code.params)
            return with_arguments_named(names, arguments, lambda: self._observed.run(arguments))

    def _needs_kernels(self, graphs: Graphs) -> bool:
        """Whether this call is not one of those that graphs are recorded for."""
        if self._bound is None or graphs.recorder.is_busy():
            return True
        # A graph keeps the precision that its kernels were recorded with.
        return current_overrides() is not None and config.get("META_TF32") != self._tf32

    def _prepared_before(self, at_once: bool = False) -> Preparation | None:
        """Update what is prepared; unless ``at_once``, return it if that may follow the launch."""
        if self._seen != replaced.replacement_count:
            self._bind()
        found = self._preparation
        if found is not None and not at_once and self._repeats and found.was_made():
            return found
        if found is not None:
            found.update()
        return None

    def _bind(self) -> None:
        """Look where the arrays are; graphs that were recorded with others are forgotten."""
        if self._preparation is not None:
            self._preparation.allocate(str(self.device))
            first = len(self._keys) - self.code.prepared
            own = (
                storage_address(self._preparation.tensors[r - first])
                for r in self._linked.returned
                if r >= first
            )
            self._kept_memory = self._linked.constants.union(own)
        found = self._kept_tensors()
        moved = self._bound is None or any(
            a is not b for a, b in zip(found, self._bound, strict=True)
        )
        compact = all(t is a.tensor for t, a in zip(found, self.arrays, strict=False))
        if self._graphs is not None and moved:
            self._tf32 = config.get("META_TF32")
            found = self._graphs.bind(found)
        self._bound = found if compact else None
        self._seen = replaced.replacement_count

    def _kept_tensors(self) -> list[Any]:
        """Return main's arguments behind the inputs: the arrays, and what is prepared."""
        prepared = () if self._preparation is None else self._preparation.tensors
        return [*self._tensors(self.arrays, self._first), *prepared]

    def _tensors(self, arrays: Sequence[ndarray], first: int = 0) -> list[Any]:
        """Return the tensors of main's arguments from ``first`` on; raises what does not fit."""
        extents: dict[str, Dim] = {}
        keys = self._keys
        tensors = [
            a.tensor if a.key is keys[i] and a.node is None else self._fit(i, a, extents)
            for i, a in enumerate(arrays, first)
        ]
        if self._ranges and not first:
            require_in_range(extents, self._ranges, self.code.params)
        return tensors

    def _fit(self, position: int, array: ndarray, extents: dict[str, Dim]) -> Any:
        """Return the tensor of an array with another key than expected, or raise; bind extents.

        GradientError for an argument that is, or was computed from, a torch tensor that requires a
        gradient: the program keeps no tape.
        """
        name, type_ = self.code.params[position]
        given = position < self._first and array.requires_grad and is_recording()
        if given and _is_of_torch(array):
            raise GradientError(
                f"argument %{name} is, or was computed from, a torch tensor that requires a "
                "gradient, and a compiled program records nothing",
                found=f"shape {array.shape}, dtype {array.dtype}",
                hint="compile the gradient as well (meta.model.value_and_grad, "
                "meta.grad.value_and_grad); or call the model itself; for values alone "
                f"%{name}.detach(), or with meta.no_grad():",
            )
        if array.device != self.device:
            raise DeviceError(
                f"argument %{name} is on another device",
                expected=self.device,
                found=array.device,
                hint="move it with .to(device=...), or compile for that device",
            )
        found = TensorType(array.shape, array.dtype)
        if not bind_dims(type_, found, extents):
            raise ArgumentError(
                f"argument %{name} is not of the type compiled for",
                expected=type_,
                found=found,
                hint="compile once more for this type",
            )
        tensor = array.tensor
        if tensor.is_contiguous():
            return tensor
        if position in self._linked.written and position not in self._written_arguments:
            raise ArgumentError(
                f"parameter %{name} is not contiguous, so it cannot be written",
                hint="store it with meta.array(...)",
            )
        if position in self._written_arguments:
            require_writable(tensor, f"argument %{name}")
        return tensor.contiguous()

    @property
    def cuda_graph(self) -> GraphReport:
        """Whether the program runs as CUDA graphs, and what does not and why; prints as a list."""
        why_not = self._why_no_graph
        if self._nans:
            why_not = "META_DEBUG_NANS looks at the result of every kernel"
        elif self._graphs is not None and self._seen >= 0 and self._bound is None:
            why_not = "a parameter is not contiguous, and is made so for each call"
        return report(self._graphs, why_not)

    def graph_bytes(self) -> int:
        """Return the memory that CUDA graphs keep."""
        own = 0 if self._graphs is None else self._graphs.recorder.pool_bytes()
        return own + sum(program.graph_bytes() for program in self.sized_programs())

    def prepared(self) -> tuple[torch.Tensor, ...]:
        """Return what the program needs that depends on the arrays alone, as they are now."""
        with self._runs.all():
            self._prepared_before(at_once=True)
        return () if self._preparation is None else self._preparation.tensors

    def kept_arguments(self) -> list[Any]:
        """Return main's arguments behind the inputs as they are now: the arrays, and what is
        prepared.
        """
        with self._runs.all():
            for pair in self._masters:
                pair.follow()
            self._prepared_before(at_once=True)
            return self._kept_tensors()

    def own_arguments(self, inputs: list[ndarray]) -> list[Any]:
        """Return main's arguments with copies of those that the program writes."""
        tensors = [*self._tensors(inputs), *self.kept_arguments()]
        return [t.clone() if i in self._linked.written else t for i, t in enumerate(tensors)]

    def __reduce__(self) -> Any:
        raise ArgumentError(
            "an executable is not pickled or copied: it has kernels and memory of this process",
            hint="executable.save(folder) and meta.vm.load(folder); or pickle the model, and "
            "compile it there",
        )


def _is_of_torch(array: ndarray) -> bool:
    """Whether an array is, or was computed from, a torch tensor that requires a gradient."""
    from meta.grad.core.tape import sources_of

    return any(isinstance(s, TorchLeaf) for s in sources_of(array.node))


def keys_of(type_: Type, device: Device) -> Any:
    """Return the keys of compact arrays of a type; None where extents are not known."""
    if isinstance(type_, TupleType):
        return tuple(keys_of(f, device) for f in type_.fields)
    assert isinstance(type_, TensorType)
    return array_key(type_.static_shape, type_.dtype, device) if type_.is_static else None


def wrapped(value: Any, keys: Any, constants: frozenset[int]) -> Any:
    """Return a result as arrays. What is in a constant's memory is copied."""
    if isinstance(keys, tuple):
        return tuple([wrapped(v, k, constants) for v, k in zip(value, keys, strict=True)])
    if constants and storage_address(value) in constants:
        value = value.clone()
    return ndarray(value, keys)


def mark(result: Any, argument: torch.Tensor, name: str) -> None:
    """Mark what is in the memory of an argument that users are not to write to through it: of a
    copy such as ``x[0]``, or of one that was made compact for the program ``name``.
    """
    if isinstance(result, tuple):
        for array in result:
            mark(array, argument, name)
    elif storage_address(result.tensor) == storage_address(argument):
        view_copies.mark(result.tensor, name)
