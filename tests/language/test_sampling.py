"""Draws beside the definition of each option, by a chi-square test; penalties; errors."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import meta
from meta.base.errors import ArgumentError
from meta.language.sampling import Chooser, Sampling

VOCABULARY, DRAWS = 12, 20_000
SCORES = np.random.default_rng(0).normal(0, 1.5, VOCABULARY).astype("float32")


def softmax(x: Any) -> Any:
    power = np.exp(x - x.max())
    return power / power.sum()


def fits(counts: Any, wanted: Any) -> bool:
    """Tell whether counts may be draws with these expectations (Pearson's test)."""
    kept = wanted > 0
    if counts[~kept].any():
        return False
    stats = pytest.importorskip("scipy.stats")
    return kept.sum() == 1 or bool(stats.chisquare(counts[kept], wanted[kept]).pvalue > 1e-4)


def expected(**options: Any) -> Any:
    """Return the distribution of tokens, computed as the papers say it."""
    if not options.get("temperature"):
        return np.eye(VOCABULARY)[SCORES.argmax()]
    shares = softmax(SCORES.astype("float64") / options["temperature"])
    order = np.argsort(-shares)
    if options.get("top_k"):
        shares[order[options["top_k"] :]] = 0
        shares /= shares.sum()
    if "top_p" in options:
        before = np.cumsum(shares[order]) - shares[order]
        shares[order[(before >= options["top_p"]) & (np.arange(VOCABULARY) > 0)]] = 0
    if "min_p" in options:
        shares[shares < options["min_p"] * shares.max()] = 0
    return shares / shares.sum()


def drawn(sampling: Sampling, rows: int, seed: Any = 7, at: int = 5) -> np.ndarray:
    """Return a token for each of so many rows with the same scores."""
    numbers = replace(sampling, seed=seed).rows(rows, VOCABULARY)
    chooser = Chooser.of(numbers, VOCABULARY)
    values = {name: meta.array(x) for name, x in numbers.items()}
    scores = meta.array(np.broadcast_to(SCORES, (rows, VOCABULARY)).copy())
    found: np.ndarray = chooser.chosen(scores, values, meta.array([at] * rows)).numpy()
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 0.4},
        {"temperature": 2.5, "top_k": 3},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_k": 500},
        {"temperature": 1.0, "top_p": 0.7},
        {"temperature": 1.0, "top_p": 0.0},
        {"temperature": 1.5, "top_k": 5, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 2.0, "top_k": 9, "top_p": 0.95, "min_p": 0.3},
        {"temperature": 0.0, "top_k": 4, "top_p": 0.5},
    ],
)
def test_draws_follow_the_definition(options: dict[str, Any]) -> None:
    counts = np.bincount(drawn(Sampling(**options), DRAWS), minlength=VOCABULARY)
    wanted = expected(**options) * DRAWS
    assert fits(counts, wanted)


def test_rows_have_options_of_their_own() -> None:
    options: dict[str, Any] = {
        "temperature": [0.0, 1.0, 1.0, 3.0],
        "top_k": [0, 2, 0, 0],
        "top_p": [1, 1, 0.3, 1],
    }
    repeats = DRAWS // 4
    found = drawn(
        Sampling(**{n: np.repeat(v, repeats).tolist() for n, v in options.items()}), 4 * repeats
    )
    for row in range(4):
        counts = np.bincount(found[row * repeats : (row + 1) * repeats], minlength=VOCABULARY)
        one = {name: values[row] for name, values in options.items()}
        wanted = expected(**one) * repeats
        assert fits(counts, wanted)


def test_a_key_decides() -> None:
    sampling = Sampling(temperature=1.0, top_p=0.9)
    one, again, other = (drawn(sampling, 200, seed) for seed in (1, 1, 2))
    assert (one == again).all() and (one != other).any()
    assert (drawn(sampling, 200, 1, at=6) != one).any()


def test_a_row_is_drawn_by_its_seed_whatever_the_others_are() -> None:
    seeds = [7, 2**63, 7, 0]
    for temperature, top_k in (([1.0, 1.0, 0.0, 1.5], 0), (1.0, [0, 3, 5, 0])):
        together = drawn(Sampling(temperature, top_k), 4, seeds)
        for row, seed in enumerate(seeds):
            own = [x[row] if isinstance(x, list) else x for x in (temperature, top_k)]
            assert drawn(Sampling(*own), 1, seed)[0] == together[row]
    assert drawn(Sampling(1.0), 300, 4)[0] == drawn(Sampling(1.0), 1, [4])[0]


def test_generate_takes_all_that_sampling_has() -> None:
    taken = inspect.signature(meta.language.generate).parameters
    for field in fields(Sampling):
        assert taken[field.name].kind is inspect.Parameter.KEYWORD_ONLY
    assert taken["top_p"].default == 1.0 and "sampling" not in taken


def test_penalties() -> None:
    sampling = Sampling(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    rows = {name: meta.array(x) for name, x in sampling.rows(1, VOCABULARY).items()}
    known = np.zeros((1, VOCABULARY), bool)
    known[0, [0, 3]] = True
    counts = np.zeros((1, VOCABULARY), "int32")
    counts[0, [3, 5]] = 4, 1
    chooser = Chooser.of(sampling.rows(1, VOCABULARY), VOCABULARY)
    found = chooser.penalized(
        meta.array(SCORES[None]), rows, meta.array(known), meta.array(counts)
    ).numpy()[0]
    for token, score in enumerate(SCORES):
        if token in (0, 3, 5):
            score = score / 2 if score > 0 else score * 2
        score -= {3: 0.5 + 1.0, 5: 0.5 + 0.25}.get(token, 0)
        assert abs(found[token] - score) < 1e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature is out of range"),
        ({"temperature": float("nan")}, "temperature is out of range"),
        ({"top_p": 1.5}, "top_p is out of range"),
        ({"top_k": -1}, "top_k is out of range"),
        ({"top_k": 2.5}, "top_k is an integer"),
        ({"min_p": "a"}, "min_p is out of range"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is out of range"),
        ({"temperature": [1.0, 2.0]}, "one value for each prompt"),
        ({"seed": -1}, "a seed is an int >= 0"),
        ({"seed": [1, 2, True]}, "a seed is an int >= 0"),
        ({"seed": [1, 2]}, "one value for each prompt"),
        ({"logit_bias": [{}, {}]}, "one value for each prompt"),
        ({"logit_bias": {99: 1.0}}, "logit_bias names a token that is none"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Sampling(**options).rows(3, VOCABULARY)
