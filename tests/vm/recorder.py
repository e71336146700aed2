"""A stand-in for CUDA graphs on the CPU: records what ATen runs, and runs it again on the same
memory.

As of a CUDA graph: addresses are those of the recording, numbers are baked in, results lie where
they lay, and what the graph is given is not kept. Unlike one, recording runs the kernels.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from meta import op
from meta.base.device import CPU
from meta.dialect.torch import llvm_random
from meta.runtime.mesh import RankMesh, current_mesh, use_mesh
from meta.vm.graphs import capture
from meta.vm.graphs.region_step import GraphStep
from meta.vm.run import compiled_program


class _Log(TorchDispatchMode):
    """``calls``: what ran. ``before``: memory that was written, and what was there before."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []
        self.exchanges = False
        self.before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            self.keep((args, kwargs))
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        result = func(*args, **kwargs)
        given = {_memory(t) for t in _tensors((args, kwargs))}
        fresh = [t for t in _tensors(result) if _memory(t) not in given]
        if fresh or func._schema.is_mutable:  # else a view, or nothing
            self.calls.append((func, args, kwargs, fresh))
        return result

    def keep(self, values: Any) -> None:
        for tensor in _tensors(values):
            whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            self.before.setdefault(_memory(tensor), (whole, whole.clone()))

    def undo(self) -> None:
        for whole, then in self.before.values():
            whole.copy_(then)


class _Taped:
    """A group whose exchanges are logged, to be made again, and not what they run on ATen."""

    def __init__(self, group: Any, log: _Log) -> None:
        self._group, self._log = group, log
        self.rank, self.size = group.rank, group.size

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._group, name)

        def exchange(*args: Any) -> None:
            if self._log.exchanges:  # within `start`
                method(*args)
                return
            with _disable_current_modes():
                self._log.keep(args)
                method(*args)
            self._log.calls.append((method, args, {}, []))

        return exchange

    def together(self) -> Any:
        return self._group.together()

    def start(self, run: Any, written: list[torch.Tensor]) -> Any:
        waits: list[Any] = []

        def again() -> None:
            waits.append(self._group.start(run, written))

        def wait() -> None:
            waits.pop()()

        def logged(call: Any) -> None:
            with _disable_current_modes():
                self._log.exchanges = True
                self._log.keep(written)
                call()
                self._log.exchanges = False
            self._log.calls.append((call, (), {}, []))

        logged(again)
        return lambda: logged(wait)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _address(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the memory of another one that does not keep it."""
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return tensor
    data = (ctypes.c_byte * storage.nbytes()).from_address(storage.data_ptr())
    memory = torch.frombuffer(data, dtype=torch.uint8).untyped_storage()
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    found = torch.empty(0, dtype=tensor.dtype).set_(memory, *place)
    assert not tensor.is_conj() and not tensor.is_neg()
    return found


class TapeRecorder:
    """Stands for `CudaRecorder`. ``replays`` counts.

    ``given``: the memory of what there is before a recording, on each thread.
    """

    def __init__(self) -> None:
        self.recorded = self.tried = self.replays = 0
        self.busy = False
        self._of_thread = threading.local()

    @property
    def given(self) -> set[int]:
        return getattr(self._of_thread, "given", set())

    @given.setter
    def given(self, memory: set[int]) -> None:
        self._of_thread.given = memory

    def _logged(self, body: Callable[[], None]) -> tuple[_Log, Exception | None]:
        log = _Log()
        try:
            with (
                use_mesh(RankMesh({n: _Taped(g, log) for n, g in current_mesh().groups.items()})),
                log,
            ):
                body()
        except Exception as error:
            return log, error
        return log, None

    def try_out(self, body: Callable[[], None]) -> None:
        log, error = self._logged(body)
        log.undo()
        self.tried += 1
        if error is not None:
            raise error

    def record(
        self, body: Callable[[], None], agree: Callable[[Exception | None], None] | None = None
    ) -> Callable[[], None]:
        log, error = self._logged(body)
        if agree is not None:
            agree(error)
        if error is not None:
            raise error
        self.recorded += 1
        given = self.given

        def by_address(tensor: torch.Tensor) -> torch.Tensor:
            return _address(tensor) if _memory(tensor) in given else tensor

        calls = [
            (func, *tree_map_only(torch.Tensor, by_address, (args, kwargs)), fresh)
            for func, args, kwargs, fresh in log.calls
        ]

        def replay() -> None:
            self.replays += 1
            for func, args, kwargs, fresh in calls:
                given = {_memory(t) for t in _tensors((args, kwargs))}
                again = [t for t in _tensors(func(*args, **kwargs)) if _memory(t) not in given]
                for old, new in zip(fresh, again, strict=True):
                    old.copy_(new)

        return replay

    def is_busy(self) -> bool:
        return self.busy

    def pool_bytes(self) -> int:
        return 1234


class Forgetful(TapeRecorder):
    """Keeps no tensor alive, as CUDA does not; a replay does nothing."""

    def record(
        self, body: Callable[[], None], agree: Callable[[Exception | None], None] | None = None
    ) -> Callable[[], None]:
        body()
        self.recorded += 1
        return lambda: None


def chain(x: Any) -> Any:
    """A program of several kernels."""
    for f in (op.exp, op.tanh, op.sin, op.cos):
        x = f(x)
    return x


def standing_in(
    monkeypatch: pytest.MonkeyPatch, make: type[TapeRecorder] = TapeRecorder
) -> TapeRecorder:
    """Return what records the programs that are compiled from now on."""
    recorder = make()

    def graphs_for(code: Any, arrays: int, device: Any, wanted: bool | None) -> Any:
        if wanted is False:
            return None, "cuda_graph=False"
        return capture.Graphs(code, arrays, CPU, recorder, bool(wanted)), ""

    recorded = GraphStep.recorded

    def recorded_knowing(self: GraphStep, regs: list[Any], *rest: Any) -> Any:
        recorder.given = {_memory(t) for t in _tensors(regs)}
        return recorded(self, regs, *rest)

    monkeypatch.setattr(compiled_program, "graphs_for", graphs_for)
    monkeypatch.setattr(GraphStep, "recorded", recorded_knowing)
    # As on CUDA, nobody looks at indices; a program that does has no graphs.
    monkeypatch.setattr("meta.vm.compiler.emit_values.checks_indices", lambda device: False)
    # Random numbers are drawn by ATen, whose calls are seen; the CPU's kernels read the key.
    monkeypatch.setattr(llvm_random, "kernels", dict)
    return recorder


def let_recording_fail(
    monkeypatch: pytest.MonkeyPatch, kernel: str, error: type[Exception], where: Callable[[], bool]
) -> None:
    """Let a kernel fail while it is recorded, ``where`` that is so."""
    body = GraphStep.body

    def fail(*_: Any) -> None:
        raise error("not this one")

    def failing(self: GraphStep, own: list[Any]) -> None:
        names = self.run.__globals__
        numbers = {s.instruction.kernel for s in self.sites() if s.kernel.name == kernel}
        before = {f"k{n}": names[f"k{n}"] for n in numbers if where()}
        names.update(dict.fromkeys(before, fail))
        try:
            body(self, own)
        finally:
            names.update(before)

    monkeypatch.setattr(GraphStep, "body", failing)
