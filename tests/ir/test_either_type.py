"""The type of an `If` whose blocks know different things about their results."""

from __future__ import annotations

import pytest

from meta.ir import Block, If, Var, parse_type, type_of


def type_of_if(then: str | None, other: str | None) -> str:
    blocks = (Block((), Var("x", None if t is None else parse_type(t))) for t in (then, other))
    return str(type_of(If(Var("p"), *blocks)))


@pytest.mark.parametrize(
    ("then", "other", "expected"),
    [
        ("float32[2, n]", "float32[2, n]", "float32[2, n]"),
        ("float32[2, 3]", "float32[2, ?]", "float32[2, ?]"),
        ("float32[?, 3]", "float32[2, 3]", "float32[?, 3]"),
        ("float32[2]", None, "float32[2]"),
        (None, "float32[2]", "float32[2]"),
        ("(float32[2], float32[?])", "(float32[?], float32[2])", "(float32[?], float32[?])"),
        (
            "fn(float32[2]) -> (float32[2],)",
            "fn(float32[2]) -> (float32[?],)",
            "fn(float32[2]) -> (float32[?],)",
        ),
        # What does not fit is left to the verifier.
        ("float32[2]", "float32[3]", "float32[2]"),
        ("float32[2]", "(float32[2],)", "float32[2]"),
    ],
)
def test_the_type_of_either_block(then: str, other: str, expected: str) -> None:
    assert type_of_if(then, other) == expected
