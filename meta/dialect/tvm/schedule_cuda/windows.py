"""Kernels of small windows that overlap: pooling and its gradients.

A thread computes neighbouring results along the innermost axis that windows slide along: a vector
of them where that is the last axis, else a few, each a vector along the last axis. What their
windows read along that axis is known relative to the thread's place; so it is loaded once, in
vectors, and what several windows share is computed once. Along other axes of a window, terms are
reduced first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from meta.dialect.core.knobs import ask
from meta.dialect.tvm import order_keys
from meta.dialect.tvm.schedule_cuda.emit import (
    TINY,
    divided,
    element,
    per_lane,
    power_of_two_in,
    sequence,
    store,
    substituted,
    unrolled,
)
from meta.dialect.tvm.schedule_cuda.injective import OTHER_THREADS, THREADS, Injective, alike
from meta.dialect.tvm.schedule_cuda.loads import Loads
from meta.dialect.tvm.schedule_cuda.walk import (
    Access,
    KernelBlock,
    KernelResult,
    all_reads,
    by_results,
    read_outside,
    reads,
    reads_of_others,
    slides,
)
from meta.dialect.tvm.stages import uses
from meta.dialect.tvm.target import processors

MOST_TERMS = 128
"""Terms of the windows of a thread, by the axis along which it computes several."""
SEVERAL = (1, 2, 3)
"""How many results a thread may have along an axis that is not the last."""
FILLING = THREADS
"""Threads that fill a multiprocessor."""
STAGED_BYTES = 256
"""Of what a thread reads before it computes anything; more than that, and it does so row by row."""


@dataclass
class WindowReduction:
    """The reduction of one part.

    term, init, combine: in the dtype in which it is done. finish: makes of it what the part stores.
    outer: reduced axes along which all of a thread's windows move alike, with their extents.
    terms: the different ones. uses: the number of each result's terms, by result.
    """

    part: KernelBlock
    term: Any
    init: Any
    combine: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any]
    outer: list[tuple[Any, int]] = field(default_factory=list)
    terms: list[Any] = field(default_factory=list)
    uses: list[list[int]] = field(default_factory=list)

    @property
    def dtype(self) -> str:
        """The dtype in which it is done."""
        return str(self.init.ty.dtype)


class Windows(Injective):
    """One kernel of stages of which some reduce windows."""

    def __init__(self, parts: Sequence[KernelBlock], outside: set[Any]) -> None:
        self.axis = _innermost(parts)
        super().__init__(parts, outside)
        self.fits = self.axis is not None and self._separate()
        if not self.fits:
            return
        self.vector = power_of_two_in(self.merged[-1], self.vector)
        self.group = next(g for g, axes in enumerate(self.groups) if self.axis in axes)
        self.lanes = 1 if self.group == len(self.groups) - 1 else self.vector
        counts = (self.vector,) if self.lanes == 1 else SEVERAL
        plans = [_Plan(self, n) for n in counts if n == 1 or self.lanes == 1 or self._divides(n)]
        best = min((plan for plan in plans if plan.good), key=lambda plan: plan.cost, default=None)
        self.fits = best is not None
        self.planned: Any = best
        self._forget_loads_of_windows()

    def _forget_loads_of_windows(self) -> None:
        """Leave out of what is read first what only windows read, which `Loads` has: of registers
        that nothing reads, TVM keeps one, and the vector that is stored into them has no place.
        """
        others = {
            by_results(part, node)
            for part in self.parts
            if not slides(part)
            for node in reads(part.value)[0]
        }
        self.inputs = {one: walked for one, walked in self.inputs.items() if one in others}

    def _kept_apart(self, parts: Sequence[KernelBlock]) -> list[Access]:
        """Return an access along each axis with which a window moves, so that it is not merged."""
        apart = {axis for part in parts if slides(part) for axis, _ in pairs(part)}
        n = len(self.extents)
        return [
            Access(parts[0].stage.buffer, tuple(int(a == axis) for a in range(n)), 0)
            for axis in sorted(apart)
        ]

    def _separate(self) -> bool:
        """Whether windows read nothing that this kernel makes."""
        return all(
            node.source not in self.made
            for part in self.parts
            if slides(part)
            for node in reads_of_others(part)
        )

    def _divides(self, count: int) -> bool:
        items = self.total // (self.lanes * count)
        return self.merged[self.group] % count == 0 and items >= FILLING * processors()

    def emit(self) -> Any:
        """Return the statement of the kernel."""
        k, plan = self.k, self.planned
        items = self.total // (plan.count * self.lanes)
        threads = ask("threads", THREADS, () if self.total < TINY else OTHER_THREADS)
        place = k.wide(k.block) * k.number(threads) + k.wide(k.thread)
        coordinates = k.registers(k.dtype, len(self.merged))
        values = [*enumerate(k.unflat(place, plan.extents))]
        body: list[Any] = [store(coordinates, value, g) for g, value in reversed(values)]
        held = {v: element(coordinates, g) for g, v in enumerate(plan.variables)}
        self._reduced: dict[int, tuple[Any, int]] = {}
        for i in plan.reductions:
            statements, registers = plan.reduce(k, i)
            body += statements
            self._reduced[i] = registers, 0
        values = [v * k.number(s) for v, s in zip(plan.variables, plan.steps, strict=True)]
        width = plan.count if self.lanes == 1 else self.lanes
        first, last = [], []
        for u in range(plan.count if self.lanes > 1 else 1):
            here = list(values)
            if self.lanes > 1:
                here[self.group] = here[self.group] + k.number(u)
                self._reduced = {i: (r, u * self.lanes) for i, (r, _) in self._reduced.items()}
            at = k.offset(0, here, self.line.strides)
            begin, end = self._vector(at, width, here)
            first += begin
            last += end
        whole = sequence([*body, *first, *last])
        if items % threads:
            whole = tirx.IfThenElse(place < k.number(items), whole, None)
        whole = tvm_ffi.structural_map(whole, (tvm.ir.Var, lambda v: held.get(v, v)))
        return k.launch([whole], max(1, divided(items, threads)), threads)

    def _stage(self, i: int, inner: list[Any], v: Any, held: Any, results: list[Any]) -> Any:
        if i not in self._reduced:
            return super()._stage(i, inner, v, held, results)
        registers, start = self._reduced[i]
        made = self.planned.reductions[i].finish(element(registers, v + start))
        return store(results[i], made, v)


class _Plan:
    """What a thread does that computes ``count`` results along the axis."""

    def __init__(self, kernel: Windows, count: int) -> None:
        self.kernel, self.count = kernel, count
        k, lanes = kernel.k, kernel.lanes
        self.steps = [1] * len(kernel.merged)
        self.steps[kernel.group] = count
        if lanes > 1:
            self.steps[-1] = lanes
        self.extents = [e // s for e, s in zip(kernel.merged, self.steps, strict=True)]
        self.variables = [tirx.Var(f"m{g}", k.dtype) for g in range(len(self.extents))]
        self.lane = tirx.Var("lane", k.dtype)
        self.analyzer = tvm.sym.Analyzer()
        for variable, extent in zip(self.variables, self.extents, strict=True):
            self._bind(variable, extent)
        self._bind(self.lane, lanes)
        self.reductions = {
            i: self._reduction(part) for i, part in enumerate(kernel.parts) if slides(part)
        }
        self.loads = {i: Loads(self.analyzer, self.lane, lanes) for i in self.reductions}
        for i, one in self.reductions.items():
            for term in one.terms:
                for node in all_reads(term):
                    self.loads[i].add(node)

    def _bind(self, variable: Any, extent: int) -> None:
        zero, count = (tirx.const(n, variable.ty.dtype) for n in (0, extent))
        self.analyzer.bind(variable, tvm.ir.Range.from_min_extent(zero, count))

    @property
    def good(self) -> bool:
        """Whether windows share something, at a price that is worth it."""
        terms = sum(sum(map(len, one.uses)) for one in self.reductions.values())
        accesses = sum(one.accesses for one in self.loads.values())
        regular = all(one.regular for one in self.loads.values())
        elements = self.kernel.lanes * sum(
            len(all_reads(one.terms[t]))
            for one in self.reductions.values()
            for terms in one.uses
            for t in terms
        )
        return 0 < terms <= MOST_TERMS and regular and accesses < elements

    @property
    def cost(self) -> float:
        """Accesses for each result along the axis."""
        return sum(one.accesses for one in self.loads.values()) / self.count

    def _reduction(self, part: KernelBlock) -> WindowReduction:
        kernel, k, stage = self.kernel, self.kernel.k, part.stage
        made = reduction(part, self.analyzer)
        n = len(stage.spatial)
        inner = {r for axis, r in pairs(part) if axis == kernel.axis}
        extents = dict(zip(stage.axes[n:], stage.reduce, strict=True))
        names = {axis: tirx.Var("r", k.dtype) for axis in extents if axis not in inner}
        for axis, name in names.items():
            self._bind(name, extents[axis] or 1)
            made.outer.append((name, extents[axis] or 1))
        taps = math.prod(extents[axis] or 1 for axis in inner)
        init = self.analyzer.simplify(made.init)
        for u in range(self.count):
            made.uses.append([])
            for tap in range(taps if self.count * taps <= MOST_TERMS else 0):
                rest, values = tap, dict(names)
                for axis in inner:
                    values[axis] = k.number(rest % (extents[axis] or 1))
                    rest //= extents[axis] or 1
                reduced = [values[axis] for axis in stage.axes[n:]]
                given = dict(zip(stage.axes, [*self._axes(u), *reduced], strict=True))
                term = self.analyzer.simplify(substituted(made.term, given))
                if not tvm_ffi.structural_equal(term, init):
                    made.uses[u].append(_number(term, made.terms))
        return made

    def _axes(self, u: int) -> list[Any]:
        """Return the values of the axes at the ``u``-th result of the thread."""
        k, kernel = self.kernel.k, self.kernel
        values = [v * k.number(s) for v, s in zip(self.variables, self.steps, strict=True)]
        values[kernel.group] = values[kernel.group] + k.number(u)
        return kernel._axis_values(values, self.lane if kernel.lanes > 1 else k.number(0))

    def reduce(self, k: Any, i: int) -> tuple[list[Any], Any]:
        """Return what reduces the thread's windows, and ``lanes`` registers of each result."""
        lanes = self.kernel.lanes
        one, loads = self.reductions[i], self.loads[i]
        steps = math.prod(extent for _, extent in one.outer)
        ahead = steps if steps * loads.bytes <= STAGED_BYTES else 1
        loads.allocate(k, ahead)
        results = k.registers(one.dtype, self.count * lanes)
        single = k.registers(one.dtype, 1)
        shared = len(one.terms) < sum(map(len, one.uses))
        totals = k.registers(one.dtype, len(one.terms) * lanes) if shared else results
        owners = [
            [u for u, terms in enumerate(one.uses) if t in terms] for t in range(len(one.terms))
        ]

        def step(body: Callable[[Any], list[Any]]) -> list[Any]:
            number: Any = tirx.const(0, "int32")
            for name, extent in one.outer:
                number = number * extent + (name if k.dtype == "int32" else name.astype("int32"))
            return [_over(one.outer, body(number))]

        def read(number: Any) -> list[Any]:
            return loads.read(number if ahead > 1 else tirx.const(0, "int32"))

        def accumulate(number: Any) -> list[Any]:
            at = number if ahead > 1 else tirx.const(0, "int32")

            def add(lane: Any) -> Any:
                made = []
                for t, term in enumerate(one.terms):
                    value = substituted(
                        term, {self.lane: k.wide(lane)}, lambda node: loads.load(node, at, lane)
                    )
                    made.append(store(single, value, 0))
                    for target in (t,) if shared else owners[t]:
                        place = target * lanes + lane
                        total = one.combine(element(totals, place), element(single, 0))
                        made.append(store(totals, total, place))
                return sequence(made)

            return [per_lane(lanes, add)] if one.terms else []

        count = len(one.terms) if shared else self.count
        body = [per_lane(count * lanes, lambda i: store(totals, one.init, i))]
        if ahead > 1:
            body += [*step(read), *step(accumulate)]
        else:
            body += step(lambda number: [*read(number), *accumulate(number)])
        if shared:
            body.append(
                per_lane(lanes, lambda lane: sequence(self._joined(one, totals, results, lane)))
            )
        return body, results

    def _joined(self, one: WindowReduction, totals: Any, results: Any, lane: Any) -> list[Any]:
        """Return what reduces the terms of each result."""
        lanes, made = self.kernel.lanes, []
        for u, terms in enumerate(one.uses):
            place = u * lanes + lane
            values = [element(totals, t * lanes + lane) for t in terms] or [one.init]
            made.append(store(results, values[0], place))
            for value in values[1:]:
                made.append(store(results, one.combine(element(results, place), value), place))
        return made


def pairs(part: KernelBlock) -> list[tuple[int, Any]]:
    """Return which spatial axis, by its position, moves along which reduced axis."""
    stage, n = part.stage, len(part.stage.spatial)
    found: dict[tuple[int, Any], None] = {}
    for node in all_reads(part.value):
        for index in node.indices:
            for r in stage.axes[n:]:
                if uses(index, r):
                    found |= {(a, r): None for a in range(n) if uses(index, stage.axes[a])}
    return list(found)


def reduction(part: KernelBlock, analyzer: Any) -> WindowReduction:
    """Return the reduction of a part, without its terms."""
    plain = WindowReduction(part, part.value.b, part.init, part.combine, lambda value: value)
    return _as_floats(part, analyzer) or plain


def _as_floats(part: KernelBlock, analyzer: Any) -> WindowReduction | None:
    """Return the maximum of the `ordered` keys of floats as that of the floats themselves.

    A key takes six instructions, and a comparison that keeps a NaN three.
    """
    if not isinstance(part.value, tirx.Max):
        return None
    found = part.value.b
    guarded = isinstance(found, tvm.ir.Call) and found.op.name.endswith("if_then_else")
    key = found.args[1] if guarded else found
    nodes = all_reads(key)
    if not nodes:
        return None
    node = nodes[0]
    dtype = str(node.ty.dtype)
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    if wide not in ("float32", "float64") or not tvm_ffi.structural_equal(
        analyzer.simplify(key), analyzer.simplify(order_keys.key(node, dtype, True))
    ):
        return None
    least, value = tirx.min_value(wide), node.astype(wide)
    least = tirx.const(-math.inf, wide)
    term = tirx.if_then_else(found.args[0], value, least) if guarded else value

    def larger(a: Any, b: Any) -> Any:
        return tirx.Select(tirx.Or(a > b, tirx.isnan(a)), a, b)

    return WindowReduction(
        part, term, least, larger, lambda value: order_keys.key(value, wide, True)
    )


def _over(outer: list[tuple[Any, int]], body: list[Any]) -> Any:
    """Return ``body`` for all values of the outer axes."""
    whole = sequence(body)
    for name, extent in reversed(outer):
        whole = unrolled(name, extent, whole, tirx.ForKind.UNROLLED)
    return whole


def _number(term: Any, terms: list[Any]) -> int:
    """Return the number of a term among the different ones, to which it is added if it is new."""
    for i, other in enumerate(terms):
        if tvm_ffi.structural_equal(term, other):
            return i
    terms.append(term)
    return len(terms) - 1


def _innermost(parts: Sequence[KernelBlock]) -> int | None:
    """Return the last axis with which windows move; None if one moves with two axes at once."""
    moves = [pairs(part) for part in parts if slides(part)]
    if any(len({r for _, r in found}) < len(found) for found in moves):
        return None
    extents = parts[0].stage.spatial
    return max((axis for found in moves for axis, _ in found if extents[axis] != 1), default=None)


def kernel(parts: Sequence[KernelBlock], inner: set[Any]) -> KernelResult | None:
    """Return the first stages that can share a kernel, if windows among them overlap."""
    taken = alike(parts)
    if not any(slides(part) for part in taken):
        return None
    made = Windows(taken, read_outside(taken, parts, inner))
    return (taken, [made.emit()], []) if made.fits else None
