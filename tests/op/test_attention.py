"""What attention and rotary embedding refuse, and that the message says what would do."""

import pytest

import meta
from meta import op
from meta.base.errors import TypeInferError
from meta.ir.types import TensorType


def t(*shape: int, dtype: str = "float32") -> TensorType:
    return TensorType(shape, dtype)


def attention(query, key, value, mask=None, dropout_p=0.0):
    return op.scaled_dot_product_attention.infer((query, key, value, mask, False, None, dropout_p))


def test_dropout_is_refused_and_not_ignored() -> None:
    with pytest.raises(TypeInferError, match="apply dropout to the result"):
        attention(t(1, 2, 3, 4), t(1, 2, 3, 4), t(1, 2, 3, 4), dropout_p=0.1)


@pytest.mark.parametrize(
    ("key", "value", "mask", "message"),
    [
        (t(1, 4, 5, 8, dtype="float16"), t(1, 4, 5, 8), None, "one dtype"),
        (t(1, 4, 5, 7), t(1, 4, 5, 8), None, "do not fit together"),
        (t(1, 4, 5, 8), t(1, 4, 6, 8), None, "do not fit together"),
        (t(1, 3, 5, 8), t(1, 3, 5, 8), None, "divisor of 4"),
        (t(1, 0, 5, 8), t(1, 0, 5, 8), None, "divisor of 4"),
        (t(1, 4, 5, 8), t(1, 4, 5, 8), t(3, 5, dtype="int64"), "bool or float32"),
        (t(1, 4, 5, 8), t(1, 4, 5, 8), t(4, 5), "broadcast"),
        (t(1, 4, 5, 8), t(1, 4, 5, 8), t(1, 1, 1, 3, 5), "broadcast"),
        (t(4, 5, 8), t(1, 4, 5, 8), None, "4 axes"),
    ],
)
def test_arguments_that_do_not_fit(key, value, mask, message) -> None:
    with pytest.raises(TypeInferError, match=message):
        attention(t(1, 4, 3, 8), key, value, mask)


@pytest.mark.parametrize(
    ("x", "cos", "sin", "message"),
    [
        (t(3, 5), t(3, 2), t(3, 2), "even"),
        (t(), t(), t(), "even"),
        (t(3, 4), t(3, 4), t(3, 4), "cos does not fit|cannot be broadcast"),
        (t(3, 4), t(1, 3, 2), t(1, 3, 2), "cos does not fit"),
        (t(3, 4), t(3, 2, dtype="float16"), t(3, 2, dtype="float16"), "float32"),
        (t(3, 4), t(3, 2), t(1, 2), "cos and sin differ"),
    ],
)
def test_rotary_tables_that_do_not_fit(x, cos, sin, message) -> None:
    with pytest.raises(TypeInferError, match=message):
        op.rotary_embedding.infer((x, cos, sin, False))


def test_no_key_gives_zeros() -> None:
    empty = meta.zeros((1, 1, 0, 4), dtype="float32")
    query = meta.ones((1, 1, 2, 4), dtype="float32")
    y, logsumexp = meta.scaled_dot_product_attention(query, empty, empty)
    assert not y.torch().any() and not logsumexp.torch().any()
