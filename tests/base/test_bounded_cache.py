"""Numbers beyond the range of a dtype, beside torch's conversions."""

import math

import pytest
import torch

from meta.base.dtype import TO_TORCH, limits, overflow_rounded

HALVES = ("float16", "bfloat16", "float32", "float8_e5m2")


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("sign", (1, -1))
def test_numbers_around_the_largest_round_as_torch_rounds(dtype: str, sign: int) -> None:
    largest = limits(dtype).max
    half = (largest - _before(largest, dtype)) / 2
    for value in (*(largest + half * n for n in (0, 0.5, 1 - 2**-10, 1, 2)), math.inf):
        rounded = torch.tensor(sign * value, dtype=torch.float64).to(TO_TORCH[dtype]).item()
        assert overflow_rounded(sign * value, dtype) == rounded
        if value != math.inf and value == int(value):
            assert overflow_rounded(sign * int(value), dtype) == rounded


def _before(value: float, dtype: str) -> float:
    """Return the number before a positive one in a dtype: their bits are ordered as they are."""
    bits = {2: torch.int16, 1: torch.uint8, 4: torch.int32}
    tensor = torch.tensor(value, dtype=TO_TORCH[dtype])
    whole = tensor.view(bits[tensor.element_size()])
    return (whole - 1).view(TO_TORCH[dtype]).item()


def test_what_a_dtype_holds_is_returned_as_it_is() -> None:
    for dtype in (*HALVES, "float64", "float8_e4m3fn"):
        for value in (0, -1, 0.1, 447.0):
            assert overflow_rounded(value, dtype) is value
        assert math.isnan(overflow_rounded(math.nan, dtype))


@pytest.mark.parametrize("value", (10**400, 1.8e308 * 2, 2**1024))
def test_numbers_that_no_float_is_near_to(value: float) -> None:
    for dtype in (*HALVES, "float64"):
        assert (overflow_rounded(value, dtype), overflow_rounded(-value, dtype)) == (
            math.inf,
            -math.inf,
        )
    assert overflow_rounded(2**1024 - 2**970 - 1, "float64") == limits("float64").max
    assert overflow_rounded(2**1024 - 2**970, "float64") == math.inf
    # The format has no infinity.
    assert overflow_rounded(-value, "float8_e4m3fn") == -448
