"""`compile`: from a model, or a module, to an `Executable`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import Any

from meta.base import gc_pause
from meta.base.call_context import Default
from meta.base.device import Device, require
from meta.base.errors import ArgumentError, DeviceError
from meta.base.log import LOG
from meta.cost.chooser import chooser, choosing, measured, tuned, tuning
from meta.dialect.core import compiling, warm_up
from meta.ir import Module, TensorType, verify
from meta.op.core import tree
from meta.op.core.tracing import Value
from meta.passes import PassRecord, Pipeline
from meta.passes.call_graph import preparation_of
from meta.passes.manager import pass_name
from meta.passes.prepare import ARRAYS
from meta.runtime import external_memory
from meta.runtime.ndarray import as_array, ndarray
from meta.vm.benchmark.roofline import measure_peaks
from meta.vm.compiler.calling_convention import Convention, Program, bind, declared, module_program
from meta.vm.compiler.emit import ENTRY, emit
from meta.vm.compiler.kernels import BoundProgram, bind_kernels
from meta.vm.compiler.pipeline import PassContext, pipeline
from meta.vm.compiler.recipe import Recipe
from meta.vm.executable import Executable
from meta.vm.run.workspace import Workspace
from meta.vm.save import program_cache


def compile(
    model: Any,
    *args: Any,
    device: object = None,
    opt_level: int | None = None,
    dims: Mapping[str, tuple[int, int | None]] | None = None,
    memory_budget: int | None = None,
    cuda_graph: bool | None = None,
    tune: float | None = None,
    freeze: bool = False,
    **kwargs: Any,
) -> Executable:
    """Compile a model for arguments of these types.

    Parameters
    ----------
    model: a `meta.Model` (its forward, or forward_infer in infer mode), a function decorated with
        `meta.model.trace`, a `Program`, or an `ir.Module` whose main takes tensors.
    args, kwargs: example arguments; their shapes, dtypes and Python values are what it is compiled
        for (a module needs none). An `ir.TensorType` stands for an array and may have symbolic
        dimensions (``meta.ir.parse_type("float32[n, 64]")``): it is compiled once for all of them;
        on CUDA once more for each of the first sizes that it is called with (META_SIZES).
    device: where to run; by default where the arguments and parameters are.
    opt_level: 0 (only what is needed to run) to 3 (every pass); by default that of the
        `meta.PassContext` in force, or 2.
    dims: by the name of a symbolic dimension, the least and the largest extent that it may have;
        None for no largest. One that is not named is 1 or more. A call out of range raises
        ArgumentError.
    memory_budget: bytes for everything but inputs and constants; values are recomputed until the
        program fits (see `meta.passes.rematerialize`). ArgumentError, with the least that works, if
        it cannot.
    cuda_graph: whether kernels are recorded as CUDA graphs and replayed, from the second call on.
        None: on CUDA whatever can be (META_CUDA_GRAPH); ``executable.cuda_graph`` says what and why
        not. True: CaptureError, at the latest by the second call, if a part that should be
        recorded cannot, or if there is none.
    tune: seconds within which kernels of this program that were never measured are measured, those
        that seem to take longest first; what is found is kept for all processes and decides which
        kernels run (see `meta.cost.measured`). None: as META_TUNE says.
    freeze: whether weights are laid out for the kernels of the CPU before the first call: in blocks
        of output channels, for convolutions with the channels last and products. It takes memory
        for them beside the model's, and a convolution network a half to a third of the time.
        ArgumentError for a model in train mode, and with a ``memory_budget``.

    Of a model in infer mode, what depends on its arrays alone (weights cast, transposed, or folded
    with batch normalisation) is computed before the first call, kept, and computed again after an
    array was written or exchanged; not with a ``memory_budget``. See `Executable`.

    What was compiled before, in any process, is taken from the program cache (META_PROGRAM_CACHE).

    Raises TraceError, TypeInferError or DispatchError, at the user's line, for what cannot be
    traced, typed or run, and IRError for functions that call one another too often.

    >>> net = meta.model.Sequential(meta.model.Linear(3, 2), meta.model.ReLU())
    >>> with meta.dialect.only("torch"):
    ...     run = meta.vm.compile(net, meta.ir.parse_type("float32[4, 3]"))
    >>> run(meta.ones((4, 3))).shape, len(run.kernels())
    ((4, 2), 1)
    """
    with nullcontext() if tune is None else measured(tune):
        lowered = lower(
            model,
            args,
            kwargs,
            device=device,
            opt_level=opt_level,
            dims=dims,
            memory_budget=memory_budget,
            cuda_graph=cuda_graph,
            freeze=freeze,
        )
    return lowered.executable()


@dataclass(frozen=True)
class LoweredProgram:
    """A program with its kernels, and what runs it.

    Attributes
    ----------
    bound: its code and kernels. arrays, convention, history, cuda_graph, recipe: see
    `CompiledProgram`.
    """

    bound: BoundProgram
    arrays: Sequence[ndarray]
    convention: Convention
    history: Sequence[PassRecord]
    cuda_graph: bool | None
    recipe: Recipe

    def executable(self, workspace: Workspace | None = None) -> Executable:
        """Return what runs it in a workspace; in one of its own by default."""
        return Executable(
            self.bound,
            self.arrays,
            self.convention,
            self.history,
            self.cuda_graph,
            self.recipe,
            workspace,
        )


@gc_pause.gc_paused()
@compiling()
def lower(
    model: Any,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    *,
    device: object = None,
    opt_level: int | None = None,
    dims: Mapping[str, tuple[int, int | None]] | None = None,
    memory_budget: int | None = None,
    cuda_graph: bool | None = None,
    freeze: bool = False,
) -> LoweredProgram:
    """Compile a model for arguments of these types, as `compile` does, up to the point at which it
    takes memory.
    """
    Default.complete()  # the programs are of all that the package can
    with PassContext(opt_level=opt_level):
        program = to_program(model, args, dict(kwargs))
    program.require_end()
    given = (a for a in tree.flatten((args, kwargs))[0] if not isinstance(a, TensorType | Value))
    arrays = [*map(as_array, given), *program.arrays]
    where = (
        require(device) if device is not None else arrays[0].device if arrays else require("cpu")
    )
    for array in arrays:
        if array.device != where:
            raise DeviceError(
                "an argument or parameter is on another device",
                expected=where,
                found=f"{array.name or 'an array'} of shape {array.shape} on {array.device}",
                hint="move the model and its inputs with .to(device=...)",
            )
    main = declared(program.module.main, dims or {})
    options = {} if memory_budget is None else {"rematerialize": {"budget": memory_budget}}
    if freeze:
        _require_fixed(program, memory_budget)
        options |= {name: {"frozen": True} for name in FREEZING}
    with PassContext(required=options, config=options):
        passes = pipeline(where, opt_level)
    # Whose writes nothing tells of: what is computed of it could not be kept.
    counted = all(external_memory.counts_writes(a.tensor) for a in program.arrays)
    if program.steady and program.arrays and counted and _prepares(passes):
        main = replace(main, attrs={**main.attrs, ARRAYS: len(program.arrays)})
    traced = program.module.with_functions({**program.module.functions, ENTRY: main})
    bound = partial(_bound, program.convention.name)
    recipe = Recipe(copy_context(), passes, traced, where, bound)
    found = bound(passes, traced, where)
    how = program.convention, passes.history, cuda_graph, recipe
    return LoweredProgram(found, program.arrays, *how)


@gc_pause.gc_paused()
@compiling()
def _bound(name: str, passes: Pipeline, traced: Module, where: Device) -> BoundProgram:
    """Lower a traced program, or take it from the program cache: no pass has a history then."""
    begin = perf_counter()
    passes.history = []
    key = program_cache.key_of(traced, passes, where)
    found = None if key is None else program_cache.find(key)
    if found is None:
        # Not before: while TVM reads symbols, no library can be loaded, nor a kept kernel.
        warm_up(where)
        if tuning() == "on" and not chooser().exhausted:
            measure_peaks(where)  # what plans weigh times against
        module = _measured(passes, traced) if tuning() == "on" else passes(traced)
        code = emit(module, where)
        kernels = bind_kernels(code.kernels, module.functions, where)
        prepares = preparation_of(module)
        preparation = None if prepares is None else lambda: prepares
        found = BoundProgram(code, kernels, where, lambda: module, preparation)
        if key is not None and not chooser().exhausted:  # else a later process goes on measuring
            # What was measured on the way counts from now on.
            program_cache.store(program_cache.key_of(traced, passes, where) or key, found)
            if tuning() == "on":  # complete, so that it is what "cached" would make of the costs
                with tuned(measures=False):
                    program_cache.store(program_cache.key_of(traced, passes, where) or key, found)
    how = "compiled" if passes.history else "took from the program cache:"
    what = name, where, len(found.kernels), perf_counter() - begin
    LOG.info(f"{how} %s on %s, %d kernels, in %.3f s", *what)
    return found


FREEZING = "integer_products", "channels_last", "pack_weights"
"""The passes that do more for a frozen program."""


def _require_fixed(program: Program, memory_budget: int | None) -> None:
    """Raise ArgumentError for a program whose weights cannot be prepared."""
    found = None
    if program.arrays and not program.steady:
        found, hint = "a model in train mode", "model.eval() before it is compiled"
    elif memory_budget is not None:
        found, hint = "a memory_budget", "one of the two: packed weights take memory of their own"
    elif uncounted := [a for a in program.arrays if not external_memory.counts_writes(a.tensor)]:
        found = (
            f"{uncounted[0].name or 'an array'} of shape {uncounted[0].shape}, whose writes "
            "nobody counts: it shares memory with another library, or was made in inference_mode"
        )
        hint = "weights that are copied, outside of torch.inference_mode: array.copy()"
    if found is not None:
        raise ArgumentError(
            "freeze=True prepares weights before the first call, which cannot be done",
            expected="a model in infer mode with weights of its own, without a memory_budget",
            found=found,
            hint=hint,
        )


MOST_PLANS = 4
"""How often a program is planned at most until nothing is left to be measured of the plan."""


def _measured(passes: Pipeline, traced: Module) -> Module:
    """Lower a program and measure its kernels on the way. What is measured late, such as that of
    fused kernels, may be a reason for another plan, whose kernels are measured then: the program is
    that of the last one, which another process with the same costs would make.
    """
    with choosing(variants=False):
        passes(traced)  # measures what the program calls before what it might call instead
    for _ in range(MOST_PLANS):
        with measured() as spent:
            module = passes(traced)
        if spent.races == 0 or chooser().exhausted:
            break
    return module


def _prepares(passes: Pipeline) -> bool:
    """Whether what depends on arrays alone is kept: a memory budget would have to hold it."""
    by_name = {pass_name(step): step for step in passes.passes}
    limit = by_name.get("rematerialize")
    limited = isinstance(limit, partial) and limit.keywords.get("budget") is not None
    return "prepare" in by_name and not limited


def to_program(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
    """Return the program that a model is for these arguments."""
    if isinstance(model, Program):
        return model
    if isinstance(model, Module):
        verify(model)
        program = module_program(model)
        if args or kwargs:
            convention = program.convention
            bind(convention.name, convention.signature, args, kwargs, convention.site)
        return program
    make: Callable[..., Program] | None = getattr(model, "program", None)
    if make is None:
        raise ArgumentError(
            "this cannot be compiled",
            expected="a meta.Model, a function decorated with meta.model.trace, or an ir.Module",
            found=type(model).__name__,
        )
    return make(*args, **kwargs)
