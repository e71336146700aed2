"""Plans: what cuDNN made of a graph, ready to run.

Building one costs milliseconds, so that they are kept, by what describes the graph; so are the
refusals. One whose kernel cuDNN compiles costs a second, and is kept on disk, too. To run one is
one call, which a CUDA graph captures.

Plans are released before the interpreter ends: what it drops after that, it drops in any order or
not at all, and the frontend then lists each graph as a leak.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import torch

from meta.base import config, kept_file
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cudnn import handles, library
from meta.dialect.cudnn.graph import Graph, frontend

LIMIT = 1024
"""How many plans are kept. Those that a program or an eager call holds live on."""
FOLDER = "cudnn"
_lock = threading.RLock()
_plans: OrderedDict[Hashable, ExecutionPlan | str] = OrderedDict()
_alive: weakref.WeakSet[ExecutionPlan] = weakref.WeakSet()


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
        return bytes([self._graph.count]) + self._graph.node.serialize(as_bytes=True)

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Run on torch's current stream; ``tensors`` as the graph's description names them.

        The workspace is torch's, which may give it to the next call of this stream at once.
        """
        if torch.cuda.current_device() != self._device:
            with torch.cuda.device(self._device):
                return self(*tensors)
        pointers = self._pointers(*[t.data_ptr() for t in tensors])
        count, handle = len(tensors), handles.current(self._device)
        address = ctypes.addressof(pointers)
        if self.workspace:
            room = torch.empty(self.workspace, dtype=torch.uint8, device=self._where)
            self._execute(address, count, room.data_ptr(), handle)
        else:
            self._execute(address, count, 0, handle)


class Plans:
    """The plans of one graph in float32, by precision: META_TF32 may change from call to call."""

    def __init__(
        self, describe: Callable[..., None], details: tuple[Hashable, ...], device: int
    ) -> None:
        """Make the one that is needed now; raises Unsupported if there is none."""
        self._of = describe, details, "float32", device
        self._known: dict[bool, ExecutionPlan] = {}
        self._now()

    def _now(self) -> ExecutionPlan:
        tf32 = _tf32()
        if tf32 not in self._known:
            self._known[tf32] = _kept(*self._of, tf32)
        return self._known[tf32]

    @property
    def workspace(self) -> int:
        """The bytes of memory that a run needs besides its arguments."""
        return self._now().workspace

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Run the plan of the precision that is asked for."""
        self._now()(*tensors)


@atexit.register
def _release() -> None:
    frontend.cache_clear()
    for one in list(_alive):
        one.release()


def plan(
    describe: Callable[..., None], *details: Hashable, dtype: str, device: int
) -> ExecutionPlan | Plans:
    """Return what runs the graph which ``describe(graph, *details)`` makes.

    In float32 it is as precise as META_TF32 says at each call. Raises Unsupported with cuDNN's
    message if there is no plan.
    """
    if dtype == "float32":
        return Plans(describe, details, device)
    return _kept(describe, details, dtype, device, _tf32())


def planned(describe: Callable[..., None], *details: Hashable, dtype: str, device: int) -> OpEnv:
    """Return the kernel that runs a graph, as `plan` takes it."""
    run = plan(describe, *details, dtype=dtype, device=device)
    return OpEnv(run, allocates=False, workspace=lambda: run.workspace)


def _tf32() -> bool:
    return bool(config.get("META_TF32"))


def _kept(
    describe: Callable[..., None],
    details: tuple[Hashable, ...],
    dtype: str,
    device: int,
    tf32: bool,
) -> ExecutionPlan:
    """Return the plan of a graph, built now if it is not kept; Unsupported if it has none."""
    key = (describe, details, dtype, device, tf32)
    with _lock:
        found = _plans.get(key)
        if found is None:
            found = _plans[key] = _attempt(*key)
            if len(_plans) > LIMIT:
                _plans.popitem(last=False)
        _plans.move_to_end(key)
    if isinstance(found, str):
        raise Unsupported(found)
    return found


def _attempt(
    describe: Callable[..., None],
    details: tuple[Hashable, ...],
    dtype: str,
    device: int,
    tf32: bool,
) -> ExecutionPlan | str:
    """Return a plan, or cuDNN's message if there is none.

    A kernel that cuDNN has is taken before one that it has to compile, which takes half a second;
    only where there is none is one on disk.
    """
    key = (describe, details, dtype, device, tf32)
    kept = _restored(key)
    if kept is not None:
        return kept
    with suppress(frontend().cudnnGraphNotSupportedError):
        return _built(*key, compiles=False)
    try:
        made = _built(*key, compiles=True)
    except frontend().cudnnGraphNotSupportedError as error:
        return "cuDNN has no plan: " + " ".join(str(error).split())
    try:
        content = made.serialized()
    except (RuntimeError, frontend().cudnnGraphNotSupportedError):
        return made  # cuDNN cannot write down all of its kernels
    kept_file.keep(FOLDER, _text(key), content)
    return made


def _text(key: tuple[Any, ...]) -> str:
    """Return what a plan on disk depends on."""
    describe, details, dtype, device, tf32 = key
    chip = torch.cuda.get_device_name(device)
    versions = library.version(), version("nvidia-cudnn-frontend"), torch.version.cuda, chip
    what = f"{describe.__module__}.{describe.__qualname__}", details, dtype, tf32
    return repr((*versions, *what))


def _restored(key: tuple[Any, ...]) -> ExecutionPlan | None:
    """Return a plan that another process made; None if there is none, or it cannot be used."""
    content = kept_file.find(FOLDER, _text(key))
    if content is None:
        return None
    _, _, dtype, device, _ = key
    with torch.cuda.device(device):
        handle = handles.current(device)
        graph = Graph(dtype, handle)
        graph.count = content[0]
        try:
            graph.node.deserialize(handle, content[1:])
        except (RuntimeError, ValueError, frontend().cudnnGraphNotSupportedError):
            return None  # it is made anew
        return ExecutionPlan(graph, device)


def _built(
    describe: Callable[..., None],
    details: tuple[Hashable, ...],
    dtype: str,
    device: int,
    tf32: bool,
    compiles: bool,
) -> ExecutionPlan:
    names = frontend()
    with torch.cuda.device(device):
        graph = Graph(dtype, handles.current(device))
        describe(graph, *details)
        node: Any = graph.node
        node.validate()
        node.build_operation_graph()
        node.create_execution_plans([names.heur_mode.A])
        if dtype == "float32" and not tf32:
            notes = names.numerical_note
            node.deselect_numeric_notes([notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS])
        if not compiles:
            node.deselect_behavior_notes([names.behavior_note.RUNTIME_COMPILATION])
        node.check_support()
        node.build_plans(names.build_plan_policy.HEURISTICS_CHOICE)
        node._prepare_variant_pack_template()  # else two threads might, in their first runs
        return ExecutionPlan(graph, device)
