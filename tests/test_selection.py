"""Which calls of a test marked ``product`` an ordinary run has."""

from collections.abc import Sequence
from itertools import combinations, compress, product
from math import prod

import pytest

from tests.conftest import beyond_cover


@pytest.mark.parametrize(
    "sizes",
    [(2, 2), (3, 7), (7, 3), (5, 5), (3, 3, 2), (2, 4, 3), (1, 4, 3), (2, 3, 4, 2)],
    ids=str,
)
def test_every_choice_from_all_lists_but_one_is_left(sizes: Sequence[int]) -> None:
    # As pytest has it: two names of one list's values, and places that marks have left of more.
    calls = [(2 * a, 2 * a, *others) for a, *others in product(*map(range, sizes))]
    left = [call for call, one in zip(calls, beyond_cover(calls), strict=True) if not one]
    lists = [i for i, size in enumerate((1, *sizes)) if size > 1]
    assert len(left) == prod(sizes) / min(size for size in sizes if size > 1)
    for some in combinations(lists, len(lists) - 1):
        chosen = [{tuple(call[i] for i in some) for call in of} for of in (calls, left)]
        assert chosen[0] == chosen[1]


@pytest.mark.parametrize("sizes", [(), (1,), (6,), (1, 6), (1, 1)], ids=str)
def test_nothing_repeats_where_one_list_has_several_values(sizes: Sequence[int]) -> None:
    calls = list(product(*map(range, sizes)))
    assert not list(compress(calls, beyond_cover(calls)))


@pytest.mark.product
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("first", "name"), [(1, "a"), (2, "b"), (3, "c")])
def test_a_run_has_what_shows_each_value(
    first: int, name: str, last: bool, request: pytest.FixtureRequest
) -> None:
    shown = (first, name, last) in {(1, "a", False), (2, "b", True), (3, "c", False)}
    assert shown == (request.node.get_closest_marker("long") is None)
