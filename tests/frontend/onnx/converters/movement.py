"""Cases of operators that rearrange, repeat or join elements, and of those on shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.frontend.onnx.records import OnnxCase, calls, data

X = data(2, 3, 4)
IMAGE = data(2, 8, 2, 3)
EMPTY = np.zeros((0, 3), np.float32)
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def softmax_of_rows(x: Any) -> Any:
    """Return the softmax over all axes but the first."""
    powers = np.exp(x)
    return powers / powers.sum((1, 2), keepdims=True)


CASES: list[OnnxCase] = [
    *calls("Shape", X, opsets=(1, 13, 15)),
    *calls("Shape", X, opsets=(15, 23), start=1),
    *calls("Shape", X, opsets=(15,), start=-3, end=-1),
    *calls("Shape", X, opsets=(15,), start=2, end=1),
    *calls("Size", X, opsets=(1, 13)),
    *calls("Reshape", X, opsets=(1,), shape=[0, -1], expected=lambda x: x.reshape(2, 12)),
    *calls("Reshape", X, ints(0, -1), opsets=(5, 13, 14), constants="b"),
    *calls("Reshape", X, ints(4, 6), opsets=(5, 14), label="of an input"),
    *calls("Reshape", EMPTY, ints(3, 0), opsets=(14,), constants="b", allowzero=1),
    *calls("Transpose", X, opsets=(1, 13)),
    *calls("Transpose", X, opsets=(1, 21), perm=[1, 0, 2]),
    *calls("Concat", X, X, opsets=(4, 13), axis=-1),
    *calls("Concat", X, X, opsets=(1,), expected=lambda a, b: np.concatenate((a, b), 1)),
    *(c for axis in (0, 1, 2, 3, -1) for c in calls("Flatten", X, opsets=(11, 13), axis=axis)),
    *calls("Unsqueeze", X, opsets=(1, 11), axes=[0, 3]),
    *calls("Unsqueeze", X, ints(-1, 1), opsets=(13, 23), constants="b"),
    *calls("Squeeze", X[:1, :, :1], opsets=(1, 11), axes=[0]),
    *calls("Squeeze", X[:1, :, :1], ints(-1), opsets=(13,), constants="b"),
    *calls("Squeeze", X[:1, :, :1], opsets=(13,), label="all"),
    *calls("Expand", X[:, :1], ints(2, 1, 3, 1), opsets=(8, 13), constants="b"),
    *calls("Expand", X[:, :1], ints(1, 3, 1), opsets=(13,), constants="b", label="one"),
    *(
        c
        for name, target in {
            "an input": (2, 1, 3, 1),
            "an input of 1": (1, 3, 1),
            "a short input": (1,),
            "a short input of 4": (4,),
            "an empty input": (),
        }.items()
        for c in calls("Expand", X[:, :1], ints(*target), opsets=(13,), label=name)
    ),
    *calls("Tile", X, ints(2, 1, 3), opsets=(6, 13), constants="b"),
    *calls("Tile", X, ints(2, 1, 3), opsets=(13,), label="of an input"),
    *calls(
        "Tile",
        X,
        np.float32([3]),
        np.float32([1]),
        opsets=(1,),
        constants="bc",
        expected=lambda x, n, a: np.tile(x, (1, 3, 1)),
    ),
    *calls("Split", X, opsets=(2, 11), results=2, axis=2),
    *calls("Split", X, opsets=(2,), results=2, axis=2, split=[1, 3]),
    *calls("Split", X, ints(1, 3), opsets=(13, 18), results=2, constants="b", axis=-1),
    *calls(
        "Split",
        X,
        ints(1, 1),
        opsets=(13,),
        results=2,
        constants="b",
        axis=-1,
        refused="are not all of the axis",
    ),
    *calls(
        "Pad",
        X,
        opsets=(2,),
        pads=[0, 1, 2, 1, 0, 0],
        value=1.5,
        expected=lambda x: np.pad(x, ((0, 1), (1, 0), (2, 0)), constant_values=1.5),
    ),
    *calls(
        "Pad",
        X,
        ints(0, 1, -2, 1, 0, -1),
        np.float32(1.5),
        opsets=(11, 13),
        constants="bc",
        expected=lambda x, p, v: np.pad(
            x[:, :, 2:-1], ((0, 1), (1, 0), (0, 0)), constant_values=1.5
        ),
    ),
    *calls(
        "Pad",
        X,
        ints(0, 1, 2, 1, 0, 0),
        np.float32(1.5),
        opsets=(13,),
        constants="b",
        label="a value of the run time",
    ),
    *calls("Pad", X, ints(0, 1, 2, 1, 0, 0), opsets=(13,), label="widths of the run time"),
    *(
        c
        for mode in ("reflect", "edge", "wrap")
        for c in calls("Pad", X, ints(1, 2, 0, 0, 1, 3), opsets=(19,), constants="b", mode=mode)
    ),
    *calls("Pad", X, ints(1, 2), np.float32(0.5), ints(-2), opsets=(18,), constants="bcd"),
    *calls("DepthToSpace", IMAGE, opsets=(1, 13), blocksize=2),
    *calls("DepthToSpace", IMAGE, opsets=(11, 13), blocksize=2, mode="CRD"),
    *calls("SpaceToDepth", data(1, 2, 4, 6), opsets=(1, 13), blocksize=2),
    *(
        c
        for upper in (0, 1)
        for k in (0, 1, -2)
        for c in calls(
            "Trilu", X, np.int64(k), opsets=(14,), constants="b", upper=upper, label=f"{upper},{k}"
        )
    ),
    *calls("Trilu", X, opsets=(14,)),
    *calls("ReverseSequence", ROWS, ints(4, 3, 2), opsets=(10,), time_axis=0, batch_axis=1),
    *calls("ReverseSequence", ROWS, ints(1, 2, 3, 3), opsets=(10,), time_axis=1, batch_axis=0),
    *(
        OnnxCase(
            name,
            f"(float[1, 3, 4] x, bool[{extent}] k) => (float y) {{ "
            f"t = Constant<value_ints = [2, 1, 1, 1]>() z = Compress<axis = {axis}>(x, k) "
            f"y = {name}{rest} }}",
            (data(1, 3, 4), np.arange(extent) < 1 + axis),
            opset,
            expected=lambda x, k, f=f, axis=axis: f(np.compress(k, x, axis)),
            label="of unknown extents",
        )
        for name, rest, opset, axis, extent, f in (
            ("Squeeze", "<axes = [0]>(z)", 12, 0, 1, lambda x: x[0]),
            ("Softmax", "<axis = 1>(z)", 12, 1, 3, softmax_of_rows),
            ("Flatten", "<axis = 1>(z)", 12, 1, 3, lambda x: x.reshape(1, -1)),
            ("Expand", "(z, t)", 13, 1, 3, lambda x: np.broadcast_to(x, (2, *x.shape))),
        )
    ),
]
