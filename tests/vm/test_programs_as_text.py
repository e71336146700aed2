"""Programs that a person wrote as text are verified before they are compiled."""

from __future__ import annotations

import pytest

import meta
from meta.base.errors import MetaError

HEAD = "func @main(%x: float32[3], %c: bool[]) -> float32[3]"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("%y: float32[4] = tanh(%x) return %y", "the result %y has type"),
        ("%y: float32[3] = tanh((%x)) return %y", "x is of another kind"),
        ("%y: float32[3] = concat(%x) return %y", "is of another kind"),
        ("%y: float32[3] = sum(%x, axis=%x) return %y", "axis is of another kind"),
        ("%y: float32[3] = tanh(%x, %x) return %y", "argument"),
        ("%y: float32[3] = @main(%x) return %y", "@main has 2 parameters"),
        ("%y: float32[3] = if %x { yield %x } else { yield %x } return %y", "the condition has"),
        ("%y: float32[3] = if (%c) { yield %x } else { yield %x } return %y", "the condition has"),
        ("return %c", "the result %c has type"),
        ("return %z", "%z"),
    ],
)
def test_what_is_wrong_is_an_error_that_says_so(body: str, says: str) -> None:
    types = [meta.ir.parse_type(t) for t in ("float32[3]", "bool[]")]
    with pytest.raises(MetaError, match=says.replace("(", r"\(")):
        meta.vm.compile(meta.ir.parse(f"{HEAD} {{ {body} }}"), *types)


def test_types_may_be_left_out() -> None:
    run = meta.vm.compile(
        meta.ir.parse("func @main(%x: float32[3]) { %y = exp(%x) return %y }"), meta.ones(3)
    )
    assert meta.allclose(run(meta.zeros(3)), meta.ones(3))
