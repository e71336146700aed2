"""Speculation beside plain generation: the same tokens, whatever guesses, by whatever options."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meta import language
from meta.base.errors import ArgumentError
from tests.language.folders import of_bytes, prompts, resembling, written
from tests.language.test_sampling import fits


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> language.Decoder:
    return language.load(of_bytes(tmp_path_factory.mktemp("mistral"), "mistral"))


@pytest.fixture(scope="module")
def like(decoder: language.Decoder) -> language.Decoder:
    return resembling(decoder)


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 0.8, "seed": 3},
    "rows": {"temperature": [0.0, 1.3, 0.5], "top_k": [0, 20, 0], "top_p": 0.9, "seed": [4, 5, 4]},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    "bias": {"logit_bias": [{7: 3.0, 8: 2.5}, {}, {9: 4.0}], "temperature": 1.0, "seed": 1},
    "floor": {"temperature": 1.0, "min_p": 0.1, "seed": 9, "frequency_penalty": 0.3},
    "stop": {"stop": ["a", "\n"], "temperature": 1.5, "seed": 2},
}


@pytest.mark.product
@pytest.mark.parametrize("guess", ["ngram", "like", "itself"])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_tokens_are_those_without_a_draft(
    decoder: language.Decoder, like: language.Decoder, name: str, guess: str
) -> None:
    of, options = prompts(5, 30, 1), {"max_new_tokens": 45, **OPTIONS[name]}
    plain = language.generate(decoder, of, **options)
    drafts: dict[str, Any] = {"ngram": "ngram", "like": like, "itself": decoder}
    draft = drafts[guess]
    found = language.generate(decoder, of, draft=draft, draft_tokens=3, **options)
    for a, b in zip(found, plain, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist() and a.reason == b.reason and a.text == b.text
        assert np.abs(a.logprobs - b.logprobs).max(initial=0) < 1e-4
        assert b.guessed == 0 <= a.guessed <= len(a.tokens)
        if guess == "itself":
            assert a.guessed >= 0.7 * len(a.tokens) - 1
    if guess == "like" and name == "greedy":
        assert sum(a.guessed for a in found) > 5


@pytest.mark.parametrize("guess", ["ngram", "like"])
def test_a_cache_goes_on_and_streams_end_anywhere(
    decoder: language.Decoder, like: language.Decoder, guess: str
) -> None:
    draft: Any = like if guess == "like" else guess
    options: dict[str, Any] = {"temperature": 0.7, "seed": 8, "end_tokens": ()}
    of = prompts(9, 20)
    whole = language.generate(decoder, of, max_new_tokens=40, **options)
    for left in (2, 5, 11):
        cache = language.Cache(2)
        stream = language.generate(
            decoder, of, max_new_tokens=17, stream=True, cache=cache, draft=draft, **options
        )
        pieces = [next(stream) for _ in range(left)]
        stream.close()
        for row, (text, length) in enumerate(zip(cache.tokens, cache.lengths, strict=True)):
            begun = [p.token for p in pieces if p.row == row]
            assert text == of[row] + begun and length == len(of[row]) + max(len(begun) - 1, 0)
        found = language.generate(
            decoder, [[], []], max_new_tokens=15, cache=cache, draft=draft, **options
        )
        for row, completion in enumerate(found):
            begun = [p.token for p in pieces if p.row == row]
            wanted = whole[row].tokens[len(begun) : len(begun) + 15]
            assert completion.tokens.tolist() == wanted.tolist()


@pytest.mark.parametrize("new", [0, 1, 2, 3])
def test_short_texts(decoder: language.Decoder, new: int) -> None:
    plain = language.generate(decoder, prompts(4, 2), max_new_tokens=new)
    found = language.generate(decoder, prompts(4, 2), max_new_tokens=new, draft="ngram")
    assert [c.tokens.tolist() for c in found] == [c.tokens.tolist() for c in plain]


def test_a_text_that_repeats_is_guessed(decoder: language.Decoder) -> None:
    options: dict[str, Any] = {"max_new_tokens": 41, "logit_bias": {65: 1e4}}
    found = language.generate(decoder, "A", draft="ngram", **options)
    assert found.text == "A" * 41 and found.guessed == 32
    pieces = language.generate(decoder, "A", draft="ngram", draft_tokens=9, stream=True, **options)
    assert [p.guessed for p in pieces] == [False, *([True] * 9 + [False]) * 4]


def test_texts_that_are_written_by_turns(decoder: language.Decoder) -> None:
    options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0, "end_tokens": ()}
    alone = [language.generate(decoder, "ab", seed=s, **options).tokens.tolist() for s in (1, 2)]
    streams = [language.generate(decoder, "ab", seed=s, stream=True, **options) for s in (1, 2)]
    by_turns = list(zip(*streams, strict=True))
    assert [[p.token for p in pieces] for pieces in zip(*by_turns, strict=True)] == alone


def test_frequencies_that_change_with_the_text(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    of_bytes(tmp_path, "llama2", rope_parameters=rope, max_position_embeddings=24)
    decoder = language.load(tmp_path)
    plain = language.generate(decoder, prompts(6)[0], max_new_tokens=60)
    found = language.generate(decoder, prompts(6)[0], max_new_tokens=60, draft=decoder)
    assert found.tokens.tolist() == plain.tokens.tolist()
    assert np.abs(found.logprobs - plain.logprobs).max() < 1e-4


def test_texts_up_to_the_last_position(tmp_path: Path) -> None:
    decoder = language.load(of_bytes(tmp_path, "gpt2", max_position_embeddings=40))
    plain = language.generate(decoder, [3, 4], max_new_tokens=39, end_tokens=())
    found = language.generate(decoder, [3, 4], max_new_tokens=39, end_tokens=(), draft="ngram")
    assert found.tokens.tolist() == plain.tokens.tolist()
    options: dict[str, Any] = {"draft": decoder, "draft_tokens": 3}
    found = language.generate(decoder, [3, 4], max_new_tokens=36, end_tokens=(), **options)
    assert found.tokens.tolist() == plain.tokens.tolist()[:36]
    with pytest.raises(ArgumentError, match="no positions for so long a text"):
        language.generate(decoder, [3, 4], max_new_tokens=37, **options)


def test_pairs_of_tokens_have_their_distribution(tmp_path: Path) -> None:
    """By Pearson's test, of a batch of texts that a draft guesses."""
    written(tmp_path, "llama2", vocab_size=8, eos_token_id=None, initializer_range=0.6)
    decoder, rows = language.load(tmp_path), 2000
    like = copy.deepcopy(decoder)
    like.load_state_dict({n: a * 0.9 for n, a in decoder.state_dict().items()})
    first, prompt = np.zeros((8, 8)), [3, 4, 5]
    options: dict[str, Any] = {
        "max_new_tokens": 1,
        "logit_bias": [{token: 1e6} for token in range(8)],
    }
    begun = language.generate(decoder, [prompt] * 8, **options)
    for token in range(8):
        then = language.generate(decoder, [[*prompt, token]] * 8, **options)
        assert [c.tokens.tolist() for c in (begun[token], *then)] == [
            [token],
            *([t] for t in range(8)),
        ]
        first[token] = [np.exp(begun[token].logprobs[0] + c.logprobs[0]) for c in then]
    assert abs(first.sum() - 1) < 1e-4
    for draft in (like, "ngram"):
        found = language.generate(
            decoder,
            [prompt] * rows,
            max_new_tokens=2,
            temperature=1.0,
            seed=5,
            draft=draft,
            draft_tokens=1,
        )
        counts = np.zeros((8, 8))
        for completion in found:
            counts[tuple(completion.tokens)] += 1
        assert fits(counts.ravel(), first.ravel() / first.sum() * rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft": "n-gram"}, 'draft is a decoder, or "ngram"'),
        ({"draft": 3}, 'draft is a decoder, or "ngram"'),
        ({"draft": "ngram", "draft_tokens": 0}, "draft_tokens is an int >= 1"),
        ({"draft": "ngram", "draft_tokens": 2.0}, "draft_tokens is an int >= 1"),
        ({"draft": "ngram", "constraint": lambda s, t: s}, "one by one, not guesses"),
    ],
)
def test_what_does_not_fit(
    decoder: language.Decoder, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        language.generate(decoder, "a", **options)


def test_a_draft_of_other_tokens(decoder: language.Decoder, tmp_path: Path) -> None:
    written(tmp_path, "llama2")
    with pytest.raises(ArgumentError, match="a draft has the tokens of the model"):
        language.generate(decoder, "a", draft=language.load(tmp_path))
