"""Tests of small programs that would grow without bounds while they are converted."""

from __future__ import annotations

import pytest

import meta
from meta.frontend.relay.errors import RelayError
from tests.frontend.relay.convert.running import model_of

DOUBLED = "%0 = (%x, %x);" + "".join(f"%{i} = (%{i - 1}, %{i - 1});" for i in range(1, 60))
NESTED = "%0 = (%x,);" + "".join(f"%{i} = (%{i - 1},);" for i in range(1, 200))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"def @main(%x: float32) {{ {DOUBLED} %59 }}", "holds too much"),
        (f"def @main(%x: float32) {{ {DOUBLED} concatenate(%59, axis=0) }}", "holds too much"),
        (f"def @main(%x: float32) {{ {DOUBLED} let %r = ref(%59); %x }}", "holds too much"),
        (f"def @main(%x: float32) {{ {NESTED} %199 }}", "nested too deep"),
        (
            """type Tree[A] { Leaf, Two(Tree[A], Tree[A]) }
            def @main(%x: float32) { let %t0 = Leaf; """
            + "".join(f"let %t{i} = Two(%t{i - 1}, %t{i - 1});" for i in range(1, 60))
            + "let %u: Tree[float32] = %t59; %x }",
            "holds too much",
        ),
        (
            """def @f[A](%x: A) -> float32 { @g((%x, 1f)) }
            def @g[A](%x: A) -> float32 { @f((%x, %x)) }
            def @main(%x: float32) { @f(%x) }""",
            "holds too much",
        ),
    ],
)
def test_values_that_double(text: str, message: str) -> None:
    with pytest.raises(RelayError, match=message):
        model_of(text).program(meta.array(1.0))


def test_an_empty_axis_in_many_parts() -> None:
    text = "def @main(%x: Tensor[(0), float32]) { split(%x, indices_or_sections=100000000) }"
    with pytest.raises(RelayError, match="parts are more than"):
        model_of(text).program(meta.zeros((0,), "float32"))


def test_functions_that_call_one_twice_are_converted_once() -> None:
    text = "def @f0(%x: float32) -> float32 { %x + 1f }\n" + "\n".join(
        f"def @f{i}(%x: float32) -> float32 {{ @f{i - 1}(@f{i - 1}(%x)) }}" for i in range(1, 40)
    )
    text += "\ndef @main(%x: float32) { @f39(%x) }"
    assert len(model_of(text).program(meta.array(1.0)).module.functions) == 40
