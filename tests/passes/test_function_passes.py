"""`inline`, and functions that nobody calls: what goes in and what comes out. Random programs, with
closures, branches, writes and recursion, compute the same after inlining and lambda lifting.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meta
from meta.ir import (
    Module,
    bindings,
    first_difference,
    parse,
    structural_equal,
    verify,
)
from meta.ir.literals import MAX_NESTING
from meta.passes import dead_code, infer_type, inline, lambda_lift, simplify
from meta.vm.compiler.calling_convention import module_program
from meta.vm.run.interpreter import interpret


def becomes(step: Callable[[Module], Module], before: str, after: str) -> None:
    """Assert that a pass makes one program of the other; then that it finds nothing more to do."""
    first, expected = parse(before), parse(after)
    verify(first, typed=True)
    found = step(first)
    assert structural_equal(found, expected), f"{first_difference(found, expected)}\n{found}"
    verify(found, typed=True)
    assert structural_equal(step(found), found), f"a second run changes it to\n{step(found)}"


# inline


def inlined(module: Module, **options: int) -> Module:
    return dead_code(inline(module, **options))


def test_atoms_that_are_bound_are_inlined() -> None:
    becomes(
        inline,
        """
        func @main(%x: float32[]) -> (float32[], float32[]) {
          %a: float32[] = %x
          %b: float32[] = %a
          %c: float32[] = const float32[] 1.0
          %d: float32[] = add(%b, %c)
          %p: bool[] = less(%d, %b)
          %e: float32[] = if %p {
            %f: float32[] = %d
            yield %f
          } else {
            yield %b
          }
          return (%e, %c)
        }""",
        """
        func @main(%x: float32[]) -> (float32[], float32[]) {
          %d: float32[] = add(%x, const float32[] 1.0)
          %p: bool[] = less(%d, %x)
          %e: float32[] = if %p {
            yield %d
          } else {
            yield %x
          }
          return (%e, const float32[] 1.0)
        }""",
    )


def test_functions_as_arguments_become_known() -> None:
    becomes(
        inlined,
        """
        func @main(%x: float32[], %y: float32[]) -> float32[] {
          %f: fn(float32[]) -> float32[] = fn(%a: float32[]) -> float32[] {
            %b: float32[] = multiply(%a, %y)
            return %b
          }
          %u: float32[] = @twice(%f, %x)
          return %u
        }

        func @twice(%f: fn(float32[]) -> float32[], %x: float32[]) -> float32[] {
          %u: float32[] = %f(%x)
          %v: float32[] = %f(%u)
          return %v
        }""",
        """
        func @main(%x: float32[], %y: float32[]) -> float32[] {
          %a: float32[] = multiply(%x, %y)
          %b: float32[] = multiply(%a, %y)
          return %b
        }""",
    )


SHARED = """
func @main(%x: float32[]) -> float32[] {
  %a: float32[] = @f(%x)
  %b: float32[] = @f(%a)
  return %b
}

func @f(%x: float32[]) -> float32[] {
  %a: float32[] = exp(%x)
  %b: float32[] = tanh(%a)
  return %b
}"""


def test_a_long_function_is_inlined_where_it_is_used_once() -> None:
    short = partial(inlined, max_bindings=1)
    becomes(short, SHARED, SHARED)
    assert list(inlined(parse(SHARED)).functions) == ["main"]
    once = SHARED.replace("%b: float32[] = @f(%a)", "%b: float32[] = negative(%a)", 1)
    assert list(short(parse(once)).functions) == ["main"]


def test_what_is_not_inlined() -> None:
    text = """
    func @main(%x: float32[3], %y: float32[3]) -> (float32[3], float32[3], float32[?], float32[3]) {
      %a: float32[3] = @loop(%x)
      %b: float32[3] = @fused(%x)
      %c: float32[?] = @unknown(%x)
      %f: fn(float32[3]) -> float32[3] = @closure(%x)
      %d: float32[3] = %f(%y)
      return (%a, %b, %c, %d)
    }

    func @loop(%x: float32[3]) -> float32[3] {
      %y: float32[3] = @again(%x)
      return %y
    }

    func @again(%x: float32[3]) -> float32[3] {
      %y: float32[3] = @loop(%x)
      return %y
    }

    func @fused(%x: float32[3]) -> float32[3] attrs(fused="tvm") {
      %y: float32[3] = exp(%x)
      return %y
    }

    func @unknown(%x: float32[?]) -> float32[?] {
      %y: float32[?] = exp(%x)
      return %y
    }

    func @closure(%x: float32[3]) -> fn(float32[3]) -> float32[3] attrs(kept=True) {
      %f: fn(float32[3]) -> float32[3] = fn(%a: float32[3]) -> float32[3] {
        %b: float32[3] = add(%a, %x)
        return %b
      }
      return %f
    }"""
    becomes(inlined, text, text)


def test_operators_as_values_stay() -> None:
    text = """
    func @main(%x: float32[3]) -> (float32[3], float32[3]) {
      %f: fn(float32[3]) -> float32[3] = softmax
      %y: float32[3] = %f(%x)
      %z: float32[3] = @apply(softmax, %x)
      return (%y, %z)
    }

    func @apply(%f: fn(float32[3]) -> float32[3], %x: float32[3]) -> float32[3] {
      %y: float32[3] = %f(%x)
      return %y
    }"""
    becomes(inlined, text, text)
    y, z = interpret(module_program(parse(text)), meta.array([1.0, 2.0, 3.0]))
    assert y.numpy().tolist() == z.numpy().tolist()


def test_effects_keep_their_order() -> None:
    becomes(
        inlined,
        """
        func @main(%w: float32[1], %v: float32[1]) -> (float32[], float32[]) {
          %read: fn() -> float32[] = fn() -> float32[] {
            %r: float32[] = sum(%w)
            return %r
          }
          %a: float32[] = %read()
          %0: () = @write(%w, %v)
          %b: float32[] = %read()
          return (%a, %b)
        }

        func @write(%w: float32[1], %v: float32[1]) -> () {
          %0: () = sgd(%w, %v, %v, 0.5, 0.0)
          return ()
        }""",
        """
        func @main(%w: float32[1], %v: float32[1]) -> (float32[], float32[]) {
          %a: float32[] = sum(%w)
          %0: () = sgd(%w, %v, %v, 0.5, 0.0)
          %b: float32[] = sum(%w)
          return (%a, %b)
        }""",
    )


def test_blocks_are_not_nested_deeper_than_a_program_may_be() -> None:
    branch = """
    func @f{i}(%x: float32[], %p: bool[]) -> float32[] {{
      %r: float32[] = if %p {{
        %y: float32[] = @f{next}(%x, %p)
        yield %y
      }} else {{
        yield %x
      }}
      return %r
    }}"""
    last = "func @f{i}(%x: float32[], %p: bool[]) -> float32[] {{\n  return %x\n}}"
    count = 2 * MAX_NESTING
    parts = [branch.format(i=i, next=i + 1) for i in range(count)]
    text = "\n\n".join([*parts, last.format(i=count)]).replace("@f0(", "@main(")
    found = inlined(parse(text), max_bindings=1000)
    verify(found, typed=True)
    assert 1 < len(found.functions) < 6
    for flag in (True, False):
        assert interpret(module_program(found), meta.array(2.0), meta.array(flag)).item() == 2.0


def test_inlining_does_not_grow_without_end() -> None:
    """Each function calls the one before twice: 2 ** 40 bindings, were all calls inlined."""
    double = """
    func @f{i}(%x: float32[]) -> float32[] {{
      %y: float32[] = @f{next}(%x)
      %z: float32[] = @f{next}(%y)
      return %z
    }}"""
    last = "func @f{i}(%x: float32[]) -> float32[] {{\n  %y: float32[] = exp(%x)\n  return %y\n}}"
    parts = [double.format(i=i, next=i + 1) for i in range(40)]
    text = "\n\n".join([*parts, last.format(i=40)]).replace("@f0(", "@main(")
    found = inlined(parse(text))
    assert all(len(f.body.bindings) <= 32 for f in found.functions.values())
    itself = parse("""
    func @main(%x: float32[]) -> float32[] {
      %f = fn(%g, %a) {
        %u = %g(%g, %a)
        %v = %g(%g, %u)
        return %v
      }
      %y = %f(%f, %x)
      return %y
    }""")
    assert sum(1 for _ in bindings(inlined(itself).main)) < 2000


# dead_code


def test_functions_that_main_does_not_reach_are_removed() -> None:
    text = """
    func @main(%x: float32[]) -> float32[] {
      %y: float32[] = @f(%x)
      return %y
    }

    func @f(%x: float32[]) -> float32[] {
      return %x
    }

    func @g(%x: float32[]) -> float32[] {
      %y: float32[] = @g(%x)
      %z: float32[] = @f(%y)
      return %z
    }"""
    assert list(dead_code(parse(text)).functions) == ["main", "f"]
    library = text.replace("@main", "@h")
    assert list(dead_code(parse(library)).functions) == ["h", "f", "g"]


# Random programs.


class Writer:
    """Writes a program of scalars, line by line; ``%w`` is written in place."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.lines, self.count = rng, [], 0
        self.globals = ["again"]

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def line(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)

    def function(self, name: str) -> None:
        """Write a global function of two scalars."""
        self.line(0, f"func @{name}(%x: float32[], %y: float32[], %w: float32[1]) -> float32[] {{")
        result = self.body(1, ["%x", "%y"], [])
        self.line(1, f"return {result}")
        self.line(0, "}")
        self.globals.append(name)

    def body(self, depth: int, scalars: list[str], closures: list[str]) -> str:
        scalars, closures = list(scalars), list(closures)
        for _ in range(self.rng.randint(0, 5)):
            self.statement(depth, scalars, closures)
        return self.rng.choice(scalars)

    def statement(self, depth: int, scalars: list[str], closures: list[str]) -> None:
        pick, name = self.rng.choice, self.name()
        a, b, choice = pick(scalars), pick(scalars), self.rng.randint(0, 9)
        if choice == 0 and depth < 4:
            self.line(depth, f"{name}: {FUNCTION} = fn(%a{self.count}: float32[]) -> float32[] {{")
            result = self.body(depth + 1, [*scalars, f"%a{self.count}"], closures)
            self.line(depth + 1, f"return {result}")
            self.line(depth, "}")
            closures.append(name)
            return
        if choice == 1 and depth < 4:
            self.line(depth, f"{name}p: bool[] = less({a}, {b})")
            of_closures = closures and pick([True, False])
            self.line(depth, f"{name}: {FUNCTION if of_closures else 'float32[]'} = if {name}p {{")
            for closing in ("} else {", "}"):
                result = self.body(depth + 1, scalars, closures)
                self.line(depth + 1, f"yield {pick(closures) if of_closures else result}")
                self.line(depth, closing)
            (closures if of_closures else scalars).append(name)
            return
        if choice == 2:
            self.line(depth, f"{name}v: float32[1] = zeros_like(%w)")
            self.line(depth, f"{name}: () = sgd(%w, const float32[1] [2.0], {name}v, 0.5, 0.0)")
            return
        if choice == 3 and closures:
            self.line(depth, f"{name}: {FUNCTION} = {pick(closures)}")
            closures.append(name)
            return
        value = f"{pick(['add', 'multiply', 'maximum'])}({a}, {b})"
        if choice == 4:
            value = a
        elif choice == 5:
            value = "sum(%w)"
        elif choice == 6 and len(self.globals) > 1:
            value = f"@{pick(self.globals[1:])}({a}, {b}, %w)"
        elif choice == 7 and closures:
            value = f"@{pick(['again', 'apply'])}({pick(closures)}, {a})"
        elif choice > 7 and closures:
            value = f"{pick(closures)}({a})"
        self.line(depth, f"{name}: float32[] = {value}")
        scalars.append(name)


FUNCTION = "fn(float32[]) -> float32[]"
LIBRARY = """
func @apply(%f: fn(float32[]) -> float32[], %x: float32[]) -> float32[] {
  %y: float32[] = %f(%x)
  return %y
}

func @again(%f: fn(float32[]) -> float32[], %x: float32[]) -> float32[] {
  %p: bool[] = less(%x, 0.5)
  %r: float32[] = if %p {
    %u: float32[] = add(%x, 0.25)
    %v: float32[] = @again(%f, %u)
    yield %v
  } else {
    %u1: float32[] = %f(%x)
    yield %u1
  }
  return %r
}
"""


def random_module(rng: random.Random) -> Module:
    writer = Writer(rng)
    for name in ("f", "g", "main"):
        writer.function(name)
    found = parse("\n".join([LIBRARY, *writer.lines]))
    verify(found, typed=True)
    return found


def run(module: Module) -> tuple[float, float]:
    """Return the result of a module, and what it wrote."""
    w = meta.array([64.0])
    result = interpret(module_program(module), meta.array(0.25), meta.array(0.75), w)
    return result.item(), w.item()


PIPELINES = {
    "inline": [inline],
    "inline everything": [partial(inline, max_bindings=1000)],
    "inline once": [partial(inline, max_bindings=0)],
    "lambda_lift": [lambda_lift],
    "lift, inline": [lambda_lift, inline, dead_code],
    "inline, lift": [inline, simplify, dead_code, lambda_lift, infer_type],
}


@pytest.mark.parametrize("passes", PIPELINES.values(), ids=list(PIPELINES))
@settings(max_examples=60)
@given(rng=st.randoms(use_true_random=False))
def test_random_programs_compute_the_same(
    passes: list[Callable[[Module], Module]], rng: random.Random
) -> None:
    module = random_module(rng)
    expected = run(module)
    for step in passes:
        module = step(module)
        verify(module, typed=True)
        assert run(module) == expected


@settings(max_examples=60)
@given(rng=st.randoms(use_true_random=False))
def test_random_programs_in_the_vm(rng: random.Random) -> None:
    module = random_module(rng)
    expected = run(module)
    for disabled in ((), ("inline",)):
        w = meta.array([64.0])
        args = (meta.array(0.25), meta.array(0.75), w)
        with meta.PassContext(disabled=disabled):
            result = meta.vm.compile(module, *args)(*args)
        assert (result.item(), w.item()) == pytest.approx(expected, 1e-6)
