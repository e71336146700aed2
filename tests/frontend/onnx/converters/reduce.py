"""Cases of reductions, searches for extrema and running sums."""

from __future__ import annotations

import numpy as np

from tests.frontend.onnx.records import OnnxCase, calls, data

X = data(2, 3, 4, low=0.2, high=2.0)
SIGNED = data(2, 3, 4)
INTEGERS = np.array([[5, -2, 7], [4, 4, -9]], np.int32)
REDUCTIONS = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
)
AXES = np.array([-1, 0])
NOTHING = np.zeros((2, 0, 3), np.float32)
TIES = np.array([[1, 3, 3], [2, 2, 1]], np.float32)

CASES: list[OnnxCase] = [
    *(c for n in REDUCTIONS for c in calls(n, X, opsets=(1, 11), axes=[1, 2])),
    *(c for n in REDUCTIONS for c in calls(n, X, opsets=(11,), axes=[-1], keepdims=0)),
    *(
        c
        for n in REDUCTIONS
        for c in calls(n, X, opsets=(11,), keepdims=0, label="all", tolerance=1e-4)
    ),
    *(c for n in REDUCTIONS for c in calls(n, X, AXES, opsets=(18, 23), constants="b", keepdims=0)),
    *(
        c
        for n in REDUCTIONS
        for c in calls(n, X, np.zeros(0, np.int64), opsets=(18,), constants="b", tolerance=1e-4)
    ),
    *calls("ReduceSum", X, AXES, opsets=(13,), constants="b"),
    *(
        c
        for n in ("ReduceMax", "ReduceMean", "ReduceSum")
        for c in calls(n, SIGNED, opsets=(18,), noop_with_empty_axes=1, expected=lambda x: x)
    ),
    *calls(
        "ReduceSumSquare", SIGNED, opsets=(18,), noop_with_empty_axes=1, expected=lambda x: x * x
    ),
    *calls("ReduceL1", SIGNED, opsets=(18,), noop_with_empty_axes=1, expected=np.abs),
    *calls("ReduceSum", INTEGERS, opsets=(11,), axes=[1]),
    *calls(
        "ReduceMean",
        INTEGERS,
        opsets=(11,),
        axes=[1],
        expected=lambda x: np.trunc(x.mean(1, keepdims=True)).astype(np.int32),
    ),
    *calls("ReduceMax", INTEGERS.astype(np.int8), opsets=(12,), axes=[1]),
    *calls("ReduceMax", INTEGERS > 0, AXES[1:], opsets=(20,), constants="b"),
    *calls("ReduceMin", INTEGERS > 0, AXES[1:], opsets=(20,), constants="b"),
    *calls(
        "ReduceMax",
        NOTHING,
        AXES[:1] * 0 + 1,
        opsets=(20,),
        constants="b",
        expected=lambda x, a: np.full((2, 1, 3), -np.inf, np.float32),
    ),
    *calls(
        "ReduceMin",
        NOTHING.astype(np.int32),
        AXES[:1] * 0 + 1,
        opsets=(20,),
        constants="b",
        keepdims=0,
        expected=lambda x, a: np.full((2, 3), 2**31 - 1, np.int32),
    ),
    *calls("ReduceSum", X, AXES, opsets=(13,), refused="axes depends on the values of inputs"),
    *(
        c
        for n in ("ArgMax", "ArgMin")
        for c in (
            *calls(n, TIES, opsets=(1, 11, 13), axis=1),
            *calls(n, TIES, opsets=(12, 13), axis=-1, keepdims=0, select_last_index=1),
            *calls(n, SIGNED, opsets=(13,)),
        )
    ),
    *(
        c
        for n in ("CumSum", "CumProd")
        for exclusive in (0, 1)
        for reverse in (0, 1)
        for c in calls(
            n,
            SIGNED,
            np.int64(1),
            opsets=(26,),
            constants="b",
            exclusive=exclusive,
            reverse=reverse,
        )
    ),
    *calls("CumSum", INTEGERS, np.int32(-1), opsets=(11, 14), constants="b"),
]
