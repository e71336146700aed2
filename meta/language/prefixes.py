"""Blocks of a pool by their tokens, so that what several texts begin with is read once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice

from meta.language.block_pool import BlockPool

Key = tuple[int, tuple[int, ...]]
"""The number of the block before, 0 for none, and the tokens of a block: no two texts that differ
have the same one.
"""


class Prefixes:
    """Whole blocks that were read, and are kept as long as nobody needs their memory.

    pool: where they are held. It gives up those first that were not found for the longest time.

    >>> from meta.language import BlockPool, Decoder, DecoderConfig
    >>> from meta.language.prefixes import Prefixes
    >>> pool = BlockPool(Decoder(DecoderConfig(
    ...     vocab_size=11, hidden_size=8, inner=12, heads=2, key_value_heads=1, head_width=4,
    ...     windows=(None,), rotary=(None,), experts=(None,), rotary_width=4, scale=0.5, eps=1e-6,
    ...     max_positions=32)), 4, block_size=2)
    >>> prefixes, mine = Prefixes(pool), pool.allocate(3)
    >>> prefixes.keep([7, 8, 9, 10, 7], mine)
    >>> prefixes.find([7, 8, 9, 1]) == mine[:1]
    True
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._blocks = OrderedDict[Key, tuple[int, int]]()  # number and block, the last found last
        self._count = 0

    def find(self, tokens: Sequence[int]) -> list[int]:
        """Return the blocks that a text begins with, held once more; not all of the text, for of
        its last token the scores are needed.
        """
        before, found = 0, []
        for tokens_of_block in self._whole(tokens[:-1]):
            key = before, tokens_of_block
            if key not in self._blocks:
                break
            before, block = self._blocks[key]
            found.append((key, block))
        for key, _ in reversed(found):  # what is behind is given up first
            self._blocks.move_to_end(key)
        return self._pool.share([block for _, block in found])

    def keep(self, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """Hold the whole blocks of a text that was read."""
        before = 0
        for tokens_of_block, block in zip(self._whole(tokens), blocks, strict=False):
            key = before, tokens_of_block
            if key not in self._blocks:
                self._count += 1
                self._blocks[key] = self._count, block
                self._pool.share([block])
            before = self._blocks[key][0]

    def give_up(self, count: int) -> bool:
        """Free blocks that nobody else holds until so many are free in the pool; False if there
        are not enough, and then none is freed.
        """
        missing = count - self._pool.available
        if missing <= 0:
            return True
        held = ((key, self._pool.holders(block)) for key, (_, block) in self._blocks.items())
        lone = list(islice((key for key, holders in held if holders == 1), missing))
        if len(lone) < missing:
            return False
        for key in lone:
            self._pool.free([self._blocks.pop(key)[1]])
        return True

    def _whole(self, tokens: Sequence[int]) -> Iterator[tuple[int, ...]]:
        size = self._pool.block_size
        for begin in range(0, len(tokens) - size + 1, size):
            yield tuple(tokens[begin : begin + size])
