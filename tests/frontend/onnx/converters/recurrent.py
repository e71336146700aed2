"""Cases of `meta/frontend/onnx/converters/recurrent.py`.

onnx's reference evaluator ignores lengths, activations and clips, so that the results are computed
here, step by step, in NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.frontend.onnx.records import OnnxCase, calls, data

T, N, D, H = 4, 3, 2, 5
LENGTHS = np.array([4, 2, 1], np.int32)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _cell(kind: str, f: Any, x: Any, w: Any, r: Any, b: Any, p: Any, how: Any) -> Any:
    """Return a function of a row and the state, which returns the next state."""
    wb, rb = np.split(b, 2)

    def lstm(row: Any, h: Any, c: Any) -> Any:
        i, o, forget, g = np.split(row @ w.T + h @ r.T + wb + rb, 4, -1)
        pi, po, pf = np.split(p, 3)
        i = f[0](i + pi * c)
        forget = 1 - i if how.get("input_forget") else f[0](forget + pf * c)
        c = forget * c + i * f[1](g)
        return f[0](o + po * c) * f[2](c), c

    def gru(row: Any, h: Any) -> Any:
        xz, xr, xh = np.split(row @ w.T + wb, 3, -1)
        hz, hr, hh = np.split(h @ r.T + rb, 3, -1)
        z, reset = f[0](xz + hz), f[0](xr + hr)
        if how.get("linear_before_reset"):
            new = f[1](xh + reset * hh)
        else:
            new = f[1](xh + (reset * h) @ np.split(r, 3)[2].T + np.split(rb, 3)[2])
        return ((1 - z) * new + z * h,)

    def rnn(row: Any, h: Any) -> Any:
        return (f[0](row @ w.T + h @ r.T + wb + rb),)

    return {"LSTM": lstm, "GRU": gru, "RNN": rnn}[kind]


def reference(kind: str, functions: Any, **how: Any) -> Any:
    """Return a function of the inputs, in the order of the graphs below."""

    def compute(x: Any, w: Any, r: Any, *rest: Any) -> Any:
        given = dict(zip(how["inputs"], rest, strict=True))
        x, w, r = (v.astype(np.float64) for v in (x, w, r))
        if how.get("layout"):
            x = x.transpose(1, 0, 2)
        steps, batch, hidden = x.shape[0], x.shape[1], r.shape[2]
        count = 2 if kind == "LSTM" else 1
        lengths = given.get("lens", np.full(batch, steps))
        outputs, lasts = [], []
        for d in range(w.shape[0]):
            b = given.get("b", np.zeros((w.shape[0], 2 * w.shape[1])))[d].astype(np.float64)
            p = given.get("p", np.zeros((w.shape[0], 3 * hidden)))[d].astype(np.float64)
            clip = how.get("clip", np.inf)
            own = functions[d * 3 : d * 3 + 3] if len(functions) > 3 else functions
            f = [lambda v, g=g, c=clip: g(np.clip(v, -c, c)) for g in own]
            cell = _cell(kind, f, x, w[d], r[d], b, p, how)
            y = np.zeros((steps, batch, hidden))
            state = []
            for name in ("h", "c")[:count]:
                start = given.get(name, np.zeros((w.shape[0], batch, hidden)))
                start = start.transpose(1, 0, 2) if how.get("layout") and name in given else start
                state.append(start[d].astype(np.float64))
            backwards = how.get("direction") == "reverse" or d == 1
            for n in range(batch):
                own_state = tuple(s[n] for s in state)
                order = range(int(lengths[n]))
                for t in reversed(order) if backwards else order:
                    own_state = cell(x[t, n], *own_state)
                    y[t, n] = own_state[0]
                for s, new in zip(state, own_state, strict=True):
                    s[n] = new
            outputs.append(y)
            lasts.append(state)
        y = np.stack(outputs, 1)
        ends = [np.stack(parts) for parts in zip(*lasts, strict=True)]
        if how.get("layout"):
            y, ends = y.transpose(2, 0, 1, 3), [e.transpose(1, 0, 2) for e in ends]
        return tuple(v.astype(np.float32) for v in (y, *ends))

    return compute


ORDER = ("b", "lens", "h", "c", "p")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
TANH, RELU = np.tanh, lambda v: np.maximum(v, 0)
DEFAULT = {"LSTM": [_sigmoid, TANH, TANH], "GRU": [_sigmoid, TANH], "RNN": [TANH]}


def compressed(kind: str, axis: int, direction: str) -> Any:
    """Return what a layer gives for some of the steps, or of the batch: Y and the last state."""
    layer = reference(kind, DEFAULT[kind], inputs=(), direction=direction)
    return lambda x, w, r, k: layer(np.compress(k, x, axis), w, r)[:2]


def case(
    kind: str,
    inputs: tuple[str, ...] = (),
    attributes: str = "",
    functions: Any = None,
    directions: int = 1,
    opset: int = 22,
    **how: Any,
) -> OnnxCase:
    """Return a case with some of the optional inputs."""
    rows = GATES[kind] * H
    wide = lambda *shape: data(*shape, low=-0.8, high=0.8)  # noqa: E731
    state = (N, directions, H) if how.get("layout") else (directions, N, H)
    values = {
        "x": wide(*((N, T, D) if how.get("layout") else (T, N, D))),
        "w": wide(directions, rows, D),
        "r": wide(directions, rows, H),
        "b": wide(directions, 2 * rows),
        "lens": LENGTHS,
        "h": wide(*state),
        "c": wide(*state) + np.float32(0.1),
        "p": wide(directions, 3 * H),
    }
    names = ["x", "w", "r", *inputs]
    types = {n: "int32" if n == "lens" else "float" for n in values}
    declared = ", ".join(f"{types[n]}[{', '.join(map(str, values[n].shape))}] {n}" for n in names)
    places = [n if n in inputs else "" for n in ORDER if kind == "LSTM" or n not in ("c", "p")]
    outputs = ["y", "yh", "yc"][: 3 if kind == "LSTM" else 2]
    graph = (
        f"({declared}) => ({', '.join(f'float {o}' for o in outputs)}) "
        f"{{ {', '.join(outputs)} = {kind}<hidden_size = {H}{attributes}>"
        f"({', '.join(['x', 'w', 'r', *places])}) }}"
    )
    label = "-".join([*inputs, *(f"{k}={v}" for k, v in how.items() if k != "functions")])
    label += attributes.replace(" ", "").replace(",", "-").replace('"', "")
    chosen = functions if functions is not None else DEFAULT[kind]
    if directions == 2 and len(chosen) <= 3:
        chosen = [*(chosen + [None] * (3 - len(chosen)))] * 2
    return OnnxCase(
        kind,
        graph,
        tuple(values[n] for n in names),
        opset,
        expected=reference(kind, chosen, inputs=inputs, **how),
        tolerance=2e-5,
        label=label,
    )


CASES = [
    *(case(kind, ("b", "h"), opset=opset) for kind in GATES for opset in (7, 14, 22)),
    *(case(kind, ("lens",), ', direction = "reverse"', direction="reverse") for kind in GATES),
    *(
        case(kind, ("b", "lens", "h"), ', direction = "bidirectional"', directions=2)
        for kind in GATES
    ),
    *(case(kind, ("b", "lens", "h"), ", layout = 1", layout=1) for kind in GATES),
    *(case(kind, ("b",), ", clip = 0.3", clip=0.3) for kind in GATES),
    case("LSTM", ("b", "lens", "h", "c", "p")),
    case("LSTM", ("b", "p"), ', direction = "bidirectional"', directions=2),
    case("LSTM", ("b", "c"), ", input_forget = 1", input_forget=1),
    case("GRU", ("b", "h"), ", linear_before_reset = 1", linear_before_reset=1),
    case("GRU", (), ", linear_before_reset = 1", linear_before_reset=1),
    case(
        "GRU",
        ("b",),
        ', activations = ["HardSigmoid", "LeakyRelu"], activation_alpha = [0.3, 0.2]'
        ", activation_beta = [0.4]",
        [lambda v: np.clip(0.3 * v + 0.4, 0, 1), lambda v: np.where(v < 0, 0.2 * v, v)],
    ),
    case(
        "LSTM",
        ("b",),
        ', activations = ["Sigmoid", "Elu", "ScaledTanh"], activation_alpha = [0.7, 1.5]'
        ", activation_beta = [0.6]",
        [
            _sigmoid,
            lambda v: np.where(v < 0, 0.7 * np.expm1(v), v),
            lambda v: 1.5 * np.tanh(0.6 * v),
        ],
    ),
    *(
        case("RNN", ("b",), f', activations = ["{name}"]', [function])
        for name, function in {
            "Relu": RELU,
            "relu": RELU,
            "Affine": lambda v: v,
            "ThresholdedRelu": lambda v: np.where(v >= 1, v, 0),
            "Softsign": lambda v: v / (1 + np.abs(v)),
            "Softplus": lambda v: np.log1p(np.exp(v)),
        }.items()
    ),
    case(
        "RNN",
        ("b",),
        ', direction = "bidirectional", activations = ["Tanh", "Relu"]',
        [TANH, None, None, RELU, None, None],
        directions=2,
    ),
    *(
        OnnxCase(
            "RNN",
            "(float[4, 3, 2] x, float[1, 5, 2] w, float[1, 5, 5] r) => (float y) "
            f"{{ y = RNN<hidden_size = 5, {attributes}>(x, w, r) }}",
            (data(T, N, D), data(1, H, D), data(1, H, H)),
            22,
            refused=refused,
            label=refused,
        )
        for attributes, refused in {
            'activations = ["Swish"]': "'Swish' is unknown",
            'activations = ["ScaledTanh"]': "needs its alpha and beta",
            "activation_alpha = [1.0]": "more alphas or betas",
            'activations = ["Tanh", "Relu"]': "2 activations, not 1",
            'direction = "sideways"': "'sideways' is unknown",
            'direction = "bidirectional"': "W and R are",
        }.items()
    ),
    *(
        c
        for kind, gates in GATES.items()
        for c in calls(
            kind,
            data(T, N, 0),
            data(1, H * gates, 0),
            data(1, H * gates, H),
            opsets=(22,),
            results=2,
            hidden_size=H,
            label="no features",
        )
    ),
    *(
        OnnxCase(
            kind,
            f"(float[4, 3, 2] x, float[1, {H * gates}, 2] w, float[1, {H * gates}, 5] r, "
            f"bool[{extent}] k) => (float y, float h) {{ z = Compress<axis = {axis}>(x, k) "
            f'y, h = {kind}<hidden_size = 5, direction = "{direction}">(z, w, r) }}',
            (data(T, N, D), data(1, H * gates, D), data(1, H * gates, H), np.arange(extent) != 1),
            22,
            expected=compressed(kind, axis, direction),
            label=f"unknown {('steps', 'batch')[axis]}, {direction}",
        )
        for kind, gates in GATES.items()
        for axis, extent in enumerate((T, N))
        for direction in ("forward", "reverse")
    ),
]
