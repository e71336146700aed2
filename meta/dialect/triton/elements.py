"""The source of a kernel around a function of elements, for tensors that lie in memory in a given
way.

Dimensions are collapsed first: neighbours along which all tensors go on evenly are one. What is
left is written out as Python text, which Triton compiles as any kernel's: the flat case has no
divisions, a dimension along which a tensor is repeated is not in its offset, and one of stride 1
has no product.
"""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any

import triton
import triton.language as tl

from meta.dialect.triton.function import Source, read

SOURCES = 1024
"""Kernels that are remembered."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How the inputs of a kernel lie beside its results, which are compact.

    Attributes
    ----------
    extents: of the dimensions that are left. strides: of each input, a number for each of these;
    0 along a dimension in which it is repeated.
    """

    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]


def collapsed(extents: Sequence[int], strides: Sequence[Sequence[int]]) -> Layout:
    """Return a layout with as few dimensions as describe it."""
    kept: list[int] = []
    left: list[list[int]] = [[] for _ in strides]
    for i, extent in enumerate(extents):
        if extent == 1:
            continue
        steps = [s[i] for s in strides]
        pairs = zip(left, steps, strict=True)
        if kept and all(row[-1] == step * extent for row, step in pairs):
            kept[-1] *= extent
            for row, step in zip(left, steps, strict=True):
                row[-1] = step
            continue
        kept.append(extent)
        for row, step in zip(left, steps, strict=True):
            row.append(step)
    return Layout(tuple(kept), tuple(map(tuple, left)))


@dataclass(frozen=True)
class Shape:
    """What the source of a kernel depends on.

    Attributes
    ----------
    dims: dimensions. steps: of each input, for each of them "0" (it is repeated), "1" or "s" (a
    stride that is a parameter). arguments: of the function of elements, in order, "i" and the
    number of an input, "n" of a number, or "c" of a constant. half: which inputs are computed in
    float32. outputs: how many results there are; ``several`` says that the function returns a
    tuple.
    """

    dims: int
    steps: tuple[tuple[str, ...], ...]
    arguments: tuple[str, ...]
    half: tuple[bool, ...]
    outputs: int
    several: bool


def _offset(steps: Sequence[str], number: int) -> str:
    terms = [
        f"at{d}" if step == "1" else f"at{d} * s{number}_{d}"
        for d, step in enumerate(steps)
        if step != "0"
    ]
    return " + ".join(terms)


def parameters(shape: Shape) -> list[str]:
    """Return the parameters of a kernel's source, in order."""
    count = {kind: sum(a[0] == kind for a in shape.arguments) for kind in "nc"}
    return [
        *(f"i{k}" for k in range(len(shape.steps))),
        *(f"o{k}" for k in range(shape.outputs)),
        *(f"n{k}" for k in range(count["n"])),
        "numel",
        *(f"e{d}" for d in range(1, shape.dims)),
        *(f"s{k}_{d}" for k, steps in enumerate(shape.steps)
          for d, step in enumerate(steps) if step == "s"),
        *(f"c{k}: tl.constexpr" for k in range(count["c"])),
        "INDEX: tl.constexpr",
        "BLOCK: tl.constexpr",
    ]  # fmt: skip


def text(shape: Shape, name: str) -> str:
    """Return the source of a kernel."""
    lines = [
        f"def {name}({', '.join(parameters(shape))}):",
        "    at = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)",
        "    inside = at < numel",
    ]
    rest = "at"
    for d in range(shape.dims - 1, 0, -1):
        lines += [f"    at{d} = {rest} % e{d}", f"    rest{d} = {rest} // e{d}"]
        rest = f"rest{d}"
    if shape.dims:
        lines.append(f"    at0 = {rest}")
    for k, steps in enumerate(shape.steps):
        offset = _offset(steps, k)
        load = f"tl.load(i{k} + {offset}, mask=inside)" if offset else f"tl.load(i{k})"
        lines.append(f"    v{k} = {load}{'.to(tl.float32)' if shape.half[k] else ''}")
    given = ", ".join(f"v{a[1:]}" if a[0] == "i" else a for a in shape.arguments)
    results = ", ".join(f"r{k}" for k in range(shape.outputs))
    if shape.several:
        lines.append(f"    {results}{',' if shape.outputs == 1 else ''} = function({given})")
    else:
        lines.append(f"    r0 = function({given})")
    lines += [f"    tl.store(o{k} + at, r{k}, mask=inside)" for k in range(shape.outputs)]
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=SOURCES)
def kernel(function: Any, shape: Shape) -> Source:
    """Return the kernel around a function of ``@triton.jit`` on elements."""
    name = f"{function.__name__}_elements"
    lines = text(shape, name)
    digest = sha256(f"{function.cache_key}\n{lines}".encode()).hexdigest()[:16]
    file = f"<{function.fn.__module__}.{function.fn.__qualname__}, elements {digest}>"
    # Triton asks Python's `inspect` for the source of what it compiles.
    linecache.cache[file] = (len(lines), None, lines.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"tl": tl, "function": function, "__name__": function.fn.__module__}
    exec(compile(lines, file, "exec"), namespace)
    return read(triton.jit(namespace[name]))
