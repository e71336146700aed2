"""A stand-in for CUDA graphs on the CPU: records what ATen runs, and runs it again on the same
memory.

As of a CUDA graph: addresses are those of the recording, numbers are baked in, and results lie
where they lay. Unlike one, recording runs the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from meta.base.device import CPU
from meta.vm import executable, graphs


class _Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        result = func(*args, **kwargs)
        given = {_memory(t) for t in _tensors((args, kwargs))}
        fresh = [t for t in _tensors(result) if _memory(t) not in given]
        if fresh or func._schema.is_mutable:  # else a view, or nothing
            self.calls.append((func, args, kwargs, fresh))
        return result


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class TapeRecorder:
    """Stands for `CudaRecorder`. ``replays`` counts; ``fail`` says when to refuse."""

    def __init__(self) -> None:
        self.recorded = self.replays = 0
        self.busy = False

    def record(self, body: Callable[[], None]) -> Callable[[], None]:
        with _Log() as log:
            body()
        self.recorded += 1

        def replay() -> None:
            self.replays += 1
            for func, args, kwargs, fresh in log.calls:
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

    def record(self, body: Callable[[], None]) -> Callable[[], None]:
        body()
        self.recorded += 1
        return lambda: None


def standing_in(
    monkeypatch: pytest.MonkeyPatch, make: type[TapeRecorder] = TapeRecorder
) -> TapeRecorder:
    """Return what records the programs that are compiled from now on."""
    recorder = make()

    def graphs_for(code: Any, arrays: int, device: Any, wanted: bool | None) -> Any:
        if wanted is False:
            return None, "cuda_graph=False"
        return graphs.Graphs(code, arrays, CPU, recorder, bool(wanted)), ""

    monkeypatch.setattr(executable, "graphs_for", graphs_for)
    # As on CUDA, nobody looks at indices; a program that does has no graphs.
    monkeypatch.setattr("meta.vm.emit_values.checks_indices", lambda device: False)
    return recorder
