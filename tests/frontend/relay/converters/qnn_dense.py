"""What the converters of `meta/frontend/relay/converters/qnn.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

RNG = np.random.default_rng(9)
F, Z = np.float32, np.int32
X = RNG.integers(0, 256, (3, 40)).astype(np.uint8)
W = RNG.integers(-128, 128, (6, 40)).astype(np.int8)
ZEROS = RNG.integers(-9, 9, 6).astype(Z)
SCALES = (F(0.1), F(0.2))
SUM = {"out_dtype": "int32"}


def product(x, w, x_zero, w_zero, *scales):
    """Exact in float64."""
    zeros = np.asarray(w_zero, np.float64)
    left = x.astype(np.float64) - float(x_zero)
    right = w.astype(np.float64) - (zeros[:, None] if zeros.ndim else zeros)
    return (left @ np.swapaxes(right, -1, -2)).astype(Z)


BLOCKED = W.reshape(3, 2, 10, 4).transpose(0, 2, 1, 3).copy()  # NC2n4c
FILLED = np.pad(W, ((0, 2), (0, 0))).reshape(2, 4, 40).transpose(0, 2, 1).copy()  # NC4n
A = RNG.integers(-128, 128, (2, 3, 5)).astype(np.int8)
B = RNG.integers(0, 256, (2, 4, 5)).astype(np.uint8)

CASES = [
    Case("qnn.dense", (X, W, Z(128), Z(3), *SCALES), product, {**SUM, "units": 6}),
    Case("qnn.dense", (X, W, Z(128), ZEROS, *SCALES), product, SUM, constants=(1, 2, 3, 4, 5)),
    Case(
        "qnn.dense",
        (X.astype(np.int16) * 100, W, Z(0), Z(0), *SCALES),
        product(X.astype(np.int64) * 100, W, 0, 0).astype(np.int64),
        {"units": 6, "out_dtype": "int64"},
    ),
    Case("qnn.dense", (X[None], W, Z(128), Z(0), *SCALES), product, SUM, label="rank 3"),
    Case(
        "qnn.dense",
        (X, W),
        product(X, W, 7, -4),
        {**SUM, "units": 6, "input_zero_point": 7, "kernel_zero_point": -4, "input_scale": 0.1},
        version=(0, 6),
        label="v0.6",
    ),
    Case(
        "qnn.contrib_dense_pack",
        (X, BLOCKED, Z(128), ZEROS, *SCALES),
        lambda x, w, *rest: product(x, W, *rest),
        {**SUM, "units": 6, "weight_layout": "NC2n4c"},
    ),
    Case(
        "qnn.contrib_dense_pack",
        (X, FILLED, Z(128), Z(1), *SCALES),
        lambda x, w, *rest: product(x, W, *rest),
        {**SUM, "units": 6, "weight_layout": "NC4n"},
    ),
    Case(
        "qnn.contrib_dense_pack",
        (X, W, Z(128), Z(1), *SCALES),
        product,
        {**SUM, "units": 6, "weight_layout": "NC"},
    ),
    Case("qnn.batch_matmul", (A, B, Z(2), Z(128), *SCALES), product, SUM, constants=(2, 3)),
    Case(
        "qnn.batch_matmul",
        (A, B, Z(0), Z(100), *SCALES),
        product,
        {**SUM, "transpose_b": True},
    ),
    Case(
        "qnn.batch_matmul",
        (A.swapaxes(1, 2).copy(), B.swapaxes(1, 2).copy(), Z(0), Z(100), *SCALES),
        product(A, B, 0, 100),
        {**SUM, "transpose_a": True, "transpose_b": False},
    ),
]
