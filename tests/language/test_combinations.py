"""Options in combination, drawn at random, beside a plain loop in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meta
from meta import language
from tests.language import reference
from tests.language.folders import of_bytes, resembling

VOCABULARY, NEW = 64, 14


@pytest.fixture(scope="module")
def decoders(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[language.Decoder, language.Decoder]:
    """Return a model with a window, and one that is like it."""
    path = tmp_path_factory.mktemp("mistral")
    decoder = language.load(of_bytes(path, "mistral", vocab_size=VOCABULARY, sliding_window=9))
    return decoder, resembling(decoder)


def wide(seeds: range) -> list[Any]:
    return [pytest.param(seed, marks=pytest.mark.slow) for seed in seeds]


def some(rng: Any, *choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


def options_of_row(rng: Any, drawing: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "repetition_penalty": some(rng, 1.0, 1.0, 1.3, 0.8),
        "presence_penalty": some(rng, 0.0, 0.0, 0.6),
        "frequency_penalty": some(rng, 0.0, 0.0, 0.4, -0.2),
        "logit_bias": some(rng, {}, {}, {int(rng.integers(VOCABULARY)): 2.0, 3: -1.0}),
    }
    if drawing:
        found |= {
            "temperature": some(rng, 0.0, 0.6, 1.0, 1.8),
            "top_k": some(rng, 0, 0, 5, 40),
            "top_p": some(rng, 1.0, 1.0, 0.9, 0.5),
            "min_p": some(rng, 0.0, 0.0, 0.05),
            "seed": int(rng.integers(2**40)),
        }
    return found


def common_options(rng: Any) -> dict[str, Any]:
    stops = [bytes(rng.integers(33, VOCABULARY, n).tolist()).decode() for n in (1, 2)]
    return {
        "end_tokens": some(rng, (), (int(rng.integers(VOCABULARY)),), (5, 9, 60)),
        "stop": some(rng, (), (), stops),
    }


def prompts(rng: Any, rows: int) -> list[list[int]]:
    return [rng.integers(0, VOCABULARY, rng.integers(1, 20)).tolist() for _ in range(rows)]


@pytest.mark.parametrize("seed", [*range(8), *wide(range(8, 40))])
@pytest.mark.long
def test_texts_are_those_of_a_plain_loop(
    decoders: tuple[language.Decoder, language.Decoder], seed: int
) -> None:
    rng, (decoder, like) = np.random.default_rng(seed), decoders
    rows = int(rng.integers(1, 4))
    of, every = prompts(rng, rows), [options_of_row(rng, drawing=True) for _ in range(rows)]
    common = common_options(rng)
    together: dict[str, Any] = {name: [own[name] for own in every] for name in every[0]}
    draft: Any = some(rng, None, "ngram", like)
    pool = language.BlockPool(decoder, 3 * rows)
    cache = some(rng, None, language.Cache(rows), language.Cache(rows, pool))
    options: dict[str, Any] = {
        "draft": draft, "draft_tokens": int(rng.integers(1, 6)), "cache": cache,
        "max_new_tokens": NEW, **common, **together,
    }  # fmt: skip
    if some(rng, False, True):
        pieces = list(language.generate(decoder, of, stream=True, **options))
        found = [of_pieces([p for p in pieces if p.row == row]) for row in range(rows)]
    else:
        completions = language.generate(decoder, of, **options)
        found = [(c.tokens.tolist(), c.text, c.reason) for c in completions]
    for prompt, own, (tokens, text, reason) in zip(of, every, found, strict=True):
        assert (tokens, reason) == reference.generated(decoder, prompt, NEW, **own, **common)
        stops = [bytes(tokens).decode("latin-1").find(stop) for stop in common["stop"]]
        assert text == bytes(tokens).decode()[: min((i for i in stops if i >= 0), default=None)]
    if cache is not None:
        more: dict[str, Any] = {"max_new_tokens": 5, "end_tokens": ()}
        anew = [[*text, 7] for text in cache.tokens]
        wanted = language.generate(decoder, anew, **more)
        found = language.generate(decoder, [[7]] * rows, cache=cache, draft="ngram", **more)
        assert [c.tokens.tolist() for c in found] == [c.tokens.tolist() for c in wanted]


def of_pieces(pieces: list[language.Piece]) -> tuple[list[int | None], str, str | None]:
    """Return tokens, text and why it ended, of the pieces of a text."""
    reason = pieces[-1].reason
    assert all(p.reason is None for p in pieces[:-1])
    tokens = [p.token for p in (pieces[:-1] if reason == "end" else pieces)]
    return tokens, "".join(p.text or "" for p in pieces), reason


def odd_behind_even(scores: Any, texts: list[list[int]]) -> Any:
    """A constraint by the last token of each text."""
    allowed = np.full(scores.shape, -np.inf, "float32")
    for row, text in zip(allowed, texts, strict=True):
        row[1 - text[-1] % 2 :: 2] = 0
    return scores + (allowed if isinstance(scores, np.ndarray) else meta.array(allowed))


@pytest.mark.parametrize("seed", [*range(5), *wide(range(5, 25))])
def test_beams_are_those_of_a_plain_search(
    decoders: tuple[language.Decoder, language.Decoder], seed: int
) -> None:
    rng, (decoder, _) = np.random.default_rng(seed), decoders
    of, every = prompts(rng, 2), [options_of_row(rng, drawing=False) for _ in range(2)]
    common: dict[str, Any] = {
        **common_options(rng),
        "beams": int(rng.integers(2, 6)),
        "length_penalty": some(rng, 1.0, 0.0, 2.0, -1.0),
        "constraint": some(rng, None, odd_behind_even),
    }
    together: dict[str, Any] = {name: [own[name] for own in every] for name in every[0]}
    found = language.generate(decoder, of, max_new_tokens=NEW, **common, **together)
    for prompt, own, best in zip(of, every, found, strict=True):
        wanted = reference.searched(decoder, prompt, NEW, **own, **common)
        for completion, (score, tokens, reason) in zip((best, *best.others), wanted, strict=True):
            assert (completion.tokens.tolist(), completion.reason) == (tokens, reason)
            assert completion.score is not None and abs(completion.score - score) < 1e-3
