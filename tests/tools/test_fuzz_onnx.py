"""Random ONNX graphs; `python -m tools.fuzz_models --face onnx` runs as many as wanted."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import pytest

from meta import op
from meta.frontend.onnx.registry import onnx as converters
from tools.fuzz_models.campaign import cases_of
from tools.fuzz_models.face import Case, face_of
from tools.fuzz_models.onnx_graphs import FACE, run
from tools.fuzz_models.onnx_graphs.control import CONTROL
from tools.fuzz_models.onnx_graphs.draw import generate
from tools.fuzz_models.onnx_graphs.faults import is_miscomputed
from tools.fuzz_models.onnx_graphs.minimise import CANDIDATES, is_sound
from tools.fuzz_models.onnx_graphs.program import Program, expected, values_of
from tools.fuzz_models.onnx_graphs.run import Way, check
from tools.fuzz_models.onnx_graphs.samples import samples

TORCH = [Way(e, "torch") for e in run.EXECUTORS]


@pytest.mark.long
def test_graphs() -> None:
    cases = cases_of(24, 0, TORCH, quick=True, face="onnx")
    found = [FACE.run_case(c, 20.0) for c in cases]
    assert not [r for r in found if r.kind], "\n\n".join(r.script for r in found if r.kind)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_graphs(part: int) -> None:
    ways = FACE.ways(Namespace(device="cpu"))
    found = [FACE.run_case(c, 20.0) for c in cases_of(50, 1000 + 50 * part, ways, face="onnx")]
    assert not [r for r in found if r.kind], "\n\n".join(r.script for r in found if r.kind)


@pytest.mark.long
def test_graphs_have_many_operators_and_several_sizes() -> None:
    counts: Counter[str] = Counter()
    sizes = 0
    for seed in range(80):
        program = generate(seed)
        counts.update(n.op_type for n in program.nodes)
        names = [d for dims in program.dims.values() if dims for d in dims if isinstance(d, str)]
        sizes += bool(names)
        assert program.size <= 60
    assert generate(3).model() == generate(3).model() and is_sound(generate(3))
    assert sizes > 60 and len(set(counts) & {*samples(), *CONTROL}) > 100


def test_what_is_converted_and_tested_by_onnx_is_drawn() -> None:
    """No row names it; nodes of older opsets are what onnx converts them to."""
    assert len(samples()) > 150
    (split, *_) = samples()["ReduceSum"]
    assert {a.name for a in split.at(11).attribute} >= {"axes"}
    assert {a.name for a in split.at(13).attribute} == {"keepdims"}


def test_a_wrong_result_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a graph with a Tanh whose converter is another one only that is left."""
    seed = next(s for s in range(100) if "Sin" in {n.op_type for n in generate(s).nodes})
    program = generate(seed)
    assert check(program, TORCH[0]) is None
    wrong = replace(converters["Sin"], function=lambda x: op.add(op.sin(x), 1.0))
    monkeypatch.setitem(converters._entries, "Sin", wrong)
    record = FACE.run_case(Case(seed, TORCH[0], face="onnx"), 20.0)
    assert record.kind == "wrong value" and record.steps <= 2
    assert "Sin" in record.script
    compile(record.script, "script", "exec")


def test_candidates_are_sound() -> None:
    program = next(p for p in map(generate, range(50)) if p.size > 5)
    for candidates in CANDIDATES:
        smaller = list(candidates(program))
        assert smaller and all(is_sound(p) for p in smaller)


F = np.float32
LSTM = {"hidden_size": 2}
NOT_ALLOWED = [
    ("LSTM", LSTM, [F, (3, 1, 4)], [F, (1, 1, 4)], [F, (1, 1, 2)]),
    ("LSTM", LSTM, [F, (3, 5, 4)], [F, (1, 8, 4)], [F, (1, 8, 2)], None, [np.int32, (2,)]),
    ("NonMaxSuppression", {}, [F, (1, 5, 5)], [F, (1, 1, 5)]),
    ("NonMaxSuppression", {}, [F, (1, 5, 4)], [F, (1, 1, 4)]),
    ("DFT", {}, [F, (1, 10, 10, 1)], None, [np.int64, (), 12]),
    ("DFT", {}, [F, (1, 10, 10, 1)], None, [np.int64, (), 3]),
    ("ReverseSequence", {}, [F, (3, 2)], [np.int64, (2,), -1]),
    ("ReverseSequence", {}, [F, (3, 2)], [np.int64, (2,), 4]),
    ("RoiAlign", {}, [F, (2, 1, 4, 4)], [F, (3, 4)], [np.int64, (2,), 1]),
    ("RoiAlign", {}, [F, (2, 1, 4, 4)], [F, (2, 4)], [np.int64, (2,), 2]),
    ("GatherElements", {"axis": 1}, [F, (3, 2)], [np.int64, (2, 3), 2]),
]
"""Operators, attributes, and inputs: dtypes, shapes and what all elements are."""
ALLOWED = [
    ("LSTM", LSTM, [F, (3, 1, 4)], [F, (1, 8, 4)], [F, (1, 8, 2)], None, None, [F, (1, 1, 2)]),
    ("LSTM", LSTM | {"layout": 1}, [F, (5, 3, 4)], [F, (1, 8, 4)], [F, (1, 8, 2)], None,
     [np.int32, (5,), 3], [F, (5, 1, 2)]),
    ("NonMaxSuppression", {}, [F, (1, 5, 4)], [F, (1, 1, 5)], [np.int64, (1,)]),
    ("DFT", {}, [F, (1, 10, 10, 1)], None, [np.int64, (), -2]),
    ("ReverseSequence", {}, [F, (3, 2)], [np.int64, (2,), 3]),
    ("RoiAlign", {}, [F, (2, 1, 4, 4)], [F, (2, 4)], [np.int64, (2,), 1]),
    ("GatherElements", {"axis": 1}, [F, (3, 2)], [np.int64, (2, 3), 1]),
]  # fmt: skip


@pytest.mark.parametrize("allowed", [False, True])
def test_what_onnx_does_not_allow_is_not_drawn(allowed: bool) -> None:
    for name, attributes, *inputs in ALLOWED if allowed else NOT_ALLOWED:
        arrays = [None if i is None else np.full(i[1], i[2:] or 0, i[0]) for i in inputs]
        node = onnx.helper.make_node(name, ["x"] * len(inputs), ["y"], **attributes)
        assert is_miscomputed(node, 22, arrays, []) != allowed, (name, inputs)


def test_an_element_that_rounding_moves_out_of_the_domain_has_no_bound() -> None:
    node = onnx.helper.make_node("Asin", ["x1"], ["y"])
    x = np.array([0.5, 1.0], np.float32)
    program = Program((node,), {}, {"x1": (2,)}, ("y",), 22, ({"x1": x},))
    ((value, spread),) = expected(program)[0]
    assert np.isfinite(value).all() and spread[0] < 1e-2 and spread[1] == np.inf
    assert check(program, TORCH[0]) is None


def test_loops_of_the_reference_stack_their_rows() -> None:
    text = (
        "g (int64 m, float[2] x) => (y, r) { y, r = Loop<body = b (int64 i, bool on, float[2] v) "
        "=> (bool going, float[2] w, float[2] s) "
        "{ going = Identity(on) w = Add(v, v) s = Neg(v) }>(m, , x) }"
    )
    node = onnx.parser.parse_graph(text).node
    given = {"m": np.array(3), "x": np.array([1.0, 2.0], np.float32)}
    ((y, r),) = values_of(node, 17, [given], ["y", "r"])
    assert y.tolist() == [8.0, 16.0]
    assert r.tolist() == [[-1.0, -2.0], [-2.0, -4.0], [-4.0, -8.0]]


def test_the_face_has_a_name() -> None:
    assert face_of("onnx") is FACE
    assert "x1" in FACE.text(Case(0, TORCH[0], face="onnx"))
