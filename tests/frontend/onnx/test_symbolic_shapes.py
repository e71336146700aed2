"""Models are compiled for extents that are known by name, and run at several sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import meta
from meta.frontend import from_onnx
from meta.frontend.onnx import OnnxError
from tests.frontend.onnx.records import OnnxCase, data


@dataclass(frozen=True)
class Named:
    """A graph, the types of its inputs, and their shapes at several calls."""

    graph: str
    types: tuple[str, ...]
    shapes: tuple[tuple[tuple[int, ...], ...], ...]
    opset: int = 20
    label: str = ""


N8 = ("float32[n, 8]",)
SIZES = (((2, 8),), ((5, 8),))
CASES = [
    Named(
        "(float[n, 8] x) => (float[m, 4] y) <int64[1] first = {0}, int64[1] rest = {4}> {"
        "s = Shape(x) n = Gather(s, first) two = Constant<value_ints = [2]>() m = Mul(n, two)"
        "t = Concat<axis = 0>(m, rest) y = Reshape(x, t) }",
        N8,
        SIZES,
        label="products",
    ),
    Named(
        "(float[n, 8] x) => (float[n, 8] y) { s = Shape(x) m = Max(s) k = Min(m, s)"
        "y = Reshape(x, k) }",
        N8,
        SIZES,
        label="greatest of one",
    ),
    Named(
        "(float[n, 8] x) => (float[n, 4, 2] y) <int64 zero = {0}, int64[1] axes = {0}, "
        "int64[2] rest = {-1, 2}> { s = Shape(x) n = Gather(s, zero) v = Unsqueeze(n, axes)"
        "t = Concat<axis = 0>(v, rest) y = Reshape(x, t) }",
        N8,
        SIZES,
        label="scalars",
    ),
    Named(
        "(float[n, 8, 1] x) => (int64[1, 3] y) <int64[2] t = {-1, 3}> { s = Shape(x)"
        "y = Reshape(s, t) }",
        ("float32[n, 8, 1]",),
        (((2, 8, 1),), ((5, 8, 1),)),
        label="a shape as data",
    ),
    Named(
        "(float[n, 8] x) => (float[m, 8] y) <int64[1] one = {1}> { s = Shape(x)"
        "e = Constant<value_ints = [3, 1, 1]>() minus = Constant<value_ints = [-1, -1, -1]>()"
        "t = Concat<axis = 0>(one, s) same = Equal(t, minus) u = Where(same, e, t)"
        "w = Expand(x, u) zero = Constant<value_ints = [0]>() y = Squeeze(w, zero) }",
        N8,
        SIZES,
        label="expand",
    ),
    Named(
        "(float[n, m] x) => (float[k] y) <int64[1] all = {-1}> { s = Size(x)"
        "axes = Constant<value_ints = [0]>() t = Unsqueeze(s, axes) a = Reshape(x, t)"
        "o = ConstantOfShape(t) y = Add(a, o) }",
        ("float32[n, m]",),
        (((2, 3),), ((4, 5),)),
        label="size",
    ),
    Named(
        "(float[n, 8] x, float[n, k] z) => (float[n, m] y) <float[1, 16] table = "
        "{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}> { s = Shape(z)"
        "one = Constant<value_ints = [1]>() two = Constant<value_ints = [2]>()"
        "zero = Constant<value_ints = [0]>() k = Slice(s, one, two) "
        "row = Slice(table, zero, k, one) y = Add(z, row) }",
        (*N8, "float32[n, k]"),
        (((2, 8), (2, 3)), ((4, 8), (4, 16))),
        label="slice",
    ),
    Named(
        "(float[n, 8] x) => (float[m] y, int64 half) { s = Shape<end = 1>(x)"
        "two = Constant<value_ints = [2]>() m = Div(s, two) y = ConstantOfShape(m)"
        "half = Squeeze(m) }",
        N8,
        SIZES,
        label="a quotient as a result",
    ),
    Named(
        "(float[n, 8] x) => (float[m] y) { s = Shape(x)"
        "m = Slice<starts = [0], ends = [1]>(s) y = ConstantOfShape(m) }",
        N8,
        SIZES,
        opset=9,
        label="slice by attributes",
    ),
    Named(
        "(float[n, 8] x) => (float[n, 8] y, float[n, 8] z) { y = Hardmax<axis = 0>(x)"
        "z = Hardmax<axis = 1>(x) }",
        N8,
        SIZES,
        label="greatest",
    ),
    Named(
        "(float[n, 3, h, w] x) => (float[n, 3, a, b] y) <float[4] f = {1, 1, 2, 2}> {"
        'y = Resize<mode = "nearest", nearest_mode = "floor", '
        'coordinate_transformation_mode = "asymmetric">(x, , f) }',
        ("float32[n, 3, h, w]",),
        (((1, 3, 2, 3),), ((2, 3, 4, 4),)),
        label="nearest",
    ),
    Named(
        "(float[n, 3, h, w] x) => (float[n, 3, a, b] y) <float[4] f = {1, 1, 2, 2}> {"
        'y = Resize<mode = "linear">(x, , f) }',
        ("float32[n, 3, h, w]",),
        (((1, 3, 2, 3),), ((2, 3, 4, 4),)),
        label="linear",
    ),
    Named(
        "(float[n, 4, 6] x) => (float[n, 24] y, float[n, 4, 6] z) {"
        "y = Flatten(x) z = LayerNormalization<axis = -2>(x, w, b)} ".replace(
            "{y",
            "<float[4, 6] w = {"
            + ", ".join("1" * 24)
            + "}, float[4, 6] b = {"
            + ", ".join("2" * 24)
            + "}> {y",
        ),
        ("float32[n, 4, 6]",),
        (((1, 4, 6),), ((3, 4, 6),)),
        label="flatten",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.label)
def test_sizes(case: Named) -> None:
    proto = OnnxCase("", case.graph, opset=case.opset).model()
    model = from_onnx(proto)
    types = [meta.ir.parse_type(t) for t in case.types]
    names = sorted({d for t in types for d in map(str, t.shape) if not d.isdigit()})
    with meta.dialect.prefer("torch"):
        executable = meta.vm.compile(model, *types, dims=dict.fromkeys(names, (1, 32)))
        for shapes in case.shapes:
            inputs = [data(*shape) for shape in shapes]
            found = executable(*map(meta.array, inputs))
            found = found if isinstance(found, tuple) else (found,)
            given = dict(zip(model.input_names, inputs, strict=True))
            for f, w in zip(found, ReferenceEvaluator(proto).run(None, given), strict=True):
                assert f.shape == w.shape and f.numpy().dtype == w.dtype
                np.testing.assert_allclose(f.numpy(), w, rtol=1e-5, atol=1e-5)


def test_a_broken_scale_of_an_extent_by_name_is_refused() -> None:
    graph = (
        "(float[n, 3, h, w] x) => (float[n, 3, a, b] y) <float[4] f = {1, 1, 1.5, 2}> {"
        'y = Resize<mode = "linear">(x, , f) }'
    )
    model = from_onnx(OnnxCase("", graph, opset=20).model())
    with pytest.raises(OnnxError, match="whole numbers only"):
        meta.vm.compile(
            model,
            meta.ir.parse_type("float32[n, 3, h, w]"),
            dims={"n": (1, 2), "h": (1, 8), "w": (1, 8)},
        )
