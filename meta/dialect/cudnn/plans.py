"""Plans: what cuDNN made of a graph, ready to run.

Building one costs milliseconds, so that they are kept, by what describes the graph; so are the
refusals. To run one is one call, which a CUDA graph captures.
"""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch

from meta.base import config
from meta.dialect.core import Unsupported
from meta.dialect.cudnn import handles
from meta.dialect.cudnn.graph import Graph, frontend

LIMIT = 1024
"""How many plans are kept. Those that a program or an eager call holds live on."""
_lock = threading.RLock()
_plans: OrderedDict[Hashable, Plan | str] = OrderedDict()


class Plan:
    """A graph that can run.

    Attributes
    ----------
    workspace: the bytes of memory that a run needs besides its arguments.
    """

    __slots__ = ("_device", "_execute", "_graph", "_pointers", "_where", "workspace")

    def __init__(self, graph: Graph, device: int) -> None:
        self._graph, self._device, self._where = graph, device, f"cuda:{device}"
        self._pointers = ctypes.c_void_p * graph.count
        self._execute = graph.node._execute_with_raw_ptrs
        self.workspace: int = graph.node.get_workspace_size()

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Run on torch's current stream; ``tensors`` as the graph's description names them.

        The workspace is torch's, which may give it to the next call of this stream at once.
        """
        pointers = self._pointers(*[t.data_ptr() for t in tensors])
        count, handle = len(tensors), handles.current(self._device)
        address = ctypes.addressof(pointers)
        if self.workspace:
            room = torch.empty(self.workspace, dtype=torch.uint8, device=self._where)
            self._execute(address, count, room.data_ptr(), handle)
        else:
            self._execute(address, count, 0, handle)


def plan(
    describe: Callable[..., None], *details: Hashable, dtype: str, device: int
) -> Callable[..., None]:
    """Return a kernel that runs the graph which ``describe(graph, *details)`` makes.

    In float32 it is as precise as META_TF32 says at each call. Raises Unsupported with cuDNN's
    message if there is no plan.
    """
    tf32 = _tf32()
    first = _kept(describe, details, dtype, device, tf32)
    if dtype != "float32":
        return first
    known = {tf32: first}

    def run(*tensors: torch.Tensor) -> None:
        wanted = _tf32()
        if wanted not in known:
            known[wanted] = _kept(describe, details, dtype, device, wanted)
        known[wanted](*tensors)

    return run


def _tf32() -> bool:
    return bool(config.get("META_TF32"))


def _kept(
    describe: Callable[..., None],
    details: tuple[Hashable, ...],
    dtype: str,
    device: int,
    tf32: bool,
) -> Plan:
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
) -> Plan | str:
    """Return a plan, or cuDNN's message if there is none.

    A kernel that cuDNN has is taken before one that it has to compile, which takes half a second.
    """
    refusal = ""
    for compiles in (False, True):
        try:
            return _built(describe, details, dtype, device, tf32, compiles)
        except frontend().cudnnGraphNotSupportedError as error:
            refusal = "cuDNN has no plan: " + " ".join(str(error).split())
    return refusal


def _built(
    describe: Callable[..., None],
    details: tuple[Hashable, ...],
    dtype: str,
    device: int,
    tf32: bool,
    compiles: bool,
) -> Plan:
    library = frontend()
    with torch.cuda.device(device):
        graph = Graph(dtype, handles.current(device))
        describe(graph, *details)
        node: Any = graph.node
        node.validate()
        node.build_operation_graph()
        node.create_execution_plans([library.heur_mode.A])
        if dtype == "float32" and not tf32:
            notes = library.numerical_note
            node.deselect_numeric_notes([notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS])
        if not compiles:
            node.deselect_behavior_notes([library.behavior_note.RUNTIME_COMPILATION])
        node.check_support()
        node.build_plans(library.build_plan_policy.HEURISTICS_CHOICE)
        return Plan(graph, device)
