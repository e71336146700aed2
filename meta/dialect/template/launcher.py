"""Source text as a kernel: compiled by NVRTC, launched with the extents of each call."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

import torch

from meta.base.dtype import bounded
from meta.dialect.core import Artifact, OpEnv
from meta.dialect.cuda import cubin, driver
from meta.dialect.template.host_values import (
    SCALARS,
    STREAM,
    Extents,
    Pointer,
    Value,
    element_of,
    plain,
)
from meta.dialect.template.pieces import Source
from meta.dialect.template.program import Launch, Program
from meta.runtime import chip

PLANS = 256
"""Combinations of extents and numbers for which a kernel remembers its launches, the last ones."""
_BOUNDS = {"e": "float16", "f": "float32"}
Load = Callable[[str, int, int], driver.Function]
"""Returns a kernel, by its name, the device, and the bytes of dynamic shared memory."""


@lru_cache(maxsize=256)
def program_of(function: str, call: str, title: str) -> Program:
    """Return source text that is read, once for each text."""
    return Program(function, call, title)


@dataclass(frozen=True, slots=True)
class Prepared:
    """One launch of a plan: ``fields`` are the parameters, a number or the place of a tensor."""

    name: str
    grid: Extents
    block: Extents
    shared: int
    layout: struct.Struct
    offsets: tuple[int, ...]
    fields: tuple[tuple[bool, Any], ...]

    def packed(self, addresses: list[int]) -> bytes:
        """Return the parameters for tensors at these addresses."""
        return self.layout.pack(
            *[(addresses[v] if v >= 0 else 0) if is_place else v for is_place, v in self.fields]
        )


def prepared(launch: Launch) -> Prepared:
    """Lay out the parameters of a launch as C does: each at a multiple of its size."""
    text, offset, offsets, fields = "<", 0, [], []
    for value, (type_, _) in zip(launch.arguments, launch.kernel.parameters, strict=True):
        is_place = isinstance(value, Pointer)
        code = "Q" if is_place else SCALARS[plain(type_)]
        size = struct.calcsize(f"<{code}")
        pad = -offset % size
        text += f"{pad}x{code}" if pad else code
        offsets.append(offset + pad)
        offset += pad + size
        number = bounded(value, _BOUNDS[code]) if code in _BOUNDS else value
        fields.append((is_place, value.place if is_place else number))
    how = launch.kernel.name, launch.grid, launch.block, launch.shared
    return Prepared(*how, struct.Struct(text), tuple(offsets), tuple(fields))


class Runner:
    """A kernel on torch tensors and numbers: run-time values in order, then results."""

    def __init__(self, source: Source, load: Load) -> None:
        self.source, self._load = source, load
        self.program = program_of(source.function, source.call, source.title)
        self._plans = lru_cache(maxsize=PLANS)(self.plan)

    def plan(self, *key: Any) -> tuple[Prepared, ...]:
        """Return the launches of a call with these extents and numbers, one entry for each value:
        a shape, or a number with what tells it from equal ones.
        """
        given: dict[str, Value] = {"stream": STREAM}
        types: dict[str, str] = {}
        for place, (entry, (name, type_, ndim)) in enumerate(
            zip(key, self.source.values, strict=True)
        ):
            if ndim < 0:
                given[name], types[name] = entry[0], type_
                continue
            element, is_const = element_of(type_)
            given[name] = Pointer(place, element, is_const)
            given |= {f"{name}_dim_{axis}": extent for axis, extent in enumerate(entry)}
        return tuple(map(prepared, self.program.launches(given, types)))

    def __call__(self, *values: Any) -> None:
        if not any(values[place].numel() for place in self.source.written):
            return  # nothing is to be written
        key: list[Any] = []
        addresses, device = [], 0
        for value in values:
            if isinstance(value, torch.Tensor):
                key.append(value.shape)
                addresses.append(value.data_ptr())
                device = value.get_device()
            else:
                key.append((value, str(value)))  # 0.0 and -0.0 are equal
                addresses.append(0)
        for one in self._plans(*key):
            kernel = self._load(one.name, device, one.shared)
            kernel.launch_several(one.grid, one.block, one.packed(addresses), one.offsets)


def env_of(source: Source, device: int, known: list[Any] | None, polymorphic: bool) -> OpEnv:
    """Return the kernel of a source. ``known``: what `Runner.plan` is given, if that is known
    before it runs, so that what is wrong with launches is found then. ``polymorphic``: as `OpEnv`
    has it.
    """
    program = program_of(source.function, source.call, source.title)
    runner = Runner(source, partial(cubin.function, program.device))
    if known is not None:
        runner.plan(*known)

    def artifact() -> Artifact | None:
        return kept(source, program.device, device)

    kernel = cubin.deferred(runner, lambda: [program.device], device, artifact)
    return OpEnv(kernel, allocates=False, strided=False, polymorphic=polymorphic)


def kept(source: Source, text: str, device: int) -> Artifact | None:
    """Return where the machine code of a source lies, with what launches it; None if it is kept
    nowhere.
    """
    file = cubin.file_of(text, chip.of(device).arch)
    if file is None:
        return None
    record = {
        "target": source.target,
        "title": source.title,
        "function": source.function,
        "call": source.call,
        "values": [list(value) for value in source.values],
        "written": list(source.written),
    }
    return Artifact(file, record)


def loader(machine_code: bytes) -> Load:
    """Return what loads kernels of machine code, each once."""

    @cache
    def load(name: str, device: int, shared: int) -> driver.Function:
        return driver.load(machine_code, name, device, shared)

    return load
