"""The blocks of a pool: who holds them, and what is copied."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from meta import language
from meta.base.errors import ArgumentError, OutOfMemory

SIZES: dict[str, Any] = {
    "vocab_size": 11, "hidden_size": 8, "inner": 12, "heads": 2, "key_value_heads": 1,
    "head_width": 4, "windows": (None, None), "rotary": (None, None), "experts": (None, None),
    "rotary_width": 4, "scale": 0.5, "eps": 1e-6, "max_positions": 32,
}  # fmt: skip


@pytest.fixture
def pool() -> language.BlockPool:
    decoder = language.Decoder(language.DecoderConfig(**SIZES))
    return language.BlockPool(decoder, 5, block_size=3)


def test_shapes(pool: language.BlockPool) -> None:
    assert [tuple(a.shape) for a in pool.arrays] == [(5, 1, 3, 4)] * 4
    assert [pool.blocks_of(n) for n in (0, 1, 3, 4)] == [0, 1, 1, 2]


def test_blocks_are_free_when_nobody_holds_them(pool: language.BlockPool) -> None:
    mine = pool.allocate(3)
    assert len(set(mine)) == 3 and pool.available == 2
    also = pool.share(mine[:2])
    pool.free(mine)
    assert pool.available == 3
    rest = pool.allocate(3)
    assert not set(rest) & set(also) and pool.available == 0
    with pytest.raises(OutOfMemory, match="0 free blocks"):
        pool.allocate(1)
    pool.free([*also, *rest])
    assert sorted(pool.allocate(5)) == list(range(5))


def test_a_block_that_is_held_twice_is_copied(pool: language.BlockPool) -> None:
    (block,) = pool.allocate(1)
    for number, array in enumerate(pool.arrays):
        array[block] = number
    assert pool.own(block) == block
    pool.share([block])
    copy = pool.own(block)
    assert copy != block and pool.own(block) == block and pool.available == 3
    for number, array in enumerate(pool.arrays):
        array[block] = -1
        assert torch.equal(array[copy], torch.full((1, 3, 4), float(number)))


def test_tables(pool: language.BlockPool) -> None:
    table = pool.table([[4, 2], [], [1, 0, 3]], 6)
    assert table.dtype == torch.int32 and table.tolist() == [[4, 2], [-1, -1], [1, 0]]


def test_what_does_not_fit(pool: language.BlockPool) -> None:
    with pytest.raises(ArgumentError, match="a pool has blocks of tokens"):
        language.BlockPool(language.Decoder(language.DecoderConfig(**SIZES)), 0)
    (block,) = pool.allocate(1)
    for wrong, what in (([5], "no such block"), ([-1], "no such"), ([block] * 2, "nobody holds")):
        with pytest.raises(ArgumentError, match=what):
            pool.free(wrong)
    assert pool.available == 4
