"""What the records cannot say of transforms and reductions: errors, kernels of views, casts."""

from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base.device import CPU
from meta.base.dtype import TO_TORCH
from meta.base.errors import ArgumentError, TypeInferError
from meta.dialect import only
from meta.dialect.core import dispatch
from meta.ir.types import UNKNOWN, SymbolicDim, TensorType
from meta.testing import check

N = SymbolicDim("n")
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

REFUSED = [
    lambda x: op.reshape(x, (5, 5)),
    lambda x: op.reshape(x, (-1, -1)),
    lambda x: op.reshape(x, (7, -1)),
    lambda x: op.reshape(x, (0, -1)),
    lambda x: op.reshape(x, (-2, 12)),
    lambda x: op.permute_dims(x, (0, 1)),
    lambda x: op.permute_dims(x, (0, 1, 1)),
    lambda x: op.permute_dims(x, (0, 1, 3)),
    lambda x: op.expand_dims(x, 4),
    lambda x: op.expand_dims(x, 0, -1),
    lambda x: op.squeeze(x, 0),
    lambda x: op.squeeze(x, 3),
    lambda x: op.concat(()),
    lambda x: op.concat((x, op.astype(x, "float64"))),
    lambda x: op.concat((x, x), axis=3),
    lambda x: op.concat((x, op.permute_dims(x))),
    lambda x: op.concat((x, op.reshape(x, -1))),
    lambda x: op.stack((x, op.permute_dims(x))),
    lambda x: op.split(x, 5, axis=1),
    lambda x: op.split(x, 0),
    lambda x: op.split(x, (2, 1), axis=2),
    lambda x: op.split(x, (9,), axis=2),
    lambda x: op.strided_slice(x, (0, 0), 1),
    lambda x: op.strided_slice(x, (0,) * 4, (1,) * 4),
    lambda x: op.strided_slice(x, 0, 1, 0),
    lambda x: op.strided_slice(x, 0, 1, 2, "size"),
    lambda x: op.strided_slice(x, 0, 1, None, "extent"),
    lambda x: op.strided_slice_dx(x, (9, 9, 9), 0, 1),
    lambda x: op.take(x, x),
    lambda x: op.take(x, op.astype(x, "int32"), 3),
    lambda x: op.take(x, op.astype(x, "int32"), 0, "nearest"),
    lambda x: op.take(np.zeros((0, 2)), [0], 0),
    lambda x: op.take_dx(x, x, [0, 1], 1),
    lambda x: op.embedding(x, x),
    lambda x: op.embedding([0], meta.array(1.0)),
    lambda x: op.embedding_dx(x, [0, 1], (5, 9)),
    lambda x: op.broadcast_to(x, (3, 4)),
    lambda x: op.broadcast_to(x, (2, 3, 5)),
    lambda x: op.repeat(x, -1),
    lambda x: op.repeat(x, 2, 3),
    lambda x: op.swapaxes(x, 0, 3),
    lambda x: op.batch_flatten(meta.array(1.0)),
    lambda x: op.get_reduce_axis(x, np.zeros((2, 2))),
    lambda x: op.sum(x, 3),
    lambda x: op.sum(x, (0, 0)),
    lambda x: op.sum(x, (0, -3)),
    lambda x: op.sum(x, (0, 1), (1,)),
    lambda x: op.sum(x, (0, 1), (1,)),
    lambda x: op.mean(op.astype(x, "int64")),
    lambda x: op.mean_dx(x, (2, 3, 4), 0),
    lambda x: op.sum_dx(x, x, 0),
    lambda x: op.max(np.zeros((2, 0))),
    lambda x: op.argmin(np.zeros((2, 0)), 1),
    lambda x: op.prod_dx(x, x, 0),
]


@pytest.mark.parametrize("call", REFUSED)
def test_a_wrong_argument_is_a_type_error(call: Any) -> None:
    with meta.strict_dtypes(), pytest.raises(TypeInferError) as error:
        call(meta.array(X))
    assert error.value.op is not None


VIEWS = [
    ("reshape", (2, 6), ((3, 4), ())),
    ("reshape", (2, 3, 4), ((2, 4, 3), ())),
    ("reshape", (), ((1, 1), ())),
    ("reshape", (1, 1), ((), ())),
    ("reshape", (2, 0), ((0, 7), ())),
    ("batch_flatten", (2, 3, 4), ()),
    ("batch_flatten", (3,), ()),
    ("expand_dims", (2, 3), (1, 2)),
    ("expand_dims", (), (-1, 1)),
    ("squeeze", (1, 3, 1), (None,)),
    ("squeeze", (1, 3, 1), (-1,)),
]


@pytest.mark.parametrize("dialect", ["tvm", "torch"])
@pytest.mark.parametrize(("name", "shape", "attributes"), VIEWS)
def test_views_have_kernels_for_fusion(
    name: str, shape: Any, attributes: Any, dialect: str
) -> None:
    x = torch.rand(shape)
    operator = getattr(op, name)
    call = operator.call_values((TensorType(shape, "float32"), *attributes), CPU)
    call.out = type_ = call.out.type
    with only(dialect):
        env = dispatch(call)
    out = torch.empty(type_.shape, dtype=TO_TORCH[type_.dtype])
    found = env.run(x) if env.allocates else (env.run(x, out), out)[1]
    assert found.data_ptr() != x.data_ptr() or not x.numel()
    assert torch.equal(found, x.reshape(type_.shape))


def test_a_view_shares_the_buffer_of_a_compact_argument() -> None:
    x = meta.array(X)
    for y in (op.reshape(x, -1), op.batch_flatten(x), op.expand_dims(x, 0), op.squeeze(x)):
        assert y.torch().data_ptr() == x.torch().data_ptr()
    turned = meta.runtime.ndarray.ndarray(torch.from_numpy(X).permute(2, 0, 1))
    check(op.reshape(turned, -1), X.transpose(2, 0, 1).reshape(-1))


@pytest.mark.parametrize(
    ("shape", "wanted", "kept", "expected"),
    [
        ((10, 5, 4), (-1, 5), (1,), (40, 5)),
        ((10, 5, 4), (-1, 5), (), (40, 5)),
        ((2, 3, 4), (0, 0, 4), (0, 1), (2, 3, 4)),
        ((0, 3, 4), (0, -1), (0,), (0, 12)),
        ((0, 3), (3, 0), (), (3, 0)),
        ((N, 3, 4), (N, -1), (), (N, 12)),
        ((N, 3, 4), (-1, 12), (), (N, 12)),
        ((N, 3, 4), (N * 4, 3), (), (N * 4, 3)),
        ((N, 3, 4), (6, -1), (), (6, 2 * N)),
        ((UNKNOWN, UNKNOWN, 12), (-1, -1, 3, -1), (0, 1), (UNKNOWN, UNKNOWN, 3, 4)),
    ],
)
def test_the_shape_of_reshape(shape: Any, wanted: Any, kept: Any, expected: Any) -> None:
    x = TensorType(shape, "float32")
    assert op.reshape.infer((x, wanted, kept)).shape == expected


def test_a_reshape_with_and_without_a_copy() -> None:
    x = meta.array(X)
    assert meta.reshape(x, (4, 6), copy=False).torch().data_ptr() == x.torch().data_ptr()
    copied = meta.reshape(x, (4, 6), copy=True)
    assert copied.torch().data_ptr() != x.torch().data_ptr()
    check(copied, X.reshape(4, 6))
    turned = meta.runtime.ndarray.ndarray(torch.from_numpy(X).permute(2, 0, 1))
    with pytest.raises(ArgumentError, match="without a copy"):
        meta.reshape(turned, -1, copy=False)


@pytest.mark.product
@pytest.mark.parametrize("dialect", ["tvm", "torch"])
@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16"]
)
def test_casts_are_torchs(dtype: str, dialect: str) -> None:
    floats = torch.tensor([0.0, -0.0, 1.7, -1.7, 100.5, 0.3])
    for values in (
        floats.abs(),
        floats.half().abs(),
        floats.bfloat16().abs(),
        floats.double().abs(),
        torch.tensor([0, 1, -1, 127]),
        torch.tensor([True, False]),
    ):
        with only(dialect):
            found = op.astype(values, dtype)
        assert torch.equal(found.torch(), values.to(TO_TORCH[dtype]))


@pytest.mark.parametrize("dialect", ["tvm", "torch"])
def test_nan_is_true(dialect: str) -> None:
    with only(dialect):
        assert op.astype(np.array([np.nan, 0.0]), "bool").numpy().tolist() == [True, False]


def test_the_gradient_of_a_cast_has_the_dtype_of_its_argument() -> None:
    x = meta.array(X)
    x.requires_grad = True
    op.sum(op.multiply(op.astype(x, "float16"), 2.0)).backward()
    assert x.grad.dtype == "float32"
    check(x.grad, np.full_like(X, 2.0))


def test_sums_undo_broadcasting() -> None:
    for narrow in ((4,), (3, 1), (1, 1, 4), (2, 3, 4), (), (2, 1, 1)):
        y = np.ones(narrow, np.float32)
        axes, kept = op.get_reduce_axis(X, y), op.get_kept_dims(X, y)
        assert op.sum(X, axes, kept).shape == narrow
    assert op.get_reduce_axis(X, 1.0) == (0, 1, 2)


def test_halves_are_accumulated_in_float32() -> None:
    ones = torch.ones(5000, dtype=torch.float16)
    for dialect in ("tvm", "torch"):
        with only(dialect):
            assert float(op.sum(ones)) == 5000.0
            assert float(op.mean(torch.full((70000,), 2.0, dtype=torch.float16))) == 2.0
            table = op.embedding_dx(torch.ones(5000, 1).half(), torch.zeros(5000).long(), 2)
            assert table.numpy().tolist() == [[5000.0], [0.0]]


def test_no_gradient_for_the_row_of_the_padding() -> None:
    table = meta.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    table.requires_grad = True
    y = meta.embedding(meta.array([[1, 2], [1, 1]]), table, padding_idx=1)
    assert y.numpy()[0, 0].tolist() == [3.0, 4.0]
    meta.sum(y).backward()
    assert table.grad.numpy().tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
