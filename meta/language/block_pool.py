"""Memory for keys and values in blocks that texts hold, and may hold together.

A text has a list of blocks, as a process has pages (Kwon et al., arXiv:2309.06180). What several
texts begin with is read once and held by all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from meta.base.errors import ArgumentError, OutOfMemory

NO_BLOCK = -1
"""What a table has where a text has no block: nothing is read there, and nothing is written."""


class BlockPool:
    """Blocks of keys and values, each of so many tokens of one text.

    Token i of a text is in its block ``i // block_size``. Blocks are counted: one that is held
    several times is free when each of those has freed it, and is not written meanwhile. Who is to
    write asks for a block of his own (`own`).

    Parameters
    ----------
    decoder: whose keys and values these are; its dtype and its device. blocks: how many there are.
    block_size: tokens of each, at least one.

    Attributes
    ----------
    arrays: of each layer keys, then values, [blocks, heads, block_size, width].
    block_size. available: how many blocks are free.

    >>> model = meta.language.Decoder(meta.language.DecoderConfig(
    ...     vocab_size=11, hidden_size=8, inner=12, heads=2, key_value_heads=1, head_width=4,
    ...     windows=(None,), rotary=(None,), experts=(None,), rotary_width=4, scale=0.5, eps=1e-6,
    ...     max_positions=32))
    >>> pool = meta.language.BlockPool(model, 4)
    >>> mine = pool.allocate(2)
    >>> also = pool.share(mine)         # a second text begins with them
    >>> also[-1] = pool.own(also[-1])   # and goes on in a copy of the last one
    >>> pool.table([mine, also], 64).tolist()
    [[0, 1, -1, -1], [0, 2, -1, -1]]
    >>> pool.free(mine + also)
    """

    def __init__(self, decoder: Any, blocks: int, block_size: int = 16) -> None:
        if min(blocks, block_size) < 1:
            raise ArgumentError(
                "a pool has blocks of tokens",
                expected="at least 1 of 1",
                found=(blocks, block_size),
            )
        config, like = decoder.config, decoder.embed_tokens.weight.tensor
        shape = decoder.cache_placement(blocks, block_size).local
        self.block_size = block_size
        self.arrays = [like.new_empty(shape) for _ in range(2 * config.layers)]
        self._holders = [0] * blocks
        self._free = list(range(blocks))[::-1]

    @property
    def available(self) -> int:
        """How many blocks are free."""
        return len(self._free)

    def holders(self, block: int) -> int:
        """Return how often a block is held."""
        return self._holders[block]

    def blocks_of(self, tokens: int) -> int:
        """Return how many blocks so many tokens of a text take."""
        return -(-tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Return so many free blocks, whose contents are anything; OutOfMemory if there are fewer,
        of which none is taken then.
        """
        if count > self.available:
            each = sum(array[0].nbytes for array in self.arrays)
            raise OutOfMemory(
                f"a pool has {self.available} free blocks of {self.block_size} tokens",
                planned=count * each,
                free=self.available * each,
                hint="truncate or drop caches of it, or make a BlockPool of more blocks",
            )
        found = [self._free.pop() for _ in range(count)]
        for block in found:
            self._holders[block] = 1
        return found

    def share(self, blocks: Sequence[int]) -> list[int]:
        """Return blocks that are held once more from now on."""
        self._require_held(blocks)
        for block in blocks:
            self._holders[block] += 1
        return list(blocks)

    def free(self, blocks: Sequence[int]) -> None:
        """Give blocks back, each as often as it is named; ArgumentError if nobody holds one."""
        self._require_held(blocks)
        for block in blocks:
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free.append(block)

    def own(self, block: int) -> int:
        """Return a block to write instead of one that is held: the same if nobody else holds it,
        else a copy, for which that is given back. OutOfMemory if there is no free block.
        """
        self._require_held([block])
        if self._holders[block] == 1:
            return block
        (new,) = self.allocate(1)
        for array in self.arrays:
            array[new] = array[block]
        self._holders[block] -= 1
        return new

    def table(self, texts: Sequence[Sequence[int]], slots: int) -> torch.Tensor:
        """Return the blocks of texts as an array of `cached_attention`, int32 [texts, blocks], on
        the device of the blocks: of as many as so many tokens take, -1 where a text has none.
        """
        table = np.full((len(texts), self.blocks_of(slots)), NO_BLOCK, np.int32)
        for row, blocks in zip(table, texts, strict=True):
            row[: len(blocks)] = blocks[: len(row)]
        return torch.from_numpy(table).to(self.arrays[0].device)

    def _require_held(self, blocks: Sequence[int]) -> None:
        asked = np.asarray(blocks, np.int64)
        inside = (asked >= 0) & (asked < len(self._holders))
        if not inside.all():
            raise ArgumentError("a pool has no such block", found=asked[~inside].tolist())
        numbers, times = np.unique(asked, return_counts=True)
        missing = [b for b, n in zip(numbers.tolist(), times, strict=True) if self._holders[b] < n]
        if missing:
            raise ArgumentError("blocks of a pool that nobody holds so often", found=missing)
