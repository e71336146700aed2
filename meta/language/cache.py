"""Keys and values of the tokens that a decoder has read."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from meta.base.errors import ArgumentError
from meta.language.block_pool import BlockPool
from meta.language.decoder import Decoder


class Cache:
    """What a decoder has read of several texts: keep it to go on from there.

    A `generate` that is given one appends its prompts to the texts, reads only what is new, and
    leaves what it wrote in the cache.

    rows: how many texts. pool: where they have blocks of memory, which texts that begin alike
    share; without one, the cache has memory of its own for each text, as much as for the longest.

    Attributes
    ----------
    tokens: of each text, all of them. lengths: how many of these are read; what a text ends with
    may be still to be read. pool. blocks: of each text, in order, if there is a pool.

    >>> from meta.language import Cache
    >>> cache = Cache(2)
    >>> cache.tokens
    [[], []]
    """

    def __init__(self, rows: int = 1, pool: BlockPool | None = None) -> None:
        if rows < 1:
            raise ArgumentError("a cache has at least one row", found=rows)
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self.lengths = [0] * rows
        self.pool, self.blocks = pool, [list[int]() for _ in range(rows)]
        self.arrays: list[torch.Tensor] = [] if pool is None else pool.arrays
        self._table = None if pool is None else pool.table(self.blocks, 0)
        if pool is not None:
            weakref.finalize(self, _free_all, pool, self.blocks)

    @property
    def table(self) -> torch.Tensor | None:
        """The blocks of texts, int32 [rows, most]; None without a pool."""
        return self._table

    @property
    def slots(self) -> int:
        """How many tokens of a text there is room for; with a pool, of the longest."""
        if self.pool is not None and self._table is not None:
            return self._table.shape[1] * self.pool.block_size
        return self.arrays[0].shape[2] if self.arrays else 0

    def fork(self, rows: int | None = None) -> Cache:
        """Return a copy; of one text as many as ``rows``. Blocks of a pool are shared, and the last
        one is copied by who goes on; else each text has memory of its own.
        """
        count = len(self.tokens) if rows is None else rows
        if count != len(self.tokens) and len(self.tokens) != 1:
            raise ArgumentError(
                "one text is copied to several rows, not several",
                expected=f"{len(self.tokens)} rows, or a cache of one",
                found=rows,
            )
        found, times = Cache(count, self.pool), count // len(self.tokens)
        found.tokens = [list(text) for text in self.tokens * times]
        found.lengths = self.lengths * times
        if self.pool is None:
            found.arrays = [x.repeat_interleave(times, 0) for x in self.arrays]
            return found
        for blocks, own, length in zip(
            found.blocks, self.blocks * times, found.lengths, strict=True
        ):
            blocks += self.pool.share(own[: self.pool.blocks_of(length)])
        found._table = self.pool.table(found.blocks, self.slots)
        return found

    def truncate(self, length: int | Sequence[int]) -> None:
        """Forget all but the first tokens of each text, and free the blocks of the others."""
        rows = len(self.tokens)
        lengths = [length] * rows if isinstance(length, int) else list(length)
        if len(lengths) != rows or min(lengths) < 0:
            raise ArgumentError("a length for each text", expected=f"{rows} of them", found=length)
        self.tokens = [text[:n] for text, n in zip(self.tokens, lengths, strict=True)]
        self.lengths = [min(a, len(b)) for a, b in zip(self.lengths, self.tokens, strict=True)]
        if self.pool is not None:
            for blocks, kept in zip(self.blocks, self.lengths, strict=True):
                self.pool.free(blocks[self.pool.blocks_of(kept) :])
                del blocks[self.pool.blocks_of(kept) :]

    def reserve(self, decoder: Decoder, slots: int, each: Sequence[int] | None = None) -> None:
        """Have room for so many tokens of each text, and keep what is there.

        each: of a pool, for how many tokens a text takes blocks; for all of them unless given.
        Blocks that will be written and that other texts share are copied. Raises ArgumentError for
        another decoder's cache, and OutOfMemory for a pool that has too few blocks.
        """
        config = decoder.config
        like = decoder.embed_tokens.weight.tensor
        shape = decoder.cache_placement(len(self.tokens), slots).local
        old, known = self.arrays, self.slots
        widths = [(x.shape[1], x.shape[3]) for x in old[:1]]
        if old and (len(old) != 2 * config.layers or widths != [(shape[1], shape[3])]):
            raise ArgumentError(
                "this cache belongs to another decoder",
                expected=f"{config.layers} layers of {[shape[1], shape[3]]}",
                found=f"{len(old) // 2} layers of {list(widths[0])}",
            )
        if self.pool is not None:
            self._reserve_blocks(self.pool, slots, each or [slots] * len(self.tokens))
        elif known < slots:
            self.arrays = [like.new_empty(shape) for _ in range(2 * config.layers)]
            for new, past in zip(self.arrays, old, strict=False):
                new[:, :, :known] = past

    def _reserve_blocks(self, pool: BlockPool, slots: int, each: Sequence[int]) -> None:
        for blocks, length, tokens in zip(self.blocks, self.lengths, each, strict=True):
            for i in range(length // pool.block_size, len(blocks)):
                blocks[i] = pool.own(blocks[i])
            blocks += pool.allocate(max(pool.blocks_of(tokens) - len(blocks), 0))
        self._table = pool.table(self.blocks, max(slots, self.slots))


def _free_all(pool: BlockPool, texts: list[list[int]]) -> None:
    for blocks in texts:
        pool.free(blocks)
