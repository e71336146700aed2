"""lambda_lift: what becomes a function of the module, and what stays a closure."""

from __future__ import annotations

import pytest

from meta.ir import Module, bindings, first_difference, parse, structural_equal, verify
from meta.passes import lambda_lift


def lifted(before: str) -> Module:
    module = parse(before)
    verify(module, typed=True)
    found = lambda_lift(module)
    verify(found, typed=True)
    return found


def becomes(before: str, after: str) -> None:
    found, expected = lifted(before), parse(after)
    assert structural_equal(found, expected), f"{first_difference(found, expected)}\n{found}"
    assert structural_equal(lambda_lift(found), found)


def test_captures_of_captured_closures_become_parameters() -> None:
    becomes(
        """
        func @main(%x: float32[2], %w: float32[2]) -> float32[2] {
          %f: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
            %b: float32[2] = add(%a, %w)
            return %b
          }
          %g: fn(float32[2]) -> float32[2] = fn(%c: float32[2]) -> float32[2] {
            %d: float32[2] = %f(%c)
            return %d
          }
          %y: float32[2] = %g(%x)
          return %y
        }""",
        """
        func @main(%x: float32[2], %w: float32[2]) -> float32[2] {
          %y: float32[2] = @g(%x, %w)
          return %y
        }

        func @f(%a: float32[2], %w: float32[2]) -> float32[2] {
          %b: float32[2] = add(%a, %w)
          return %b
        }

        func @g(%c: float32[2], %w: float32[2]) -> float32[2] {
          %d: float32[2] = @f(%c, %w)
          return %d
        }""",
    )


def test_a_function_is_copied_once_per_closure_that_it_is_given() -> None:
    becomes(
        """
        func @twice(%f: fn(float32[2]) -> float32[2], %x: float32[2]) -> float32[2] {
          %a: float32[2] = %f(%x)
          %b: float32[2] = %f(%a)
          return %b
        }

        func @main(%x: float32[2], %w: float32[2]) -> float32[2] {
          %f: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
            %b: float32[2] = add(%a, %w)
            return %b
          }
          %u: float32[2] = @twice(%f, %x)
          %y: float32[2] = @twice(%f, %u)
          return %y
        }""",
        """
        func @main(%x: float32[2], %w: float32[2]) -> float32[2] {
          %u: float32[2] = @twice_1(%x, %w)
          %y: float32[2] = @twice_1(%u, %w)
          return %y
        }

        func @f(%a: float32[2], %w: float32[2]) -> float32[2] {
          %b: float32[2] = add(%a, %w)
          return %b
        }

        func @twice_1(%x: float32[2], %w: float32[2]) -> float32[2] {
          %a: float32[2] = @f(%x, %w)
          %b: float32[2] = @f(%a, %w)
          return %b
        }""",
    )


def test_a_known_argument_that_is_also_chosen_is_a_closure_in_the_copy() -> None:
    becomes(
        """
        func @main(%x: float32[2], %w: float32[2], %p: bool[]) -> float32[2] {
          %f: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
            %b: float32[2] = add(%a, %w)
            return %b
          }
          %y: float32[2] = @pick(%f, %x, %p)
          return %y
        }

        func @pick(%f: fn(float32[2]) -> float32[2], %x: float32[2], %p: bool[]) -> float32[2] {
          %g: fn(float32[2]) -> float32[2] = if %p {
            yield %f
          } else {
            %h: fn(float32[2]) -> float32[2] = fn(%c: float32[2]) -> float32[2] {
              return %c
            }
            yield %h
          }
          %y: float32[2] = %g(%x)
          %z: float32[2] = %f(%y)
          return %z
        }""",
        """
        func @main(%x: float32[2], %w: float32[2], %p: bool[]) -> float32[2] {
          %y: float32[2] = @pick_1(%x, %p, %w)
          return %y
        }

        func @f(%a: float32[2], %w: float32[2]) -> float32[2] {
          %b: float32[2] = add(%a, %w)
          return %b
        }

        func @pick_1(%x: float32[2], %p: bool[], %w: float32[2]) -> float32[2] {
          %f: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
            %b: float32[2] = @f(%a, %w)
            return %b
          }
          %g: fn(float32[2]) -> float32[2] = if %p {
            yield %f
          } else {
            %h: fn(float32[2]) -> float32[2] = fn(%c: float32[2]) -> float32[2] {
              return %c
            }
            yield %h
          }
          %y: float32[2] = %g(%x)
          %z: float32[2] = @f(%y, %w)
          return %z
        }""",
    )


def test_a_program_without_closures_is_the_same_object() -> None:
    module = parse("func @main(%x: float32[2]) -> float32[2] {\n  return %x\n}")
    assert lambda_lift(module) is module


@pytest.mark.parametrize(
    "text",
    [
        # chosen by an If
        """
        func @main(%x: float32[2], %p: bool[]) -> float32[2] {
          %f: fn(float32[2]) -> float32[2] = if %p {
            %g: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
              return %x
            }
            yield %g
          } else {
            %h: fn(float32[2]) -> float32[2] = fn(%b: float32[2]) -> float32[2] {
              return %b
            }
            yield %h
          }
          %y: float32[2] = %f(%x)
          return %y
        }""",
        # returned by a function
        """
        func @make(%x: float32[2]) -> fn(float32[2]) -> float32[2] {
          %g: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
            return %x
          }
          return %g
        }

        func @main(%x: float32[2]) -> float32[2] {
          %f: fn(float32[2]) -> float32[2] = @make(%x)
          %y: float32[2] = %f(%x)
          return %y
        }""",
    ],
)
def test_closures_that_are_not_known_stay(text: str) -> None:
    assert structural_equal(lifted(text), parse(text))


def test_a_recursion_that_makes_new_closures_ends() -> None:
    found = lifted("""
        func @grow(%n: int32[], %f: fn(float32[2]) -> float32[2], %x: float32[2]) -> float32[2] {
          %more: bool[] = greater(%n, 0)
          %y: float32[2] = if %more {
            %m: int32[] = subtract(%n, 1)
            %g: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
              %b: float32[2] = %f(%a)
              %c: float32[2] = %f(%b)
              return %c
            }
            %r: float32[2] = @grow(%m, %g, %x)
            yield %r
          } else {
            %s: float32[2] = %f(%x)
            yield %s
          }
          return %y
        }

        func @main(%n: int32[], %x: float32[2]) -> float32[2] {
          %f: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
            %b: float32[2] = add(%a, %x)
            return %b
          }
          %y: float32[2] = @grow(%n, %f, %x)
          return %y
        }""")
    assert any(b.var.name == "g" for f in found.functions.values() for b in bindings(f))
