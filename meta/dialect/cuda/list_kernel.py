"""Launching kernels of lists of tensors: one launch for each pass and each set of dtypes.

The table of addresses is a parameter by value: nothing is copied to the device before, and a CUDA
graph keeps it. It has room for several hundred tensors (see `capacity`); more are split.

Source of kernels that run over lists of tensors: the loops of ``list.cu``, around what an
operator does to an element.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from meta.base.device import Device
from meta.base.dtype import FROM_TORCH
from meta.dialect.core import Launch, OpEnv, ask
from meta.dialect.cuda import cubin
from meta.dialect.cuda.source import C_TYPES
from meta.dialect.cuda.source import source as complete
from meta.runtime import cuda_driver, gpu_properties, nvrtc

THREADS, OTHER_THREADS = 256, (128, 512)
CHUNK, OTHER_CHUNKS = 1 << 12, (1 << 14, 1 << 16)
"""Elements of a thread block: 4 vectors for each thread. With 16 a block takes 100 us, and a
collective of another stream waits for room so long."""
NUMBER_BYTES = 24
HEAD_BYTES = 40


@dataclass(frozen=True)
class Pass:
    """What a launch does to each element.

    loads: the lists whose elements the code reads, as variables of these names. stores: those that
    it assigns to. sums: numbers of the sums over a tensor to which it adds, ``terms[number]``.
    needs: numbers of those, of a launch before, that it reads, as ``sums[number]``.
    """

    code: str
    loads: tuple[str, ...]
    stores: tuple[str, ...] = ()
    sums: tuple[int, ...] = ()
    needs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Definition:
    """An operator's kernels.

    passes: its launches. numbers: the slots of its numbers, in order, which become the members of
    ``k``. derived: further members, expressions of CUDA of the numbers as doubles. sums: how many
    sums there are of a chunk, over all launches. norm: whether the result is the root of the sum
    number 0.
    """

    passes: tuple[Pass, ...]
    numbers: tuple[str, ...]
    derived: Mapping[str, str] = field(default_factory=dict)
    sums: int = 0
    norm: bool = False


def source(
    of: Definition,
    number: int,
    dtypes: dict[str, str],
    wide: str,
    tensors: int,
    *,
    threads: int = THREADS,
    chunk: int = CHUNK,
) -> str:
    """Return the source of a kernel ``update``, that of a pass, and of ``finish``, the norm of sums
    of squares.

    Parameters
    ----------
    dtypes: of each list. wide: the type to compute in. tensors: for how many there is room.
    threads: of a thread block, a power of 2. chunk: the elements that it takes, a multiple of 4.
    """
    one = of.passes[number]
    names = list(dtypes)
    loads = [n for n in one.loads if n in dtypes]
    stores = [n for n in one.stores if n in dtypes]
    kinds = {n: C_TYPES[dtypes[n]] for n in names if n in loads or n in stores}
    sizes: dict[str, object] = {"THREADS": threads, "CHUNK": chunk, "LISTS": len(names)}
    sizes |= {
        "TENSORS": tensors,
        "SUMS": max(1, of.sums),
        "NUMBERS": ", ".join(of.numbers) or "none",
    }
    sizes |= {
        "FOR_NUMBERS(X)": _macro_calls((n,) for n in of.numbers),
        "FOR_DERIVED(X)": _macro_calls(of.derived.items()),
        "FOR_LISTS(X)": _macro_calls(
            (n, kind, names.index(n), int(n in loads)) for n, kind in kinds.items()
        ),
        "FOR_LOADS(X)": _macro_calls((n, kinds[n]) for n in loads),
        "FOR_STORES(X)": _macro_calls((n, kinds[n]) for n in stores),
        "FOR_SUMS(X)": _macro_calls((i,) for i in one.sums),
        "FOR_NEEDS(X)": _macro_calls((i,) for i in one.needs),
        "UPDATE": " ".join(one.code.split()),
    }
    return complete("list", {"COMPUTE": wide}, sizes)


def _macro_calls(rows: Iterable[tuple[object, ...]]) -> str:
    """Return the macro X applied to each of some arguments."""
    return " ".join(f"X({', '.join(map(str, row))})" for row in rows)


NUMBER_KINDS = {
    name: kind
    for kind, name in enumerate(("float32", "float64", "float16", "bfloat16", "int32", "int64"))
}
"""The dtypes of tensors that hold numbers, as kernels know them."""
_LARGE_SINCE = (12, 1)


@dataclass(frozen=True)
class TensorBatch:
    """The tensors of one launch: their numbers among all, and their chunks."""

    indices: tuple[int, ...]
    dtypes: dict[str, str]
    tail: bytes
    blocks: int
    room: int
    first_chunk: int


@cache
def large_parameters(device: int) -> bool:
    """Whether kernels of a device take more than 4 KB of parameters."""
    known = cuda_driver.version() >= _LARGE_SINCE and nvrtc.compiler_version() >= _LARGE_SINCE
    return known and gpu_properties.query(device).capability >= (7, 0)


def parameter_limits(device: int) -> list[int]:
    """Return how many bytes of parameters kernels of a device may be given, in rising order."""
    large = [cuda_driver.LARGE_PARAMETERS] if large_parameters(device) else []
    return [cuda_driver.PARAMETERS, *large]


def capacity(limit: int, lists: int, numbers: int) -> int:
    """Return for how many tensors a struct of ``limit`` bytes has room."""
    fixed = HEAD_BYTES + NUMBER_BYTES * max(1, numbers) + 8
    return (limit - fixed) // (8 * lists + 16)


def tensor_batches(
    dtypes: Sequence[dict[str, str]],
    sizes: Sequence[int],
    rooms: tuple[int, ...],
    chunk: int = CHUNK,
) -> list[TensorBatch]:
    """Cut the tensors of a call into launches, of one set of dtypes each, and into chunks.

    rooms: for how many tensors there may be room; the least that does is taken.
    """
    classes: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for i, kinds in enumerate(dtypes):
        if sizes[i]:
            classes.setdefault(tuple(kinds.items()), []).append(i)
    found: list[TensorBatch] = []
    first_chunk = 0
    for together, members in classes.items():
        room = next((r for r in rooms if r >= len(members)), rooms[-1])
        for start in range(0, len(members), room):
            some = members[start : start + room]
            chunks = [0]
            for i in some:
                chunks.append(chunks[-1] + -(-sizes[i] // chunk))
            spare = room - len(some)
            tail = struct.pack(
                f"<{room}q{room}i{room + 1}i",
                *[sizes[i] for i in some], *[0] * spare,
                *some, *[0] * spare,
                *chunks, *[0] * spare,
            )  # fmt: skip
            blocks = chunks[-1]
            found.append(TensorBatch(tuple(some), dict(together), tail, blocks, room, first_chunk))
            first_chunk += blocks
    return found


def packed(
    part: TensorBatch,
    values: Sequence[Any],
    addresses: Sequence[Sequence[int]],
    skip: int,
    partial: int,
    result: int,
    first_chunk: int,
    count: int,
) -> bytes:
    """Return the struct of a launch.

    values: numbers, or tensors of one or, if there are ``count`` > 1 parameters, of as many
    elements. addresses: of all tensors, list by list. The others: addresses, and the first chunk.
    """
    head = struct.pack("<QQqQii", skip, partial, first_chunk, result, len(part.indices), 0)
    numbers = [_number(value, count) for value in values] or [bytes(NUMBER_BYTES)]
    table = bytearray()
    spare = bytes(8 * (part.room - len(part.indices)))
    for row in addresses:
        table += struct.pack(f"<{len(part.indices)}Q", *[row[i] for i in part.indices]) + spare
    content = b"".join([head, *numbers, table, part.tail])
    return content + bytes(-len(content) % 8)


def _number(value: Any, count: int) -> bytes:
    if not isinstance(value, torch.Tensor):
        return struct.pack("<Qdii", 0, float(value), 0, 0)
    each = int(count > 1 and value.numel() == count)
    return struct.pack("<Qdii", value.data_ptr(), 0.0, NUMBER_KINDS[FROM_TORCH[value.dtype]], each)


class Launcher:
    """What runs a definition over tensors of these dtypes and sizes.

    Parameters
    ----------
    dtypes: of each tensor of a list, by list. wide: the dtype to compute in.

    Attributes
    ----------
    workspace: the bytes of the sums over chunks, which are kept from launch to launch.
    """

    def __init__(
        self,
        definition: Definition,
        dtypes: Sequence[dict[str, str]],
        sizes: Sequence[int],
        wide: str,
        device: Device,
    ) -> None:
        self._definition, self._wide, self._count = definition, wide, len(sizes)
        self._device, self._where = device.ordinal, str(device)
        shape = len(dtypes[0]), len(definition.numbers)
        self._threads = ask("threads", THREADS, OTHER_THREADS)
        self._chunk = ask("chunk", CHUNK, OTHER_CHUNKS)
        rooms = tuple(capacity(limit, *shape) for limit in parameter_limits(self._device))
        self._parts = tensor_batches(dtypes, sizes, rooms, self._chunk)
        self._blocks = sum(part.blocks for part in self._parts)
        self._sums = max(1, self._blocks * definition.sums) if definition.sums else 0
        self.workspace = 8 * self._sums
        self._kernel = cache(self._compiled)

    def _source(self, number: int, part: TensorBatch) -> str:
        how = {"threads": self._threads, "chunk": self._chunk}
        return source(self._definition, number, part.dtypes, self._wide, part.room, **how)

    def _compiled(self, number: int, which: int, name: str, size: int) -> Launch:
        """Return the launch of a kernel of a pass, compiled when it is first launched."""
        part = self._parts[which]
        grid = (1 if name == "finish" else part.blocks), 1
        text = self._source(number, part)
        return cubin.launch(text, name, self._device, grid, self._threads, size)

    def env(self, run: Callable[..., None]) -> OpEnv:
        """Return ``run``, which launches the passes, as a kernel with these compiled before."""

        def sources() -> list[str]:
            passes = range(len(self._definition.passes))
            return [self._source(number, part) for number in passes for part in self._parts]

        return cubin.env(run, sources, self._device, self.workspace)

    def __call__(
        self,
        values: Sequence[Any],
        addresses: Sequence[Sequence[int]],
        skip: torch.Tensor | None = None,
        result: torch.Tensor | None = None,
    ) -> None:
        """Launch all passes.

        ``values`` are the definition's numbers, ``addresses`` the tensors', in the order of the
        dtypes' names. ``result`` gets the root of all sums.
        """
        partial, at = None, 0
        if self._sums:
            partial = torch.empty(self._sums, dtype=torch.float64, device=self._where)
            at = partial.data_ptr()
        flag = 0 if skip is None else skip.data_ptr()
        structs = [
            packed(p, values, addresses, flag, at, 0, p.first_chunk, self._count)
            for p in self._parts
        ]
        for number in range(len(self._definition.passes)):
            for which in range(len(self._parts)):
                self._kernel(number, which, "update", len(structs[which]))(structs[which])
        if result is not None and not self._parts:
            result.zero_()
        elif result is not None:
            first, out = self._parts[0], result.data_ptr()
            done = packed(first, values, addresses, 0, at, out, self._blocks, self._count)
            self._kernel(0, 0, "finish", len(done))(done)
