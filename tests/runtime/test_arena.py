"""The memory plan: no two buffers in use at the same time overlap, and places are aligned."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from meta.runtime.allocate import ALIGNMENT, aligned
from meta.runtime.arena import Lifetime, plan

lifetimes = st.builds(
    lambda size, first, length: Lifetime(size, first, first + length),
    st.integers(0, 1000) | st.sampled_from([0, 1, 64, 65, 2**40]),
    st.integers(0, 20),
    st.integers(0, 8),
)


@settings(max_examples=300)
@given(st.lists(lifetimes, max_size=30))
def test_the_plan_is_right(lives: list[Lifetime]) -> None:
    offsets, size = plan(lives)
    assert len(offsets) == len(lives)
    assert all(o >= 0 and o % ALIGNMENT == 0 for o in offsets)
    assert size % ALIGNMENT == 0
    for i, (a, at) in enumerate(zip(lives, offsets, strict=True)):
        assert at + a.size <= size
        for b, other in list(zip(lives, offsets, strict=True))[:i]:
            together = a.first <= b.last and b.first <= a.last
            if together and a.size and b.size:
                assert at + a.size <= other or other + b.size <= at
    # Never more than everything side by side, never less than what lives at one moment.
    assert size <= sum(aligned(a.size) for a in lives)
    moments = {a.first for a in lives}
    least = max((sum(a.size for a in lives if a.first <= m <= a.last) for m in moments), default=0)
    assert size >= least


def test_a_chain_needs_two_places() -> None:
    lives = [Lifetime(100, i, i + 1) for i in range(50)]
    assert plan(lives)[1] == 2 * 128


def test_aligned() -> None:
    assert [aligned(n) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]
