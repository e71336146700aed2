"""What the records cannot say of operators that follow another's type: errors and casts."""

import numpy as np
import pytest

import meta
from meta import op
from meta.amp import cast_dtypes
from meta.base.errors import TypeInferError
from meta.ir.types import TensorType
from meta.testing import check

X = np.arange(6, dtype=np.float32).reshape(2, 3)

REFUSED = [
    lambda x: op.reshape_like(x, x[0]),
    lambda x: op.broadcast_to_like(x, x[0]),
    lambda x: op.broadcast_to_like(x[0], op.permute_dims(x)),
    lambda x: op.collapse_sum_like(x[0], x),
    lambda x: op.collapse_sum_like(x, x[:, 0]),
    lambda x: op.group_cast((), "float16"),
]


@pytest.mark.parametrize("call", REFUSED)
def test_users_errors(call) -> None:
    with pytest.raises(TypeInferError):
        call(meta.array(X))


def test_the_gradient_of_a_cast_has_the_dtype_of_its_argument() -> None:
    x, like = meta.array(X), meta.array(np.ones(1, np.float64))
    x.requires_grad = like.requires_grad = True
    y = op.cast_like(x, like)
    assert y.dtype == "float64"
    y.backward(meta.array(np.ones((2, 3))))
    assert (x.grad.dtype, like.grad.dtype) == ("float32", "float64")
    check(x.grad, np.ones((2, 3)))
    check(like.grad, np.zeros(1))


@pytest.mark.parametrize("base", [op.reshape_like, op.broadcast_to_like, op.collapse_sum_like])
def test_the_gradient_of_what_is_followed_is_zero_in_its_dtype(base) -> None:
    x, like = meta.array(X), meta.array(X.astype(np.float64))
    like.requires_grad = True
    y = base(x, like)
    y.backward(meta.array(np.ones((2, 3), np.float32)))
    assert like.grad.dtype == "float64"
    check(like.grad, np.zeros((2, 3)))


def test_the_gradients_of_a_group_have_the_dtypes_of_their_tensors() -> None:
    x, z = meta.array(X), meta.array(X.astype(np.float64))
    x.requires_grad = z.requires_grad = True
    a, b, c = op.group_cast((x, z, meta.array([1, 2])), "float16")
    assert {t.dtype for t in (a, b, c)} == {"float16"}
    a.backward(meta.array(np.ones((2, 3), np.float16)))
    b.backward(meta.array(np.full((2, 3), 2, np.float16)))
    assert (x.grad.dtype, z.grad.dtype) == ("float32", "float64")
    check(x.grad, np.ones((2, 3)))
    check(z.grad, np.full((2, 3), 2.0))


@pytest.mark.parametrize("base", [op.reshape_like, op.broadcast_to_like, op.cast_like])
def test_what_is_followed_is_never_cast_nor_casts(base) -> None:
    half, single = TensorType((2, 3), "float16"), TensorType((2, 3), "float32")
    assert cast_dtypes(base, (half, single), "float16") == (None, None)
    assert cast_dtypes(base, (single, half), "float16") == (None, None)


def test_a_collapsed_sum_is_a_sum() -> None:
    half = TensorType((2, 3), "float16")
    assert cast_dtypes(op.collapse_sum_like, (half, half), "float16") == ("float32", None)
