"""Generation: caches, streams, ends, penalties, constraints; what does not fit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import language
from meta.base.errors import ArgumentError, OutOfMemory
from tests.language.folders import of_bytes, prompts, written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return of_bytes(tmp_path_factory.mktemp("mistral"), "mistral")


@pytest.fixture(scope="module")
def decoder(folder: Path) -> language.Decoder:
    return language.load(folder)


def tokens(found: Any) -> list[list[int]]:
    return [c.tokens.tolist() for c in found]


def test_a_ragged_batch_is_one_text_after_the_other(decoder: language.Decoder) -> None:
    of = prompts(7, 40, 1, 16, 17)
    together = language.generate(decoder, of, max_new_tokens=40)
    alone = [language.generate(decoder, p, max_new_tokens=40) for p in of]
    assert tokens(together) == tokens(alone)
    assert [c.text for c in together] == [c.text for c in alone]
    for a, b in zip(together, alone, strict=True):
        assert np.abs(a.logprobs - b.logprobs).max() < 1e-5 and a.reason == b.reason


def test_a_stream_is_the_text(decoder: language.Decoder) -> None:
    options: dict[str, Any] = {"max_new_tokens": 30, "temperature": 1.0, "seed": 5}
    whole = language.generate(decoder, ["ab", "xyz"], **options)
    pieces = list(language.generate(decoder, ["ab", "xyz"], stream=True, **options))
    for row, completion in enumerate(whole):
        of = [p for p in pieces if p.row == row]
        assert "".join(p.text for p in of) == completion.text
        assert [p.token for p in of][: len(completion.tokens)] == completion.tokens.tolist()
        assert [p.reason for p in of] == [None] * (len(of) - 1) + [completion.reason]


def test_seeds(decoder: language.Decoder) -> None:
    def drawn(seed: int | None) -> list[list[int]]:
        options: dict[str, Any] = {"temperature": 1.0, "seed": seed, "max_new_tokens": 20}
        return tokens(language.generate(decoder, ["a", "a"], **options))

    one = drawn(1)
    assert one == drawn(1) and one != drawn(2) and one[0] != one[1]
    meta.random.seed(0)
    begun = [drawn(None), drawn(None)]
    meta.random.seed(0)
    assert begun == [drawn(None), drawn(None)] and begun[0] != begun[1]


def test_a_row_is_what_it_is_alone(decoder: language.Decoder) -> None:
    of, seeds = prompts(7, 40, 16), [5, 2, 5]
    options: dict[str, Any] = {"max_new_tokens": 24, "end_tokens": ()}
    several: dict[str, Any] = {
        "temperature": [1.0, 1.5, 0.7],
        "top_k": [0, 9, 0],
        "top_p": [1.0, 0.9, 0.8],
    }
    together = language.generate(decoder, of, seed=seeds, **several, **options)
    for row, prompt in enumerate(of):
        own = {name: values[row] for name, values in several.items()}
        alone = language.generate(decoder, prompt, seed=seeds[row], **own, **options)
        assert alone.tokens.tolist() == together[row].tokens.tolist()
        cache = language.Cache()
        half = {**own, **options, "max_new_tokens": 12, "seed": seeds[row], "cache": cache}
        parts = [language.generate(decoder, part, **half) for part in ([prompt], [[]])]
        assert [t for (part,) in parts for t in part.tokens] == alone.tokens.tolist()


def test_end_tokens_and_stops(decoder: language.Decoder) -> None:
    whole = language.generate(decoder, "hello", max_new_tokens=60, temperature=2.0, seed=1)
    end = int(whole.tokens[7])
    at = whole.tokens.tolist().index(end)
    found = language.generate(
        decoder, "hello", max_new_tokens=60, temperature=2.0, seed=1, end_tokens=[end]
    )
    assert found.reason == "end" and found.tokens.tolist() == whole.tokens[:at].tolist()
    stop = whole.text[10:13]
    found = language.generate(
        decoder, "hello", max_new_tokens=60, temperature=2.0, seed=1, stop=[stop, "never"]
    )
    assert found.reason == "stop" and found.text == whole.text[: whole.text.index(stop)]


def test_one_text_ends_before_the_others(decoder: language.Decoder) -> None:
    of = prompts(5, 9, 13)
    whole = language.generate(
        decoder, of, max_new_tokens=30, temperature=1.0, seed=2, end_tokens=()
    )
    end = int(whole[1].tokens[3])
    cache = language.Cache(3)
    found = language.generate(
        decoder, of, max_new_tokens=30, temperature=1.0, seed=2, end_tokens=[end], cache=cache
    )
    for a, b, prompt, known in zip(found, whole, of, cache.tokens, strict=True):
        text = b.tokens.tolist()
        assert a.tokens.tolist() == text[: text.index(end) if end in text else None]
        assert known == prompt + a.tokens.tolist()
    again = language.generate(decoder, prompts(2, 2, 2), max_new_tokens=8, cache=cache)
    texts = [k[:-8] if len(a.tokens) == 8 else k for a, k in zip(again, cache.tokens, strict=True)]
    assert tokens(again) == tokens(language.generate(decoder, texts, max_new_tokens=8))


def pools(decoder: language.Decoder) -> list[language.BlockPool | None]:
    """No pool, and small ones."""
    return [None, language.BlockPool(decoder, 90, 8), language.BlockPool(decoder, 80, 13)]


@pytest.mark.parametrize("which", range(3))
def test_caches_are_forked_and_cut(decoder: language.Decoder, which: int) -> None:
    (prefix,) = prompts(50)
    cache = language.Cache(1, pools(decoder)[which])
    language.generate(decoder, prefix, max_new_tokens=0, cache=cache)
    language.generate(decoder, [4], max_new_tokens=1, cache=cache)
    assert cache.lengths == [51] and len(cache.tokens[0]) == 52
    cache.truncate(50)
    ends = prompts(3, 8)
    forked = cache.fork(2)
    found = language.generate(decoder, ends, max_new_tokens=20, cache=forked)
    wanted = language.generate(decoder, [prefix + end for end in ends], max_new_tokens=20)
    assert tokens(found) == tokens(wanted)
    assert cache.tokens == [prefix] and cache.lengths == [50]
    more = prompts(4, 4)
    found = language.generate(decoder, more, max_new_tokens=9, cache=forked)
    texts = [t[: -len(f.tokens)] for t, f in zip(forked.tokens, found, strict=True)]
    assert tokens(found) == tokens(language.generate(decoder, texts, max_new_tokens=9))


@pytest.mark.parametrize("which", range(3))
def test_a_cache_grows(decoder: language.Decoder, which: int) -> None:
    cache, text = language.Cache(1, pools(decoder)[which]), prompts(60)[0]
    for prompt in [text, *prompts(150, 230)]:
        found = language.generate(decoder, prompt, max_new_tokens=20, cache=cache)
    assert cache.slots > 256
    wanted = language.generate(decoder, cache.tokens[0][:-20], max_new_tokens=20)
    assert found.tokens.tolist() == wanted.tokens.tolist()


def test_blocks_are_as_good_as_arrays(decoder: language.Decoder) -> None:
    pool = language.BlockPool(decoder, 60, 4)
    of = prompts(7, 40, 1, 16, 17)
    wanted = language.generate(decoder, of, max_new_tokens=20)
    for _ in range(2):
        cache = language.Cache(5, pool)
        found = language.generate(decoder, of, max_new_tokens=20, cache=cache)
        assert tokens(found) == tokens(wanted)
        assert [len(b) for b in cache.blocks] == [-(-(len(p) + 19) // 4) for p in of]
        # What was there is not read: not by others that get the blocks either.
        for array in pool.arrays:
            array.fill_(float("nan"))
        del cache
        assert pool.available == 60


def test_forks_share_blocks(decoder: language.Decoder) -> None:
    pool, (prefix,) = language.BlockPool(decoder, 30, 8), prompts(21)
    cache = language.Cache(1, pool)
    language.generate(decoder, prefix, max_new_tokens=0, cache=cache)
    language.generate(decoder, [5], max_new_tokens=1, cache=cache)
    assert cache.lengths == [22] and pool.available == 27
    both = cache.fork(2)
    assert both.blocks == cache.blocks * 2 and pool.available == 27
    found = language.generate(decoder, prompts(3, 6), max_new_tokens=4, cache=both)
    assert both.blocks[0][:2] == both.blocks[1][:2] == cache.blocks[0][:2]
    assert len({cache.blocks[0][2], both.blocks[0][2], both.blocks[1][2]}) == 3
    texts = [[*prefix, 5, *cache.tokens[0][22:], *p] for p in prompts(3, 6)]
    assert tokens(found) == tokens(language.generate(decoder, texts, max_new_tokens=4))
    both.truncate([9, 0])
    assert [len(b) for b in both.blocks] == [2, 0]
    del both
    assert pool.available == 27


def test_a_pool_that_is_full(decoder: language.Decoder) -> None:
    pool = language.BlockPool(decoder, 3, 8)
    cache = language.Cache(1, pool)
    with pytest.raises(OutOfMemory, match="3 free blocks of 8 tokens"):
        language.generate(decoder, prompts(20), max_new_tokens=9, cache=cache)
    assert (
        len(language.generate(decoder, prompts(20)[0], max_new_tokens=5, cache=cache).tokens) == 5
    )


def test_what_is_not_read_may_be_anything(decoder: language.Decoder) -> None:
    cache, of = language.Cache(2), prompts(30, 3)
    cache.reserve(decoder, 512)
    for array in cache.arrays:
        array.fill_(float("nan"))
    found = language.generate(decoder, of, max_new_tokens=30, cache=cache)
    assert tokens(found) == tokens(language.generate(decoder, of, max_new_tokens=30))
    assert sum(int(a[1].isfinite().any((0, 2)).sum()) for a in cache.arrays) == 32 * len(
        cache.arrays
    )


@pytest.mark.parametrize(("family", "size"), [("mistral", 8), ("gemma2", None)])
def test_halves_are_within_rounding(tmp_path: Path, family: str, size: int | None) -> None:
    """With windows shorter than the text, beside one read of all of it in float64."""
    written(tmp_path, family)
    half, wide = (language.load(tmp_path, dtype=d) for d in ("bfloat16", "float64"))
    of = prompts(40, 3)
    pool = None if size is None else language.BlockPool(half, 40, size)
    options: dict[str, Any] = {"max_new_tokens": 24, "end_tokens": ()}
    found = language.generate(half, of, cache=language.Cache(2, pool), **options)
    for completion, prompt in zip(found, of, strict=True):
        for k in (0, 23):
            text = [*prompt, *completion.tokens[:k].tolist()]
            token = int(completion.tokens[k])
            alone = language.generate(wide, text, max_new_tokens=1, logit_bias={token: 1e4})
            assert alone.tokens.tolist() == [token]
            assert abs(alone.logprobs[0] - completion.logprobs[k]) < 0.3


def test_a_stream_that_is_left_keeps_what_was_read(decoder: language.Decoder) -> None:
    cache = language.Cache()
    stream = language.generate(decoder, "abcdef", max_new_tokens=30, stream=True, cache=cache)
    begun = [next(stream).token for _ in range(4)]
    stream.close()
    assert cache.tokens == [[*b"abcdef", *begun]] and cache.lengths == [9]
    found = language.generate(decoder, "g", max_new_tokens=10, cache=cache)
    text = [*b"abcdef", *begun, *b"g"]
    assert found.tokens.tolist() == tokens([language.generate(decoder, text, max_new_tokens=10)])[0]


def test_penalties_beside_transformers(folder: Path, decoder: language.Decoder) -> None:
    (prompt,) = prompts(20)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    wanted = theirs.generate(
        torch.tensor([prompt]), max_new_tokens=40, repetition_penalty=1.7, do_sample=False,
        eos_token_id=None, pad_token_id=0,
    )[0, len(prompt) :].tolist()  # fmt: skip
    options: dict[str, Any] = {"max_new_tokens": 40, "end_tokens": ()}
    found = language.generate(decoder, prompt, repetition_penalty=1.7, **options)
    assert found.tokens.tolist() == wanted
    once = language.generate(decoder, prompt, presence_penalty=100.0, **options)
    assert len(set(once.tokens.tolist())) == 40


def test_a_bias_and_a_constraint(decoder: language.Decoder) -> None:
    options: dict[str, Any] = {"max_new_tokens": 6}
    found = language.generate(decoder, "a", logit_bias={65: 1e4}, **options)
    assert found.text == "AAAAAA"
    found = language.generate(decoder, ["a"] * 3, logit_bias=[{65: 1e4}, {}, {66: 1e4}], **options)
    alone = language.generate(decoder, "a", **options)
    assert [c.text for c in found] == ["AAAAAA", alone.text, "BBBBBB"]
    seen: list[list[list[int]]] = []

    def count(scores: Any, texts: list[list[int]]) -> Any:
        """Allow the digit behind the last one only."""
        seen.append(texts)
        allowed = np.full(scores.shape, -np.inf, "float32")
        for row, text in zip(allowed, texts, strict=True):
            row[48 + (text[-1] - 47) % 10] = 0
        return scores + meta.array(allowed)

    found = language.generate(decoder, ["7", "2"], max_new_tokens=5, constraint=count)
    assert [c.text for c in found] == ["89012", "34567"]
    assert seen[2] == [[55, 56, 57], [50, 51, 52]]


def test_a_model_that_was_moved_or_loaded_anew(folder: Path) -> None:
    decoder = language.load(folder)
    before = language.generate(decoder, "abc", max_new_tokens=10).logprobs
    state = {name: array * 0.5 for name, array in decoder.state_dict().items()}
    decoder.load_state_dict(state)
    changed = language.generate(decoder, "abc", max_new_tokens=10).logprobs
    assert np.abs(before - changed).max() > 1e-3
    copied = copy.deepcopy(decoder)
    again = language.generate(copied, "abc", max_new_tokens=10).logprobs
    assert np.abs(again - changed).max() < 1e-5
    decoder.to("float64")
    wide = language.generate(decoder, "abc", max_new_tokens=10).logprobs
    assert np.abs(wide - changed).max() < 1e-4


def test_a_model_whose_parts_are_replaced(folder: Path) -> None:
    decoder = language.load(folder)

    def found() -> Any:
        texts = [[97, 98, 99, 100], [101]]
        return tokens(language.generate(decoder, texts, max_new_tokens=5, end_tokens=()))

    before, compiled = found(), decoder.compiled
    assert found() == before and decoder.compiled is compiled
    decoder._note = "not a part of it"  # type: ignore[attr-defined]
    decoder.note = None  # type: ignore[attr-defined]
    assert found() == before and decoder.compiled is compiled
    first, second = decoder.layers[:2]
    decoder.layers[0], decoder.layers[1] = second, first  # in place, the same arrays elsewhere
    decoder.note = meta.ones((1,))  # type: ignore[attr-defined]
    found()
    assert decoder.compiled is not compiled
    decoder.layers[0], decoder.layers[1] = first, second
    assert found() == before
    weight = first.mlp.down_proj.weight
    for value in (meta.array(np.zeros(weight.shape, np.float32)), weight):
        compiled, first.mlp.down_proj.weight = decoder.compiled, value
        changed = found()
        assert decoder.compiled is not compiled
    assert changed == before


def test_texts_longer_than_the_models(tmp_path: Path) -> None:
    written(tmp_path, "gpt2", max_position_embeddings=40)
    decoder = language.load(tmp_path)
    assert len(language.generate(decoder, [3, 4], max_new_tokens=39, end_tokens=()).tokens) == 39
    with pytest.raises(ArgumentError, match="no positions for so long a text"):
        language.generate(decoder, [3, 4], max_new_tokens=40)


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([], {}, "there are no prompts"),
        ([[]], {}, "a prompt is empty"),
        ("", {}, "a prompt is empty"),
        ([[1.5]], {}, "a prompt is a text, or a sequence of tokens"),
        ([[[1]]], {}, "a prompt is a text, or a sequence of tokens"),
        ([256], {}, "a prompt has a token that is none"),
        ([-1], {}, "a prompt has a token that is none"),
        ("a", {"max_new_tokens": -1}, "max_new_tokens is an int"),
        ("a", {"max_new_tokens": True}, "max_new_tokens is an int"),
        ("a", {"cache": language.Cache(2)}, "a cache has a row for each prompt"),
        ("a", {"top_p": 2.0}, "top_p is out of range"),
        ("a", {"temprature": 1.0}, "there is no argument 'temprature'"),
        (["a", "b"], {"temperature": [1.0]}, "one value for each prompt"),
    ],
)
def test_what_does_not_fit(
    decoder: language.Decoder, prompts: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        language.generate(decoder, prompts, **options)


def test_a_cache_of_another_model(decoder: language.Decoder, tmp_path: Path) -> None:
    written(tmp_path, "llama2")
    cache = language.Cache()
    language.generate(decoder, "a", max_new_tokens=2, cache=cache)
    with pytest.raises(ArgumentError, match="belongs to another decoder"):
        language.generate(language.load(tmp_path), [5], cache=cache)
    with pytest.raises(ArgumentError, match="has no tokenizer"):
        language.generate(language.load(tmp_path), "a")
    with pytest.raises(ArgumentError, match="stop is of texts"):
        language.generate(language.load(tmp_path), [5], stop="a")
    with pytest.raises(ArgumentError, match="generate takes a decoder"):
        language.generate(meta.model.Linear(2, 2), [5])  # type: ignore[arg-type]


@pytest.mark.parametrize("beams", [1, 2])
def test_a_constraint_that_allows_nothing(decoder: language.Decoder, beams: int) -> None:
    def nothing(scores: Any, texts: list[list[int]]) -> Any:
        return scores + (0.0 if len(texts[0]) < 4 else -float("inf"))

    with pytest.raises(ArgumentError, match="the scores of a text are no numbers"):
        language.generate(decoder, "a", max_new_tokens=5, constraint=nothing, beams=beams)


def test_beams_where_few_tokens_are_allowed(decoder: language.Decoder) -> None:
    def two(scores: Any, texts: list[list[int]]) -> Any:
        allowed = np.full(scores.shape, -np.inf, "float32")
        allowed[:, [65, 66]] = 0
        return scores + meta.array(allowed)

    found = language.generate(decoder, "a", max_new_tokens=2, constraint=two, beams=8)
    every = [found, *found.others]
    assert sorted(c.text for c in every) == ["AA", "AB", "BA", "BB"]
    assert abs(sum(np.exp(c.logprobs.sum()) for c in every) - 1) < 1e-4
