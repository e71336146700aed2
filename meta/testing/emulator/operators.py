"""Operators whose TVM kernels are those of a GPU, emulated: for calls on tensors of the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from meta.base.device import Device
from meta.dialect.core import OpEnv
from meta.dialect.core.preference import forget
from meta.dialect.tvm import build, target
from meta.dialect.tvm import tvm as dialect
from meta.op.core.call import CallValues
from meta.testing.emulator import generated

CUDA = Device("cuda:0")


@contextmanager
def emulated_cuda() -> Iterator[None]:
    """Let the ``tvm`` dialect decide, schedule and compile as for a GPU; kernels are emulated."""
    dialect.load()
    makers = {name: _on_cuda(one.make) for name, one in dialect.ops.items()}
    fuse: Any = dialect.fuse
    forget()
    with (
        mock.patch.object(build, "build", generated.build),
        mock.patch.object(target, "_cuda_device", lambda device, host: generated.TARGET),
        mock.patch.object(target, "require", lambda device: device),
        mock.patch.object(dialect, "fuse", lambda function, device: fuse(function, CUDA)),
    ):
        originals = {name: one.make for name, one in dialect.ops.items()}
        try:
            for name, made in makers.items():
                dialect.ops[name].make = made
            yield
        finally:
            for name, made in originals.items():
                dialect.ops[name].make = made
            forget()


def _on_cuda(make: Callable[[CallValues], OpEnv]) -> Callable[[CallValues], OpEnv]:
    def made(call: CallValues) -> OpEnv:
        moved: Any = copy.copy(call)
        if moved.device == moved.out_device:
            moved.out_device = CUDA
        moved.device = CUDA
        return make(moved)

    return made
