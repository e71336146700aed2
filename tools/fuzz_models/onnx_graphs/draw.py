"""Random graphs: each node is a sample with values of the graph in place of its inputs.

A node is kept if the reference evaluator takes it at every size, gives the dtype that ONNX infers,
numbers of a moderate size, and results that rounding does not change much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tools.fuzz_models.generator import Generator, Missing, renamed_extents
from tools.fuzz_models.onnx_graphs.control import CONTROL
from tools.fuzz_models.onnx_graphs.faults import is_miscomputed
from tools.fuzz_models.onnx_graphs.program import Program, kind_of, moved, names_in, values_of
from tools.fuzz_models.onnx_graphs.samples import NodeSample, is_known, samples

SIZES = (("N", (2, 3, 1)), ("M", (4, 2, 5)))
"""Extents that differ from run to run."""
RUNS = 3
OPSETS = (*range(9, 24), *(22, 23) * 6)
MOST, FEWEST = 4096, 1e-3
LARGEST = 1e3
RANK = 5


class Rejected(Missing):
    """A node that is not kept."""


@dataclass(frozen=True)
class Value:
    """A value in all runs, as it is and with moved inputs: arrays[run][how]."""

    name: str
    arrays: tuple[tuple[Any, Any], ...]
    is_constant: bool = False

    @property
    def array(self) -> Any:
        """Its elements in the first run."""
        return self.arrays[0][0]

    @property
    def dtype(self) -> str:
        return str(self.array.dtype.name)

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


class Draw(Generator[str]):
    """A graph under construction.

    Attributes
    ----------
    numbers: where the numbers come from. opset: the version. constants: the initializers. dims: the
    inputs of the graph. steps: how many operators are drawn, of which some are several nodes.
    """

    def __init__(self, seed: int, only: Sequence[str] = ()) -> None:
        super().__init__(seed)
        self.numbers = np.random.default_rng(seed)
        self.opset = self.choice(OPSETS)
        self.only = only
        self.known: dict[str, Value] = {}
        self.constants: dict[str, Any] = {}
        self.nodes: list[Any] = []
        self.dims: dict[str, tuple[int | str, ...] | None] = {}

    def name(self, prefix: str = "v") -> str:
        """Return a new name."""
        return f"{prefix}{self.fresh() + 1}"

    def value(self, key: str) -> Value:
        """Return what is known of a value."""
        return self.known[key]

    def pick(self, *fits: Callable[[Value], Any]) -> Value:
        """Return a value that fits; Missing if there is none."""
        return self.known[self.choose(*fits)]

    def mark(self) -> int:
        """Return how many nodes there are."""
        return len(self.nodes)

    def forget(self, mark: int) -> None:
        """Forget the nodes that are new."""
        gone = {o for node in self.nodes[mark:] for o in node.output}
        del self.nodes[mark:]
        self.scope = [n for n in self.scope if n not in gone]

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
        """Return the name of an initializer, or at times of what a node makes of one."""
        name = self.name("c")
        self.constants[name] = np.asarray(values, dtype)
        if self.chance(0.05):
            (copy,) = self.add(helper.make_node("Identity", [name], [self.name()]))
            return copy.name
        return name

    def input(self, dims: tuple[int | str, ...], dtype: str, low: Any = -2, high: Any = 2) -> Value:
        """Add an input of the graph."""
        sizes = dict(SIZES)
        shapes = [
            tuple(sizes[d][run] if isinstance(d, str) else d for d in dims) for run in range(RUNS)
        ]
        arrays = [self.array(shape, dtype, low, high) for shape in shapes]
        return self.input_of(arrays, dims)

    def input_of(self, arrays: Sequence[Any], dims: tuple[int | str, ...]) -> Value:
        """Add an input with these values in the runs."""
        name = self.name("x")
        self.dims[name] = dims
        self.known[name] = Value(name, tuple((a, moved(a, 1)) for a in arrays))
        self.scope.append(name)
        return self.known[name]

    def given(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the values of names: for each run as it is, then moved."""
        found = []
        for run in range(RUNS):
            for how in range(2):
                found.append(
                    {
                        n: self.known[n].arrays[run][how]
                        if n in self.known
                        else (moved(self.constants[n], 2) if how else self.constants[n])
                        for n in names
                    }
                )
        return found

    def add(self, node: Any) -> list[Value]:
        """Append a node, if it is to be kept; return its results."""
        outputs = [o for o in node.output if o]
        names = sorted(n for n in names_in(node) if n in self.known or n in self.constants)
        given = self.given(names)
        try:
            found = values_of([node], self.opset, given, outputs, (0, 3) * RUNS)
        except Exception as error:  # the evaluator's are of many kinds
            raise Rejected(f"{node.op_type}: {type(error).__name__}: {error}") from error
        kinds = _inferred(node, given[0], outputs, self.opset)
        results = []
        for i, name in enumerate(outputs):
            arrays = [np.asarray(one[i]) for one in found]
            pairs = tuple((arrays[2 * r], arrays[2 * r + 1]) for r in range(RUNS))
            for plain, other in pairs:
                _require_sound(node.op_type, plain, other, kinds.get(name))
            results.append(Value(name, pairs))
        for run in range(RUNS):
            operands = [given[2 * run].get(n) for n in node.input]
            made = [v.arrays[run][0] for v in results]
            if is_miscomputed(node, self.opset, operands, made):
                raise Rejected(f"{node.op_type}: the evaluator computes something else")
        self.nodes.append(node)
        self.known |= {v.name: v for v in results}
        self.scope += [v.name for v in results]
        return results

    def draw(self) -> bool:
        """Draw a node and add it."""
        found = samples()
        name = self.choice([n for n in (*found, *CONTROL) if not self.only or n in self.only])
        if name in CONTROL:
            CONTROL[name](self)
            return True
        sample = self.choice(found[name])
        node = sample.at(self.opset)
        if node is None or not is_known(sample):
            return False
        names = [n for n in node.input if n]
        data = [n for n in names if sample.inputs.get(n) is not None]
        bound = self._bound(sample, data) if data else {}
        new = onnx.NodeProto()
        new.CopyFrom(node)
        new.input[:] = [bound.get(n, "") for n in node.input]
        new.output[:] = [self.name() if o else "" for o in node.output]
        self.add(new)
        return True

    def _bound(self, sample: NodeSample, names: Sequence[str]) -> dict[str, str]:
        """Return a value, a constant or an input of the graph in place of each input of a node."""
        first = names[0] if self.chance(0.8) else self.choice(names)
        like = sample.inputs[first]
        wider = like.dtype.kind == "f" and self.chance(0.2)
        alike = all(sample.inputs[n].shape == like.shape for n in names)
        free = alike and self.chance(0.2)  # of any rank: the evaluator says whether it fits
        value = self.pick(
            lambda v: v.dtype == like.dtype.name or (wider and v.is_float),
            lambda v: free or v.ndim == like.ndim,
            lambda v: len({len(shape) for shape in v.shapes}) == 1,
        )
        extents = renamed_extents(like.shape, tuple(zip(*value.shapes, strict=True))) or {}
        bound = {first: value.name}
        for name in names:
            if name not in bound:
                bound[name] = self._other(sample.inputs[name], like, value, extents)
        return bound

    def _other(self, x: Any, like: Any, value: Value, extents: dict[int, Any]) -> str:
        dtype = value.dtype if x.dtype == like.dtype else x.dtype.name
        same = [v for v in self.scope if self.known[v].dtype == dtype]
        if same and (x.dtype, x.shape) == (like.dtype, like.shape) and self.chance(0.25):
            return str(self.choice(same))  # whether it broadcasts, the evaluator says
        if x.ndim == 1 and x.dtype.kind == "i" and self.chance(0.8):
            fixed = {old: new[0] for old, new in extents.items() if len(set(new)) == 1}
            if self.chance(0.3):
                x = np.array([fixed.get(int(n), n) for n in x], x.dtype)
            return self.constant(x)
        runs = [tuple(extents[n][r] if n in extents else n for n in x.shape) for r in range(RUNS)]
        matching = [n for n in same if self.known[n].shapes == tuple(runs)]
        if matching and x.dtype.kind != "i" and self.chance(0.6):
            return str(self.choice(matching))
        arrays = [_resized(x, shape).astype(dtype) for shape in runs]
        if len(set(runs)) == 1 and self.chance(0.8):
            return self.constant(arrays[0])
        named = {sizes: letter for letter, sizes in SIZES}
        dims = []
        for axis in zip(*runs, strict=True):
            if len(set(axis)) > 1 and axis not in named:
                raise Rejected("an extent without a name")
            dims.append(axis[0] if len(set(axis)) == 1 else named[axis])
        return self.input_of(arrays, tuple(dims)).name


def _resized(x: Any, shape: tuple[int, ...]) -> Any:
    """Return a sample's values, repeated or cut to a shape; indices are 0 if there are fewer."""
    count = int(np.prod(shape))
    found = np.resize(x, shape) if x.size else np.zeros(shape, x.dtype)
    return found * 0 if count < x.size and x.dtype.kind in "iu" else found


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
    if plain.size > MOST or plain.ndim > RANK:
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
    draw = Draw(seed, only)
    random = draw.random
    _inputs(draw)
    wanted = random.randint(2, 5) if quick else random.choice((4, 6, 8, 12, 16))
    draw.grow(wanted, 16 * wanted)
    used = {n for node in draw.nodes for n in names_in(node)}
    made = [o for node in draw.nodes for o in node.output if o]
    outputs = [o for o in made if o not in used or random.random() < 0.15]
    if not outputs:  # nothing could be drawn
        draw.nodes.append(helper.make_node("Neg", ["x1"], ["y"]))
        outputs = ["y"]
    runs = tuple({n: draw.known[n].arrays[run][0] for n in draw.dims} for run in range(RUNS))
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
