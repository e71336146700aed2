"""How the stages of a CUDA kernel walk through memory: strides of accesses, axes that are one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvm
import tvm_ffi
from tvm import tirx

from meta.dialect.tvm.stages import Stage, uses

if TYPE_CHECKING:
    from typing import Self  # from Python 3.11 on


@dataclass(frozen=True, eq=False)
class KernelBlock:
    """A stage with what it stores: the value of an element, and for a reduction its initial value.

    ``combine``: the reduction's operation on two partial results, None if it is no known one.
    """

    stage: Stage
    value: Any
    init: Any = None

    @property
    def combine(self) -> Any:
        """The operation of ``result[i] = operation(result[i], element)``."""
        kind = _OPERATIONS.get(type(self.value).__name__)
        if kind is None or not self.stage.reduce or self.init is None:
            return None
        own = isinstance(self.value.a, tvm.ir.TensorLoad) and self.value.a.source.same_as(
            self.stage.buffer
        )
        return kind if own else None


MAX_WINDOW = 64
"""Elements of a window that one thread reduces."""
KernelResult = tuple[list[KernelBlock], list[Any], list[Any]]
"""Parts, the kernels that compute them in order, and the arrays that these need between them."""
_CONDITIONALS = ("prim.if_then_else", "tirx.if_then_else")
_OPERATIONS = {"Add": tirx.Add, "Mul": tirx.Mul, "Max": tirx.Max, "Min": tirx.Min}


@dataclass(frozen=True)
class Access:
    """A read at ``start`` plus the sum of each axis times its stride, in elements."""

    buffer: Any
    strides: tuple[int, ...]
    start: int

    def merged(self, groups: Sequence[Sequence[int]]) -> Access:
        """Return the access by merged axes."""
        return Access(self.buffer, tuple(self.strides[g[-1]] for g in groups), self.start)


def access(node: Any, axes: Sequence[Any]) -> Access | None:
    """Return the access of a read, None if its offset is not a sum of multiples of the axes."""
    shape = node.source.ty.shape
    if not all(isinstance(extent, tirx.IntImm) for extent in shape):
        return None
    strides, start = [0] * len(axes), 0
    step = 1
    for index, extent in zip(reversed(node.indices), reversed(shape), strict=True):
        found = _linear(index, axes)
        if found is None:
            return None
        *factors, constant = found
        strides = [s + step * f for s, f in zip(strides, factors, strict=True)]
        start += step * constant
        step *= extent.value
    return Access(node.source, tuple(strides), start)


@dataclass(frozen=True)
class Axes:
    """The extents of the axes of results and of those that are reduced; none is 1."""

    results: tuple[int, ...]
    reduced: tuple[int, ...]

    @classmethod
    def of(cls, part: KernelBlock) -> Self:
        """Return the axes of a stage."""
        return cls(
            tuple(e for e in part.stage.spatial if e is not None and e != 1),
            tuple(e for e in part.stage.reduce if e is not None and e != 1),
        )

    @property
    def count(self) -> int:
        """How many results there are."""
        return math.prod(self.results)

    @property
    def length(self) -> int:
        """How many elements make a result."""
        return math.prod(self.reduced)

    def walk(self, part: KernelBlock, node: Any) -> Access | None:
        """Return how a read walks along these axes; None if it is by other values."""
        found = access(node, part.stage.axes)
        if found is None:
            return None
        extents = (*part.stage.spatial, *part.stage.reduce)
        strides = tuple(s for s, e in zip(found.strides, extents, strict=True) if e != 1)
        missing = len(self.results) + len(self.reduced) - len(strides)
        return Access(found.buffer, (*strides, *[0] * missing), found.start)


def values_at(part: KernelBlock, values: Iterable[Any], zero: Any) -> dict[Any, Any]:
    """Return the values of a stage's axes for those of the axes that are not of extent 1."""
    following, stage = iter(values), part.stage
    extents = (*stage.spatial, *stage.reduce)
    return {
        a: zero if e == 1 else next(following) for a, e in zip(stage.axes, extents, strict=True)
    }


def _linear(index: Any, axes: Sequence[Any]) -> list[int] | None:
    """Return the factor of each axis in an index and the rest."""
    if isinstance(index, tirx.IntImm):
        return [*[0] * len(axes), index.value]
    for position, axis in enumerate(axes):
        if index.same_as(axis):
            return [int(i == position) for i in range(len(axes))] + [0]
    found = tvm.sym.detect_linear_equation(index, list(axes))
    if len(found) != len(axes) + 1 or not all(isinstance(f, tirx.IntImm) for f in found):
        return None
    return [f.value for f in found]


def compact(extents: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of an array of these extents."""
    return tuple(math.prod(extents[i + 1 :]) for i in range(len(extents)))


def merged_axes(extents: Sequence[int], accesses: Iterable[Access]) -> list[list[int]]:
    """Return groups of adjacent axes that each are one axis to all accesses, unit axes left out."""
    strides = [a.strides for a in accesses]
    groups: list[list[int]] = []
    for axis, extent in enumerate(extents):
        if extent == 1:
            continue
        if groups and all(s[groups[-1][-1]] == s[axis] * extent for s in strides):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def reads(value: Any) -> tuple[list[Any], list[Any]]:
    """Return the reads of an expression: those that are always done, those under a condition.

    A selection does both of its sides where these read at the axes themselves, as ``where`` does;
    elsewhere one side may be outside of its array where the other is taken.
    """
    always: list[Any] = []
    guarded: list[Any] = []

    def walk(node: Any, found: list[Any]) -> None:
        def read(inner: Any) -> Any:
            found.append(inner)
            return None

        def call(inner: Any) -> Any:
            if inner.op.name not in _CONDITIONALS:
                return None
            walk(inner.args[0], found)
            for branch in inner.args[1:]:
                walk(branch, guarded)
            return tvm_ffi.WalkResult.SKIP

        def select(inner: Any) -> Any:
            sides: list[Any] = []
            for side in (inner.true_value, inner.false_value):
                walk(side, sides)
            if all(isinstance(i, tirx.Var | tirx.IntImm) for one in sides for i in one.indices):
                return None
            walk(inner.condition, found)
            guarded.extend(sides)
            return tvm_ffi.WalkResult.SKIP

        handlers = [(tvm.ir.Call, call), (tirx.Select, select), (tvm.ir.TensorLoad, read)]
        tvm_ffi.structural_walk(node, handlers, order="pre")

    walk(value, always)
    return always, guarded


def all_reads(value: Any) -> list[Any]:
    """Return all reads of an expression."""
    always, guarded = reads(value)
    return [*always, *guarded]


def reads_of_others(part: KernelBlock) -> list[Any]:
    """Return all reads of a stage but those of its own result, which a reduction has."""
    own = part.stage.buffer
    return [node for node in all_reads(part.value) if not node.source.same_as(own)]


def by_results(part: KernelBlock, node: Any) -> Access | None:
    """Return the access of a read by the axes of the results; None if others take part in it."""
    stage = part.stage
    found, n = access(node, stage.axes), len(stage.spatial)
    if found is None or any(found.strides[n:]):
        return None
    return Access(found.buffer, found.strides[:n], found.start)


def slides(part: KernelBlock) -> bool:
    """Whether a stage reduces small windows, at places that depend on the result's."""
    stage, n = part.stage, len(part.stage.spatial)
    if part.combine is None or math.prod(e or 0 for e in stage.reduce) > MAX_WINDOW:
        return False
    windows = False
    for node in all_reads(part.value):
        reduced = [i for i in node.indices if any(uses(i, a) for a in stage.axes[n:])]
        if not all(any(uses(i, a) for a in stage.axes[:n]) for i in reduced):
            return False
        windows = windows or bool(reduced)
    return windows


def values_of_axes(
    extents: Sequence[int], groups: Sequence[Sequence[int]], values: Sequence[Any], zero: Any
) -> list[Any]:
    """Return the value of each axis for the values of the merged axes."""
    result: list[Any] = [zero] * len(extents)
    for group, value in zip(groups, values, strict=True):
        step = math.prod(extents[axis] for axis in group)
        for position, axis in enumerate(group):
            step //= extents[axis]
            found = value if step == 1 else tirx.floordiv(value, tirx.const(step, value.ty.dtype))
            if position:
                found = tirx.floormod(found, tirx.const(extents[axis], value.ty.dtype))
            result[axis] = found
    return result


def element_values(extents: Sequence[int], value: Any, zero: Any) -> list[Any]:
    """Return the value of each axis for the value of all merged into one."""
    groups = [list(range(len(extents)))] if extents else []
    return values_of_axes(extents, groups, [value] if groups else [], zero)


def computed_by(parts: Sequence[KernelBlock]) -> set[Any]:
    """Return the arrays that parts compute, results of the function among them: what has not run
    has not written them.
    """
    return {part.stage.buffer for part in parts}


def read_outside(
    taken: Sequence[KernelBlock], parts: Sequence[KernelBlock], inner: set[Any]
) -> set[Any]:
    """Return what a kernel of some parts has to store: parameters, and what other parts read."""
    outside = {part.stage.buffer for part in taken} - inner
    for part in parts:
        if part not in taken:
            outside.update(node.source for node in all_reads(part.value))
    return outside
