"""What the windows of a thread reduce: the terms, and in which dtype; see `windows`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from meta.dialect.tvm import ordered
from meta.dialect.tvm.schedule_cuda.walk import Part, all_reads
from meta.dialect.tvm.stages import uses


@dataclass
class Reduction:
    """The reduction of one part.

    term, init, combine: in the dtype in which it is done. finish: makes of it what the part stores.
    outer: reduced axes along which all of a thread's windows move alike, with their extents.
    terms: the different ones. uses: the number of each result's terms, by result.
    """

    part: Part
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


def pairs(part: Part) -> list[tuple[int, Any]]:
    """Return which spatial axis, by its position, moves along which reduced axis."""
    stage, n = part.stage, len(part.stage.spatial)
    found: dict[tuple[int, Any], None] = {}
    for node in all_reads(part.value):
        for index in node.indices:
            for r in stage.axes[n:]:
                if uses(index, r):
                    found |= {(a, r): None for a in range(n) if uses(index, stage.axes[a])}
    return list(found)


def reduction(part: Part, analyzer: Any) -> Reduction:
    """Return the reduction of a part, without its terms."""
    return _as_floats(part, analyzer) or _plain(part)


def _plain(part: Part) -> Reduction:
    return Reduction(part, part.value.b, part.init, part.combine, lambda value: value)


def _as_floats(part: Part, analyzer: Any) -> Reduction | None:
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
        analyzer.simplify(key), analyzer.simplify(ordered.key(node, dtype, True))
    ):
        return None
    least, value = tirx.min_value(wide), node.astype(wide)
    least = tirx.const(-math.inf, wide)
    term = tirx.if_then_else(found.args[0], value, least) if guarded else value

    def larger(a: Any, b: Any) -> Any:
        return tirx.Select(tirx.Or(a > b, tirx.isnan(a)), a, b)

    return Reduction(part, term, least, larger, lambda value: ordered.key(value, wide, True))
