"""Cases of operators that read and write at positions, and of searches for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.frontend.onnx.records import OnnxCase, calls, data

X = data(3, 4, 5)
SMALL = data(3, 4)
PLACES = np.array([[0, -1], [2, 1]])
WHERE = np.array([[0, -1, 2], [1, 2, 0]])
UPDATES = data(2, 3)
LAST = np.iinfo(np.int64).max
ROWS = np.float32([[[2, 1], [1, 1], [2, 1]], [[0, 1], [0, 0], [0, 1]], [[2, 1], [1, 1], [2, 1]]])
REPEATED = np.array([[2, 1, 1], [3, 4, 3]], np.float32)


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def one_hot(indices: Any, depth: int, off: float, on: float, axis: int) -> Any:
    result = np.full((*indices.shape, depth), off, np.float32)
    for place in np.ndindex(indices.shape):
        if -depth <= indices[place] < depth:
            result[(*place, int(indices[place]) % depth)] = on
    return np.moveaxis(result, -1, axis)


def gathered(axis: int) -> Any:
    """torch.gather, which onnx's reference refuses where there are fewer indices than elements."""

    def function(x: Any, indices: Any) -> Any:
        places = torch.from_numpy(indices % x.shape[axis])
        return torch.gather(torch.from_numpy(x), axis, places).numpy()

    return function


CASES: list[OnnxCase] = [
    *(c for axis in (0, 1, -1) for c in calls("Gather", X, PLACES, opsets=(1, 13), axis=axis)),
    *calls("Gather", X, np.int32(-1), opsets=(13,), label="a scalar"),
    *calls("GatherElements", SMALL, WHERE, opsets=(11, 13), axis=0, expected=gathered(0)),
    *calls("GatherND", X, PLACES, opsets=(11, 13)),
    *calls("GatherND", X, np.array([[1], [-1], [0]]), opsets=(12, 13), batch_dims=1),
    *calls("ScatterElements", SMALL, WHERE, UPDATES, opsets=(11, 18), axis=1),
    *calls("ScatterND", X, np.array([[1, 2], [0, 0]]), data(2, 5), opsets=(11, 13, 18)),
    *calls("Slice", X, opsets=(1,), starts=[1, 0], ends=[3, -1], expected=lambda x: x[1:3, :-1]),
    *calls(
        "Slice", X, opsets=(1,), starts=[-2], ends=[LAST], axes=[1], expected=lambda x: x[:, -2:]
    ),
    *calls(
        "Slice",
        X,
        ints(0, 1),
        ints(2, LAST),
        ints(0, -1),
        ints(1, 2),
        opsets=(10, 11, 13),
        constants="bcde",
    ),
    *calls("Slice", X, ints(1, 0), ints(3, 2), opsets=(13,), label="of inputs"),
    *calls(
        "Slice",
        X,
        ints(3),
        ints(0),
        ints(1),
        ints(-1),
        opsets=(13,),
        constants="d",
        label="backwards, of inputs",
    ),
    *calls("Compress", X, np.array([True, False, True]), opsets=(9, 11), axis=1),
    *calls("Compress", SMALL, np.array([False, True, True, False, True]), opsets=(11,)),
    *calls("NonZero", np.array([[1, 0, 2], [0, 0, 3]], np.float32), opsets=(9, 13)),
    *(
        c
        for axis in (-1, 0, 1)
        for c in calls(
            "OneHot",
            np.array([[0, -2, 5], [3, 2, 9]]),
            np.int64(5),
            np.array([-1.5, 2.5], np.float32),
            opsets=(9, 11),
            constants="b",
            axis=axis,
            expected=lambda i, d, v, axis=axis: one_hot(i, 5, -1.5, 2.5, axis),
        )
    ),
    *calls(
        "OneHot",
        np.array([0, 1]),
        np.int64(2),
        np.array([0, 1]),
        opsets=(11,),
        label="depth of an input",
    ),
    *calls(
        "TopK",
        SMALL,
        opsets=(1,),
        results=2,
        k=2,
        expected=lambda x: (-np.sort(-x, 1)[:, :2], np.argsort(-x, 1)[:, :2]),
    ),
    *calls("TopK", SMALL, ints(2), opsets=(10, 11, 24), results=2, constants="b", axis=0),
    *calls("TopK", SMALL, ints(3), opsets=(11,), results=2, constants="b", largest=0),
    *calls("TopK", SMALL, ints(3), opsets=(11,), results=2, label="a number of the run time"),
    *(c for axis in (0, 1, -2) for c in calls("Unique", ROWS, opsets=(11,), results=4, axis=axis)),
    *calls(
        "Unique",
        ROWS[:, :, 0],
        opsets=(11,),
        results=4,
        axis=1,
        sorted=0,
        expected=lambda x: (x[:, [0, 1]], ints(0, 1), ints(0, 1, 0), ints(2, 1)),
    ),
    *calls("Unique", REPEATED, opsets=(11,), results=4),
    *calls("Unique", REPEATED[:0], opsets=(11,), results=4, label="empty"),
    *(
        c
        for axis in (0, 1)
        for c in calls(
            "Unique", ROWS[:0], opsets=(11,), results=4, axis=axis, label=f"no rows, {axis}"
        )
    ),
    *calls(
        "Unique",
        REPEATED,
        opsets=(11,),
        results=4,
        sorted=0,
        expected=lambda x: (
            np.float32([2, 1, 3, 4]),
            ints(0, 1, 3, 4),
            ints(0, 1, 1, 2, 3, 2),
            ints(1, 2, 2, 1),
        ),
    ),
]
