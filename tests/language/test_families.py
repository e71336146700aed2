"""Decoders beside transformers: greedy tokens of texts longer than their windows, a ragged batch
beside one text at a time without a cache.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import meta
from meta import language
from tests.language.folders import FAMILIES, prompts, reference, written

ORDINARY = ("gemma2", "gpt-neox", "mistral", "qwen3-moe")
"""Those that have, together, every feature."""


def families(*ordinary: str) -> list[Any]:
    """Return all families, of which some are slow tests."""
    slow = pytest.mark.slow
    return [n if n in ordinary else pytest.param(n, marks=slow) for n in FAMILIES]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)


@pytest.mark.parametrize("name", families(*ORDINARY, "gpt2", "llama3", "olmo2", "qwen2-moe"))
def test_greedy_tokens_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    model = written(tmp_path, name)
    decoder = language.load(tmp_path)
    of = prompts(5, 1, 33)
    for temperature in (0.0, 1.5):  # random models repeat themselves unless tokens are drawn
        found = language.generate(
            decoder, of, max_new_tokens=200, end_tokens=(), temperature=temperature, seed=3
        )
        for prompt, completion in zip(of, found, strict=True):
            tokens = completion.tokens.tolist()
            best, logprobs = reference(model, prompt, tokens)
            assert tokens == best or (temperature and len(set(tokens)) > 20)
            assert abs(logprobs - meta.array(completion.logprobs).torch()).max() < 2e-4


@pytest.mark.parametrize("name", families("gemma2"))
def test_a_draft_guesses_and_changes_nothing(tmp_path: Path, name: str) -> None:
    written(tmp_path, name)
    decoder, of = language.load(tmp_path), prompts(5, 40)
    options: dict[str, Any] = {"max_new_tokens": 40, "end_tokens": (), "draft_tokens": 3}
    plain = language.generate(decoder, of, **options)
    drafts: tuple[Any, ...] = ("ngram", decoder)
    for draft in drafts:
        found = language.generate(decoder, of, draft=draft, **options)
        assert [c.tokens.tolist() for c in found] == [c.tokens.tolist() for c in plain]
    assert [c.guessed for c in found] == [30, 30]


@pytest.mark.parametrize("name", families(*ORDINARY[:2]))
def test_a_text_that_is_continued_is_one_that_was_read_at_once(tmp_path: Path, name: str) -> None:
    written(tmp_path, name)
    decoder = language.load(tmp_path)
    first, second = prompts(30, 3), prompts(2, 19)
    cache = language.Cache(2)
    begun = language.generate(decoder, first, max_new_tokens=9, cache=cache, end_tokens=())
    found = language.generate(decoder, second, max_new_tokens=30, cache=cache, end_tokens=())
    texts = [a + b.tokens.tolist() + c for a, b, c in zip(first, begun, second, strict=True)]
    wanted = language.generate(decoder, texts, max_new_tokens=30, end_tokens=())
    for a, b, text, known in zip(found, wanted, texts, cache.tokens, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        assert known == text + a.tokens.tolist()


ROPES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "yarn-mscale": {
        "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7,
        "mscale_all_dim": 0.4, "beta_fast": 8.0, "beta_slow": 2.0, "truncate": False,
    },
    "longrope": {
        "short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [1.0, 4.0, 9.0, 20.0],
        "original_max_position_embeddings": 32, "factor": 2.0,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ROPES)
def test_ways_to_stretch_positions(tmp_path: Path, name: str) -> None:
    """Texts that are read at once: what is in a cache was rotated for the length it had then."""
    rope = {"rope_type": name.split("-")[0], "rope_theta": 100.0, **ROPES[name]}
    model = written(tmp_path, name, "Llama", rope_parameters=rope, max_position_embeddings=32)
    decoder = language.load(tmp_path)
    for prompt in prompts(20, 31, 47):
        found = language.generate(decoder, prompt, max_new_tokens=1, end_tokens=())
        best, logprobs = reference(model, prompt, found.tokens.tolist())
        assert found.tokens.tolist() == best
        assert abs(float(logprobs[0]) - float(found.logprobs[0])) < 2e-4


@pytest.mark.parametrize("name", ["gemma2", "qwen3-moe"])
def test_half_precision(tmp_path: Path, name: str) -> None:
    model = written(tmp_path, name, initializer_range=0.05)
    decoder = language.load(tmp_path, dtype="bfloat16")
    assert decoder.embed_tokens.weight.dtype == "bfloat16"
    (prompt,) = prompts(40)
    found = language.generate(decoder, prompt, max_new_tokens=30, end_tokens=())
    _, logprobs = reference(model, prompt, found.tokens.tolist())
    assert abs(logprobs - meta.array(found.logprobs).torch()).max() < 0.1
