"""Random graphs: each node is drawn for the values that there are, and evaluated at once.

A node is kept if the reference evaluator takes it at every size, gives the dtype that ONNX infers,
numbers of a moderate size, and results that rounding does not change much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tools.fuzz_models.onnx_graphs.program import Program, kind_of, moved, names_in, values_of

SIZES = (("N", (2, 3, 1)), ("M", (4, 2, 5)))
"""Extents that differ from run to run."""
RUNS = 3
OPSETS = (*range(9, 24), 21, 22, 23)
MOST, FEWEST = 4096, 1e-3
LARGEST = 1e3


class Rejected(Exception):
    """A node that is not kept."""


@dataclass(frozen=True)
class Value:
    """A value in all runs, as it is and with moved inputs: arrays[run][how]."""

    name: str
    arrays: tuple[tuple[Any, Any], ...]
    is_constant: bool = False

    @property
    def dtype(self) -> str:
        return str(self.arrays[0][0].dtype.name)

    @property
    def ndim(self) -> int:
        return int(self.arrays[0][0].ndim)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape in each run."""
        return tuple(a.shape for a, _ in self.arrays)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in the first run."""
        return self.shapes[0]

    @property
    def fixed(self) -> tuple[bool, ...]:
        """By axis, whether the extent is that of all runs."""
        return tuple(len(set(extents)) == 1 for extents in zip(*self.shapes, strict=True))

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith("float")

    @property
    def is_integer(self) -> bool:
        return "int" in self.dtype


@dataclass(frozen=True)
class Node:
    """What a row draws."""

    op: str
    inputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1


Row = Callable[["Draw"], Node | None]


class Draw:
    """A graph under construction.

    Attributes
    ----------
    random, numbers: where the choices and the numbers come from. opset: the version. values: that
    can be used. constants: the initializers.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.opset = self.random.choice(OPSETS)
        self.values: list[Value] = []
        self.constants: dict[str, Any] = {}
        self.nodes: list[Any] = []
        self.dims: dict[str, tuple[int | str, ...] | None] = {}
        self.count = 0

    def fresh(self, prefix: str = "v") -> str:
        """Return a new name."""
        self.count += 1
        return f"{prefix}{self.count}"

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def pick(self, fits: Callable[[Value], bool] = lambda v: True) -> Value:
        """Return a value that fits, a late one mostly; `Rejected` if there is none."""
        found = [v for v in self.values if fits(v)]
        if not found:
            raise Rejected("no value fits")
        return (
            found[-self.random.randint(1, min(4, len(found)))]
            if self.chance(0.7)
            else (self.random.choice(found))
        )

    def array(
        self, shape: Sequence[int], dtype: str = "float32", low: Any = -2, high: Any = 2
    ) -> Any:
        """Return numbers."""
        if dtype == "bool":
            return self.numbers.integers(0, 2, shape) > 0
        if "int" in dtype:
            return self.numbers.integers(int(low), int(high) + 1, shape).astype(dtype)
        return self.numbers.uniform(low, high, shape).astype(dtype)

    def constant(self, values: Any, dtype: str | None = None) -> str:
        """Return the name of an initializer."""
        name = self.fresh("c")
        self.constants[name] = np.asarray(values, dtype)
        return name

    def ints(self, *values: int) -> str:
        """Return the name of a vector of int64."""
        return self.constant(np.array(values, np.int64))

    def input(self, dims: tuple[int | str, ...], dtype: str, low: Any = -2, high: Any = 2) -> Value:
        """Add an input of the graph."""
        name, sizes = self.fresh("x"), dict(SIZES)
        arrays = []
        for run in range(RUNS):
            shape = tuple(sizes[d][run] if isinstance(d, str) else d for d in dims)
            values = self.array(shape, dtype, low, high)
            arrays.append((values, moved(values, 1)))
        self.dims[name] = dims
        self.values.append(Value(name, tuple(arrays)))
        return self.values[-1]

    def given(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the values of names: for each run as it is, then moved."""
        known = {v.name: v for v in self.values}
        found = []
        for run in range(RUNS):
            for how in range(2):
                one = {}
                for name in names:
                    if name in known:
                        one[name] = known[name].arrays[run][how]
                    else:
                        values = self.constants[name]
                        one[name] = moved(values, 2) if how else values
                found.append(one)
        return found

    def add(self, node: Node, proto: Any = None, used: Sequence[str] = ()) -> list[Value]:
        """Append a node, if it is to be kept; return its results."""
        outputs = [self.fresh() for _ in range(node.outputs)]
        if proto is None:
            proto = helper.make_node(node.op, node.inputs, outputs, **node.attributes)
        outputs = [o for o in proto.output if o]
        names = sorted({n for n in (*node.inputs, *used) if n})
        given = self.given(names)
        try:
            found = values_of([proto], self.opset, given, outputs)
        except Exception as error:  # the evaluator's are of many kinds
            raise Rejected(f"{node.op}: {type(error).__name__}: {error}") from error
        kinds = _inferred(proto, given[0], outputs, self.opset)
        results = []
        for i, name in enumerate(outputs):
            arrays = [np.asarray(one[i]) for one in found]
            pairs = tuple((arrays[2 * r], arrays[2 * r + 1]) for r in range(RUNS))
            for plain, other in pairs:
                _require_sound(node.op, plain, other, kinds.get(name))
            results.append(Value(name, pairs))
        self.nodes.append(proto)
        self.values += results
        return results


def _inferred(proto: Any, given: dict[str, Any], outputs: list[str], opset: int) -> dict[str, int]:
    """Return the dtypes that ONNX infers for the results of a node."""
    inputs = [helper.make_tensor_value_info(n, kind_of(v), np.shape(v)) for n, v in given.items()]
    graph = helper.make_graph([proto], "g", inputs, [onnx.ValueInfoProto(name=o) for o in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        found = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        if not any(a.HasField("g") for a in proto.attribute):  # these see what is around them
            onnx.checker.check_node(proto, _context(opset))
    except Exception as error:
        raise Rejected(f"{proto.op_type} is not valid: {error}") from error
    return {o.name: o.type.tensor_type.elem_type for o in found.graph.output}


def _context(opset: int) -> Any:
    context = onnx.checker.C.CheckerContext()
    context.ir_version = 10
    context.opset_imports = {"": opset}
    return context


def _require_sound(op: str, plain: Any, other: Any, kind: int | None) -> None:
    """Raise Rejected for a result that is not kept."""
    if plain.shape != other.shape:
        raise Rejected(f"{op}: rounding decides the shape")
    if ("Conv" in op or "Pool" in op) and 0 in plain.shape[2:]:
        raise Rejected(f"{op}: the window is larger than the input")
    if kind and kind != kind_of(plain):
        raise Rejected(f"{op}: the reference gives {plain.dtype}")
    if plain.size > MOST or plain.ndim > 5:
        raise Rejected(f"{op}: too large")
    if plain.dtype.kind != "f":
        if not np.array_equal(plain, other):
            raise Rejected(f"{op}: rounding decides")
        if plain.dtype.kind in "iu" and plain.size and np.abs(plain.astype(float)).max() > 1 << 20:
            raise Rejected(f"{op}: large integers")
        return
    a, b = plain.astype(np.float64), other.astype(np.float64)
    if not np.isfinite(a).all() or not np.isfinite(b).all() or np.abs(a).max(initial=0) > LARGEST:
        raise Rejected(f"{op}: large numbers")
    if np.abs(a - b).max(initial=0) > FEWEST * max(1.0, np.abs(a).max(initial=0)) * (
        30 if plain.dtype == np.float16 else 1
    ):
        raise Rejected(f"{op}: rounding moves it")


def generate(seed: int, quick: bool = False, only: Sequence[str] = ()) -> Program:
    """Return the graph of a seed."""
    from tools.fuzz_models.onnx_graphs.rows import ROWS

    draw = Draw(seed)
    random = draw.random
    _inputs(draw)
    chosen = [(name, row) for name, row in ROWS.items() if not only or name in only]
    wanted = random.randint(2, 5) if quick else random.choice((4, 6, 8, 12, 16))
    for _ in range(8 * wanted):
        if len(draw.nodes) >= wanted:
            break
        count = len(draw.nodes)
        _, row = random.choice(chosen)
        try:
            node = row(draw)
            if node is not None:
                draw.add(node)
        except Rejected:
            gone = {o for made in draw.nodes[count:] for o in made.output}
            del draw.nodes[count:]
            draw.values = [v for v in draw.values if v.name not in gone]
    used = {n for node in draw.nodes for n in names_in(node)}
    made = [o for node in draw.nodes for o in node.output if o]
    outputs = [o for o in made if o not in used or random.random() < 0.15]
    if not outputs:  # nothing could be drawn
        draw.nodes.append(helper.make_node("Neg", ["x1"], ["y"]))
        outputs = ["y"]
    runs = tuple(
        {n: v.arrays[run][0] for v in draw.values for n in (v.name,) if n in draw.dims}
        for run in range(RUNS)
    )
    return Program(
        tuple(draw.nodes), draw.constants, draw.dims, tuple(outputs), draw.opset, runs
    ).pruned()


def _inputs(draw: Draw) -> None:
    """Add the inputs of the graph."""
    random = draw.random
    dtype = random.choice(("float32", "float32", "float32", "float64", "float16"))
    draw.input(random.choice((("N", 3, 4), ("N", 4), ("N", "M", 4), ("N", 2, 5, 6))), dtype)
    for _ in range(random.randint(0, 3)):
        kind = random.random()
        if kind < 0.5:
            shapes = (("N", 3, 4), ("N", 4), (4,), (), ("N", 3, "M"), (1, 4), ("M", "N"), (3, 4, 5))
            draw.input(random.choice(shapes), dtype)
        elif kind < 0.75:
            draw.input(random.choice((("N", 4), ("N",), (3,), ("N", 3, 4))), "int64", -3, 4)
        elif kind < 0.9:
            draw.input(random.choice((("N", 4), (4,), (), ("N", 3, 4))), "bool")
        else:
            draw.input(random.choice(((4,), ("N", 4))), random.choice(("int32", "uint8")), 0, 5)
