"""Tokens to characters while they arrive, beside the decoding of all at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta.language.text import Text
from tests.language.tokenizers_of_bytes import byte_tokenizer

TOKENIZER = byte_tokenizer()


def fed(tokens: list[int], limit: int, stop: tuple[str, ...] = ()) -> tuple[Text, list[str]]:
    text = Text(TOKENIZER, limit, (), stop)
    pieces = []
    for token in tokens:
        if text.reason is None:
            pieces.append(text.add(token, 0.0))
    return text, pieces


@given(st.text(max_size=30))
def test_pieces_are_the_text(text: str) -> None:
    tokens = TOKENIZER.encode(text).ids
    found, pieces = fed(tokens, len(tokens) or 1)
    assert "".join(pieces) == found.written == TOKENIZER.decode(tokens)
    assert found.tokens == tokens


@given(st.lists(st.integers(0, 255), max_size=20))
def test_bytes_that_are_no_text(tokens: list[int]) -> None:
    _, pieces = fed(tokens, len(tokens) or 1)
    assert "".join(pieces) == TOKENIZER.decode(tokens)


@given(
    st.text("ab\N{SNOWMAN}", max_size=20),
    st.lists(st.text("ab\N{SNOWMAN}", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_stops(text: str, stops: list[str]) -> None:
    tokens = TOKENIZER.encode(text).ids
    found, pieces = fed(tokens, len(tokens) + 1, tuple(stops))
    at = min((i for i in map(text.find, stops) if i >= 0), default=-1)
    if found.reason is None:  # some of it is held back
        assert at == -1 and text.startswith(found.written)
        held = text[len(found.written) :]
        assert not held or any(stop.startswith(held) for stop in stops)
    else:
        first = min(text.find(s) + len(s) for s in stops if s in text)
        assert found.reason == "stop" and found.written == "".join(pieces)
        seen = text[:first]
        assert found.written == seen[: min(i for i in map(seen.find, stops) if i >= 0)]


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_lengths(limit: int) -> None:
    found, _ = fed([65, 66, 67, 68], limit)
    assert found.written == "ABCD"[:limit] and found.reason == "length"


def test_an_end_gives_out_what_was_held_back() -> None:
    text = Text(TOKENIZER, 9, (7,), ("abc",))
    assert text.add(97, 0.0) == "" and text.add(98, 0.0) == ""
    assert text.add(7, 0.0) == "ab" and text.reason == "end" and text.tokens == [97, 98]
