"""Caches on the CPU: what is not seen is not read, parts of many slots, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.errors import GradientError, IndexOutOfRange, TraceError
from meta.dialect import prefer
from meta.model import Model, trace
from tests.op import attention_cache as records

DIALECTS = pytest.mark.parametrize("dialect", ["tvm", "torch"])
BOUNDS = {"float32": 1e-5, "bfloat16": 2e-2}


def wide(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def array(x: Any) -> Any:
    return meta.array(x) if isinstance(x, torch.Tensor) else x


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))


def seen(positions: torch.Tensor, row: int, slot: int, window: int | None) -> bool:
    return any(p - (window or p + 1) < slot <= p for p in positions[row].tolist())


@DIALECTS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize(
    ("positions", "how"),
    [
        ([[1100], [40], [-1]], {}),
        ([[1100], [40], [0]], {"window": 700, "score_cap": 3.0}),
        # Far apart.
        ([[90, 1000], [3, 5], [-1, 7]], {"window": 9}),
        ([[90, 1000], [3, 5], [-1, 7]], {"scale": 0.3}),
        ([[*range(300, 340)], [*range(20), *[-1] * 20], [*range(1080, 1120)]], {"window": 33}),
    ],
)
@pytest.mark.long
def test_what_is_not_seen_may_be_anything(
    positions: list[list[int]], how: dict[str, Any], paged: bool, dtype: str, dialect: str
) -> None:
    at, size, table = torch.tensor(positions), 1120, None
    if paged:
        size = 35
        table = torch.randperm(100, generator=torch.Generator().manual_seed(0))[:96].int()
        table = table.view(3, 32)
        table[0, 1] = -1  # nothing is there
    count = 3 if table is None else 100
    caches = random(count, 2, size, 20), random(count, 2, size, 12)
    given = [random(3, at.shape[1], 6, 20), *caches]
    query, *caches = (x.to(getattr(torch, dtype)) for x in given)
    args = [query, *caches, at, table, random(6)]
    wanted = records.cached_attention(*map(wide, args), **how)
    for cache in caches:
        kept = cache.clone()
        cache.fill_(torch.nan)
        for row in range(3):
            for slot in range(1120):
                place = records.slot(cache, row, slot, table)
                if place and seen(at, row, slot, how.get("window")):
                    cache[place[0], :, place[1]] = kept[place[0], :, place[1]]
    with prefer(dialect):
        found = op.cached_attention(*map(array, args), **how)
    bound = BOUNDS[dtype]
    torch.testing.assert_close(found.torch().double(), wanted, rtol=bound, atol=bound)


@DIALECTS
def test_a_cache_is_not_copied(dialect: str) -> None:
    keys, values = meta.array(random(2, 3, 9, 4)), meta.array(random(2, 3, 9, 5))
    memory = keys.torch().data_ptr(), values.torch().data_ptr()
    key, value, at = random(2, 1, 3, 4), random(2, 1, 3, 5), torch.tensor([[3], [8]])
    with prefer(dialect):
        made = op.cache_update(keys, values, *map(array, (key, value, at)))
    assert made[0] is keys and made[1] is values
    assert (keys.torch().data_ptr(), values.torch().data_ptr()) == memory
    assert torch.equal(keys.torch()[1, :, 8], key[1, 0])


@pytest.mark.parametrize(
    ("positions", "table", "says"),
    [
        ([[3, 9]], None, "positions"),
        ([[3, 8]], [[0, 2, 0]], "block_table"),
        ([[3, 27]], [[0, 1, 0]], "positions"),
    ],
)
def test_places_that_there_are_not(positions: Any, table: Any, says: str) -> None:
    shape = (2, 1, 9, 4) if table else (1, 1, 9, 4)
    caches = [meta.array(random(*shape)) for _ in "kv"]
    given = meta.array(positions), None if table is None else meta.array(table, dtype="int32")
    tokens = meta.array(random(1, 2, 1, 4))
    with pytest.raises(IndexOutOfRange, match=says):
        op.cache_update(*caches, tokens, tokens, *given)
    with pytest.raises(IndexOutOfRange, match=says):
        op.cached_attention(tokens, *caches, *given)


def test_there_is_no_gradient() -> None:
    query, cache = meta.array(random(1, 1, 2, 4)), meta.array(random(1, 1, 5, 4))
    query.requires_grad = True
    found = op.cached_attention(query, cache, cache, meta.array([[2]]))
    with pytest.raises(GradientError, match="a cache does not know"):
        (found.sum() + query.sum()).backward()


class Step(Model):
    """A token that is written and read."""

    records = False

    def build(self, keys: Any, values: Any, table: Any) -> None:
        self.caches, self.table = (keys, values), table

    @trace
    def forward(self, query: Any, key: Any, at: Any) -> Any:
        op.cache_update(*self.caches, key, key, at, self.table)
        return op.cached_attention(query, *self.caches, at, self.table)


@pytest.mark.parametrize("paged", [False, True])
def test_a_program_writes_and_reads_in_place(paged: bool) -> None:
    shape, table = (
        ((8, 2, 5, 4), torch.arange(8).int().view(1, 8)) if paged else ((1, 2, 40, 4), None)
    )
    caches = [meta.array(torch.full(shape, torch.nan)) for _ in "kv"]
    memory = [c.torch().data_ptr() for c in caches]
    keys, queries = random(12, 1, 1, 2, 4), random(12, 1, 1, 6, 4)
    step = Step(*caches, array(table)).train(False)
    run = meta.vm.compile(step, *map(meta.array, (queries[0], keys[0], torch.tensor([[0]]))))
    assert str(run).startswith("<executable on cpu: 2 kernels, arena 0 bytes")
    past = keys[:, 0, 0].double().movedim(0, 1)
    for i, (query, key) in enumerate(zip(queries, keys, strict=True)):
        found = run(*map(meta.array, (query, key, torch.tensor([[i]])))).torch()
        seen = past[:, : i + 1]
        scores = query[0, 0].double().view(2, 3, 4) @ seen.mT * 0.5
        wanted = (scores.softmax(-1) @ seen).view(1, 1, 6, 4)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    assert [c.torch().data_ptr() for c in caches] == memory


@pytest.mark.parametrize("own", [True, False])
def test_a_batch_of_grouped_heads(own: bool) -> None:
    """More texts, where each example has positions of its own, and else more heads."""
    query, keys, values = (random(3, 2, *s, 8) for s in ((2, 4), (2, 7), (2, 7)))
    at = torch.tensor([[[5, 6], [0, -1]]] * 3)

    def attend(q: Any, k: Any, v: Any, at: Any) -> Any:
        return op.cached_attention(q, k, v, at, window=3)

    batched: Any = meta.vmap(attend, (0, 0, 0, 0 if own else None))
    given = [meta.array(x) for x in (query, keys, values, at if own else at[0])]
    rows = [tuple(meta.array(x[i]) for x in (query, keys, values, at)) for i in range(3)]
    found = batched(*given).torch()
    torch.testing.assert_close(found, torch.stack([attend(*row).torch() for row in rows]))
    assert not batched.loops
    with pytest.raises(TraceError, match="an operator that writes to an array is given batched"):
        meta.vmap(lambda k, v, x: op.cache_update(k, v, x, x, meta.array(at[0])))(
            given[1], given[2], meta.array(random(3, 2, 2, 2, 8))
        )
