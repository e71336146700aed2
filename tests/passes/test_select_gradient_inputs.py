"""select_gradient_inputs: what a gradient reads of the forward computation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.errors import RegistrationError
from meta.base.registry import OPERATORS
from meta.ir import Module, first_difference, parse, structural_equal, verify
from meta.model import Model, trace, value_and_grad
from meta.op.core import Tensor
from meta.op.core import op as make
from meta.passes import select_gradient_inputs
from meta.passes.lifetimes import Lifetimes
from meta.testing import check
from meta.vm.pipeline import PassContext

T = "float32[4]"


def main(text: str) -> Module:
    found = parse(f"func @main(%x: {T}, %dy: {T}) {text}")
    verify(found, typed=True)
    return found


def becomes(before: str, after: str) -> None:
    found, expected = select_gradient_inputs(main(before)), main(after)
    assert structural_equal(found, expected), f"{first_difference(found, expected)}\n{found}"
    assert structural_equal(select_gradient_inputs(found), found)


def same(text: str) -> None:
    becomes(text, text)


def test_of_two_given_values_the_one_that_lives_anyway_stays() -> None:
    before = """-> (float32[4], float32[4]) {{
      %a: float32[4] = exp(%x)
      %y: float32[4] = tanh(%a)
      %d: float32[4] = tanh_dx({given}, dy=%dy)
      %e: float32[4] = multiply(%d, {later})
      return (%e, %d)
    }}"""
    for later, chosen in (("%a", "%a, y=None"), ("%y", "x=None, y=%y")):
        becomes(
            before.format(given="%a, %y", later=later), before.format(given=chosen, later=later)
        )


def test_what_is_not_given_is_found_in_the_forward_call() -> None:
    becomes(
        """-> (float32[4], float32[]) {
          %a: float32[4] = exp(%x)
          %y: float32[4] = sigmoid(%a)
          %s: float32[] = sum(%y)
          %d: float32[4] = sigmoid_dx(None, %y, %dy)
          %e: float32[4] = multiply(%d, %a)
          return (%e, %s)
        }""",
        """-> (float32[4], float32[]) {
          %a: float32[4] = exp(%x)
          %y: float32[4] = sigmoid(%a)
          %s: float32[] = sum(%y)
          %d: float32[4] = sigmoid_dx(%a, None, %dy)
          %e: float32[4] = multiply(%d, %a)
          return (%e, %s)
        }""",
    )


def test_what_is_not_read_is_dropped() -> None:
    becomes(
        """-> float32[4] {
          %y: float32[4] = gelu(%x)
          %d: float32[4] = gelu_dx(%x, %y, %dy)
          return %d
        }""",
        """-> float32[4] {
          %y: float32[4] = gelu(%x)
          %d: float32[4] = gelu_dx(%x, None, %dy)
          return %d
        }""",
    )


@pytest.mark.parametrize(
    "text",
    [
        # Both would have to be kept: what is given stays.
        """-> float32[4] {
          %a: float32[4] = exp(%x)
          %y: float32[4] = relu(%a)
          %d: float32[4] = relu_dx(None, %y, %dy)
          return %d
        }""",
        # Both are kept anyway.
        """-> (float32[4], float32[4], float32[4]) {
          %a: float32[4] = exp(%x)
          %y: float32[4] = relu(%a)
          %d: float32[4] = relu_dx(None, %y, %dy)
          return (%d, %a, %y)
        }""",
        # The argument is written before the gradient reads it.
        """-> float32[4] {
          %y: float32[4] = relu(%x)
          %0: () = sgd(%x, %dy, %dy, 0.1, 0.0)
          %d: float32[4] = relu_dx(None, %y, %dy)
          return %d
        }""",
        # The result is not that of the forward operator.
        """-> float32[4] {
          %y: float32[4] = exp(%x)
          %d: float32[4] = sqrt_dx(None, %y, %dy)
          return %d
        }""",
        # Only one block of two uses it later.
        """-> float32[4] {
          %p: bool[] = any(%x)
          %a: float32[4] = exp(%x)
          %y: float32[4] = relu(%a)
          %e: float32[4] = if %p {
            %d: float32[4] = relu_dx(None, %y, %dy)
            yield %d
          } else {
            yield %a
          }
          return %e
        }""",
    ],
)
def test_what_stays(text: str) -> None:
    same(text)


def test_a_closure_keeps_what_it_reads_anyway() -> None:
    text = """-> (float32[4], fn(float32[4]) -> ({T}, {T})) {{
      %a: float32[4] = exp(%x)
      %y: float32[4] = tanh(%a)
      %z: float32[4] = exp(%y)
      %f: fn(float32[4]) -> ({T}, {T}) = fn(%d: float32[4]) -> ({T}, {T}) {{
        %m: float32[4] = multiply(%d, %a)
        %g: float32[4] = tanh_dx({}, dy=%d)
        return (%m, %g)
      }}
      return (%z, %f)
    }}"""
    before, after = (text.format(given, T=T) for given in ("x=None, y=%y", "%a, y=None"))
    becomes(before, after)


def test_later_choices_count() -> None:
    """The argument of main is there anyway, so %h is not; then it is no reason to read %h."""
    becomes(
        """-> float32[4] {
          %h: float32[4] = tanh(%x)
          %y: float32[4] = tanh(%h)
          %d: float32[4] = tanh_dx(None, %y, %dy)
          %e: float32[4] = tanh_dx(None, %h, %d)
          return %e
        }""",
        """-> float32[4] {
          %h: float32[4] = tanh(%x)
          %y: float32[4] = tanh(%h)
          %d: float32[4] = tanh_dx(None, %y, %dy)
          %e: float32[4] = tanh_dx(%x, None, %d)
          return %e
        }""",
    )


class Smooth(Model):
    """A sum of values whose arguments are needed anyway."""

    def build(self) -> None:
        self.w = meta.array(torch.linspace(-2, 2, 1024))
        self.w.requires_grad = True

    @trace
    def forward(self, x: Any) -> Any:
        a = op.multiply(op.exp(self.w), x)
        total = op.sum(op.multiply(a, a))
        for function in (op.tanh, op.sigmoid, op.relu, op.sqrt):
            total = op.add(total, op.sum(function(a)))
        return total


def test_less_memory_and_the_same_gradients() -> None:
    args = (meta.array(1.0), meta.array(torch.linspace(0.1, 1, 1024)))
    model = value_and_grad(Smooth())
    module = model.traced_entry().program(*args).module
    before, after = (
        max(Lifetimes(m.main, m).live_bytes()) for m in (module, select_gradient_inputs(module))
    )
    assert after <= before - 2 * 4096
    with PassContext(required=["select_gradient_inputs"]):
        y, gradients = meta.vm.compile(model, *args)(*args)
    expected = model(*args)
    check(y, expected[0], 1e-5, 1e-5)
    check(gradients["w"], expected[1]["w"], 1e-5, 1e-5)


def test_operators_that_have_the_choice_say_so() -> None:
    """A gradient operator that takes both x and y as optional says which of them are enough."""
    for name in OPERATORS:
        slots = {s.name for s in OPERATORS[name].slots if s.kind == "tensor" and s.optional}
        if slots == {"x", "y"}:
            assert OPERATORS[name].enough, name


def test_a_wrong_statement_is_an_error() -> None:
    with pytest.raises(RegistrationError, match="'z' is enough"):

        @make(enough=(("z",),))
        def wrong_dx(x: Tensor | None, dy: Tensor) -> Tensor:
            return dy
