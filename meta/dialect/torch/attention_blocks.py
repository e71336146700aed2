"""Attention composed of products of matrices, a block of scores at a time.

What ATen's fused kernels do not take is computed so, in at least float32: dropout by a key, slopes,
float64 on CUDA, values of another width. A block is several heads, or some queries of one, and of
the keys those that its queries may see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from meta.dialect.torch.operands import wide
from meta.dialect.torch.random import dropout_mask

MOST = 2**20
"""Scores that are computed at a time; more, where one query has more keys."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """What is done to scores, and to weights, of heads that come first.

    mask: None, or of the scores' batches, or those of its own that are repeated. cap: scores
    become ``cap * tanh(scores / cap)`` before all else; without a gradient.
    """

    mask: Tensor | None
    causal: bool
    scale: float
    window: tuple[int, ...] | None = None
    slopes: Tensor | None = None
    dropout_key: Tensor | None = None
    dropout_p: float = 0.0
    cap: float | None = None

    @property
    def drops(self) -> bool:
        """Whether weights are dropped."""
        return self.dropout_key is not None and self.dropout_p > 0

    @property
    def reach(self) -> tuple[int, int]:
        """How far queries look to the left and to the right, -1 for any distance."""
        left, right = self.window or (-1, -1)
        if self.causal:
            right = 0
        return left, right

    def visible(self, rows: Tensor, keys: Tensor) -> Tensor | None:
        """Return where queries may look, by positions of them and of keys; None for anywhere."""
        left, right = self.reach
        distance, seen = keys - rows.unsqueeze(-1), None
        if right >= 0:
            seen = distance <= right
        if left >= 0:
            seen = distance >= -left if seen is None else seen & (distance >= -left)
        return seen


@dataclass(frozen=True, slots=True)
class Block:
    """Scores of heads, counted over batches, of queries and of keys: their bounds."""

    heads: slice
    rows: slice
    keys: slice


class Blocks:
    """The blocks of one attention: of query [b, h, l, d], key [b, g, s, d], value [b, g, s, e]."""

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> None:
        self.batch, self.heads, self.rows, _ = query.shape
        self.keys, self.share = key.shape[2], self.heads // max(key.shape[1], 1)
        self.wide, self.device = wide(query.dtype), query.device
        self.scoring = scoring
        self.query, self.key, self.value = (
            query.flatten(0, 1),
            key.flatten(0, 1),
            value.flatten(0, 1),
        )
        mask = scoring.mask
        self.mask = None if mask is None else mask.reshape((1,) * (4 - mask.ndim) + mask.shape)

    def __iter__(self) -> Iterator[Block]:
        heads, size = self.batch * self.heads, max(self.rows * self.keys, 1)
        if size <= MOST:
            each = MOST // size
            for n in range(0, heads, each):
                yield self._block(n, min(n + each, heads), 0, self.rows)
            return
        step = max(MOST // self.keys, 1)
        for n in range(heads):
            for i in range(0, self.rows, step):
                yield self._block(n, n + 1, i, min(i + step, self.rows))

    def _block(self, first: int, last: int, row: int, end: int) -> Block:
        left, right = self.scoring.reach
        begin = 0 if left < 0 else min(max(row - left, 0), self.keys)
        stop = self.keys if right < 0 else min(end + right, self.keys)
        return Block(slice(first, last), slice(row, end), slice(begin, max(begin, stop)))

    def of_query(self, x: Tensor, at: Block) -> Tensor:
        """Return the part of [b * h, l, ..] in the computing dtype."""
        return x[at.heads, at.rows].to(self.wide)

    def of_key(self, x: Tensor, at: Block) -> Tensor:
        """Return the part of [b * g, s, ..], for each head of query."""
        x = x[:, at.keys]
        if self.share == 1:
            return x[at.heads].to(self.wide)
        return x[self._numbers(at) // self.share].to(self.wide)

    def _numbers(self, at: Block) -> Tensor:
        return torch.arange(at.heads.start, at.heads.stop, device=self.device)

    def distances(self, at: Block) -> Tensor:
        """Return how far keys are from queries."""
        rows, keys = self._positions(at)
        return (keys - rows.unsqueeze(-1)).abs().to(self.wide)

    def _positions(self, at: Block) -> tuple[Tensor, Tensor]:
        rows = torch.arange(at.rows.start, at.rows.stop, device=self.device)
        return rows, torch.arange(at.keys.start, at.keys.stop, device=self.device)

    def of_mask(self, mask: Tensor, at: Block) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return a view of rows and keys of a mask of four axes, and which batches and heads are
        those of the block.
        """
        numbers = self._numbers(at)
        batches = numbers // self.heads % mask.shape[0]
        heads = numbers % self.heads % mask.shape[1]
        rows = at.rows if mask.shape[2] != 1 else slice(None)
        keys = at.keys if mask.shape[3] != 1 else slice(None)
        return mask[:, :, rows, keys], (batches, heads)

    def scores(self, at: Block) -> Tensor:
        """Return the scores of a block, -inf where a query may not look."""
        how = self.scoring
        found = self.of_query(self.query, at) @ self.of_key(self.key, at).mT * how.scale
        if how.cap is not None:
            found = torch.tanh(found / how.cap) * how.cap
        if self.mask is not None:
            part, numbers = self.of_mask(self.mask, at)
            if part.dtype == torch.bool:
                found = found.masked_fill(~part[numbers], -torch.inf)
            else:
                found = found + part[numbers]
        if how.slopes is not None:
            slopes = how.slopes.to(self.wide).expand(self.batch, self.heads).flatten()
            found = found - slopes[at.heads, None, None] * self.distances(at)
        seen = how.visible(*self._positions(at))
        return found if seen is None else found.masked_fill(~seen, -torch.inf)

    def dropped(self, x: Tensor, at: Block) -> Tensor:
        """Return weights of a block, or the gradient of what becomes of them, with dropout."""
        how = self.scoring
        if not how.drops:
            return x
        assert how.dropout_key is not None
        shape = (x.shape[0], x.shape[1], self.keys)
        first = (at.heads.start * self.rows + at.rows.start) * self.keys
        mask = dropout_mask(how.dropout_key, first, shape, how.dropout_p)
        return torch.where(mask[..., at.keys], x * (1 / (1 - how.dropout_p)), 0.0)

    def gradients(
        self, y: Tensor, logsumexp: Tensor, dy: Tensor
    ) -> Iterator[tuple[Block, Tensor, Tensor]]:
        """Yield blocks with their probabilities, and the gradients of their scores."""
        y, dy, logsumexp = y.flatten(0, 1), dy.flatten(0, 1), logsumexp.flatten(0, 1)
        for at in self:
            p = torch.exp(self.scores(at) - logsumexp[at.heads, at.rows, None])
            slope = self.of_query(dy, at)
            flat = (slope * self.of_query(y, at)).sum(-1, keepdim=True)
            by_p = self.dropped(slope @ self.of_key(self.value, at).mT, at)
            yield at, p, p * (by_p - flat)


def forward(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor]:
    """Return the result and the logsumexp of the scores."""
    blocks = Blocks(query, key, value, scoring)
    lead = query.shape[:2]
    y = query.new_empty((lead.numel(), query.shape[2], value.shape[3]))
    sums = query.new_empty(y.shape[:2], dtype=blocks.wide)
    for at in blocks:
        scores = blocks.scores(at)
        found = torch.logsumexp(scores, -1)
        found = found.masked_fill(found == -torch.inf, 0)
        weights = blocks.dropped(torch.exp(scores - found.unsqueeze(-1)), at)
        y[at.heads, at.rows] = (weights @ blocks.of_key(blocks.value, at)).to(y.dtype)
        sums[at.heads, at.rows] = found
    return y.unflatten(0, lead), sums.unflatten(0, lead)


def backward(
    query: Tensor, key: Tensor, value: Tensor, y: Tensor, logsumexp: Tensor, dy: Tensor,
    scoring: Scoring,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of query, and those of key and value for each head of query."""
    blocks, flat = Blocks(query, key, value, scoring), dy.flatten(0, 1)
    shapes = [
        (blocks.query.shape[0], *x.shape[1:]) for x in (blocks.query, blocks.key, blocks.value)
    ]
    dq, dk, dv = (query.new_zeros(shape, dtype=blocks.wide) for shape in shapes)
    for at, p, ds in blocks.gradients(y, logsumexp, dy):
        ds = ds * scoring.scale
        dq[at.heads, at.rows] = ds @ blocks.of_key(blocks.key, at)
        dk[at.heads, at.keys] += ds.mT @ blocks.of_query(blocks.query, at)
        dv[at.heads, at.keys] += blocks.dropped(p, at).mT @ blocks.of_query(flat, at)
    lead = query.shape[:2]
    return dq.unflatten(0, lead), dk.unflatten(0, lead), dv.unflatten(0, lead)


def of_mask(
    query: Tensor, key: Tensor, value: Tensor, y: Tensor, logsumexp: Tensor, dy: Tensor,
    scoring: Scoring,
) -> Tensor:  # fmt: skip
    """Return the gradient of the mask."""
    blocks = Blocks(query, key, value, scoring)
    assert scoring.mask is not None and blocks.mask is not None
    total = torch.zeros_like(blocks.mask, dtype=blocks.wide)
    for at, _, ds in blocks.gradients(y, logsumexp, dy):
        part, numbers = blocks.of_mask(total, at)
        for axis in (1, 2):
            if total.shape[axis + 1] == 1:
                ds = ds.sum(axis, keepdim=True)
        part.index_put_(numbers, ds, accumulate=True)
    return total.reshape(scoring.mask.shape)


def of_slopes(
    query: Tensor, key: Tensor, value: Tensor, y: Tensor, logsumexp: Tensor, dy: Tensor,
    scoring: Scoring,
) -> Tensor:  # fmt: skip
    """Return the gradient of the slopes."""
    blocks = Blocks(query, key, value, scoring)
    assert scoring.slopes is not None
    total: Tensor = query.new_zeros(query.shape[:2].numel(), dtype=blocks.wide)
    for at, _, ds in blocks.gradients(y, logsumexp, dy):
        total[at.heads] -= (ds * blocks.distances(at)).sum((1, 2))
    by_batch = total.view(query.shape[:2])
    return by_batch if scoring.slopes.ndim == 2 else by_batch.sum(0)
