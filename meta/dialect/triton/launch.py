"""Launching the variants of a kernel: which one, and with which parameters.

A `LaunchPlan` is plain data, kept with the machine code in saved programs, where `restore` makes a
kernel of both without Triton; `bind` makes a function of a run's values of it. Launched is the
compact variant if every address is a multiple of 16 and every tensor whose strides are parameters
is compact, else the general one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from meta.base.device import Device
from meta.dialect.core import Artifact, CompiledKernel, Launch, Unsupported, read_artifact
from meta.dialect.core.launch import MOST_BLOCKS
from meta.dialect.triton import type_names
from meta.runtime import cuda_driver, gpu_properties

ALIGNMENT = 16
"""Bytes of which an address is a multiple in the compact variant."""
WARP = 32
Passed = tuple[Any, ...]
"""A parameter of the compiled code: ("pointer", place), ("number", place, word),
("stride", place, axis) or ("known", word, value)."""
Run = Callable[..., None]
_FIELDS = {"pointer": (int,), "number": (int, str), "stride": (int, int)}


@dataclass(frozen=True)
class Binary:
    """Machine code of a variant, and what its launch needs to know.

    Attributes
    ----------
    name: of the kernel in the code. warps, ctas: of a block, and of a cluster. shared: bytes of
    shared memory. scratch: bytes of global memory that each block wants for itself. early: 1 if the
    kernel may begin before others end, for which it waits itself (`Launch`).
    """

    code: bytes
    name: str
    warps: int
    ctas: int
    shared: int
    scratch: int
    early: int = 0


Binaries = tuple[Binary, ...]
_NUMBERS = "warps", "ctas", "shared", "scratch", "early"


def packed(binaries: Sequence[Binary]) -> bytes:
    """Return what `unpacked` reads: a line of JSON, and the machine codes behind one another."""
    record = [
        {"name": b.name, "bytes": len(b.code), **{n: getattr(b, n) for n in _NUMBERS}}
        for b in binaries
    ]
    return json.dumps(record).encode() + b"\n" + b"".join(b.code for b in binaries)


def unpacked(content: bytes) -> Binaries | None:
    """Return what `packed` wrote; None for anything else."""
    head, end, code = content.partition(b"\n")
    try:
        records = json.loads(head)
    except (ValueError, RecursionError):
        return None
    if not end or not isinstance(records, list) or not all(map(_is_record, records)):
        return None
    if not records or sum(r["bytes"] for r in records) != len(code):
        return None
    found, start = [], 0
    for r in records:
        piece = code[start : start + r["bytes"]]
        found.append(Binary(piece, r["name"], *(r[n] for n in _NUMBERS)))
        start += r["bytes"]
    return tuple(found)


def _is_record(record: Any) -> bool:
    return (
        isinstance(record, dict)
        and set(record) == {"name", "bytes", *_NUMBERS}
        and isinstance(record["name"], str)
        and all(type(record[n]) is int and record[n] >= 0 for n in ("bytes", *_NUMBERS))
    )


def checked_grid(grid: Sequence[int]) -> tuple[int, int, int]:
    """Return the extents of a grid of up to three axes; Unsupported if one is too large."""
    extents = (*map(int, grid), 1, 1)[:3]
    for axis, (blocks, most) in enumerate(zip(extents, MOST_BLOCKS, strict=True)):
        if blocks > most:
            raise Unsupported(f"the grid has {blocks} blocks along axis {axis}, at most {most}")
    return extents[0], extents[1], extents[2]


@dataclass(frozen=True)
class LaunchPlan:
    """How a kernel is launched.

    Attributes
    ----------
    passed: of each variant, what the compiled code is given, in order. grid: thread blocks of three
    axes. strided: positions, among the values of a run, of tensors whose strides are parameters.
    compacted: those of tensors that are copied if they are not compact.
    """

    passed: tuple[tuple[Passed, ...], ...]
    grid: tuple[int, int, int]
    strided: tuple[int, ...] = ()
    compacted: tuple[int, ...] = ()

    def bind(self, binaries: Binaries, device: int) -> Run:
        """Return a function of a run's values, with the kernels loaded on a device."""
        blocks = math.prod(self.grid)
        launches = [
            _Variant(passed, binary, self.grid, blocks, device)
            for passed, binary in zip(self.passed, binaries, strict=True)
        ]
        places = sorted({p[1] for p in self.passed[0] if p[0] == "pointer"})
        run = launches[0].run
        if places and len(launches) > 1:
            # Descriptors that a kernel makes, in memory that it asks for, need aligned addresses.
            general = launches[1].run
            general = _aligning(general, places) if binaries[1].scratch else general
            pointers = launches[0].pointers
            if pointers:
                of_tensors = launches[0].launch.of_tensors
                run = of_tensors(pointers, general, ALIGNMENT, self.strided)
            else:
                run = choosing(run, general, places, self.strided)
        return _compacting(run, self.compacted) if self.compacted else run

    def record(self) -> dict[str, Any]:
        """Return what `read` reads: values that JSON has, floats by their digits."""

        def shown(passed: Passed) -> list[Any]:
            return [v.hex() if type(v) is float else v for v in passed]

        return {
            "passed": [[shown(p) for p in variant] for variant in self.passed],
            "grid": list(self.grid),
            "strided": list(self.strided),
            "compacted": list(self.compacted),
        }

    @classmethod
    def read(cls, record: Any) -> LaunchPlan:
        """Return the plan of a record out of a file; ValueError if it is not one."""
        wrong = ValueError("a record does not say how to launch a kernel of Triton")
        if not isinstance(record, dict) or set(record) != set(cls.__dataclass_fields__):
            raise wrong
        places = record["strided"], record["compacted"]
        grid, variants = record["grid"], record["passed"]
        sound = all(isinstance(p, list) and all(map(_is_position, p)) for p in places)
        if not sound or not isinstance(grid, list) or not isinstance(variants, list):
            raise wrong
        if len(grid) != 3 or not all(map(_is_position, grid)) or len(variants) not in (1, 2):
            raise wrong
        if not all(isinstance(v, list) and all(isinstance(p, list) for p in v) for v in variants):
            raise wrong
        passed = tuple(tuple(_passed(p, wrong) for p in variant) for variant in variants)
        return cls(passed, (grid[0], grid[1], grid[2]), *map(tuple, places))


def environment(device: Device) -> str:
    """Return what decides whether machine code runs: the architecture. The CPU has none."""
    return gpu_properties.target_of(device).arch if device.kind == "cuda" else ""


def restore(artifact: Artifact) -> CompiledKernel:
    """Return the kernel of an artifact; ValueError for a record or a file not in good order."""
    binaries = unpacked(read_artifact(artifact, "launch", "device"))
    plan, device = LaunchPlan.read(artifact.record["launch"]), artifact.record["device"]
    if type(device) is not int:
        raise ValueError(f"a kernel's record is damaged: {device!r} is no device")
    if binaries is None or len(binaries) != len(plan.passed):
        raise ValueError(f"{artifact.file} does not hold the machine code of a kernel of Triton")
    return CompiledKernel(plan.bind(binaries, device), artifact)


def _is_position(value: Any) -> bool:
    return type(value) is int and value >= 0


def _passed(part: list[Any], wrong: ValueError) -> Passed:
    kind = part[0] if part else None
    if kind == "known" and len(part) == 3 and part[1] in type_names.FORMAT:
        word, value = part[1], part[2]
        if isinstance(value, str):
            value = float.fromhex(value)
        if type(value) in (bool, int, float):
            return kind, word, value
    elif (
        kind in _FIELDS
        and [type(p) for p in part[1:]] == list(_FIELDS[kind])
        and all(p >= 0 if type(p) is int else p in type_names.FORMAT for p in part[1:])
    ):
        return tuple(part)
    raise wrong


def choosing(compact: Run, general: Run, places: Sequence[int], strided: Sequence[int]) -> Run:
    """Return a launch of the compact variant where the tensors at ``places`` lie at multiples of
    `ALIGNMENT`, and those at ``strided`` are compact; else of the general one.
    """
    tensors_of = _picker(places)

    def run(*values: Any) -> None:
        moved = 0
        for tensor in tensors_of(values):
            moved |= tensor.data_ptr()
        if moved % ALIGNMENT:
            general(*values)
            return
        for place in strided:
            if not values[place].is_contiguous():
                general(*values)
                return
        compact(*values)

    return run


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that picks some of a run's values."""
    if len(places) != 1:
        return itemgetter(*places) if places else lambda values: ()
    only = places[0]
    return lambda values: (values[only],)


def _compacting(run: Run, places: tuple[int, ...]) -> Run:
    """Return a launch with compact copies of tensors that are not compact."""

    def launch(*values: Any) -> None:
        for place in places:
            if not values[place].is_contiguous():
                given = [v.contiguous() if i in places else v for i, v in enumerate(values)]
                run(*given)
                return
        run(*values)

    return launch


def _aligning(run: Run, places: Sequence[int]) -> Run:
    """Return a launch with copies of tensors whose addresses are not multiples of `ALIGNMENT`."""

    def launch(*values: Any) -> None:
        given = list(values)
        moved = [p for p in places if given[p].data_ptr() % ALIGNMENT]
        for place in moved:
            given[place] = given[place].clone()
        run(*given)
        for place in moved:  # it may have been written
            values[place].copy_(given[place])

    return launch


class _Variant:
    """A variant, loaded on a device."""

    def __init__(
        self,
        passed: Sequence[Passed],
        binary: Binary,
        grid: tuple[int, int, int],
        blocks: int,
        device: int,
    ) -> None:
        formats = [_format(p) for p in passed]
        known = {
            i: type_names.converter(p[1])(p[2]) for i, p in enumerate(passed) if p[0] == "known"
        }
        # Two more pointers at the end: scratch memory, and memory for profiles, which has none.
        count = len(passed)
        formats += ["Q", "Q"]
        self.scratch = binary.scratch * blocks * binary.ctas
        known |= {count + 1: 0} if self.scratch else {count: 0, count + 1: 0}
        function = cuda_driver.load(binary.code, binary.name, device, binary.shared)
        threads = binary.warps * WARP
        self.launch = Launch(
            function, formats, known, grid, (threads, 1, 1), binary.ctas, bool(binary.early)
        )
        self.device = device
        self.given = [p for p in passed if p[0] != "known"]
        only = not self.scratch and all(p[0] == "pointer" for p in self.given)
        self.pointers = [p[1] for p in self.given] if only else []
        """The places of tensors whose addresses are all that a launch is given."""
        self.run = self._run()

    def _run(self) -> Run:
        launch = self.launch
        if self.pointers:
            tensors_of = _picker(self.pointers)
            return lambda *values: launch(*[t.data_ptr() for t in tensors_of(values)])
        readers = [_reader(p) for p in self.given]
        if not self.scratch:
            return lambda *values: launch(*[read(values) for read in readers])
        size, place = self.scratch, torch.device("cuda", self.device)

        def run(*values: Any) -> None:
            memory = torch.empty(size, dtype=torch.uint8, device=place)
            launch(*[read(values) for read in readers], memory.data_ptr())

        return run


def _format(part: Passed) -> str:
    """Return how `struct` writes a parameter."""
    match part[0]:
        case "pointer":
            return "Q"
        case "stride":
            return type_names.FORMAT["i64"]
        case "number":
            return type_names.FORMAT[part[2]]
    return type_names.FORMAT[part[1]]


def _reader(part: Passed) -> Callable[[Sequence[Any]], Any]:
    """Return a function that reads a parameter from the values of a run."""
    place = part[1]
    if part[0] == "pointer":
        return lambda values: values[place].data_ptr()
    if part[0] == "stride":
        axis = part[2]
        return lambda values: values[place].stride(axis)
    convert = type_names.converter(part[2])
    return lambda values: convert(values[place])
