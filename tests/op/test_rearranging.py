"""What the records cannot say of padding, movement, slices, sizes and indices: errors,
gradients of gradients, unknown extents.
"""

from typing import Any

import numpy as np
import pytest

import meta
from meta import op
from meta.base.errors import TypeInferError
from meta.ir.types import UNKNOWN, SymbolicDim, TensorType
from meta.model import trace
from meta.passes import autodiff, infer_type
from meta.testing import check

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
IMAGE = np.zeros((1, 6, 4, 4), np.float32)

REFUSED = [
    lambda x: op.pad(x, (1, 1, 1, 1)),
    lambda x: op.pad(x, ((1, 1), (1,))),
    lambda x: op.pad(x, ((1, 1), (1, 1), (1, 1), (1, 1))),
    lambda x: op.pad(x, True),
    lambda x: op.pad(x, 1.0),
    lambda x: op.pad(x, -1),
    lambda x: op.pad(x, 1, "circular"),
    lambda x: op.pad(x, 1, "constant", (1, 2)),
    lambda x: op.pad(x, 2, mode="reflect"),
    lambda x: op.pad(x, 3, mode="symmetric"),
    lambda x: op.pad(x, 3, mode="wrap"),
    lambda x: op.pad(np.zeros((0, 2)), 1, mode="edge"),
    lambda x: op.pad_dx(x, 2),
    lambda x: op.pad_dx(x, (0, 1, 0, 0, 0, 0), "reflect"),
    lambda x: op.flip(x, (0, -3)),
    lambda x: op.flip(x, 3),
    lambda x: op.reverse_sequence(x, [1, 2], 0, 0),
    lambda x: op.reverse_sequence(x, [1, 2, 3], 1, 0),
    lambda x: op.reverse_sequence(x, [1.0, 2.0], 1, 0),
    lambda x: op.sequence_mask(x, [1, 2]),
    lambda x: op.sequence_mask(x, [1, 2], axis=2),
    lambda x: op.sequence_mask(x[0, 0], [1, 2]),
    lambda x: op.roll(x, (1, 2), 0),
    lambda x: op.roll(x, (1, 2)),
    lambda x: op.roll(x, 1, 3),
    lambda x: op.tile(x, (2, -1)),
    lambda x: op.triu(x[0, 0]),
    lambda x: op.tril(x[0, 0]),
    lambda x: op.diagonal(x, 0, 1, -2),
    lambda x: op.diagonal(x[0, 0]),
    lambda x: op.diagonal_dx(x, (2, 3, 4)),
    lambda x: op.depth_to_space(x, 2),
    lambda x: op.depth_to_space(IMAGE, 2),
    lambda x: op.depth_to_space(IMAGE, 0),
    lambda x: op.depth_to_space(IMAGE, 1, "CHWN"),
    lambda x: op.depth_to_space(IMAGE, 1, "NCHW", "RCD"),
    lambda x: op.space_to_depth(IMAGE, 3),
    lambda x: op.strided_set(x, x, 0, 1),
    lambda x: op.strided_set(x, op.astype(x, "float64"), 0, 2),
    lambda x: op.adv_index(()),
    lambda x: op.adv_index((x, x)),
    lambda x: op.adv_index((x, [0], [0], [0], [0])),
    lambda x: op.adv_index((x, [0, 1], [0, 1, 2])),
    lambda x: op.adv_index((np.zeros((2, 0)), [0], [0])),
    lambda x: op.adv_index_dx(x, (x, [0])),
]


@pytest.mark.parametrize("call", REFUSED)
def test_users_errors(call: Any) -> None:
    with pytest.raises(TypeInferError):
        call(meta.array(X))


N = SymbolicDim("n")
OPEN = TensorType((N, 3), "float32")
FILTERED = TensorType((N, 4, 2, 2), "float32")


@pytest.mark.parametrize(
    ("base", "args", "shape"),
    [
        (op.pad, (OPEN, (0, 0, 1, 2), 0.0, "edge"), (N, 6)),
        (op.pad, (OPEN, (1, 0, 0, 0), 0.0, "constant"), (N + 1, 3)),
        (op.pad_dx, (OPEN, (0, 0, 1, 0), "reflect"), (N, 2)),
        (op.tile, (OPEN, (2, 1, 2)), (2, N, 6)),
        (op.tile, (OPEN, (2, 1)), (2 * N, 3)),
        (op.roll, (OPEN, 1, 0), (N, 3)),
        (op.diagonal, (OPEN, 0, 0, 1), (UNKNOWN,)),
        (op.depth_to_space, (FILTERED, 2, "NCHW", "DCR"), (N, 1, 4, 4)),
        (op.adv_index, ((OPEN, TensorType((5,), "int64")),), (5, 3)),
        (op.shape_as_tensor, (OPEN,), (2,)),
    ],
)
def test_unknown_extents(base: Any, args: Any, shape: Any) -> None:
    assert str(base.infer(args).shape) == str(shape)


def test_an_extent_that_is_not_static_is_not_told() -> None:
    for base in (op.shape, op.numel):
        with pytest.raises(TypeInferError):
            base.infer((OPEN,))


AFFINE = [
    lambda x: op.pad(x, ((1, 0), (2, 1)), "constant", 0.5),
    lambda x: op.pad(x, ((1, 0), (2, 1)), "edge"),
    lambda x: op.pad(x, 1, "reflect"),
    lambda x: op.pad(x, 1, "wrap"),
    lambda x: op.reverse_sequence(x, [1, 3], 1, 0),
    lambda x: op.sequence_mask(x, [1, 3], 0.5, 1),
    lambda x: op.roll(x, (1, 2), (0, 1)),
    lambda x: op.tile(x, (2, 3)),
    lambda x: op.tril(x, 1),
    lambda x: op.diagonal(x, 1),
    lambda x: op.strided_set(x, op.strided_slice(x, 0, 1), 1, 2),
    lambda x: op.adv_index((x, [0, 0, 1], [2, 2, -1])),
    lambda x: op.collapse_sum_like(x, np.zeros((1, 3), np.float32)),
    lambda x: op.broadcast_to_like(x, np.zeros((2, 2, 3), np.float32)),
]


@pytest.mark.parametrize("function", AFFINE)
def test_the_gradient_is_differentiable(function: Any) -> None:
    """For an affine f(x) = A x + b the gradient is A' dy, and the gradient of that in dy is A v."""
    x = meta.array(np.array([[1.0, -2.0, 3.0], [0.5, 1.5, -1.0]], np.float32))
    v = meta.array(np.array([[0.5, 1.0, -1.0], [2.0, -3.0, 0.25]], np.float32))
    y = function(x)
    first = infer_type(autodiff(trace(function).program(x).module, wrt=[0]))
    second = infer_type(autodiff(first, wrt=[0]))
    dy, zero = op.ones_like(y), op.zeros_like(y)
    _, (ddy,) = meta.vm.compile(second, zero, v, dy, x)(zero, v, dy, x)
    check(ddy, op.subtract(function(v), function(op.zeros_like(v))), 1e-5, 1e-6)
