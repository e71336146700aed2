"""Generation on a GPU beside the CPU: draws by a key for each row, drafts, beams, streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta import language, op
from tests.language.folders import of_bytes, prompts, resembling
from tests.language.test_speculation import OPTIONS

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return of_bytes(tmp_path_factory.mktemp("mistral"), "mistral")


@pytest.fixture(scope="module")
def decoder(folder: Path) -> language.Decoder:
    return language.load(folder, device="cuda")


@pytest.fixture(scope="module")
def like(decoder: language.Decoder) -> language.Decoder:
    return resembling(decoder)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("draw", [op.random_uniform, op.random_normal])
def test_each_row_has_a_key(draw: Any, dtype: str) -> None:
    keys = torch.tensor([3, -1, 2**62, 3])
    for shape in ((4, 7), (4, 1000), (4, 3, 512), (4,), (4, 0)):
        found = draw(meta.array(keys.cuda()), shape, dtype=dtype).torch()
        wanted = draw(meta.array(keys), shape, dtype=dtype).torch()
        assert torch.equal(found.cpu(), wanted) and torch.equal(found[0], found[3])
    many = torch.arange(70_000)
    found = draw(meta.array(many.cuda()), (70_000, 3), dtype=dtype).torch().cpu()
    assert torch.equal(found, draw(meta.array(many), (70_000, 3), dtype=dtype).torch())


@pytest.mark.parametrize("guess", ["ngram", "like", "itself"])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_draft_changes_no_token(
    decoder: language.Decoder, like: language.Decoder, name: str, guess: str
) -> None:
    of, options = prompts(5, 30, 1), {"max_new_tokens": 45, **OPTIONS[name]}
    drafts: dict[str, Any] = {"ngram": "ngram", "like": like, "itself": decoder}
    draft = drafts[guess]
    plain = language.generate(decoder, of, **options)
    for _ in range(3):  # programs are recorded once they were run
        found = language.generate(decoder, of, draft=draft, draft_tokens=3, **options)
        for a, b in zip(found, plain, strict=True):
            assert a.tokens.tolist() == b.tokens.tolist() and a.reason == b.reason
    assert guess != "itself" or sum(a.guessed for a in found) > 0


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.9, "seed": [3, 4]},
        {"beams": 4},
        {"beams": 3, "end_tokens": [5, 60, 61], "repetition_penalty": 1.3},
    ],
)
def test_tokens_are_those_of_the_cpu(
    folder: Path, decoder: language.Decoder, options: dict[str, Any]
) -> None:
    of, options = prompts(5, 30), {"max_new_tokens": 30, **options}
    wanted = language.generate(language.load(folder), of, **options)
    for _ in range(3):
        found = language.generate(decoder, of, **options)
        for a, b in zip(found, wanted, strict=True):
            every = zip((a, *a.others), (b, *b.others), strict=True)
            assert all(x.tokens.tolist() == y.tokens.tolist() for x, y in every)


def test_streams_by_turns_and_caches(decoder: language.Decoder, like: language.Decoder) -> None:
    options: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 30, "end_tokens": ()}
    alone = [language.generate(decoder, "ab", seed=s, **options).tokens.tolist() for s in (1, 2)]
    streams = [
        language.generate(decoder, "ab", seed=s, stream=True, draft=like, **options) for s in (1, 2)
    ]
    by_turns = list(zip(*streams, strict=True))
    assert [[p.token for p in pieces] for pieces in zip(*by_turns, strict=True)] == alone
    cache = language.Cache()
    stream = language.generate(
        decoder, "ab", seed=1, stream=True, draft="ngram", cache=cache, **options
    )
    begun = [next(stream).token for _ in range(7)]
    stream.close()
    more = language.generate(decoder, [[]], seed=[1], cache=cache, **options)[0]
    assert [*begun, *more.tokens.tolist()][:30] == alone[0]
