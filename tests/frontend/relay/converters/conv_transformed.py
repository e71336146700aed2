"""What the converters of transformed kernels have to give. The transform of 3 taps to tiles of 2 is
the matrix of Lavin and Gray, with its rows in TVM's order.
"""

import numpy as np

from tests.frontend.relay.converters.conv import conv, numpy_of
from tests.frontend.relay.records import ConverterCase as Case
from tests.frontend.relay.tensors import floats, moved

G = np.array([[1, 0, 0], [0.5, -0.5, 0.5], [0.5, 0.5, 0.5], [0, 0, 1]])
# Of 3 taps to tiles of 4: the powers of 0, -1, 1, 1/2, -2 over products of their differences.
G4 = np.array(
    [[1, 0, 0], [-1 / 3, 1 / 3, -1 / 3], [1 / 3, 1 / 3, 1 / 3], [-16 / 15, -8 / 15, -4 / 15],
     [1 / 15, -2 / 15, 4 / 15], [0, 0, 1]]
)  # fmt: skip
X, W = floats(1, 4, 6, 7), floats(6, 4, 3, 3)
X3, W3, FLAT = floats(1, 2, 4, 5, 5), floats(3, 2, 3, 3, 3), floats(3, 2, 1, 3, 3)


def winograd(w, g=G, order="aboc"):
    return np.einsum(f"ai,bj,ocij->{order}", g, g, w).astype(np.float32)


def winograd_3d(w):
    return np.einsum("de,ai,bj,oceij->daboc", G, G, G, w).astype(np.float32)


def blocks(w, n, k):
    """HWIO as a matrix, in blocks with the outputs first."""
    matrix = w.reshape(-1, w.shape[3])
    matrix = np.pad(matrix, ((0, -len(matrix) % k), (0, -matrix.shape[1] % n)))
    parts = matrix.reshape(len(matrix) // k, k, matrix.shape[1] // n, n)
    return np.ascontiguousarray(parts.transpose(2, 0, 3, 1))


HWIO = numpy_of(W, "OIHW", "HWIO")
TILE = {"tile_size": 2, "channels": 6, "kernel_size": (3, 3)}
PADDED = {"padding": (1, 1, 1, 1)}
NHWC = numpy_of(X, "NCHW", "NHWC")
IN_BLOCKS = winograd(W).reshape(4, 4, 2, 3, 4).transpose(0, 1, 2, 4, 3).copy()
WEIGHT, WITHOUT = (
    f"nn.contrib_conv2d_winograd_{part}"
    for part in ("weight_transform", "without_weight_transform")
)
WEIGHT_3D, WITHOUT_3D = WEIGHT.replace("2d", "3d"), WITHOUT.replace("2d", "3d")
GEMM, WITH_GEMM = (
    f"nn.contrib_conv2d_gemm_{part}" for part in ("weight_transform", "without_weight_transform")
)
NNPACK = "nn.contrib_conv2d_winograd_nnpack_weight_transform"

CASES = [
    Case(WEIGHT, (W,), winograd, {"tile_size": 2}),
    Case(WEIGHT, (W,), lambda w: winograd(w, G4), {"tile_size": 4}),
    Case(WEIGHT, (W[:, :, :2].copy(),), refused="not square", attrs={"tile_size": 2}),
    Case(WEIGHT, (W,), refused="Winograd's transform of 3 taps", attrs={"tile_size": 9}),
    Case(WITHOUT, (X, winograd(W, order="abco")), lambda x, _: conv()(x, W), TILE),
    Case(
        WITHOUT,
        (X, winograd(W, G4, "abco")),
        lambda x, _: conv(padding=1)(x, W),
        {"tile_size": 4, **PADDED},
    ),
    Case(
        WITHOUT,
        (NHWC, winograd(W)),
        moved(conv(padding=1)(X, W), "NCHW", "NHWC"),
        {**TILE, **PADDED, "data_layout": "NHWC", "kernel_layout": "HWIO"},
    ),
    Case(WITHOUT, (X, IN_BLOCKS), lambda x, _: conv()(x, W), TILE, label="blocks"),
    Case(WEIGHT_3D, (W3,), winograd_3d, {"tile_size": 2}),
    Case(
        WEIGHT_3D,
        (FLAT,),
        lambda w: np.einsum("ai,bj,ocdij->abdoc", G, G, w).astype(np.float32),
        {"tile_size": 2},
    ),
    Case(
        WITHOUT_3D,
        (X3, winograd_3d(W3).swapaxes(3, 4).copy()),
        lambda x, _: conv()(x, W3),
        {"tile_size": 2},
    ),
    Case(
        WITHOUT_3D,
        (X3, np.einsum("ai,bj,ocdij->abdco", G, G, FLAT).astype(np.float32)),
        lambda x, _: conv()(x, FLAT),
        {"tile_size": 2, "kernel_size": (1, 3, 3)},
    ),
    Case(GEMM, (HWIO,), lambda w: blocks(w, 4, 16), {"tile_N": 4, "tile_K": 16}),
    Case(GEMM, (HWIO,), lambda w: blocks(w, 4, 16), {"tile_rows": 4, "tile_cols": 16}),
    Case(
        WITH_GEMM,
        (NHWC, blocks(HWIO, 4, 16)),
        moved(conv(padding=1)(X, W), "NCHW", "NHWC"),
        {"data_layout": "NHWC", "channels": 6, "kernel_size": (3, 3), **PADDED},
    ),
    Case(WITH_GEMM, (NHWC, blocks(HWIO, 4, 16)), refused="only NHWC with a kernel in blocks"),
    Case(NNPACK, (W,), refused="private to the library NNPACK"),
]
