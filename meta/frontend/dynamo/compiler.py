"""The backend "meta" of `torch.compile`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo import disable
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch
from torch._guards import TracingContext, tracing
from torch._logging._internal import trace_structured
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from meta.base import config
from meta.base.gc_pause import gc_paused
from meta.dialect.core import warm_up
from meta.frontend.dynamo.calling_convention import picker
from meta.frontend.dynamo.compiled import CompiledGraph, TorchGraph
from meta.frontend.dynamo.composites import fuse_composites
from meta.frontend.dynamo.conversion import ConvertedGraph, NoProgram, convert_graph, device_of
from meta.frontend.dynamo.decompositions import decompositions, without_decomposing
from meta.frontend.dynamo.extents import Extents, NotForAllSizes, ranges_of, unguarded_extents
from meta.frontend.dynamo.fuse_attention import fuse_attention
from meta.frontend.dynamo.fuse_losses import fuse_losses
from meta.frontend.dynamo.fx_nodes import fake_value, is_tensor
from meta.frontend.dynamo.options import Options, read_options
from meta.frontend.dynamo.outputs import Readers, Result, View
from meta.frontend.dynamo.partition import partition, rewrite
from meta.frontend.dynamo.saved_tensors import bundle_saved_tensors, open_backward, open_forward
from meta.frontend.dynamo.training import NON_ALIAS_KINDS, TrainingGraph
from meta.frontend.dynamo.training_memory import MemoryPool
from meta.runtime.ndarray import ndarray
from meta.vm.compilation import LoweredProgram, lower
from meta.vm.compiler.calling_convention import module_program
from meta.vm.compiler.pipeline import PassContext

LARGE = 300
"""Nodes from which on AOTAutograd traces a graph for as long as backends take to begin."""


@gc_paused()
def backend(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's: what ``torch.compile(model, backend="meta")`` calls.

    mode, options: those of `torch.compile`; see `meta.frontend.dynamo.options`.
    """
    graphs: dict[str, GraphCompiler] = {}
    own = partial(GraphCompiler, options=read_options(mode, options), graphs=graphs)
    compiler = partial(own, static=set[str](), pool=MemoryPool())
    if not _is_transformed(graph):
        fuse_attention(graph)
        fuse_composites(graph)
        fuse_losses(graph)
    compile_graph = aot_autograd(
        fw_compiler=partial(compiler, role="forward"),
        bw_compiler=partial(compiler, role="backward"),
        inference_compiler=partial(compiler, role="inference"),
        decompositions=decompositions,
        partition_fn=_partition,
        keep_inference_input_mutations=True,  # as copies at the end of a graph
    )
    tensors = [x for x in example_inputs if isinstance(x, torch.Tensor)]
    if len(graph.graph.nodes) >= LARGE:
        warm_up(device_of(tensors))
    trains = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    # The state of a generator is kept as a tensor for what a gradient computes again.
    states = functorch.patch(graphsafe_rng_functionalization=False)
    # By the context, AOTAutograd says what a graph's outputs are; without Dynamo there is none.
    alone = TracingContext.try_get() is None
    context = tracing(TracingContext(None)) if alone else nullcontext()
    with context, states, without_decomposing(), _no_mkldnn() if trains else nullcontext():
        compiled: Callable[..., Any] = compile_graph(graph, example_inputs)
    if "forward" not in graphs:
        return compiled
    training: Any = TrainingGraph(compiled, graphs, example_inputs)
    untraced: Any = disable
    found: Callable[..., Any] = untraced(training, reason="do not trace a graph's program")
    return found


def _is_transformed(graph: fx.GraphModule) -> bool:
    """Whether tensors are wrapped, by functorch or as subclasses, whose rules are for PyTorch's
    operators alone.
    """
    values = [fake_value(n) for n in graph.graph.nodes if is_tensor(n)]
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return any(wrapped(v) or is_traceable_wrapper_subclass(v) for v in values)


def _partition(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    """Return the graphs of the result and of the gradient."""
    forward, backward = partition(joint, *args, **kwargs)
    device = device_of([n.meta.get("val") for n in forward.graph.nodes])
    bundle_saved_tensors(forward, backward, kwargs["num_fwd_outputs"], device)
    return forward, backward


@contextmanager
def _no_mkldnn() -> Iterator[None]:
    """Trace as if torch had no mkldnn: it takes a kernel for inference for an LSTM whose input,
    whatever its weights, requires no gradient, and the gradient of that reads memory that is not
    there.
    """
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def _readers(role: str, metadata: Any) -> Readers:
    """Return who gets a graph's outputs: the user, but what a forward graph saves for its gradient.
    What a gradient returns is added up, and shares memory with nothing.
    """
    if role == "backward" or metadata is None:
        return Readers()
    users = metadata.num_forward_returns if role == "forward" else sys.maxsize
    before = metadata.num_mutated_inp_runtime_indices
    infos = enumerate(metadata.output_info)
    anew = frozenset(
        before + i for i, info in infos if info.output_type.name not in NON_ALIAS_KINDS
    )
    return Readers(users, users, anew)


def _hide_views(role: str, metadata: Any) -> list[int]:
    """Return the outputs of a graph that are to be no views for autograd.

    AOTAutograd's wrapper makes views so by tensors with a count of writes of their own. Who writes
    one that is a view of what is kept for the gradient, or the other way round, would get a wrong
    gradient without an error. So the wrapper is told that there are none, and they are detached
    here, which shares the count: autograd raises if what it keeps was written.
    """
    if role == "backward" or metadata is None:
        return []
    if role == "forward":
        metadata.unsafe_view_out_indices, metadata.num_unsafe_view_outputs = [], 0
    before = metadata.num_mutated_inp_runtime_indices
    return [
        before + i
        for i, output in enumerate(metadata.output_info)
        if output.output_type.name in NON_ALIAS_KINDS and issubclass(output.raw_type, torch.Tensor)
    ]


_recorders: list[list[GraphCompiler]] = []


@contextmanager
def record_compiled_graphs() -> Iterator[list[GraphCompiler]]:
    """Yield a list to which every graph is added that is compiled in the block, by any thread: a
    gradient is compiled by a thread of torch's.
    """
    found: list[GraphCompiler] = []
    _recorders.append(found)
    try:
        yield found
    finally:
        _recorders.remove(found)


def _first_order_only(gradients: Sequence[Tensor | None]) -> Any:
    """Return gradients whose own gradient is an error: PyTorch 2.11's wrapper sees to that only for
    what is saved.
    """
    error = b"torch.compile does not currently support double backward"
    refuse: Any = torch._C._functions.DelayedError(error, len(gradients))
    return refuse(*[t if t is None else t.detach().requires_grad_() for t in gradients])


class GraphCompiler:
    """A graph of AOTAutograd's, which is called with a list of its inputs, and empties it.

    A graph without symbolic sizes is compiled at once, and so is one that is the same for all of
    them; another one for the sizes of each call that has new ones. One that no program can express
    runs in PyTorch, unless the options say that this is an error.

    Attributes
    ----------
    metadata: what AOTAutograd says of the forward graph. inputs: the traced ones. given: for each
    output, whether it is given, or None.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        _example_inputs: Sequence[Any],
        *,
        role: str,
        graphs: dict[str, GraphCompiler],
        options: Options,
        static: set[str],
        pool: MemoryPool,
    ) -> None:
        self._boxed_call = True  # on the object: torch copies it to what wraps the object
        if role == "inference":  # others are part of a graph that was rewritten as a whole
            rewrite(graph)
        context = TracingContext.try_get()
        self.metadata: Any = None if context is None else context.fw_metadata
        self.inputs = [n.meta.get("val") for n in graph.graph.find_nodes(op="placeholder")]
        outputs: Any = graph.graph.output_node().args[0]
        self.given = [n is not None for n in outputs]
        self.kept = (open_backward if role == "backward" else open_forward)(graph)
        self.graph, self.role, self.options = graph, role, options
        self.said = [n.meta.get("val") for n in graph.graph.nodes if n.op == "placeholder"]
        self.for_all: CompiledGraph | TorchGraph | None = None
        self.by_sizes: dict[Any, CompiledGraph | TorchGraph] = {}
        for found in _recorders:
            found.append(self)
        if role != "backward" and self.metadata is not None:  # whose inputs have these names
            names = [n.name for n in graph.graph.find_nodes(op="placeholder")]
            places = self.metadata.static_input_indices
            static.update(names[i] for i in places if i < len(names))
        self.static, self.pool = static, pool
        self.freezes = options.freeze and role == "inference"
        self.readers = _readers(role, self.metadata)
        self._own = _hide_views(role, self.metadata)
        self._numbers = picker(unguarded_extents(self.said))
        with suppress(NotForAllSizes):
            self.for_all = self._compiled(Extents.of_all_sizes(self.said))
        graphs[role] = self

    def __call__(self, args: list[Any]) -> Any:
        if self.role == "backward" and torch.is_grad_enabled():
            with torch.no_grad():
                gradients = self(args)
            return _first_order_only(gradients)
        run = self.for_all
        if run is None or not all(n > 0 for n in self._numbers(args)):
            run = self._of_sizes(args)
        kept = self.kept
        if kept is None or self.role == "forward":
            found = run(args)
            views = [i for i in self._own if found[i]._is_view()]
            if views:
                found = [t.detach() if i in views else t for i, t in enumerate(found)]
        else:
            bundle = kept.bundle(args[kept.first])
            inputs = [*args[: kept.first], *bundle.values, *args[kept.first + 1 :]]
            found = run(inputs, bundle)
        args.clear()
        return found

    def programs(self) -> list[CompiledGraph | TorchGraph]:
        """Return what was compiled until now."""
        return [p for p in (self.for_all, *self.by_sizes.values()) if p is not None]

    def _of_sizes(self, args: Sequence[Any]) -> CompiledGraph | TorchGraph:
        key = tuple([a.shape if isinstance(a, torch.Tensor) else a for a in args])
        found = self.by_sizes.get(key)
        if found is None:
            found = self.by_sizes[key] = self._compiled(Extents.of_call(self.said, args))
        return found

    @gc_paused()
    def _compiled(self, extents: Extents) -> CompiledGraph | TorchGraph:
        # AOTAutograd compiles while its trace of fake tensors is on.
        with _disable_current_modes(), torch.no_grad(), self.options.in_force():
            # Parameters are bound where they lie: CUDA graphs use them in place, and a call has
            # fewer arguments.
            binds = self.freezes or not extents.values
            static = self.static if binds else ()
            fallback = self.options.fallback
            try:
                converted = convert_graph(
                    self.graph, extents, fallback=fallback, static=static, readers=self.readers
                )
            except NoProgram as error:
                if fallback == "error":
                    raise
                return TorchGraph(self.graph, error, self.kept, self.role)
            trace_structured(
                "artifact",
                metadata_fn=lambda: {"name": "meta_program", "encoding": "string"},
                payload_fn=lambda: str(converted.module),
            )
            lower = None
            if converted.module.main.body.bindings or converted.results:
                lower = partial(self._lowered, converted, extents)
            is_training = self.kept is not None or self.role == "backward"
            turns = is_training and not extents.values
            return CompiledGraph(
                self.graph,
                converted,
                lower,
                self.role,
                (self.pool if self.kept is not None else MemoryPool()) if turns else None,
                self.kept,
            )

    def _loose_results(self, converted: ConvertedGraph) -> list[int]:
        """Return the results whose rows may lie apart: of what the user gets, no view of anything,
        torch.compile does not say how it lies in memory.
        """
        others = {o.base for o in converted.outputs if isinstance(o, View)}
        found = [o for i in self._own if isinstance(o := converted.outputs[i], Result)]
        return [o.number for o in found if o == Result(o.number) and o not in others]

    def _lowered(
        self,
        converted: ConvertedGraph,
        extents: Extents,
        arrays: Sequence[ndarray],
        plan: Mapping[str, Any],
    ) -> LoweredProgram:
        """Compile a program for inputs that are bound, ``arrays``. plan: for `plan_memory`."""
        dims = ranges_of(self.said) if extents.symbolic else {}
        on_cuda = converted.device.kind == "cuda"
        # What is kept by name here means nothing to another process.
        kept = config.override(META_PROGRAM_CACHE=False) if converted.kept else nullcontext()
        over = {"resident": plan.get("resident", ())}
        steps = {"plan_memory": plan, "inplace_update": over} if plan else {}
        if not extents.symbolic:
            steps["carry_padding"] = {"returned": self._loose_results(converted)}
        planned = PassContext(config=steps)
        with kept, planned, _disable_current_modes(), torch.no_grad(), self.options.in_force():
            program = module_program(converted.module)
            return lower(
                replace(program, arrays=tuple(arrays), steady=self.freezes),
                device=converted.device,
                dims=dims,
                memory_budget=self.options.memory_budget,
                cuda_graph=self.options.cuda_graph if on_cuda else None,
                freeze=self.freezes,
            )
