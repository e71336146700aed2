"""Cases of `meta/frontend/onnx/converters/control_flow.py`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.frontend.onnx.records import OnnxCase, data

X = data(2, 3)
ROWS = data(4, 2, 3)
TRUE, FALSE = np.array(True), np.array(False)
BRANCHES = (
    "<then_branch = t () => (float[2, 3] a) { a = Neg(x) }, "
    "else_branch = e () => (float[2, 3] b) { b = Add(x, x) }>"
)


SHAPES = (
    "(bool c, float[2, 3] x) => (float y) { y = If<then_branch = t () => (float[2, 3] a) "
    "{ a = Neg(x) }, else_branch = e () => (float[3, 2] b) "
    "{ b = Transpose<perm = [1, 0]>(x) }>(c) }"
)

FITTING = (
    "(bool c, float[n, m] x, float[4, 2] p, float[2, 2] q) => (float y, float[1] z, seq(float) s) "
    "{ y, z, s = If<then_branch = t () => (float a, float[1] d, seq(float) f) { a = MatMul(x, p) "
    "d = Constant<value_floats = [1.0]>() f = SequenceConstruct(a, d) }, else_branch = e () => "
    "(float b, float[1] g, seq(float) h) { b = MatMul(x, q) g = Constant<value_floats = [2.0]>() "
    "h = SequenceConstruct(b, g) }>(c) }"
)
"""Of the products only one has a meaning for an x."""


def number(value: int, dtype: Any = np.int64) -> Any:
    return np.array(value, dtype)


def loop(
    body: str, inputs: tuple[Any, ...], label: str, arguments: str = "m, c, x", **how: Any
) -> OnnxCase:
    """Return a loop with the trip count m, the condition c, and what it carries, float[2, 3]. Its
    body takes (i, on, v) and returns (going, w, r).
    """
    outputs = "float[2, 3] y, float[N, 2, 3] r"
    graph = (
        f"(int64 m, bool c, float[2, 3] x) => ({outputs}) {{ y, r = Loop<body = b "
        "(int64 i, bool on, float[2, 3] v) => (bool going, float[2, 3] w, float[2, 3] s) "
        f"{{ {body} }}>({arguments}) }}"
    )
    expected = how.pop("expected", None)
    return OnnxCase("Loop", graph, inputs, 16, expected=expected, label=label, **how)


ADD = "going = Identity(on) w = Add(v, x) s = Neg(w) "
UNTIL = "l = Constant<value = int64 {2}>() going = Less(i, l) w = Add(v, x) s = Neg(w) "


def steps(count: int) -> Any:
    """Return the expected results of ``count`` steps."""

    def expected(m: Any, c: Any, x: Any) -> Any:
        states = [x * np.float32(k) for k in range(1, count + 2)]
        rows = [-s for s in states[1:]]
        return states[-1], np.stack(rows) if rows else np.zeros((0, 2, 3), np.float32)

    return expected


def scan(
    body: str, inputs: tuple[Any, ...], attributes: str = "", opset: int = 16, **how: Any
) -> OnnxCase:
    shapes = [list(np.shape(v)) for v in inputs]
    names = "sxuv"[: len(inputs)]
    declared = ", ".join(f"float{shape} {n}" for n, shape in zip(names, shapes, strict=True))
    return OnnxCase(
        "Scan",
        f"({declared}) => (float y, float r) {{ y, r = Scan<num_scan_inputs = {len(inputs) - 1}"
        f"{attributes}, body = {body}>({', '.join(names)}) }}",
        inputs,
        opset,
        **how,
    )


SUM = (
    "b (float[2, 3] a, float[2, 3] e) => (float[2, 3] n, float[2, 3] o) "
    "{ n = Add(a, e) o = Mul(n, e) }"
)


def summed(reverse_in: bool = False, reverse_out: bool = False, axis: int = 0, out: int = 0) -> Any:
    def expected(s: Any, x: Any) -> Any:
        rows = np.moveaxis(x, axis, 0)
        results = []
        for row in rows[::-1] if reverse_in else rows:
            s = s + row
            results.append(s * row)
        return s, np.stack(results[::-1] if reverse_out else results, out)

    return expected


def batched(lengths: Any = None, reverse: bool = False) -> Any:
    def expected(*values: Any) -> Any:
        s, x = values[-2:]
        counts = [x.shape[1]] * x.shape[0] if lengths is None else lengths
        states, rows = [], np.zeros_like(x)
        for k, count in enumerate(counts):
            state = s[k]
            order = x[k, :count][::-1] if reverse else x[k, :count]
            for t, row in enumerate(order):
                state = state + row
                rows[k, t] = state * row
            states.append(state)
        return np.stack(states), rows

    return expected


STEP = "b (float[3] a, float[3] e) => (float[3] n, float[3] o) { n = Add(a, e) o = Mul(n, e) }"
CASES = [
    *(
        OnnxCase(
            "If",
            f"(bool{shape} c, float[2, 3] x) => (float[2, 3] y) {{ y = If{BRANCHES}(c) }}",
            (np.full([1] * bool(shape), value), X),
            opset,
            constants=constants,
            label=f"{value}-{'constant' if constants else 'input'}-{len(shape)}",
        )
        for value in (True, False)
        for constants in ((), ("c",))
        for shape, opset in (("", 16), ("[1]", 11))
    ),
    OnnxCase(
        "If",
        SHAPES,
        (FALSE, X),
        16,
        constants=("c",),
        label="shapes",
    ),
    OnnxCase(
        "If",
        '(bool c) => (string y) { x = Constant<value_string = "a">() y = If<then_branch = t () '
        "=> (string a) { a = Identity(x) }, else_branch = e () => (string b) "
        "{ b = Identity(x) }>(c) }",
        (FALSE,),
        16,
        refused="its branches return text",
        label="text",
    ),
    OnnxCase(
        "If",
        "(bool c, float[2, 3] x) => (float y) { y = If<then_branch = t () => (float[6] a) "
        "{ s = Constant<value_ints = [6]>() a = Reshape(x, s) }, else_branch = e () => "
        "(float[3, 2] b) { b = Transpose<perm = [1, 0]>(x) }>(c) }",
        (FALSE, X),
        16,
        refused=r"its branches return \[float32\[6\]\] and \[float32\[3, 2\]\]",
        label="ranks",
    ),
    *(
        OnnxCase("If", SHAPES, (np.array(taken), X), 16, label=f"extents-{taken}")
        for taken in (True, False)
    ),
    *(
        OnnxCase(
            "If",
            FITTING,
            (np.array(taken), data(3, size), data(4, 2), data(2, 2)),
            16,
            label=f"one branch fits-{size}",
        )
        for taken, size in ((True, 4), (False, 2))
    ),
    OnnxCase(
        "If",
        "(bool c, float[5, 2, 3] x, float[1, 16, 3] w, float[1, 16, 4] r) => (float y) { y = "
        "If<then_branch = t () => (float a) { a = LSTM<hidden_size = 4>(x, w, r) }, else_branch = "
        "e () => (float b) { m = Neg(x) b = LSTM<hidden_size = 4>(m, w, r) }>(c) }",
        (FALSE, data(5, 2, 3), data(1, 16, 3), data(1, 16, 4)),
        16,
        label="LSTM",
    ),
    OnnxCase(
        "If",
        "(bool c, int4[2] x) => (int4[2] y, seq(int4[2]) z) { y, z = If<then_branch = t () => "
        "(int4[2] a, seq(int4[2]) s) { a = Identity(x) s = SequenceConstruct(x, x) }, "
        "else_branch = e () => (int4[2] b, seq(int4[2]) u) "
        "{ b = Cast<to = 22>(x) u = SequenceConstruct(x, b) }>(c) }",
        (TRUE, np.array([1, -8]).astype(ml_dtypes.int4)),
        23,
        expected=lambda c, x: (x, [x, x]),
        label="narrow",
    ),
    OnnxCase(
        "If",
        "(bool c, bool d, float[2, 3] x) => (float[2, 3] y) { y = If<then_branch = t () => "
        "(float[2, 3] a) { n = Neg(x) a = If<then_branch = u () => (float[2, 3] p) "
        "{ p = Mul(n, x) }, else_branch = v () => (float[2, 3] q) { q = Add(n, n) }>(d) }, "
        "else_branch = e () => (float[2, 3] b) { b = Identity(x) }>(c) }",
        (TRUE, FALSE, X),
        16,
        label="nested",
    ),
    loop(ADD, (number(3), TRUE, X), "counted", constants=("m", "c"), expected=steps(3)),
    loop(ADD, (number(3), TRUE, X), "condition", constants=("m",), expected=steps(3)),
    loop(ADD, (number(3), FALSE, X), "condition-false", constants=("m",), expected=steps(0)),
    loop(ADD, (number(3), TRUE, X), "count", constants=("c",), expected=steps(3)),
    loop(ADD, (number(3), TRUE, X), "both", expected=steps(3)),
    loop(ADD, (number(3), FALSE, X), "both-false", expected=steps(0)),
    loop(ADD, (number(0), TRUE, X), "none", constants=("m", "c"), expected=steps(0)),
    loop(ADD, (number(0), TRUE, X), "none-input", expected=steps(0)),
    loop(ADD, (number(3), TRUE, X), "no-condition", "m, , x", expected=steps(3)),
    loop(UNTIL, (number(9), TRUE, X), "until", constants=("m", "c"), expected=steps(3)),
    loop(UNTIL, (number(9), TRUE, X), "until-input", expected=steps(3)),
    loop(UNTIL, (number(2), TRUE, X), "until-count", expected=steps(2)),
    loop(UNTIL, (number(2**62), TRUE, X), "until-far", constants=("m",), expected=steps(3)),
    loop(UNTIL, (number(9), TRUE, X), "until-uncounted", ", c, x", expected=steps(3)),
    loop(UNTIL, (number(4), TRUE, X), "not-looked-at", "m, , x", expected=steps(4)),
    loop(ADD, (number(3), TRUE, X), "endless", ", , x", refused="never ends"),
    *(
        OnnxCase(
            "Loop",
            "(int64 m, float[2, 3] x) => (float[2, 3] y) { c = Constant<value = bool {1}>() "
            "k = Constant<value = int64 {3}>() y = Loop<body = b (int64 i, bool on, "
            "float[2, 3] v) => (bool go, float[2, 3] w) { go = Less(i, k) w = Add(v, v) }>"
            "(m, c, x) }",
            (number(m), X),
            16,
            label=f"a known end, {m} steps at most",
        )
        for m in (2, 9)
    ),
    OnnxCase(
        "Loop",
        "(int64 m, bool c, float[2, 3] x) => (float y) { y = Loop<body = b "
        "(int64 i, bool on, float[N, 3] v) => (bool going, float[P, 3] w) "
        "{ going = Identity(on) w = Concat<axis = 0>(v, x) }>(m, c, x) }",
        (number(3), TRUE, X),
        16,
        constants=("m", "c"),
        expected=lambda m, c, x: np.concatenate([x] * 4),
        label="growing",
    ),
    OnnxCase(
        "Loop",
        "(int64 m, bool c, float[2, 3] x) => (float y) { y = Loop<body = b "
        "(int64 i, bool on, float[N, 3] v) => (bool going, float[P, 3] w) "
        "{ going = Identity(on) w = Concat<axis = 0>(v, x) }>(m, c, x) }",
        (number(3), TRUE, X),
        16,
        expected=lambda m, c, x: np.concatenate([x] * 4),
        label="growing-input",
    ),
    OnnxCase(
        "Loop",
        "(bool[2] k, float[2, 3] x) => (float y) { n = Constant<value_ints = [2]>() z = "
        "Compress<axis = 0>(x, k) y = Loop<body = b (int64 i, bool on, float[N, 3] v) => "
        "(bool going, float[P, 3] w) { going = Identity(on) w = Add(v, x) }>(n, , z) }",
        (np.array([TRUE, TRUE]), X),
        16,
        expected=lambda k, x: x * 3,
        label="a state of unknown rows",
    ),
    OnnxCase(
        "Loop",
        "(bool[4] k, float[4, 3] x, float[3] v) => (float[3] w, float y) { z = "
        "Compress<axis = 0>(x, k) n = Constant<value_ints = [2]>() w, y = Loop<body = b "
        "(int64 i, bool on, float[3] s) => (bool going, float[3] t, float[P, 3] r) { "
        "going = Identity(on) t = Neg(s) r = Add(z, s) }>(n, , v) }",
        (np.array([TRUE, FALSE, TRUE, TRUE]), data(4, 3), data(3)),
        16,
        expected=lambda k, x, v: (v, np.stack([x[k] + v, x[k] - v])),
        label="collected rows of unknown extents",
    ),
    loop(
        "z = Constant<value_int = 1>() two = Constant<value_int = 2>() t = Mul(i, two) "
        "going = Less(t, two) w = Add(v, x) s = Neg(w) ",
        (number(9), TRUE, X),
        "foreseen",
        constants=("m", "c"),
        expected=steps(2),
    ),
    *(
        OnnxCase(
            "Scan",
            "(bool[5] k, float[3] s, float[5, 3] x) => (float y, float r) { z = "
            f"Compress<axis = 0>(x, k) y, r = Scan<num_scan_inputs = 1, {directions}body = {STEP}>"
            "(s, z) }",
            (np.array([1, 0, 1, 1, 0]) == 1, data(3), data(5, 3)),
            16,
            expected=lambda k, s, x, back=bool(directions): summed(back)(s, x[k]),
            label=f"unknown rows {directions}",
        )
        for directions in ("", "scan_input_directions = [1], ")
    ),
    OnnxCase(
        "Loop",
        "(int64 m, float[2, 3] x) => (seq(float) y) { e = SequenceEmpty() y = Loop<body = b "
        "(int64 i, bool on, seq(float[2, 3]) v) => (bool going, seq(float[2, 3]) w) "
        "{ going = Identity(on) w = SequenceInsert(v, x) }>(m, , e) }",
        (number(3), X),
        16,
        constants=("m",),
        expected=lambda m, x: ([x] * 3,),
        label="sequence",
    ),
    OnnxCase(
        "Loop",
        "(float[2, 6] x) => (float y) { m = Constant<value = int64 {2}>() "
        "k = Constant<value = int64[1] {1}>() n = Loop<body = b "
        "(int64 i, bool on, int64[1] v) => (bool going, int64[1] w) "
        "{ going = Identity(on) w = Add(v, v) }>(m, , k) "
        "s = Constant<value = int64[1] {-1}>() t = Concat<axis = 0>(n, s) y = Reshape(x, t) }",
        (data(2, 6),),
        16,
        expected=lambda x: x.reshape(4, 3),
        label="shape",
    ),
    OnnxCase(
        "Loop",
        "(int64 t, float[2, 3] x) => (int64 n) { m = Constant<value = int64 {100}>() "
        "c = Constant<value = bool {1}>() k = Constant<value = int64 {1}>() n = Loop<body = b "
        "(int64 i, bool on, int64 v) => (bool going, int64 w) "
        "{ w = Add(v, v) going = Less(w, t) }>(m, c, k) }",
        (number(50), X),
        16,
        expected=lambda t, x: number(64),
        label="known-state",
    ),
    OnnxCase(
        "Loop",
        "(float[2, 3] x) => (float y) { m = Constant<value = int64 {1000000000000}>() "
        "c = Constant<value = bool {1}>() y = Loop<body = b "
        "(int64 i, bool on, float[2, 3] v, float[2, 3] u) => (bool going, float[2, 3] w, "
        "float[2, 3] z) { w = Add(v, x) z = Identity(u) q = ReduceMax<keepdims = 0>(w) "
        "l = Constant<value = float {9.0}>() going = Less(q, l) }>(m, c, x, x) }",
        (np.ones((2, 3), np.float32),),
        16,
        expected=lambda x: x * 9,
        label="far",
    ),
    OnnxCase(
        "Scan",
        "(float[2, 3] x) => (float y) { y = Scan<num_scan_inputs = 1, body = b (float[3] e, "
        "float[3] f) => (float[3] o) { o = Add(e, f) }>(x) }",
        (X,),
        16,
        refused="its graph takes 2 values, and is given 1",
    ),
    scan(SUM, (X, ROWS), expected=summed()),
    scan(SUM, (X, ROWS[:0]), expected=lambda s, x: (s, x), label="empty"),
    scan(SUM, (X, ROWS), ", scan_input_directions = [1]", expected=summed(True), label="back"),
    scan(
        SUM,
        (X, ROWS),
        ", scan_output_directions = [1]",
        expected=summed(False, True),
        label="prepended",
    ),
    scan(
        SUM,
        (X, data(2, 5, 3)),
        ", scan_input_axes = [1], scan_output_axes = [-1]",
        expected=summed(axis=1, out=2),
        label="axes",
    ),
    scan(
        SUM,
        (X, data(2, 3, 5)),
        ", scan_input_axes = [-1], scan_output_axes = [1], scan_input_directions = [1]",
        9,
        expected=summed(True, axis=2, out=1),
        label="axes-back",
    ),
    scan(
        "b (float[2, 3] a, float[2, 3] e, float[2, 3] f) => (float[2, 3] n, float[2, 3] o) "
        "{ n = Add(a, e) o = Mul(n, f) }",
        (X, ROWS, ROWS + 1),
        label="two",
    ),
    scan(SUM, (X, ROWS, ROWS[:2]), refused="sequences of|has another type", label="lengths"),
    *(
        OnnxCase(
            "Scan",
            "(float[2, 3] s, float[2, 4, 3] x) => (float[2, 3] y, float[2, 4, 3] r) "
            f"{{ y, r = Scan<num_scan_inputs = 1, directions = [{reverse}], body = {STEP}>"
            "(, s, x) }",
            (X, data(2, 4, 3)),
            8,
            expected=batched(reverse=bool(reverse)),
            label=f"batch-{reverse}",
        )
        for reverse in (0, 1)
    ),
    *(
        OnnxCase(
            "Scan",
            "(int64[2] l, float[2, 3] s, float[2, 4, 3] x) => (float[2, 3] y, float[2, 4, 3] r) "
            f"{{ y, r = Scan<num_scan_inputs = 1, directions = [{reverse}], body = {STEP}>"
            "(l, s, x) }",
            (np.array([2, 4]), X, data(2, 4, 3)),
            8,
            expected=batched((2, 4), bool(reverse)),
            label=f"lengths-{reverse}",
        )
        for reverse in (0, 1)
    ),
]
