"""Beam search beside that of transformers: tokens, order and scores; constraints, stops, errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from meta import language
from meta.base.errors import ArgumentError
from tests.language.folders import of_bytes, prompts

Pair = tuple[Any, language.Decoder]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Return a model of transformers and ours, whose texts often end."""
    path = tmp_path_factory.mktemp("mistral")
    of_bytes(path, "mistral", vocab_size=40, initializer_range=0.4, eos_token_id=None)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    return theirs, language.load(path)


@pytest.mark.parametrize(
    "options",
    [
        {"beams": 2},
        {"beams": 4, "ends": [5]},
        {"beams": 3, "ends": [5, 7, 11], "length_penalty": 0.0},
        {"beams": 5, "ends": [5, 7], "length_penalty": -1.5},
        {"beams": 4, "ends": [5, 9], "length_penalty": 2.0},
        {"beams": 3, "ends": [6], "repetition_penalty": 1.4},
        {"beams": 30, "ends": [6], "max_new_tokens": 4},
        {"beams": 3, "ends": [6], "max_new_tokens": 1},
    ],
)
def test_texts_are_those_of_transformers(pair: Pair, options: dict[str, Any]) -> None:
    theirs, decoder = pair
    options = {"max_new_tokens": 20, **options}
    beams, ends = options["beams"], options.pop("ends", [])
    of = [[t % 40 for t in p] for p in prompts(4, 13, 1)]
    found = language.generate(decoder, of, end_tokens=ends, **options)
    for prompt, best in zip(of, found, strict=True):
        same = {("num_beams" if n == "beams" else n): x for n, x in options.items()}
        wanted = theirs.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False,
            eos_token_id=ends or None, pad_token_id=0, num_return_sequences=beams,
            return_dict_in_generate=True, output_scores=True, **same,
        )  # fmt: skip
        every = [best, *best.others]
        assert len(every) == beams
        for ours, row, score in zip(every, wanted.sequences, wanted.sequences_scores, strict=True):
            text = row[len(prompt) :].tolist()
            end = next((i for i, t in enumerate(text) if t in ends), None)
            assert ours.tokens.tolist() == text[:end]
            assert ours.reason == ("length" if end is None else "end")
            assert ours.score is not None and abs(ours.score / score.item() - 1) < 1e-5
            assert len(ours.logprobs) == len(ours.tokens)


def test_one_beam_is_the_most_probable_text(pair: Pair) -> None:
    options: dict[str, Any] = {"max_new_tokens": 9}
    plain = language.generate(pair[1], [3, 4], **options)
    found = language.generate(pair[1], [3, 4], beams=1, length_penalty=3.0, **options)
    assert found.tokens.tolist() == plain.tokens.tolist() and found.others == ()


def test_no_new_tokens(pair: Pair) -> None:
    found = language.generate(pair[1], [3, 4], beams=3, max_new_tokens=0)
    assert found.tokens.size == 0 and found.reason == "length"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 0}, "beams is an int >= 1"),
        ({"beams": True}, "beams is an int >= 1"),
        ({"beams": 2, "length_penalty": "a"}, "length_penalty is a number"),
        ({"beams": 2, "stream": True}, "stream does not go with beams"),
        ({"beams": 2, "cache": language.Cache()}, "cache does not go with beams"),
        ({"beams": 2, "draft": "ngram"}, "draft does not go with beams"),
        ({"beams": 2, "temperature": 0.5}, "temperature does not go with beams"),
    ],
)
def test_what_does_not_fit(pair: Pair, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        language.generate(pair[1], [1], **options)
