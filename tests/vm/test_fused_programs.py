"""Random programs on generated kernels: fusion changes no value, whatever is used twice, written in
place or returned in between. Fewer than in `test_random_programs`, for each compiles kernels.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

import meta
from tests.vm.test_random_programs import check_program, steps


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.lists(steps, min_size=4, max_size=12), st.lists(st.integers(0, 99), max_size=3))
def test_random_programs_on_tvm(
    program: list[tuple[str, int, int, int]], wanted: list[int]
) -> None:
    with meta.dialect.only("tvm"):
        check_program(program, wanted)
