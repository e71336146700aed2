"""Caches of keys and values on a GPU, beside oracles in float64; graphs of tokens that grow."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import language, op
from meta.dialect import prefer
from meta.model import Model, trace
from tests.op import attention_cache as records

pytestmark = pytest.mark.cuda
pytest.importorskip("triton")

BOUNDS = {"float16": 5e-3, "bfloat16": 4e-2, "float32": 2e-4}
SHAPES = {
    # n, steps, heads, groups, slots, width
    "llama": (2, 1, 32, 8, 4096, 64),
    "few": (3, 4, 8, 2, 1000, 128),
    "chunk": (1, 200, 8, 2, 700, 80),
    "wide": (1, 3, 4, 1, 513, 256),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 100, "score_cap": 20.0},
}


def gpu(x: Any) -> Any:
    return meta.array(x.cuda()) if isinstance(x, torch.Tensor) else x


def wide(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def arguments(name: str, dtype: str, paged: bool) -> list[Any]:
    """Return the arguments of `cached_attention`, of texts of different lengths."""
    n, steps, heads, groups, slots, width = SHAPES[name]
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(getattr(torch, dtype))

    size = 16 if paged else slots
    most = -(-slots // size)
    count, table = (n * most + 3, None) if paged else (n, None)
    if paged:
        table = torch.randperm(count, generator=generator)[: n * most].int().view(n, most)
    first = torch.linspace(slots // 3, slots - steps, n).long().unsqueeze(1)
    positions = first + torch.arange(steps)
    positions[0, max(steps // 2, 1) :] = -1
    caches = [random(count, groups, size, width) for _ in range(2)]
    return [random(n, steps, heads, width), *caches, positions, table, random(heads).float()]


def wanted(args: list[Any], how: dict[str, Any]) -> torch.Tensor:
    """Return what the oracle says of a few heads and tokens: it goes one by one."""
    query, keys, values, positions, table, sinks = map(wide, args)
    share = query.shape[2] // keys.shape[1]
    tokens, heads = slice(None, None, max(query.shape[1] // 3, 1)), slice(0, None, share)
    part = query[:, tokens, heads], keys, values, positions[:, tokens], table, sinks[heads]
    return records.cached_attention(*part, **how)


@pytest.mark.parametrize("dialect", ["triton", "torch"])
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("how", OPTIONS)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, "bfloat16") for n in SHAPES] + [("llama", "float32"), ("chunk", "float16")],
)
def test_attention(name: str, dtype: str, how: str, paged: bool, dialect: str) -> None:
    args = arguments(name, dtype, paged)
    with prefer(dialect):
        found = op.cached_attention(*map(gpu, args), **OPTIONS[how]).torch().cpu().double()
    share, steps = SHAPES[name][2] // SHAPES[name][3], SHAPES[name][1]
    part = found[:, :: max(steps // 3, 1), ::share]
    expected = wanted(args, OPTIONS[how])
    torch.testing.assert_close(part, expected, rtol=BOUNDS[dtype], atol=BOUNDS[dtype])


@pytest.mark.parametrize("dialect", ["triton", "torch"])
@pytest.mark.parametrize("paged", [False, True])
def test_what_is_written(paged: bool, dialect: str) -> None:
    args = arguments("chunk", "bfloat16", paged)
    _, keys, values, positions, table, _ = args
    positions[0, 3], positions[0, 5] = 10**6, -4
    new = [torch.randn(1, 200, 2, 80).bfloat16() for _ in "kv"]
    clean = positions.masked_fill(positions > 10**5, -1)
    expected = records.cache_update(keys, values, *new, clean, table)
    found = [gpu(x) for x in (keys, values)]
    with prefer(dialect):
        op.cache_update(*found, *map(gpu, new), gpu(positions), gpu(table))
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.torch().cpu(), b)


class Step(Model):
    """A token that is written and read."""

    records = False

    def build(self, keys: Any, values: Any, length: Any, table: Any) -> None:
        self.caches, self.length, self.table = (keys, values), length, table

    @trace
    def forward(self, query: Any, key: Any) -> Any:
        at = op.reshape(self.length, (-1, 1))
        op.cache_update(*self.caches, key, key, at, self.table)
        found = op.cached_attention(query, *self.caches, at, self.table)
        # Enough kernels for a graph to pay.
        twice = op.cached_attention(op.add(found, query), *self.caches, at, self.table)
        op.assign(self.length, op.add(self.length, 1))
        return found, twice


@pytest.mark.parametrize("paged", [False, True])
def test_graphs_replay_while_texts_grow(paged: bool) -> None:
    n, groups, slots, width = 2, 2, 512, 64
    shape = (66, groups, 16, width) if paged else (n, groups, slots, width)
    table = meta.array(torch.arange(64).int().view(n, 32).cuda()) if paged else None
    keys = [torch.randn(n, 1, groups, width).bfloat16() for _ in range(300)]
    queries = [torch.randn(n, 1, 8, width).bfloat16() for _ in range(300)]
    found = []
    for graph in (False, True):
        caches = [
            meta.array(torch.full(shape, torch.nan, dtype=torch.bfloat16, device="cuda"))
            for _ in "kv"
        ]
        length = meta.array(torch.tensor([0, 100]).cuda())
        for cache in caches:
            cache.tensor[1 if not paged else slice(32, 64)] = 0
        step = Step(*caches, length, table).train(False)
        run = meta.vm.compile(step, gpu(queries[0]), gpu(keys[0]), cuda_graph=graph)
        pairs = zip(queries, keys, strict=True)
        found.append([run(gpu(q), gpu(k))[0].torch().clone() for q, k in pairs])
    assert all(map(torch.equal, *found))
    first = queries[-1][0].double().unflatten(1, (groups, -1))[0]
    past = torch.stack([k[0, 0] for k in keys], 1).double()
    scores = torch.einsum("gsd,gtd->gst", first, past) * width**-0.5
    expected = (scores.softmax(-1) @ past).flatten(0, 1)
    torch.testing.assert_close(found[1][-1][0, 0].cpu().double(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("family", ["gemma2", "qwen3"])
def test_texts_are_those_of_the_cpu(family: str, tmp_path: Any) -> None:
    pytest.importorskip("transformers")
    from tests.language.folders import prompts, written

    written(tmp_path, family)
    of = prompts(40, 3, 17)
    texts = []
    for device in ("cpu", "cuda"):
        decoder = language.load(tmp_path, device=device)
        caches = [None, language.Cache(3), language.Cache(3, language.BlockPool(decoder, 90, 8))]
        for cache in caches:
            given: dict[str, Any] = {"max_new_tokens": 60, "end_tokens": (), "cache": cache}
            found = language.generate(decoder, of, **given)
            texts.append([c.tokens.tolist() for c in found])
    assert all(text == texts[0] for text in texts)
