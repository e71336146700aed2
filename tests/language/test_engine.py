"""Continuous batching beside `generate` alone: arrivals, ends and lengths at random."""

from __future__ import annotations

import copy
import gc
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from meta import language
from meta.base.errors import ArgumentError
from tests.language.folders import FAMILIES, of_bytes, prompts, written

LENGTH = 160
WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.3},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.05, "repetition_penalty": 1.4, "presence_penalty": 0.5},
    {"frequency_penalty": 0.7, "logit_bias": {65: 3.0, 66: -50.0}},
]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> language.Decoder:
    return language.load(of_bytes(tmp_path_factory.mktemp("mistral"), "mistral"))


@pytest.fixture(scope="module")
def engine(decoder: language.Decoder) -> language.Engine:
    return language.Engine(decoder, rows=4, length=LENGTH, chunk=32)


def finish(engine: language.Engine) -> list[language.Piece]:
    pieces = []
    while engine.running or engine.waiting:
        pieces += engine.step()
    return pieces


def check_beside_alone(decoder: language.Decoder, engine: language.Engine, seed: int) -> None:
    """Requests come at any step, end by length, an end token or a stop, are cancelled, and wait
    again where there are few blocks; some begin alike. Each is what `generate` writes.
    """
    rng = random.Random(seed)
    asked: list[tuple[list[int], dict[str, Any], language.Request]] = []
    pieces: list[language.Piece] = []
    cancelled: set[int] = set()
    alike = prompts(50)[0]
    for prompt in prompts(20, 21, 22):  # more than ten blocks in the end
        options = {"max_new_tokens": 50, "end_tokens": (), "temperature": 1.0, "seed": seed}
        asked.append((prompt, options, engine.add(prompt, **options)))
    while len(asked) < 14 or engine.running or engine.waiting:
        if len(asked) < 14 and rng.random() < 0.6:
            (prompt,) = prompts(rng.choice([1, 2, 16, 31, 32, 33, rng.randint(1, 100)]))
            if rng.random() < 0.6:
                prompt = alike[: rng.randint(1, 50)] + prompt[:50]
            options = {**rng.choice(WAYS), "max_new_tokens": rng.choice([1, rng.randint(1, 50)])}
            options["seed"] = rng.randint(0, 9)
            options["end_tokens"] = rng.sample(range(256), rng.choice([0, 0, 8]))
            options["stop"] = rng.choice([(), ("e", "A ")])
            asked.append((prompt, options, engine.add(prompt, **options)))
        pieces += engine.step()
        if asked and rng.random() < 0.05:
            request = rng.choice(asked)[2]
            engine.cancel(request)
            if request.reason == "cancelled":
                cancelled.add(request.number)
    assert len(engine.running) == len(engine.waiting) == 0
    few = engine.pool.blocks_of(LENGTH) == len(engine.pool.arrays[0])
    assert (max(r.stays for *_, r in asked) > 1) == few
    for prompt, options, request in asked:
        wanted = language.generate(decoder, prompt, **options)
        found, count = request.text, len(request.text.tokens)
        own = [p for p in pieces if p.row == request.number]
        assert found.tokens == wanted.tokens[:count].tolist()
        assert np.abs(np.array(found.logprobs) - wanted.logprobs[:count]).max(initial=0) < 1e-3
        assert "".join(p.text or "" for p in own) == found.written
        if request.number in cancelled:
            assert request.reason == "cancelled" and all(p.reason is None for p in own)
        else:
            assert (request.reason, found.written) == (wanted.reason, wanted.text)
            assert count == len(wanted.tokens)
            assert [p.reason for p in own] == [None] * (len(own) - 1) + [wanted.reason]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("blocks", [None, 10])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.long
def test_a_text_is_what_it_is_alone(
    decoder: language.Decoder, seed: int, blocks: int | None, late: bool
) -> None:
    engine = language.Engine(decoder, rows=4, length=LENGTH, blocks=blocks, chunk=32)
    engine.late = late
    check_beside_alone(decoder, engine, seed)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_families(family: str, tmp_path: Path) -> None:
    """Idle rows, windows, learned positions, capped scores, experts."""
    written(tmp_path, family)
    decoder = language.load(tmp_path)
    engine = language.Engine(decoder, rows=3, length=96, blocks=9, chunk=32)
    asked = [engine.add(p, max_new_tokens=30, end_tokens=()) for p in prompts(50, 3, 20, 1, 33)]
    finish(engine)
    for request in asked:
        wanted = language.generate(decoder, request.prompt, max_new_tokens=30, end_tokens=())
        assert request.text.tokens == wanted.tokens.tolist()


def test_alternatives(decoder: language.Decoder, engine: language.Engine) -> None:
    engine.late = False
    asked = [engine.add([9, 8], max_new_tokens=3, alternatives=n, **WAYS[n % 2]) for n in (0, 1, 5)]
    pieces = finish(engine)
    for request, n in zip(asked, (0, 1, 5), strict=True):
        own = [p for p in pieces if p.row == request.number]
        for i, piece in enumerate(own):
            assert len(piece.alternatives) == n
            text = [9, 8, *request.text.tokens[:i]]
            for token, logprob in piece.alternatives:
                only = {token: 1e4}
                wanted = language.generate(decoder, text, max_new_tokens=1, logit_bias=only)
                assert abs(wanted.logprobs[0] - logprob) < 1e-4
            logprobs = [x for _, x in piece.alternatives]
            assert logprobs == sorted(logprobs, reverse=True)
            assert not logprobs or logprobs[0] >= piece.logprob - 1e-6


def test_nothing_is_compiled_later(decoder: language.Decoder, monkeypatch: Any) -> None:
    def fail(*arguments: Any) -> None:
        raise AssertionError("compiled")

    engine = language.Engine(decoder, rows=3, length=LENGTH, chunk=32)
    engine.compile()
    monkeypatch.setattr("meta.language.steps.compile_program", fail)
    for way in WAYS[:3]:
        for n in (1, 17, 30, 32, 64, 100):  # chunks of 16 and of 32, the first ones and others
            engine.add([5] * n, max_new_tokens=2, **way)
    finish(engine)
    with pytest.raises(AssertionError, match="compiled"):
        engine.add([5], **WAYS[4])
        finish(engine)


def test_memory_is_flat(engine: language.Engine) -> None:
    def sizes() -> int:
        gc.collect()
        return sum(
            t.numel() * t.element_size() for t in gc.get_objects() if isinstance(t, torch.Tensor)
        )

    def some() -> None:
        requests = []
        for i in range(60):
            requests.append(engine.add([3 + i] * (1 + i % 40), max_new_tokens=1 + i % 7, seed=i))
            if i % 5 == 0:
                engine.cancel(requests[-1])
        finish(engine)
        assert all(request.reason for request in requests)

    some()  # which compiles
    before = sizes()
    some()
    assert sizes() - before < 1 << 16


def test_what_texts_begin_with_is_read_once(
    decoder: language.Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = language.Engine(decoder, rows=2, length=LENGTH, block_size=8, chunk=32)
    counts: list[int] = []
    read = engine._read_part

    def count(request: language.Request, part: list[int], steps: int) -> Any:
        counts.append(len(part))
        return read(request, part, steps)

    monkeypatch.setattr(engine, "_read_part", count)
    (first,) = prompts(60)
    system, chat = first[:41], [*first]
    engine.add(first, max_new_tokens=1)
    finish(engine)
    assert counts == [32, 28]
    for prompt, parts in (
        ([*system, 7, 8, 9], [4]),  # five blocks of eight
        (first, [4]),  # the last token is read again, with its block
        (first[:40], [8]),
        ([5, *first[1:]], [32, 28]),
    ):
        counts.clear()
        request = engine.add(prompt, max_new_tokens=9, end_tokens=())
        finish(engine)
        assert counts == parts
        wanted = language.generate(decoder, prompt, max_new_tokens=9, end_tokens=())
        assert request.text.tokens == wanted.tokens.tolist()
    counts.clear()
    writing = engine.add([9, *first], max_new_tokens=40, end_tokens=())
    for _ in range(3):
        engine.step()
    engine.add([9, *first[:50]], max_new_tokens=1)  # while the other one is written
    finish(engine)
    assert counts == [32, 29, 3] and len(writing.text.tokens) == 40
    counts.clear()
    chat += engine.add(chat, max_new_tokens=30, end_tokens=()).text.tokens
    finish(engine)
    engine.add([*chat, 7], max_new_tokens=1)
    finish(engine)
    assert sum(counts) < 16


@pytest.mark.parametrize("late", [False, True])
def test_scores_that_are_no_numbers(decoder: language.Decoder, late: bool) -> None:
    """A text that fails does not touch others."""
    ours = copy.deepcopy(decoder)
    state = ours.state_dict()
    state["embed_tokens.weight"] = state["embed_tokens.weight"].numpy().copy()
    state["embed_tokens.weight"][77] = np.nan
    ours.load_state_dict(state)
    engine = language.Engine(ours, rows=2, length=64, blocks=8)
    engine.late = late
    good = [engine.add([5, 6 + i], max_new_tokens=20, logit_bias={77: -100}) for i in range(2)]
    bad = engine.add([5, 77], max_new_tokens=20)
    good.append(engine.add([5] * 40, max_new_tokens=20, logit_bias={77: -100}))
    (piece,) = [p for p in finish(engine) if p.row == bad.number]
    assert piece.reason == bad.reason == "failed" and piece.token is None
    for request in good:
        options = {"max_new_tokens": 20, "logit_bias": {77: -100}}
        wanted = language.generate(decoder, request.prompt, **options)
        assert request.text.tokens == wanted.tokens.tolist()


def test_blocks_come_back(decoder: language.Decoder) -> None:
    engine = language.Engine(decoder, rows=3, length=LENGTH, blocks=20, chunk=32)
    for i in range(40):
        request = engine.add(prompts(10 + 2 * i)[0], max_new_tokens=20)
        if i % 3 == 0:
            engine.step()
            engine.cancel(request)
    finish(engine)
    assert engine.pool.available < 20  # what was read is kept ...
    assert engine._prefixes.give_up(20) and engine.pool.available == 20  # ... until it is in need
    assert not engine._prefixes.give_up(21)


def test_prompts_are_read_in_chunks_between_tokens(engine: language.Engine) -> None:
    first = engine.add([3, 4], max_new_tokens=20, end_tokens=())
    engine.step()
    second = engine.add([5] * 100, max_new_tokens=1)  # four chunks of 32
    counts = []
    while second.reason is None:
        engine.step()
        counts.append(len(first.text.tokens))
    assert counts == [2, 3, 4, 5]
    finish(engine)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "a prompt is empty"),
        ("", {}, "a prompt is empty"),
        ([[1]], {}, "a prompt is a text, or a sequence of tokens"),
        ([256], {}, "a prompt has a token that is none"),
        ([1] * 100, {"max_new_tokens": 61}, "do not fit in the engine's texts"),
        ([1], {"max_new_tokens": 0}, "do not fit in the engine's texts"),
        ([1], {"max_new_tokens": True}, "max_new_tokens is an int"),
        ([1], {"temperature": [1.0, 2.0]}, "one value for each prompt"),
        ([1], {"temperature": float("nan")}, "temperature is out of range"),
        ([1], {"logit_bias": {256: 1.0}}, "names a token that is none"),
        ([1], {"seed": -1}, "a seed is an int >= 0"),
        ([1], {"heat": 1}, "heat"),
        ([1], {"alternatives": 21}, "alternatives is out of range"),
    ],
)
def test_what_does_not_fit(
    engine: language.Engine, prompt: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        engine.add(prompt, **{"max_new_tokens": 4, **options})
    assert not engine.waiting


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"rope_type": "dynamic", "factor": 4.0}, 40),
        (
            {
                "rope_type": "longrope",
                "short_factor": [1.0] * 4,
                "long_factor": [2.0] * 4,
                "original_max_position_embeddings": 20,
            },
            20,
        ),
        ({"rope_type": "linear", "factor": 2.0}, None),
    ],
)
def test_positions_that_depend_on_the_length(
    rope: dict[str, Any], longest: int | None, tmp_path: Path
) -> None:
    """Chunks and shared blocks cannot know it: it is a limit."""
    written(
        tmp_path, "llama2", max_position_embeddings=40, rope_parameters={**rope, "rope_theta": 1e4}
    )
    decoder = language.load(tmp_path)
    if longest is None:
        assert language.Engine(decoder, rows=1, length=99).length == 99
        return
    assert language.Engine(decoder, rows=1).length == longest
    with pytest.raises(ArgumentError, match="positions are fixed"):
        language.Engine(decoder, rows=1, length=longest + 1)


@pytest.mark.parametrize(
    "options",
    [
        {"rows": 0},
        {"length": 0},
        {"chunk": 1},
        {"chunk": 33},
        {"chunk": 0},
        {"length": 100, "blocks": 6},
        {"block_size": 0},
    ],
)
def test_engines_that_there_are_not(decoder: language.Decoder, options: dict[str, int]) -> None:
    with pytest.raises(ArgumentError):
        language.Engine(decoder, **options)
