"""Kernels of elementwise operators, of a function of elements written in Triton.

The function's parameters are arguments of the operator by name: elements of its tensors, half
precision as float32, run-time numbers, and attributes, which are constants. It returns the element
of the result, or a tuple of several. `elements.py` writes the kernel around it: for tensors without
gaps, which may be broadcast, and a second one for tensors with any strides.

The source of a kernel around a function of elements, for tensors that lie in memory in a given
way.

Dimensions are collapsed first: neighbours along which all tensors go on evenly are one. What is
left is written out as Python text, which Triton compiles as any kernel's: the flat case has no
divisions, a dimension along which a tensor is repeated is not in its offset, and one of stride 1
has no product.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any

import triton
import triton.language as tl

from meta.base.errors import RegistrationError
from meta.dialect.core import Config, Configs, OpEnv, Unsupported, require_static
from meta.dialect.core.openv import declining
from meta.dialect.triton import build, configs, type_names
from meta.dialect.triton.binding import Bound, Number, Pointers, Static, Stride
from meta.dialect.triton.configs import Tuning
from meta.dialect.triton.function import NO_DEFAULT, Source, read
from meta.dialect.triton.interpreter import interpreted_run
from meta.dialect.triton.launch import LaunchPlan, choosing
from meta.ir.types import TensorType
from meta.op.core.call import (
    CallValues,
    number_positions,
    runtime_args,
    slot_positions,
    written_positions,
)
from meta.op.core.op import Op
from meta.op.core.slot import NUMBERS

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
    tuple. result_steps: of each result, as ``steps``; empty where all are compact. loops: whether
    a program computes several blocks, so that a grid may be smaller than their number.
    """

    dims: int
    steps: tuple[tuple[str, ...], ...]
    arguments: tuple[str, ...]
    half: tuple[bool, ...]
    outputs: int
    several: bool
    result_steps: tuple[tuple[str, ...], ...] = ()
    loops: bool = False


def _offset(steps: Sequence[str], number: int, letter: str = "s") -> str:
    terms = [
        f"at{d}" if step == "1" else f"at{d} * {letter}{number}_{d}"
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
        *(f"t{k}_{d}" for k, steps in enumerate(shape.result_steps)
          for d, step in enumerate(steps) if step == "s"),
        *(f"c{k}: tl.constexpr" for k in range(count["c"])),
        "INDEX: tl.constexpr",
        "BLOCK: tl.constexpr",
    ]  # fmt: skip


def text(shape: Shape, name: str) -> str:
    """Return the source of a kernel."""
    head = [f"def {name}({', '.join(parameters(shape))}):"]
    block = "tl.program_id(0)"
    if shape.loops:
        blocks = "tl.program_id(0), tl.cdiv(numel, BLOCK), tl.num_programs(0)"
        head.append(f"  for block in range({blocks}):")
        block = "(block + tl.zeros((), tl.int32))"
    lines = [
        f"    at = {block}.to(INDEX) * BLOCK + tl.arange(0, BLOCK)",
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
    for k in range(shape.outputs):
        steps = shape.result_steps[k] if shape.result_steps else ()
        offset = _offset(steps, k, "t") if shape.dims else ""
        lines.append(f"    tl.store(o{k} + {offset or 'at'}, r{k}, mask=inside)")
    return "\n".join(head + lines) + "\n"


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


BLOCKS: tuple[dict[str, int], ...] = (
    {"BLOCK": 1024, "num_warps": 4},
    {"BLOCK": 512, "num_warps": 4},
    {"BLOCK": 2048, "num_warps": 8},
    {"BLOCK": 256, "num_warps": 2},
)
"""Elements of a thread block, and its warps."""
HALF = ("float16", "bfloat16")


class PointwiseKernel:
    """The kernels of an elementwise operator around a function of elements."""

    def __init__(
        self,
        function: Any,
        op: Op,
        when: Callable[[CallValues], str | None] | None,
        stated: Sequence[Any],
    ) -> None:
        self.source, self.op, self.when = read(function), op, when
        self.tunings = configs.read(stated or BLOCKS, ["BLOCK"], self.source.name, self.source.site)
        schema = op.schema
        kinds = {n: schema.slots[i].kind for n, i in schema.index.items()}
        self.asked = [p.name for p in self.source.parameters]
        wrong = [
            p.name
            for p in self.source.parameters
            if kinds.get(p.name, "tensors") == "tensors" and p.default is NO_DEFAULT
        ]
        if wrong:
            raise RegistrationError(
                f"the function {self.source.name!r} of elements of {op.name!r} asks for {wrong}",
                expected=f"arguments of {op.name}({', '.join(schema.names)}) that are one tensor, "
                "a number or an attribute",
                span=self.source.site,
            )
        fixed = [
            p.name
            for p in self.source.parameters
            if p.constexpr and kinds.get(p.name, "attribute") != "attribute"
        ]
        if fixed:
            raise RegistrationError(
                f"the function {self.source.name!r} of elements of {op.name!r} takes tensors or "
                f"run-time numbers as tl.constexpr: {fixed}",
                expected="attributes as tl.constexpr",
                span=self.source.site,
            )

    def make(self, call: CallValues) -> OpEnv:
        """Return the kernel of a call; raises Unsupported."""
        declining(self.when, call)
        others = tuple(t.config for t in self.tunings[1:])
        env = self._made(call, ())
        env.configs = Configs(lambda: others, lambda config: self._made(call, config))
        return env

    def _made(self, call: CallValues, config: Config) -> OpEnv:
        return _Call(self, call, configs.chosen(self.tunings, config)).env()


class _Call:
    """One call in one configuration."""

    def __init__(self, kernel: PointwiseKernel, call: CallValues, tuning: Tuning) -> None:
        self.kernel, self.call, self.tuning = kernel, call, tuning
        self.several = not isinstance(call.out, TensorType)
        self.outputs = call.outputs
        require_static(*call.tensors(), *self.outputs)
        if not self.outputs or any(t.shape != self.outputs[0].shape for t in self.outputs):
            raise Unsupported("a function of elements gives results of one shape")
        self.shape = self.outputs[0].static_shape
        self.size = self.outputs[0].size
        self.count = len(runtime_args(call.op, call.args))
        self.places = {n: p for n, p in slot_positions(call).items() if isinstance(p, int)}
        self.inputs: list[tuple[str, TensorType]] = []
        self.numbers: list[Number] = []
        self.constants: list[Any] = []
        self.arguments: list[str] = []
        dtypes = dict(number_positions(call))
        for parameter in kernel.source.parameters:
            index = call.op.schema.index.get(parameter.name)
            value = parameter.default if index is None else call.args[index]
            attribute = index is None or call.op.schema.slots[index].kind == "attribute"
            if isinstance(value, TensorType):
                self._read(parameter.name, value)
            elif not attribute and isinstance(value, NUMBERS):
                place = self.places[parameter.name]
                word = type_names.number_word(dtypes.get(place), value)
                self.arguments.append(f"n{len(self.numbers)}")
                self.numbers.append(Number(self.arguments[-1], place, word))
            else:
                self.arguments.append(f"c{len(self.constants)}")
                self.constants.append(value)
        for type_ in self.outputs:
            type_names.pointer(type_.dtype, "the result")

    def _read(self, name: str, type_: TensorType) -> None:
        """Note an input; Unsupported unless it can be broadcast to the result."""
        type_names.pointer(type_.dtype, name)
        shape = type_.static_shape
        behind = self.shape[len(self.shape) - len(shape) :]
        if len(shape) > len(self.shape) or any(
            have not in (1, want) for have, want in zip(shape, behind, strict=True)
        ):
            raise Unsupported(f"{name} is {type_}, which is not broadcast to {self.outputs[0]}")
        self.arguments.append(f"i{len(self.inputs)}")
        self.inputs.append((name, type_))

    def _aligned_shape(self, type_: TensorType) -> tuple[int, ...]:
        return (1,) * (len(self.shape) - len(type_.shape)) + type_.static_shape

    def _layout(self) -> Layout:
        """Return how compact inputs lie."""
        strides = []
        for _, type_ in self.inputs:
            steps, step = [], 1
            for extent in reversed(self._aligned_shape(type_)):
                steps.append(0 if extent == 1 else step)
                step *= max(extent, 1)
            strides.append(steps[::-1])
        return collapsed(self.shape, strides)

    def _shape(self, dims: int, steps: list[tuple[str, ...]]) -> Shape:
        half = tuple(t.dtype in HALF for _, t in self.inputs)
        return Shape(
            dims, tuple(steps), tuple(self.arguments), half, len(self.outputs), self.several
        )

    def compact(self) -> tuple[Source, Bound]:
        """Return the kernel for compact inputs, with their strides known."""
        layout = self._layout()
        known = {0: "0", 1: "1"}
        steps = [tuple(known.get(step, "s") for step in row) for row in layout.strides]
        source = kernel(self.kernel.source.jit, self._shape(len(layout.extents), steps))
        bound = self._bound(layout.extents)
        for k, row in enumerate(layout.strides):
            for d, step in enumerate(row):
                if step > 1:
                    self._known(bound, f"s{k}_{d}", step)
        return source, bound

    def general(self) -> tuple[Source, Bound]:
        """Return the kernel for any strides, which are read at each launch."""
        kept = [d for d, extent in enumerate(self.shape) if extent != 1]
        steps = []
        for _, type_ in self.inputs:
            shape = self._aligned_shape(type_)
            steps.append(tuple("0" if shape[d] == 1 else "s" for d in kept))
        source = kernel(self.kernel.source.jit, self._shape(len(kept), steps))
        bound = self._bound([self.shape[d] for d in kept])
        for k, (name, type_) in enumerate(self.inputs):
            before = len(self.shape) - len(type_.shape)
            for i, d in enumerate(kept):
                if steps[k][i] == "s":
                    at = f"s{k}_{i}"
                    bound.strides[at] = Stride(at, self.places[name], d - before, 0, True)
        return source, bound

    def _bound(self, extents: Sequence[int]) -> Bound:
        bound = Bound(results=self.count)
        for k, (name, type_) in enumerate(self.inputs):
            bound.pointers[f"i{k}"] = Pointers(f"i{k}", (self.places[name],), (type_,))
        for k, type_ in enumerate(self.outputs):
            bound.pointers[f"o{k}"] = Pointers(f"o{k}", (self.count + k,), (type_,))
        bound.numbers.update({number.name: number for number in self.numbers})
        bound.constants.update({f"c{k}": value for k, value in enumerate(self.constants)})
        sizes = [self.size, *(t.size for _, t in self.inputs)]
        bound.constants["INDEX"] = tl.int32 if all(map(type_names.fits, sizes)) else tl.int64
        bound.constants["BLOCK"] = self.tuning.meta["BLOCK"]
        self._known(bound, "numel", self.size)
        for d, extent in enumerate(extents[1:], start=1):
            self._known(bound, f"e{d}", extent)
        return bound

    def _known(self, bound: Bound, name: str, value: int) -> None:
        bound.statics[name] = Static(name, type_names.static_word(value, wide=False), value)

    def env(self) -> OpEnv:
        """Return the kernel."""
        strided = not written_positions(self.call)
        if not self.size:
            return OpEnv(nothing, allocates=False, strided=strided)
        grid = (-(-self.size // self.tuning.meta["BLOCK"]), 1, 1)
        compact, general = self.compact(), self.general()
        places = tuple(self.places[name] for name, _ in self.inputs) if strided else ()
        if self.call.device.kind == "cpu":
            runs = [interpreted_run(*one, grid) for one in (compact, general)]
            return OpEnv(choosing(runs[0], runs[1], (), places), False, strided)
        source = self.kernel.source
        variants = build.variant(*compact, compact=True), build.variant(*general, compact=False)
        unit = build.unit(source, variants, self.tuning, self.call.device, str(self.call))
        plan = LaunchPlan(tuple(v.passed for v in unit.variants), grid, places)
        run = build.Ready(unit, plan, self.call.device.ordinal).deferred()
        return OpEnv(run, allocates=False, strided=strided)


def nothing(*values: Any) -> None:
    """Launch nothing: the results have no elements."""
