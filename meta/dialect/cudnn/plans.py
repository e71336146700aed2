"""Plans: what cuDNN made of a graph, ready to run.

Building one costs milliseconds, so that they are kept, by what describes the graph; so are the
refusals. One whose kernel cuDNN compiles costs a second, and is kept on disk, too. To run one is
one call, which a CUDA graph captures.

Plans are released before the interpreter ends: what it drops after that, it drops in any order or
not at all, and the frontend then lists each graph as a leak.

The plans that cuDNN's heuristic lists for a graph, by engine and knobs, are configurations of the
kernels of this dialect. The frontend names a plan "eng57_k2=4_k3=0"; that is the configuration
``engine=57,k2=4,k3=0``. What a name means depends on the version of cuDNN, and whether a plan is
there on the graph and the GPU: one that the heuristic does not list is refused.
"""

from __future__ import annotations

import atexit
import ctypes
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.metadata import version
from typing import Any

import torch

from meta.base import config, disk_cache
from meta.dialect.core import Config, Configs, OpEnv, Unsupported
from meta.dialect.core.openv import config_text
from meta.dialect.cudnn import library
from meta.dialect.cudnn.graph import Graph, frontend

LIMIT = 1024
"""How many plans are kept. Those that a program or an eager call holds live on."""
FOLDER = "cudnn"
_lock = threading.RLock()
_plans: OrderedDict[Hashable, ExecutionPlan | str] = OrderedDict()
_alive: weakref.WeakSet[ExecutionPlan] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class PlanKey:
    """What a plan is made for: the graph which ``describe(graph, *details)`` makes, of data of a
    dtype on a device, and whether float32 may be rounded to TensorFloat-32. ``config`` says which
    plan it is; () is the first that can be had.
    """

    describe: Callable[..., None]
    details: tuple[Hashable, ...]
    dtype: str
    device: int
    tf32: bool
    config: Config = ()

    @property
    def text(self) -> str:
        """What a plan on disk depends on."""
        chip = torch.cuda.get_device_name(self.device)
        versions = library.version(), version("nvidia-cudnn-frontend"), torch.version.cuda, chip
        graph = f"{self.describe.__module__}.{self.describe.__qualname__}"
        return repr((*versions, graph, self.details, self.dtype, self.tf32, *self.config))


class ExecutionPlan:
    """A graph that can run.

    Attributes
    ----------
    workspace: the bytes of memory that a run needs besides its arguments.
    """

    __slots__ = (
        *("_device", "_execute", "_graph", "_pointers", "_where", "workspace", "__weakref__"),
    )

    def __init__(self, graph: Graph, device: int) -> None:
        self._graph, self._device, self._where = graph, device, f"cuda:{device}"
        self._pointers = ctypes.c_void_p * graph.count
        self._execute = graph.node._execute_with_raw_ptrs
        self.workspace: int = graph.node.get_workspace_size()
        _alive.add(self)

    def release(self) -> None:
        """Let go of the graph; the plan cannot run any more."""
        del self._graph, self._execute

    def serialized(self) -> bytes:
        """Return the plan with its kernel, for other processes."""
        content: bytes = self._graph.node.serialize(as_bytes=True)
        return bytes([self._graph.count]) + content

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Run on torch's current stream; ``tensors`` as the graph's description names them.

        The workspace is torch's, which may give it to the next call of this stream at once.
        """
        if torch.cuda.current_device() != self._device:
            with torch.cuda.device(self._device):
                return self(*tensors)
        pointers = self._pointers(*[t.data_ptr() for t in tensors])
        count, handle = len(tensors), library.current(self._device)
        address = ctypes.addressof(pointers)
        if self.workspace:
            room = torch.empty(self.workspace, dtype=torch.uint8, device=self._where)
            self._execute(address, count, room.data_ptr(), handle)
        else:
            self._execute(address, count, 0, handle)


class Plans:
    """The plans of one graph in float32, by precision: META_TF32 may change from call to call.

    A configuration is that of the precision of now; the other one has its default.
    """

    def __init__(self, wanted: PlanKey) -> None:
        """Make the one that is needed now; raises Unsupported if there is none."""
        default = replace(wanted, config=())

        def of(tf32: bool) -> ExecutionPlan:
            return _cached_plan(replace(wanted if tf32 == wanted.tf32 else default, tf32=tf32))

        self._of = cache(of)
        self._of(wanted.tf32)

    @property
    def workspace(self) -> int:
        """The bytes of memory that a run needs besides its arguments."""
        return self._of(_tf32()).workspace

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Run the plan of the precision that is asked for."""
        self._of(_tf32())(*tensors)


Run = ExecutionPlan | Plans
"""What runs a graph."""


@atexit.register
def _release() -> None:
    frontend.cache_clear()
    for one in list(_alive):
        one.release()


def plan(describe: Callable[..., None], *details: Hashable, dtype: str, device: int) -> Run:
    """Return what runs the graph which ``describe(graph, *details)`` makes.

    In float32 it is as precise as META_TF32 says at each call. Raises Unsupported with cuDNN's
    message if there is no plan.
    """
    return _run(PlanKey(describe, details, dtype, device, _tf32()))


def _run(wanted: PlanKey) -> Run:
    return Plans(wanted) if wanted.dtype == "float32" else _cached_plan(wanted)


def planned(describe: Callable[..., None], *details: Hashable, dtype: str, device: int) -> OpEnv:
    """Return the kernel that runs a graph, as `plan` takes it."""

    def env(run: Run) -> OpEnv:
        return OpEnv(run, allocates=False, workspace=lambda: run.workspace)

    return with_plan(env, describe, *details, dtype=dtype, device=device)


def with_plan(
    env: Callable[[Run], OpEnv],
    describe: Callable[..., None],
    *details: Hashable,
    dtype: str,
    device: int,
) -> OpEnv:
    """Return the kernel that ``env`` makes of what runs a graph; see `plan`. The graph's other
    plans are its configurations.
    """
    wanted = PlanKey(describe, details, dtype, device, _tf32())

    def made(config: Config) -> OpEnv:
        return env(_run(replace(wanted, config=config)))

    kernel = made(())
    kernel.configs = Configs(lambda: list(_others(wanted)), made)
    return kernel


@lru_cache(maxsize=LIMIT)
def _others(wanted: PlanKey) -> tuple[Config, ...]:
    """Return the configurations of a graph's other plans."""
    with _lock, torch.cuda.device(wanted.device):
        return tuple(others(_described(wanted).node))


def _tf32() -> bool:
    return bool(config.get("META_TF32"))


def _cached_plan(wanted: PlanKey) -> ExecutionPlan:
    """Return the plan of a graph, built now if it is not kept; Unsupported if it has none."""
    with _lock:
        found = _plans.get(wanted)
        if found is None:
            found = _plans[wanted] = _attempt(wanted)
            if len(_plans) > LIMIT:
                _plans.popitem(last=False)
        _plans.move_to_end(wanted)
    if isinstance(found, str):
        raise Unsupported(found)
    return found


def _attempt(wanted: PlanKey) -> ExecutionPlan | str:
    """Return a plan, or cuDNN's message if there is none.

    A kernel that cuDNN has is taken before one that it has to compile, which takes half a second;
    only where there is none is one on disk.
    """
    kept = _restored(wanted)
    if kept is not None:
        return kept
    if wanted.config:
        return _chosen(wanted)
    with suppress(frontend().cudnnGraphNotSupportedError):
        return _built(wanted, compiles=False)
    try:
        made = _built(wanted, compiles=True)
    except frontend().cudnnGraphNotSupportedError as error:
        return _refusal(error)
    _store(wanted, made)
    return made


def _chosen(wanted: PlanKey) -> ExecutionPlan | str:
    """Return the plan of a configuration, or why there is none."""
    with torch.cuda.device(wanted.device):
        try:
            graph = _described(wanted)
            index = index_of(graph.node, wanted.config)
            if index is None:
                return f"cuDNN has no plan {config_text(wanted.config)} for this graph"
            graph.node.build_plan_at_index(index)
            made = _finished(graph, wanted)
        except failures() as error:
            return _refusal(error)
    if compiles(graph.node, index):
        _store(wanted, made)
    return made


def _refusal(error: Exception) -> str:
    return "cuDNN has no plan: " + " ".join(str(error).split())


def _store(wanted: PlanKey, made: ExecutionPlan) -> None:
    """Write a plan to disk, if cuDNN can write down its kernel."""
    with suppress(*failures()):
        disk_cache.store(FOLDER, wanted.text, made.serialized())


def _restored(wanted: PlanKey) -> ExecutionPlan | None:
    """Return a plan that another process made; None if there is none, or it cannot be used."""
    content = disk_cache.get(FOLDER, wanted.text)
    if content is None:
        return None
    with torch.cuda.device(wanted.device):
        handle = library.current(wanted.device)
        graph = Graph(wanted.dtype, handle)
        graph.count = content[0]
        try:
            graph.node.deserialize(handle, content[1:])
        except (RuntimeError, ValueError, frontend().cudnnGraphNotSupportedError):
            return None  # it is made anew
        return ExecutionPlan(graph, wanted.device)


def _built(wanted: PlanKey, compiles: bool) -> ExecutionPlan:
    names = frontend()
    with torch.cuda.device(wanted.device):
        graph = _described(wanted)
        node: Any = graph.node
        if not compiles:
            node.deselect_behavior_notes([names.behavior_note.RUNTIME_COMPILATION])
        node.check_support()
        node.build_plans(names.build_plan_policy.HEURISTICS_CHOICE)
        return _finished(graph, wanted)


def _described(wanted: PlanKey) -> Graph:
    """Return a graph with the plans of the heuristic, none of which is built."""
    names = frontend()
    graph = Graph(wanted.dtype, library.current(wanted.device))
    wanted.describe(graph, *wanted.details)
    node: Any = graph.node
    node.validate()
    node.build_operation_graph()
    node.create_execution_plans([names.heur_mode.A])
    if wanted.dtype == "float32" and not wanted.tf32:
        notes = names.numerical_note
        node.deselect_numeric_notes([notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS])
    return graph


def _finished(graph: Graph, wanted: PlanKey) -> ExecutionPlan:
    """Return the plan of a graph that was built last."""
    graph.node._prepare_variant_pack_template()  # else two threads might, in their first runs
    return ExecutionPlan(graph, wanted.device)


LISTED = 8
"""Plans besides the first that are worth measuring."""
COMPILED = 3
"""Of these, the ones whose kernels cuDNN has to compile, a second each."""
_NAME = re.compile(r"eng(\d+)((?:_k\d+=\d+)*)", re.ASCII)


def failures() -> tuple[type[Exception], ...]:
    """Return what the frontend raises where a plan cannot be built."""
    return frontend().cudnnGraphNotSupportedError, RuntimeError


def index_of(node: Any, config: Config) -> int | None:
    """Return the place of a configuration's plan among those of a graph; None if it has none."""
    return next((index for index, found in _plans_of(node) if found == config), None)


def compiles(node: Any, index: int) -> bool:
    """Whether cuDNN compiles the kernel of a plan."""
    notes = node.get_behavior_notes_for_plan_at_index(index)
    return frontend().behavior_note.RUNTIME_COMPILATION in notes


def others(node: Any) -> list[Config]:
    """Return the configurations of a graph's plans but the one that is built by default: those
    whose kernels cuDNN has, which are built to see whether they can be, then some to be compiled.
    """
    ready: list[Config] = []
    compiled: list[Config] = []
    for index, one in _plans_of(node):
        if one in ready or one in compiled:
            continue
        if compiles(node, index):
            compiled.append(one)
        elif len(ready) <= LISTED and _builds(node, index):
            ready.append(one)
    found, rest = (ready[1:], compiled) if ready else ([], compiled[1:])
    return [*found, *rest[: min(COMPILED, LISTED - len(found))]]


def _plans_of(node: Any) -> Iterator[tuple[int, Config]]:
    """Yield the places and configurations of the plans that a graph has, the best guess first."""
    for index in range(node.get_execution_plan_count()):
        one = config_of(node.get_plan_name_at_index(index))
        if one:
            yield index, one


def config_of(name: str) -> Config:
    """Return the configuration of a plan's name; () for a name of another form."""
    found = _NAME.search(name)
    if found is None or found.end() != len(name):
        return ()
    knobs = (part.split("=") for part in found[2].split("_")[1:])
    return tuple(sorted([("engine", int(found[1])), *((knob, int(n)) for knob, n in knobs)]))


def _builds(node: Any, index: int) -> bool:
    try:
        node.build_plan_at_index(index)
    except failures():
        return False
    return True
