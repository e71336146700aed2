"""ONNX models with control flow compiled for extents that have names, against onnx's evaluator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import meta
from meta.frontend import from_onnx
from tests.frontend.onnx.records import OnnxCase, data


def recurrent(kind: str, gates: int, directions: int) -> tuple[str, list[str]]:
    """Return a graph of a recurrent operator and the types of its inputs."""
    types = [
        *("float[s, n, 2]", f"float[{directions}, {gates * 5}, 2]"),
        f"float[{directions}, {gates * 5}, 5]",
    ]
    inputs = ", ".join(f"{t} {n}" for t, n in zip(types, "xwr", strict=True))
    direction = "bidirectional" if directions == 2 else "reverse"
    call = f'{kind}<hidden_size = 5, direction = "{direction}">(x, w, r)'
    return f"({inputs}) => (float y, float h) {{ y, h = {call} }}", types


GRAPHS = {
    **{
        f"{kind}-{directions}": recurrent(kind, gates, directions)
        for kind, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1))
        for directions in (1, 2)
    },
    "Scan": (
        "(float[n] a, float[s, n] x) => (float y, float r) { y, r = Scan<num_scan_inputs = 1, "
        "body = b (float[n] p, float[n] e) => (float[n] q, float[n] o) "
        "{ q = Add(p, e) o = Mul(q, e) }>(a, x) }",
        ["float[n]", "float[s, n]"],
    ),
    "Loop": (
        "(int64 m, float[n, 2] x) => (float y) { c = Constant<value = bool {1}>() y = Loop<body = "
        "b (int64 i, bool on, float[n, 2] p) => (bool go, float[n, 2] q) "
        "{ go = Identity(on) q = Add(p, x) }>(m, c, x) }",
        ["int64[]", "float[n, 2]"],
    ),
    "If": (
        "(bool c, float[n, 2] x) => (float y) { y = If<then_branch = t () => (float[n, 2] a) "
        "{ a = Neg(x) }, else_branch = e () => (float[n, 2] b) { b = Add(x, x) }>(c) }",
        ["bool[]", "float[n, 2]"],
    ),
}


def argument(type_: str, extents: dict[str, int]) -> Any:
    """Return numbers of a type; of one without axes a condition or a trip count."""
    dtype, text = type_.rstrip("]").split("[")
    shape = [extents.get(d.strip()) or int(d) for d in text.split(",") if d.strip()]
    if dtype != "float":
        return np.array(extents["s"] % 2 if dtype == "bool" else extents["s"], dtype)
    return data(*shape, low=-0.8, high=0.8)


@pytest.mark.parametrize("name", GRAPHS)
def test_named_extents(name: str) -> None:
    graph, types = GRAPHS[name]
    proto = OnnxCase(name, graph, opset=16).model()
    parsed = [meta.ir.parse_type(t.replace("float", "float32")) for t in types]
    with meta.dialect.prefer("torch"):
        dims = {n: (1, 8) for n in "ns" if any(n in t.split("[")[1] for t in types)}
        exe = meta.vm.compile(from_onnx(proto), *parsed, dims=dims)
    evaluator = ReferenceEvaluator(proto)
    for s, n in ((1, 1), (4, 3), (7, 2)):
        inputs = [argument(t, {"s": s, "n": n}) for t in types]
        found = exe(*map(meta.array, inputs))
        results = found if isinstance(found, tuple) else (found,)
        named = dict(zip([i.name for i in proto.graph.input], inputs, strict=True))
        for one, other in zip(results, evaluator.run(None, named), strict=True):
            np.testing.assert_allclose(one.numpy(), other, 1e-5, 1e-5)
