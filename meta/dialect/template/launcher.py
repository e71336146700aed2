"""Source text as a kernel: compiled by NVRTC, launched with the extents of each call.

Kernels of saved programs: machine code in a file, and the source text that says how to launch
it. Nothing is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any

import torch

from meta.base.device import Device
from meta.base.dtype import overflow_rounded
from meta.base.errors import MetaError
from meta.dialect.core import Artifact, CompiledKernel, Launch, OpEnv, read_artifact
from meta.dialect.cuda import cubin
from meta.dialect.template.host_values import (
    SCALARS,
    STREAM,
    Pointer,
    Value,
    element_of,
    plain,
)
from meta.dialect.template.pieces import Source
from meta.dialect.template.program import LaunchCall, Program
from meta.runtime import cuda_driver, gpu_properties

PLANS = 256
"""Combinations of extents and numbers for which a kernel remembers its launches, the last ones."""
_BOUNDS = {"e": "float16", "f": "float32"}
Load = Callable[[str, int, int], cuda_driver.Function]
"""Returns a kernel, by its name, the device, and the bytes of dynamic shared memory."""
Key = tuple[Any, ...]
"""What decides the launches of a call: for each value its shape, or a number."""
Bound = tuple[Launch, tuple[int, ...]]


@lru_cache(maxsize=256)
def program_of(function: str, call: str, title: str) -> Program:
    """Return source text that is read, once for each text."""
    return Program(function, call, title)


def bound(launch: LaunchCall, load: Load, device: int) -> Bound:
    """Return a launch on a device, and the places of the tensors whose addresses it is given."""
    formats: list[str] = []
    known: dict[int, Any] = {}
    places: list[int] = []
    for i, (value, (type_, _)) in enumerate(
        zip(launch.arguments, launch.kernel.parameters, strict=True)
    ):
        is_pointer = isinstance(value, Pointer)
        formats.append("Q" if is_pointer else SCALARS[plain(type_)])
        if not is_pointer:
            limit = _BOUNDS.get(formats[i])
            known[i] = value if limit is None else overflow_rounded(value, limit)
        elif value.place < 0:
            known[i] = 0
        else:
            places.append(value.place)
    function = load(launch.kernel.name, device, launch.shared)
    return Launch(function, formats, known, launch.grid, launch.block), tuple(places)


class Runner:
    """A kernel on torch tensors and numbers: run-time values in order, then results.

    fixed: of a kernel for one combination of extents, without run-time numbers, the key of its
    launches; see `plan`.
    """

    def __init__(self, source: Source, load: Load, fixed: Key | None = None) -> None:
        self.source, self._load, self.fixed = source, load, fixed
        self.program = program_of(source.function, source.call, source.title)
        self._bound = lru_cache(maxsize=PLANS)(self._launches)
        self._tensor = next(i for i, (_, _, ndim) in enumerate(source.values) if ndim >= 0)

    def plan(self, *key: Any) -> list[LaunchCall]:
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
        return self.program.launches(given, types)

    def _launches(self, device: int, key: Key) -> tuple[Bound, ...]:
        if not any(math.prod(key[place]) for place in self.source.written):
            return ()  # nothing is to be written
        return tuple(bound(launch, self._load, device) for launch in self.plan(*key))

    def __call__(self, *values: Any) -> None:
        key = self.fixed
        if key is None:
            key = tuple(
                v.shape if isinstance(v, torch.Tensor) else (v, str(v))  # 0.0 and -0.0 are equal
                for v in values
            )
        for launch, places in self._bound(values[self._tensor].get_device(), key):
            launch(*[values[place].data_ptr() for place in places])


def env_of(source: Source, device: int, known: Key | None, polymorphic: bool) -> OpEnv:
    """Return the kernel of a source. ``known``: what `Runner.plan` is given, if that is known
    before it runs, so that what is wrong with launches is found then. ``polymorphic``: as `OpEnv`
    has it.
    """
    program = program_of(source.function, source.call, source.title)
    has_numbers = any(ndim < 0 for _, _, ndim in source.values)
    fixed = None if has_numbers else known
    runner = Runner(source, partial(cubin.function, program.device), fixed)
    if known is not None and any(math.prod(known[place]) for place in source.written):
        runner.plan(*known)

    def artifact() -> Artifact | None:
        return artifact_of(source, program.device, device, fixed)

    kernel = cubin.deferred(runner, lambda: [program.device], device, artifact)
    return OpEnv(kernel, allocates=False, strided=False, polymorphic=polymorphic)


def artifact_of(source: Source, text: str, device: int, fixed: Key | None) -> Artifact | None:
    """Return where the machine code of a source lies, with what launches it; None if it is kept
    nowhere.
    """
    file = cubin.cubins.file(cubin.compiled(text, device))
    if file is None:
        return None
    record = {
        "target": source.target,
        "title": source.title,
        "function": source.function,
        "call": source.call,
        "values": [list(value) for value in source.values],
        "written": list(source.written),
        "fixed": None if fixed is None else [list(shape) for shape in fixed],
    }
    return Artifact(file, record)


def loader(machine_code: bytes) -> Load:
    """Return what loads kernels of machine code, each once."""

    @cache
    def load(name: str, device: int, shared: int) -> cuda_driver.Function:
        return cuda_driver.load(machine_code, name, device, shared)

    return load


_TEXTS = ("target", "title", "function", "call")


def environment(device: Device) -> str:
    """Return what decides whether machine code runs: the architecture."""
    return gpu_properties.query(device.ordinal).arch if device.kind == "cuda" else ""


def restore(artifact: Artifact) -> CompiledKernel:
    """Return the kernel of an artifact; ValueError for a record or a file not in good order."""
    code = read_artifact(artifact, *_TEXTS, "values", "written", "fixed")
    record: dict[str, Any] = artifact.record
    texts = {name: record[name] for name in _TEXTS}
    values, written, fixed = record["values"], record["written"], record["fixed"]
    if not (
        all(isinstance(text, str) for text in texts.values())
        and isinstance(values, list)
        and all(_is_value(value) for value in values)
        and isinstance(written, list)
        and all(type(n) is int and 0 <= n < len(values) and values[n][2] >= 0 for n in written)
        and any(value[2] >= 0 for value in values)
        and (fixed is None or _is_fixed(fixed, values))
    ):
        raise ValueError("a kernel's record is damaged")
    source = Source(
        **texts,
        signature="",
        declaration="",
        config={},
        values=tuple((name, type_, ndim) for name, type_, ndim in values),
        written=tuple(written),
    )
    try:
        key = None if fixed is None else tuple(map(tuple, fixed))
        return CompiledKernel(Runner(source, loader(code), key), artifact)
    except MetaError as error:
        raise ValueError(f"the text of a kernel's record is damaged: {error.what}") from None


def _is_fixed(fixed: object, values: list[Any]) -> bool:
    """Whether these are shapes of these values, none of which is a number."""
    return (
        isinstance(fixed, list)
        and len(fixed) == len(values)
        and all(
            isinstance(shape, list)
            and len(shape) == ndim
            and all(type(extent) is int and extent >= 0 for extent in shape)
            for shape, (_, _, ndim) in zip(fixed, values, strict=True)
        )
    )


def _is_value(value: object) -> bool:
    """Whether this is a name, a type and a number of axes."""
    return (
        isinstance(value, list)
        and len(value) == 3
        and isinstance(value[0], str)
        and isinstance(value[1], str)
        and type(value[2]) is int
    )
