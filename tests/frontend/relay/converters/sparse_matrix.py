"""What the converters of `meta/frontend/relay/converters/matrix.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

RNG = np.random.default_rng(2)
Z = np.int32


def csr(matrix, index=Z):
    """The rows of a matrix, one after the other."""
    rows, columns = np.nonzero(matrix)
    starts = np.searchsorted(rows, np.arange(len(matrix) + 1))
    return matrix[rows, columns], columns.astype(index), starts.astype(index)


def bsr(matrix, height, width):
    """The blocks of a matrix that are not all 0."""
    m, n = matrix.shape
    blocks = matrix.reshape(m // height, height, n // width, width).swapaxes(1, 2)
    rows, columns = np.nonzero(blocks.any((2, 3)))
    starts = np.searchsorted(rows, np.arange(m // height + 1))
    return blocks[rows, columns], columns.astype(Z), starts.astype(Z)


def _sparse(*shape):
    values = RNG.normal(size=shape).astype(np.float32)
    return np.where(RNG.random(shape) < 0.3, values, 0).astype(np.float32)


W = _sparse(6, 8)
W[2] = 0
W[:2, :4] = 0
X = RNG.normal(size=(3, 8)).astype(np.float32)
DATA, INDICES, INDPTR = csr(W)
PADDED = (
    np.concatenate([DATA, np.zeros(3, np.float32)]),
    np.concatenate([INDICES, np.zeros(3, Z)]),
    np.concatenate([INDPTR[:-1], INDPTR[-1:] + 3]),
)
PIXELS = RNG.normal(size=(2, 3, 2, 8)).astype(np.float32)
THIN = bsr(W, 2, 1)

CASES = [
    Case("nn.sparse_dense", (X, *csr(W)), X @ W.T, label="CSR"),
    Case("nn.sparse_dense", (X, *csr(W, np.int64)), X @ W.T, constants=(1, 2, 3), label="int64"),
    Case("nn.sparse_dense", (X, *bsr(W, 2, 4)), X @ W.T, constants=(1, 2, 3), label="BSR"),
    Case("nn.sparse_dense", (X, *csr(W)), W @ X.T, {"sparse_lhs": True}, label="left CSR"),
    Case("nn.sparse_dense", (X, *bsr(W, 3, 2)), W @ X.T, {"sparse_lhs": True}, label="left BSR"),
    Case("nn.internal.sparse_dense_padded", (X, *PADDED), X @ W.T),
    Case("nn.sparse_conv2d", (PIXELS, *bsr(W, 2, 4)), PIXELS @ W.T, {"layout": "NHWC"}),
    Case(
        "nn.sparse_conv2d",
        (np.moveaxis(PIXELS, 3, 1).copy(), *bsr(W, 3, 1)),
        np.moveaxis(PIXELS @ W.T, 3, 1),
        {"layout": "NCHW", "kernel_size": (1, 1)},
    ),
    Case("nn.sparse_conv2d", (PIXELS, THIN[0][..., 0], *THIN[1:]), PIXELS @ W.T, label="columns"),
    Case(
        "nn.sparse_conv2d",
        (PIXELS, *bsr(W, 2, 4)),
        attrs={"kernel_size": (3, 3)},
        refused="not supported",
    ),
    Case("nn.sparse_add", (W[::-1].copy(), *csr(W)), W[::-1] + W),
]


def transposed(data, indices, indptr):
    count = len(indptr) - 1
    matrix = np.zeros((count, count), np.float32)
    for row in range(count):
        for k in range(indptr[row], indptr[row + 1]):
            matrix[row, indices[k]] = data[k]
    return csr(matrix.T)


SQUARE = _sparse(7, 7)
SQUARE[:, 3] = 0

CASES += [
    Case("nn.sparse_transpose", csr(SQUARE), transposed),
    Case("nn.sparse_transpose", bsr(W, 2, 4), refused="only the format CSR"),
]
