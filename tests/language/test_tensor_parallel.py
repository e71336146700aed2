"""A decoder of which each rank has a part writes what it writes on one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meta
from meta import distributed as dist
from meta import language
from meta.base.errors import ArgumentError
from meta.language.service import Service
from meta.model.sharded_trace import record_exchanges
from tests.language.folders import prompts, written

WIDE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 64, "vocab_size": 98, "num_hidden_layers": 1
}  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "llama3": WIDE,  # heads of keys that serve two of queries each
    "gpt2": {"n_layer": 1},  # a vocabulary that ranks do not divide; biases
    "mistral": {"vocab_size": 98},  # a window
    "olmo2": {"num_key_value_heads": 4},  # a norm over all heads
    "gemma2": {},  # caps of scores
    "qwen2-moe": {},  # experts, which all ranks have whole
}
PROMPTS, OTHERS = prompts(7, 30, 1), prompts(2, 3, 4)
Texts = list[list[int]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def of(name: str) -> Path:
        path = tmp_path_factory.mktemp(name)
        written(path, name, **SIZES[name])
        return path

    return of


def loaded(path: Path, over: str | None, **options: Any) -> Any:
    decoder = language.load(path, **options)
    return decoder if over is None else dist.tensor_parallel(decoder, over=over)


def tokens(found: Any) -> Texts:
    return [c.tokens.tolist() for c in found]


def both(run: Callable[[str | None], Any], ranks: int) -> tuple[Any, list[Any]]:
    """Return what one rank finds, and what several do."""
    return run(None), dist.simulate({"tp": ranks}).run(run, "tp")


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("llama3", 2),
        ("gpt2", 4),
        ("mistral", 2),
        *(pytest.param(n, 2, marks=pytest.mark.slow) for n in ("gpt2", "gemma2", "qwen2-moe")),
        pytest.param("olmo2", 4, marks=pytest.mark.slow),
    ],
)
@pytest.mark.long
def test_texts_are_those_of_one_rank(folder: Callable[[str], Path], name: str, ranks: int) -> None:
    def run(over: str | None) -> tuple[Texts, np.ndarray, int]:
        decoder, kept = loaded(folder(name), over), language.Cache(3)
        how: dict[str, Any] = {"max_new_tokens": 14, "end_tokens": (), "cache": kept}
        found = language.generate(decoder, PROMPTS, **how)
        found += language.generate(decoder, OTHERS, temperature=1.0, seed=3, **how)
        logprobs = np.stack([c.logprobs for c in found])
        return tokens(found), logprobs, sum(x.nbytes for x in kept.arrays)

    (texts, logprobs, size), found = both(run, ranks)
    for other, probable, share in found:
        assert other == texts
        np.testing.assert_allclose(probable, logprobs, atol=1e-4)
        assert share * ranks == size


def engine_texts(decoder: language.Decoder) -> Texts:
    engine = language.Engine(decoder, rows=2)
    requests = [engine.add(p, max_new_tokens=8, temperature=1.0, seed=5) for p in PROMPTS]
    while any(request.reason is None for request in requests):
        engine.step()
    return [list(request.tokens) for request in requests]


def in_blocks(decoder: language.Decoder) -> Texts:
    pool = language.BlockPool(decoder, 16)
    assert pool.arrays[0].shape[1] == decoder.layers[0].attention.qkv_proj.weight.shape[0] // 64
    kept = language.Cache(3, pool)
    first = language.generate(decoder, PROMPTS, max_new_tokens=4, cache=kept)
    going_on = language.generate(decoder, [[]] * 3, max_new_tokens=4, cache=kept.fork())
    return tokens(first) + tokens(going_on)


USES: dict[str, Callable[[language.Decoder], Texts]] = {
    "beams": lambda d: tokens(language.generate(d, PROMPTS, max_new_tokens=6, beams=2)),
    "a draft": lambda d: tokens(
        language.generate(d, PROMPTS, max_new_tokens=12, draft="ngram", draft_tokens=2)
    ),
    "blocks": in_blocks,
    "an engine": engine_texts,
    "penalties, without a seed": lambda d: tokens(
        language.generate(d, PROMPTS, max_new_tokens=8, temperature=1.0, repetition_penalty=1.2)
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n == "a draft" else []) for n in USES]
)
def test_all_that_a_decoder_does(folder: Callable[[str], Path], name: str) -> None:
    def run(over: str | None) -> Texts:
        meta.random.seed(1)
        return USES[name](loaded(folder("llama3"), over))

    texts, found = both(run, 2)
    assert found == [texts] * 2 and any(texts)


@pytest.mark.parametrize("kind", ["int8", language.Quantization("int4", group=32, head=True)])
def test_quantized_weights(folder: Callable[[str], Path], kind: Any) -> None:
    def run(over: str | None) -> tuple[Texts, int]:
        decoder = loaded(folder("llama3"), over, quantize=kind)
        layers = [m for m in decoder.models() if isinstance(m, meta.model.QuantizedLinear)]
        found = language.generate(decoder, PROMPTS, max_new_tokens=12)
        return tokens(found), sum(layer.weight.nbytes for layer in layers)

    (texts, size), found = both(run, 2)
    assert found == [(texts, size // 2)] * 2


def shape_of(exchange: Any) -> tuple[int, ...]:
    return tuple(exchange.type.shape)


def test_what_ranks_exchange(folder: Callable[[str], Path]) -> None:
    """Of a token: its embedding, a sum behind attention and one behind the feed-forward layer, and
    the scores.
    """

    def run() -> list[tuple[str, tuple[int, ...]]]:
        decoder = loaded(folder("llama3"), "tp")
        with record_exchanges() as exchanges:
            language.generate(decoder, [1], max_new_tokens=2, end_tokens=())
        return [(e.collective, shape_of(e)) for e in exchanges if e.collective != "copy_to"]

    layer = [("reduce_from", (1, 64))] * 2
    step = [("reduce_from", (1, 1, 64)), *layer, ("gather_from", (1, 49))]
    assert dist.simulate({"tp": 2}).run(run) == [step] * 2


@pytest.mark.parametrize(
    ("ranks", "heads", "quantize", "match"),
    [
        (4, 2, None, "ranks must divide key_value_heads"),
        (3, 4, None, "ranks must divide key_value_heads"),
        (4, 4, language.Quantization("int4", group=32), "a weight of 4 bits is not divided by 4"),
        (4, 4, language.Quantization("int8", group=32), "'layers.0.attention.o_proj.scales' is"),
    ],
)
def test_what_ranks_cannot_divide(
    tmp_path: Path, ranks: int, heads: int, quantize: Any, match: str
) -> None:
    written(tmp_path, "llama3", **{**WIDE, "num_key_value_heads": heads})
    with pytest.raises(ArgumentError, match=match):
        dist.simulate({"tp": ranks}).run(lambda: loaded(tmp_path, "tp", quantize=quantize))


def test_a_server_is_of_one_rank(folder: Callable[[str], Path]) -> None:
    def run() -> tuple[int, ...]:
        decoder = language.load(folder("llama3"))
        alone = [language.decoding_bound(decoder, length).bytes for length in (4, 5)]
        dist.tensor_parallel(decoder, over="tp")
        each = [language.decoding_bound(decoder, length).bytes for length in (4, 5)]
        assert each[1] - each[0] == (alone[1] - alone[0]) // 2 and each[0] < 0.6 * alone[0]
        Service(language.Engine(decoder))
        return ()

    with pytest.raises(ArgumentError, match="a server has a decoder of one rank"):
        dist.simulate({"tp": 2}).run(run)


def test_a_cache_of_one_rank_is_another_decoders(folder: Callable[[str], Path]) -> None:
    def run() -> None:
        kept, decoder = language.Cache(), language.load(folder("llama3"))
        language.generate(decoder, [1, 2], max_new_tokens=2, cache=kept)
        dist.tensor_parallel(decoder, over="tp")
        assert language.generate(decoder, [1, 2], max_new_tokens=2).tokens.size == 2
        language.generate(decoder, [3], max_new_tokens=2, cache=kept)

    with pytest.raises(ArgumentError, match="this cache belongs to another decoder"):
        dist.simulate({"tp": 2}).run(run)
