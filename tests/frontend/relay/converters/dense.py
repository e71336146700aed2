"""What the converters of `meta/frontend/relay/converters/matrix.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case
from tests.frontend.relay.tensors import floats, integers

X, W = floats(3, 5), floats(4, 5)
A, B = floats(2, 3, 5), floats(2, 5, 4)
SQUARE = floats(2, 4, 4)
BYTES = (
    integers(3, 300, low=-128, high=128, dtype="int8"),
    integers(2, 300, low=-128, high=128, dtype="int8"),
)
MIXED = (
    integers(3, 9, low=0, high=256, dtype="uint8"),
    integers(2, 9, low=-128, high=128, dtype="int8"),
)
HALF = (floats(2, 40, dtype="float16"), floats(3, 40, dtype="float16"))


def whole(x, w):
    return (x.astype(np.int64) @ w.T.astype(np.int64)).astype(np.int32)


def swapped(x):
    return np.ascontiguousarray(np.swapaxes(x, -1, -2))


CASES = [
    Case("nn.dense", (X, W), X @ W.T, {"units": None}),
    Case("nn.dense", (A, W), A @ W.T, {"units": 4}, label="more axes"),
    Case("nn.dense", BYTES, whole, {"out_dtype": "int32", "units": 2}, label="int8"),
    Case("nn.dense", MIXED, whole, {"out_dtype": "int32"}, label="uint8 and int8"),
    Case("nn.dense", BYTES, lambda x, w: whole(x, w).astype(np.int8), label="int8 that wraps"),
    Case(
        "nn.dense",
        HALF,
        lambda x, w: x.astype(np.float32) @ w.T.astype(np.float32),
        {"out_dtype": "float32"},
        label="half",
    ),
    *(
        Case(
            "nn.matmul",
            (swapped(X) if ta else X, W if tb else swapped(W)),
            X @ W.T,
            {"transpose_a": ta, "transpose_b": tb, "units": 4},
        )
        for ta in (False, True)
        for tb in (False, True)
    ),
    Case("nn.matmul", (A, swapped(W)), A @ W.T, label="more axes"),
    *(
        Case(
            "nn.batch_matmul",
            (swapped(A) if ta else A, swapped(B) if tb else B),
            A @ B,
            {"transpose_a": ta, "transpose_b": tb},
            version=(0, 15),
        )
        for ta in (False, True)
        for tb in (False, True)
    ),
    Case("nn.batch_matmul", (A, swapped(B)), A @ B, version=(0, 7), has_attributes=False),
    Case("nn.batch_matmul", (A, swapped(B)), A @ B, label="shapes decide: transposed"),
    Case("nn.batch_matmul", (A, B), A @ B, label="shapes decide: as it is"),
    Case("nn.batch_matmul", (SQUARE, SQUARE), SQUARE @ SQUARE, label="later versions"),
    Case(
        "nn.batch_matmul",
        (SQUARE, SQUARE),
        SQUARE @ swapped(SQUARE),
        version=(0, 6),
        has_attributes=False,
        label="0.6",
    ),
    Case("nn.batch_matmul", (A, B[:1]), A @ B[:1], version=(0, 15), label="one for all"),
    Case(
        "nn.batch_matmul",
        (BYTES[0][None], BYTES[1][None]),
        lambda x, w: whole(x[0], w[0])[None],
        {"out_dtype": "int32", "transpose_b": True},
    ),
    Case(
        "nn.contrib_dense_pack",
        (X, np.ascontiguousarray(W.reshape(2, 2, 5).transpose(0, 2, 1))),
        X @ W.T,
        {"units": 4},
    ),
    Case("nn.contrib_dense_pack", (X, W), refused="must have 3 axes"),
]
