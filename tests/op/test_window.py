"""Windows over one, two and three axes: what they take, what they refuse, and NaNs in them."""

import math

import pytest
import torch
import torch.nn.functional as F

import meta
from meta.base.errors import TypeInferError
from meta.dialect import only
from meta.op.core.window import pads, window


@pytest.mark.parametrize(
    ("padding", "count", "expected"),
    [
        (2, 1, (2, 2)),
        ((1, 2), 1, (1, 2)),
        (1, 2, (1, 1, 1, 1)),
        ((3,), 2, (3, 3, 3, 3)),
        ((1, 2), 2, (1, 2, 1, 2)),
        ((1, 2, 3), 3, (1, 2, 3, 1, 2, 3)),
        ((1, 2, 3, 4, 5, 6), 3, (1, 2, 3, 4, 5, 6)),
    ],
)
def test_padding_before_then_after(padding, count, expected) -> None:
    assert pads(padding, count) == expected


@pytest.mark.parametrize(("padding", "count"), [((1, 2, 3), 1), ((1, 2, 3), 2), ((1, 2), 3)])
def test_wrong_number_of_paddings(padding, count) -> None:
    with pytest.raises(TypeInferError, match=f"{2 * count} ints"):
        pads(padding, count)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_windows_that_do_not_fit(count) -> None:
    with pytest.raises(TypeInferError, match="larger than the padded input"):
        window((2,) * count, 3, 1, 0, 1)
    with pytest.raises(TypeInferError, match="stride"):
        window((4,) * count, 3, (1,) * (count + 1), 0, 1)


@pytest.mark.parametrize("name", ["conv1d", "conv3d"])
def test_a_convolution_refuses_what_does_not_match(name) -> None:
    count = int(name[4])
    convolution = getattr(meta, name)

    def zeros(*shape: int) -> meta.ndarray:
        return meta.zeros(shape, dtype="float32")

    x = zeros(1, 2, *(4,) * count)
    with pytest.raises(TypeInferError, match="axes"):
        convolution(x, zeros(1, 2))
    with pytest.raises(TypeInferError, match="channels"):
        convolution(x, zeros(1, 3, *(2,) * count))
    with pytest.raises(TypeInferError, match="layout"):
        convolution(x, zeros(1, 2, *(2,) * count), layout="NCHW")


@pytest.mark.parametrize("dialect", ["tvm", "torch"])
@pytest.mark.parametrize("count", [1, 3])
def test_nan_wins_a_window_and_infinity_is_a_number(dialect, count) -> None:
    x = torch.arange(6.0 * 4 ** (count - 1)).reshape(1, 1, *(4,) * (count - 1), 6)
    x[..., 2], x[..., 3], x[..., 5] = -math.inf, -math.inf, math.inf
    x[..., 0] = math.nan
    pool, mean = getattr(F, f"max_pool{count}d"), getattr(F, f"avg_pool{count}d")
    with only(dialect):
        largest = getattr(meta, f"max_pool{count}d")(meta.array(x), 2, 2).torch()
        average = getattr(meta, f"avg_pool{count}d")(meta.array(x), 2, 2).torch()
    torch.testing.assert_close(largest, pool(x, 2, 2), equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(average, mean(x, 2, 2), equal_nan=True)
