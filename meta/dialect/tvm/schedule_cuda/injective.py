"""Kernels in which every thread computes elements of its own: one pass, in 16-byte accesses.

A thread takes a vector of adjacent elements, or several, a block's worth apart. What is read along
the same line is read as vectors into registers, all of it before anything is written; what stays
the same for a vector is read once; anything else (a gather, a window, a read under a condition)
element by element where it is used. The width is that of the narrowest type; wider ones take
several accesses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import tirx

from meta.dialect.core.knobs import ask
from meta.dialect.tvm.schedule_cuda.emit import (
    ACCESS_BYTES,
    TINY,
    Kernel,
    aligned,
    copy,
    divided,
    element,
    itemsize,
    per_lane,
    power_of_two_in,
    sequence,
    store,
    substituted,
    widest,
)
from meta.dialect.tvm.schedule_cuda.walk import (
    Access,
    KernelBlock,
    KernelResult,
    access,
    all_reads,
    by_results,
    compact,
    computed_by,
    merged_axes,
    read_outside,
    reads,
    reads_of_others,
    slides,
    values_of_axes,
)
from meta.dialect.tvm.stages import Stage, at_axes
from meta.dialect.tvm.target import processors

THREADS = 256
OTHER_THREADS = 64, 128, 512
MANY_BLOCKS = 8
"""Thread blocks that fill a multiprocessor: more work for each thread leaves at least as many."""
FEW_BLOCKS, LEAST_BYTES = 2, 4
"""Thread blocks of a multiprocessor below which narrower vectors, of at least so many bytes, make
more threads: of a few elements each is computed sooner. On an H100, a normalisation and ReLU of
14 x 14 x 256 half precision numbers takes 1.6 us so, and 2.3 in vectors of 16 bytes.
"""
MAX_VECTOR, MAX_BYTES = 8, 32
"""Elements of a vector; bytes of an array that a thread reads at once."""
LONG = 10
"""Names in a value from which on a thread has one vector: in longer code the compiler does not find
that four neighbours share a block of random numbers."""


class Injective:
    """One kernel of stages of the same shape, each the element at its own place of the others.

    Those in ``outside`` are stored.
    """

    def __init__(self, parts: Sequence[KernelBlock], outside: set[Any]) -> None:
        self.outside = outside
        self.parts, stages = parts, [part.stage for part in parts]
        self.stages = stages
        self.axes = stages[0].axes
        self.extents = [int(e) for e in stages[0].spatial if e is not None]
        self.total = math.prod(self.extents)
        self.k = Kernel(str(self.axes[0].ty.dtype) if self.axes else "int32")
        self.made = {stage.buffer: i for i, stage in enumerate(stages)}
        found = {
            by_results(part, node): None
            for part in parts
            for node in reads(part.value)[0]
            if node.source not in self.made
        }
        always = [walked for walked in found if walked is not None]
        line = Access(stages[0].buffer, compact(self.extents), 0)
        windows = self._kept_apart(parts)
        self.groups = merged_axes(self.extents, [line, *always, *windows]) or [[]]
        self.merged = [math.prod(self.extents[a] for a in group) for group in self.groups]
        self.line = self._walk(line)
        walks = {a: self._walk(a) for a in always}
        self.vector = self._vector_width([a for a, w in walks.items() if w.strides[-1] == 1])
        self.inputs = {a: w for a, w in walks.items() if w.strides[-1] in (0, 1)}
        self.others = {a: w for a, w in walks.items() if a not in self.inputs}

    def _kept_apart(self, parts: Sequence[KernelBlock]) -> list[Access]:
        """Return walks by which axes are told apart, beside those of what is always read."""
        reducing = [part for part in parts if part.stage.reduce]
        walks = [access(node, p.stage.axes) for p in reducing for node in all_reads(p.value)]
        n = len(self.extents)
        return [Access(w.buffer, w.strides[:n], 0) for w in walks if w is not None]

    def _walk(self, one: Access) -> Access:
        return (
            Access(one.buffer, (0,), one.start) if not self.groups[0] else one.merged(self.groups)
        )

    def _vector_width(self, along: Sequence[Access]) -> int:
        buffers = [*(a.buffer for a in along), *self.outside & self.made.keys()]
        wish = min(MAX_VECTOR, ACCESS_BYTES // min(map(itemsize, buffers)))
        if any(itemsize(buffer) == 1 for buffer in self.outside & self.made.keys()):
            wish = min(wish, 4)  # bytes are written in one access, beside those of other threads
        if len(self.groups) > 1:
            wish = power_of_two_in(self.merged[-1], wish)
        elif self.total < wish:
            wish = 1
        self.widest = wish
        least = max(1, LEAST_BYTES // min(map(itemsize, buffers)))
        while wish > least and self.total // (wish * THREADS) < FEW_BLOCKS * processors():
            wish //= 2
        return wish

    def emit(self) -> Any:
        """Return the statement of the kernel."""
        widest_vector = 0 if self.total < TINY else self.widest
        self.vector = ask("vector", self.vector, [n for n in (1, 2, 4, 8) if n <= widest_vector])
        threads = ask("threads", THREADS, () if self.total < TINY else OTHER_THREADS)
        vectors = self.total // self.vector
        most = max(1, MAX_BYTES // (self.vector * max(itemsize(s.buffer) for s in self.stages)))
        if any(_names(part.value) > LONG for part in self.parts):
            most = 1
        fitting = [n for n in (8, 4, 2, 1) if n <= most]
        enough = MANY_BLOCKS * processors()
        times = next((n for n in fitting if vectors // (n * threads) >= enough), 1)
        times = ask("items", times, [n for n in (1, 2, 4, 8) if vectors >= n * threads])
        blocks = max(1, divided(vectors, times * threads))
        k = self.k
        first: list[Any] = []
        last: list[Any] = []
        for u in range(times):
            place = (k.wide(k.block) * k.number(times) + u) * k.number(threads) + k.wide(k.thread)
            begin, end = self._vector(place * k.number(self.vector), self.vector)
            for part, statements in ((first, begin), (last, end)):
                if not statements:
                    continue
                whole = sequence(statements)
                if vectors % (times * threads):
                    whole = tirx.IfThenElse(place < k.number(vectors), whole, None)
                part.append(whole)
        body = [*first, *last]
        rest = self.total - vectors * self.vector
        if rest:
            place = k.number(vectors * self.vector) + k.wide(k.thread)
            begin, end = self._vector(place, 1)
            here = tirx.all(k.block == 0, k.thread < rest)
            body.append(tirx.IfThenElse(here, sequence([*begin, *end]), None))
        return k.launch(body, blocks, threads)

    def _vector(
        self,
        place: Any,
        width: int,
        values: list[Any] | None = None,
        held: dict[Access, Any] | None = None,
    ) -> tuple[list[Any], list[Any]]:
        """Return what reads and what computes and writes ``width`` elements from ``place`` on.

        values: of the merged axes there. held: what was read before: registers, and whether they
        are an element each.
        """
        k = self.k
        values = k.unflat(place, self.merged) if values is None else values
        begin: list[Any] = []
        held = {} if held is None else held
        for one, walked in self.inputs.items():
            count = width if walked.strides[-1] else 1
            source = k.in_memory(one.buffer)
            registers = k.registers(str(source.dtype), count)
            at = self._offset(walked, place, values)
            access_width = min(count, self._access_width(walked)) if width > 1 else 1
            begin += copy(count, access_width, registers, k.number(0), source, at)
            held[one] = (registers, walked.strides[-1])
        results = [k.registers(_buffer_layout(stage.buffer), width) for stage in self.stages]

        def computed(some: range) -> list[Any]:
            def compute(v: Any) -> Any:
                inner = self._axis_values(values, k.wide(v))
                return sequence([self._stage(i, inner, v, held, results) for i in some])

            return [per_lane(width, compute)] if some else []

        # Masks go first, in a loop of their own: where no branch lies between, the compiler finds
        # what neighbours have in common, such as a block of random numbers.
        masks = [i for i, stage in enumerate(self.stages) if str(stage.buffer.dtype) == "bool"]
        first = masks[-1] + 1 if masks else 0
        end = [*computed(range(first)), *computed(range(first, len(results)))]
        for stage, registers in zip(self.stages, results, strict=True):
            if stage.buffer not in self.outside:
                continue
            target = k.in_memory(stage.buffer)
            lanes = min(width, widest(target))
            end += copy(width, lanes, target, place, registers, k.number(0))
        return begin, end

    def _stage(self, i: int, inner: list[Any], v: Any, held: Any, results: list[Any]) -> Any:
        part, result = self.parts[i], results[i]
        stage = part.stage

        def load(node: Any) -> Any:
            made = self.made.get(node.source)
            if made is not None:
                return _as(element(results[made], v), node)
            walked = by_results(part, node)
            if walked is None or walked not in held:
                return None
            registers, step = held[walked]
            return _as(element(registers, v if step else tirx.const(0, "int32")), node)

        def over(window: list[Any], left: list[int | None]) -> Any:
            if left:
                return per_lane(left[0] or 1, lambda r: over([*window, self.k.wide(r)], left[1:]))
            values = dict(zip(stage.axes, [*inner, *window], strict=True))
            value = substituted(part.value, values, load)
            return store(result, value.astype(_buffer_layout(stage.buffer)), v)

        whole = over([], stage.reduce)
        if not stage.reduce:
            return whole
        return sequence([store(result, part.init.astype(_buffer_layout(stage.buffer)), v), whole])

    def _axis_values(self, values: list[Any], lane: Any) -> list[Any]:
        """Return the values of the axes, ``lane`` elements on."""
        zero = self.k.number(0)
        if not self.groups[0]:
            return [zero] * len(self.extents)
        moved = [*values[:-1], values[-1] + lane]
        return values_of_axes(self.extents, self.groups, moved, zero)

    def _offset(self, walked: Access, place: Any, values: list[Any]) -> Any:
        k = self.k
        if walked.strides == self.line.strides:
            return place + k.number(walked.start)
        return k.offset(walked.start, values, walked.strides)

    def _access_width(self, walked: Access) -> int:
        width = min(self.vector, widest(self.k.in_memory(walked.buffer)))
        return aligned(width, (walked.start, *walked.strides[:-1]))


def _names(value: Any) -> int:
    """Return how many names a value has in it."""
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (tirx.Let, lambda let: found.append(let.var)))
    return len(found)


def _buffer_layout(buffer: Any) -> str:
    """Return the dtype of the registers that keep elements of an array."""
    return "uint8" if str(buffer.dtype) == "bool" else str(buffer.dtype)


def _as(kept: Any, read: Any) -> Any:
    """Return an element in registers in the dtype of the read that it replaces."""
    dtype = str(read.ty.dtype)
    return kept if str(kept.ty.dtype) == dtype else kept.astype(dtype)


def kernel(parts: Sequence[KernelBlock], inner: set[Any]) -> KernelResult | None:
    """Return the first stages without reductions that can share a kernel, and the kernel."""
    taken = alike(parts)
    if not taken:
        return None
    return taken, [Injective(taken, read_outside(taken, parts, inner)).emit()], []


def alike(parts: Sequence[KernelBlock]) -> list[KernelBlock]:
    """Return the first stages that can share a kernel: without reductions, but for small windows.

    They can if they have one shape and read of each other the element of their own place.
    """
    taken: list[KernelBlock] = []
    made: set[Any] = set()
    missing = computed_by(parts)
    for part in parts:
        stage = part.stage
        if stage.reduce and not slides(part):
            continue
        if taken and stage.spatial != taken[0].stage.spatial:
            continue
        if all(_readable(node, stage, made, missing) for node in reads_of_others(part)):
            taken.append(part)
            made.add(stage.buffer)
    return taken


def _readable(node: Any, stage: Stage, made: set[Any], missing: set[Any]) -> bool:
    if node.source in made:
        return at_axes(node.indices, stage.axes[: len(stage.spatial)])
    return node.source not in missing
