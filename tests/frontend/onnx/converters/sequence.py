"""Cases of `meta/frontend/onnx/converters/sequence.py`."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tests.frontend.onnx.records import OnnxCase, data

X, Y, Z = data(2, 3), data(2, 3) + 1, data(2, 3) - 1
LONG = data(5, 3)
SEQUENCE = [X, Y, Z]


def place(value: int) -> Any:
    return np.array(value, np.int64)


def edited(name: str, *places: int, constant: bool = False, refused: str | None = None) -> Any:
    """Return an insertion or an erasure at each of the places, known or of the run time."""
    inserts = name == "SequenceInsert"
    more = "float[2, 3] t, " if inserts else ""
    call = "SequenceInsert(s, t, p)" if inserts else f"{name}(s, p)"
    result = "float[2, 3] y" if name == "SequenceAt" else "seq(float[2, 3]) y"

    def expected(s: Any, *rest: Any) -> Any:
        i, s = int(rest[-1]), list(s)
        if name == "SequenceAt":
            return s[i]
        if inserts:
            s.insert(i, rest[0])
        else:
            del s[i]
        return (s,)

    return [
        OnnxCase(
            name,
            f"(seq(float[2, 3]) s, {more}int64 p) => ({result}) {{ y = {call} }}",
            (SEQUENCE, *((LONG[:2],) if inserts else ()), place(p)),
            17,
            expected=expected,
            constants=("p",) if constant else (),
            label=f"{p}-{'constant' if constant else 'input'}",
            refused=refused,
        )
        for p in places
    ]


def split(attributes: str, sizes: Any, constants: tuple[str, ...] = ("n",), **how: Any) -> OnnxCase:
    declared = f"int64{list(np.shape(sizes)) if np.ndim(sizes) else ''} n"
    return OnnxCase(
        "SplitToSequence",
        f"(float[5, 3] x, {declared}) => (seq(float) y) "
        f"{{ y = SplitToSequence{attributes}(x, n) }}",
        (LONG, np.array(sizes, np.int64)),
        11,
        constants=constants,
        **how,
    )


def over(
    first: str, inputs: tuple[Any, ...], body: str, outputs: str, label: str, expected: Any = None
) -> OnnxCase:
    names = ", ".join(re.findall(r"(\w+)(?=, \D|$)", first))
    results = ", ".join(w.split()[-1] for w in outputs.split(", "))
    return OnnxCase(
        "SequenceMap",
        f"({first}) => ({outputs}) {{ {results} = SequenceMap<body = {body}>({names}) }}",
        inputs,
        17,
        expected=expected,
        label=label,
    )


CASES = [
    OnnxCase(
        "SequenceConstruct",
        "(float[2, 3] x, float[5, 3] z) => (seq(float) s, int64 n) "
        "{ s = SequenceConstruct(x, z, x) n = SequenceLength(s) }",
        (X, LONG),
        11,
        expected=lambda x, z: ([x, z, x], place(3)),
    ),
    OnnxCase(
        "SequenceEmpty",
        "(float[2, 3] x) => (seq(float) s, int64 n) "
        "{ e = SequenceEmpty() s = SequenceInsert(e, x) n = SequenceLength(e) }",
        (X,),
        11,
        expected=lambda x: ([x], place(0)),
    ),
    *edited("SequenceAt", 0, 2, -3, constant=True),
    *edited("SequenceAt", 0, 2, -3),
    *edited("SequenceAt", 3, -4, constant=True, refused="the position -?[34] is not in"),
    *edited("SequenceInsert", 0, 2, 3, -1, -3, constant=True),
    *edited("SequenceInsert", 0, 2, 3, -1, -3),
    *edited("SequenceInsert", 4, -4, constant=True, refused="the position -?4 is not in"),
    *edited("SequenceErase", 0, 2, -1, -3, constant=True),
    *edited("SequenceErase", 0, 2, -1, -3),
    *edited("SequenceErase", 3, -4, constant=True, refused="the position -?[34] is not in"),
    OnnxCase(
        "SequenceErase",
        "(seq(float[2, 3]) s) => (seq(float[2, 3]) y) { y = SequenceErase(s) }",
        (SEQUENCE,),
        11,
        expected=lambda s: (s[:-1],),
        label="last",
    ),
    OnnxCase(
        "SequenceAt",
        "(seq(float) s, int64 p) => (float y) { y = SequenceAt(s, p) }",
        ([X, LONG], place(0)),
        11,
        refused="2 elements of several types",
        label="types",
    ),
    *(
        OnnxCase(
            "ConcatFromSequence",
            "(seq(float[2, 3]) s) => (float y) "
            f"{{ y = ConcatFromSequence<axis = {axis}, new_axis = {new}>(s) }}",
            (SEQUENCE,),
            11,
            label=f"{axis}-{new}",
        )
        for axis, new in ((0, 0), (-1, 0), (0, 1), (1, 1), (-1, 1))
    ),
    split("", 2, expected=lambda x, n: ([x[:2], x[2:4], x[4:]],), label="equal"),
    split("<axis = 1>", [1, 2], expected=lambda x, n: ([x[:, :1], x[:, 1:]],), label="sizes"),
    split("", [1, 2], refused=r"parts of \[1, 2\] elements of an axis of 5", label="short"),
    split("", [1, 2], (), refused="not known while converting", label="input"),
    *(
        OnnxCase(
            "SplitToSequence",
            "(float[5, 3] x) => (seq(float) y) "
            f"{{ y = SplitToSequence<axis = 1, keepdims = {keepdims}>(x) }}",
            (LONG,),
            11,
            expected=lambda x, k=keepdims: ([x[:, i : i + 1] if k else x[:, i] for i in range(3)],),
            label=f"keepdims-{keepdims}",
        )
        for keepdims in (0, 1)
    ),
    over(
        "seq(float[2, 3]) s",
        (SEQUENCE,),
        "b (float[2, 3] x) => (float[2, 3] z) { z = Neg(x) }",
        "seq(float) y",
        "one",
    ),
    over(
        "seq(float[2, 3]) s, float[2, 3] t, seq(float[2, 3]) u",
        (SEQUENCE, LONG[:2], SEQUENCE[::-1]),
        "b (float[2, 3] x, float[2, 3] v, float[2, 3] w) => (float z, float[2, 3] a) "
        "{ p = Mul(x, v) z = Add(p, w) a = Identity(w) }",
        "seq(float) y, seq(float) q",
        "three",
        lambda s, t, u: ([a * t + b for a, b in zip(s, u, strict=True)], u),
    ),
    OnnxCase(
        "Optional",
        "(float[2, 3] x) => (float[2, 3] y, bool has, bool none) "
        "{ o = Optional(x) y = OptionalGetElement(o) has = OptionalHasElement(o) "
        "none = OptionalHasElement() }",
        (X,),
        18,
        expected=lambda x: (x, np.array(True), np.array(False)),
    ),
    *(
        OnnxCase(
            "OptionalHasElement",
            "(optional(seq(float[2, 3])) s) => (bool has) { has = OptionalHasElement(s) }",
            (value,),
            18,
            expected=lambda s: np.array(s is not None),
            label="none" if value is None else "some",
        )
        for value in (None, SEQUENCE)
    ),
    OnnxCase(
        "OptionalGetElement",
        "(optional(float[2, 3]) s) => (float[2, 3] y) { y = OptionalGetElement(s) }",
        (None,),
        18,
        refused="the optional has no element",
    ),
]
