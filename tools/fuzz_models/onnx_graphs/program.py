"""A random graph, its inputs at several sizes, and what the reference evaluator makes of it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import op_loop

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Program:
    """A graph.

    Attributes
    ----------
    nodes: in order. constants: initializers by name. dims: by input, its extents: numbers, or names
    of those that differ from run to run; None: no shape is declared. outputs: names. opset: of the
    default domain. runs: the values of the inputs in each.
    """

    nodes: tuple[Any, ...]
    constants: Arrays
    dims: Mapping[str, tuple[int | str, ...] | None]
    outputs: tuple[str, ...]
    opset: int
    runs: tuple[Arrays, ...]

    @property
    def size(self) -> int:
        """The number of nodes."""
        return len(self.nodes)

    def model(self) -> Any:
        """Return the model. Its outputs declare neither type nor shape."""
        first = self.runs[0]
        inputs = [
            helper.make_tensor_value_info(n, kind_of(first[n]), dims)
            for n, dims in self.dims.items()
        ]
        stored = [numpy_helper.from_array(v, n) for n, v in self.constants.items()]
        outputs = [onnx.ValueInfoProto(name=n) for n in self.outputs]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, stored)
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def pruned(self) -> Program:
        """Return the program without what no output needs."""
        wanted, kept = set(self.outputs), []
        for node in reversed(self.nodes):
            if wanted & set(node.output):
                kept.append(node)
                wanted |= names_in(node)
        return replace(
            self,
            nodes=tuple(reversed(kept)),
            constants={n: v for n, v in self.constants.items() if n in wanted},
            dims={n: d for n, d in self.dims.items() if n in wanted},
            runs=tuple({n: v for n, v in r.items() if n in wanted} for r in self.runs),
        )


def kind_of(values: Any) -> int:
    """Return the number of an array's dtype in ONNX."""
    return int(helper.np_dtype_to_tensor_dtype(np.asarray(values).dtype))


def names_in(node: Any) -> set[str]:
    """Return the names of values that a node uses, in the graphs inside of it too."""
    found = {n for n in node.input if n}
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                found |= names_in(inner)
            found |= {o.name for o in graph.output}
    return found


class Loop(op_loop.Loop):
    """Loop as ONNX defines it: rows get an axis of their own, and no condition is a true one."""

    op_domain = ""

    def _run(
        self,
        trips: Any,
        condition: Any,
        *states: Any,
        context: Any = None,
        body: Any = None,
        attributes: Any = None,
        bindings: Any = None,
    ) -> Any:
        names = self.body.input_names
        inputs = {**(context or {}), **dict(zip(names[2:], states, strict=True))}
        count, i, found, rows = len(states), 0, [], []
        going = condition is None or bool(condition)
        states_now = list(states)
        while going and (trips is None or i < int(trips)):
            inputs |= {names[0]: np.array(i, np.int64), names[1]: np.array(True)}
            inputs |= dict(zip(names[2:], states_now, strict=True))
            found = self._run_body(inputs, attributes=attributes, bindings=bindings)
            going, states_now = bool(found[0]) or condition is None, found[1 : 1 + count]
            rows.append(found[1 + count :])
            i += 1
        return (*states_now, *(np.stack(r) for r in zip(*rows, strict=True)))


def values_of(
    nodes: Any,
    opset: int,
    given: list[dict[str, Any]],
    outputs: list[str],
    seeds: Sequence[int] = (),
) -> list[list[Any]]:
    """Return the outputs of nodes, by the reference evaluator, for each set of given values; with
    a seed that is not 0 the result of each node is moved by what rounding may do.

    Nodes are evaluated one by one: of a result of another node the evaluator does not know the
    dtype, which it needs for operators that ONNX defines by graphs.
    """
    values = [dict(one) for one in given]
    for node in nodes:
        names = sorted(names_in(node) & values[0].keys())
        inputs = [helper.make_tensor_value_info(n, kind_of(values[0][n]), None) for n in names]
        results = [o for o in node.output if o]
        graph = helper.make_graph(
            [node], "g", inputs, [onnx.ValueInfoProto(name=o) for o in results]
        )
        opsets = [helper.make_opsetid("", opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        evaluator = ReferenceEvaluator(model, new_ops=[Loop])
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for i, one in enumerate(values):
                found = evaluator.run(None, {n: one[n] for n in names})
                seed = seeds[i] if seeds else 0
                found = [moved(v, seed) if seed else v for v in found]
                one.update(zip(results, found, strict=True))
    return [[one[o] for o in outputs] for one in values]


NOISE = {"float32": 1e-6, "float64": 1e-13, "float16": 1e-3}
"""How far numbers are moved, relatively, to see what rounding does to a result."""


def moved(values: Any, seed: int) -> Any:
    """Return numbers moved by what rounding may do."""
    values = np.asarray(values)
    if values.dtype.name not in NOISE:
        return values
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], values.shape)
    return (values * (1 + signs * NOISE[values.dtype.name])).astype(values.dtype)


def expected(program: Program) -> list[list[tuple[Any, Any]]]:
    """Return, for each run, each output's value and how far the moved inputs move it: an array, or
    a number for all elements.
    """
    found = []
    for run in program.runs:
        given = [
            {n: moved(v, seed) if seed else v for n, v in {**program.constants, **run}.items()}
            for seed in range(3)
        ]
        outputs = list(program.outputs)
        plain, *others = values_of(program.nodes, program.opset, given, outputs, range(3))
        found.append([(v, _spread(v, [o[i] for o in others])) for i, v in enumerate(plain)])
    return found


def _spread(value: Any, others: list[Any]) -> Any:
    value = np.asarray(value)
    if value.dtype.kind != "f" or not value.size:
        return 0.0
    wide = value.astype(np.float64)
    if any(np.shape(o) != value.shape for o in others):
        return float("inf")  # rounding decides the shape
    wides = np.stack([np.asarray(o).astype(np.float64) for o in others])
    known = np.isfinite(wides)  # a number that moves out of the domain has no result: asin(1)
    with np.errstate(invalid="ignore"):
        spread = np.where(known, np.abs(wides - wide), 0).max()
    return np.where(known.all(0), spread, np.inf)
