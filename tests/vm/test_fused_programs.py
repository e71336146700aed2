"""Random programs on generated kernels: fusion changes no value, whatever is used twice, written in
place or returned in between. Fewer than in `test_random_programs`, for each compiles kernels.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meta
from meta import op
from tests.vm.test_random_programs import check_program, steps


@settings(max_examples=20, derandomize=True)
@given(st.lists(steps, min_size=4, max_size=12), st.lists(st.integers(0, 99), max_size=3))
def test_random_programs_on_tvm(
    program: list[tuple[str, int, int, int]], wanted: list[int]
) -> None:
    with meta.dialect.only("tvm"):
        check_program(program, wanted)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize(
    "before",
    [
        lambda x: x * x + x,
        lambda x: op.tanh(x) * x,
        lambda x: op.astype(op.astype(x, "float32"), "bfloat16"),
    ],
)
def test_an_index_of_bfloat16_numbers_made_in_the_same_kernel(name: str, before: Any) -> None:
    numbers = torch.randn(33, 17, generator=torch.Generator().manual_seed(0))
    numbers[3, 4], numbers[5, 6], numbers[7] = torch.nan, torch.inf, 0.0
    x = meta.array(numbers, "bfloat16")
    function = meta.model.trace(lambda x: getattr(op, name)(before(x), 1))
    with meta.dialect.only("tvm"):
        executable = meta.vm.compile(function, x)
    assert len(executable.kernels()) == 1
    found, values = executable(x).torch(), before(x).torch().float()
    best = getattr(values, name.removeprefix("arg"))(1).values
    at = values.gather(1, found[:, None])[:, 0]
    # What is computed in the kernel is rounded fewer times than here.
    torch.testing.assert_close(at, best, rtol=2**-7, atol=0.0, equal_nan=True)
