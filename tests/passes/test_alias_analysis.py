"""Values that may be one memory when the program runs: what a branch or a function hands on, fields
that are read twice. No pass moves a read of them across a write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meta
from meta import passes
from meta.ir import Module, parse
from meta.passes.alias_analysis import AliasSets, AliasSummaries, AliasSummary
from meta.vm.run.interpreter import run_module

WRITE = "sgd(%r, %g, %v, learning_rate=1.0, mu=0.0)"
IF = "if %c { yield %y } else { %q: float32[2] = relu(%x)\n yield %q }"
RETURNED = "func @f(%a: float32[2]) -> float32[2] { return %a }"
LOOP = """func @f(%a: float32[2]) -> float32[2] {
  %s: float32[] = sum(%a)
  %c: bool[] = greater(%s, 100.0)
  %r: float32[2] = if %c {
    %b: float32[2] = add(%a, 1.0)
    %again: float32[2] = @f(%b)
    yield %again
  } else { yield %a }
  return %r
}"""
PROGRAMS = {
    "what a branch yields is written": (f"""
        %y: float32[2] = exp(%x)
        %r: float32[2] = {IF}
        %u: () = {WRITE}
        %z: float32[2] = exp(%x)
        %w: float32[2] = multiply(%z, %y)""", ""),
    "it is read, then written by the other name": (f"""
        %y: float32[2] = add(%x, 1.0)
        %e: float32[2] = exp(%y)
        %r: float32[2] = {IF}
        %u: () = {WRITE}
        %z: float32[2] = exp(%y)
        %w: float32[2] = multiply(%z, %e)""", ""),
    "a negation is undone": (f"""
        %y: float32[2] = negative(%x)
        %r: float32[2] = {IF}
        %u: () = {WRITE}
        %z: float32[2] = negative(%y)
        %w: float32[2] = multiply(%z, 3.0)""", ""),
    "a function returns what it is given": (f"""
        %r: float32[2] = add(%x, 1.0)
        %y: float32[2] = @f(%r)
        %e: float32[2] = exp(%y)
        %u: () = {WRITE}
        %z: float32[2] = exp(%y)
        %w: float32[2] = add(%z, %e)""", RETURNED),
    "a loop that runs no step": (f"""
        %r: float32[2] = add(%x, 1.0)
        %y: float32[2] = @f(%r)
        %e: float32[2] = exp(%y)
        %u: () = {WRITE}
        %z: float32[2] = exp(%y)
        %w: float32[2] = add(%z, %e)""", LOOP),
    "a closure returns what it captures": (f"""
        %r: float32[2] = add(%x, 1.0)
        %f: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {{ return %r }}
        %y: float32[2] = %f(%x)
        %e: float32[2] = exp(%y)
        %u: () = {WRITE}
        %z: float32[2] = exp(%y)
        %w: float32[2] = add(%z, %e)""", ""),
    "a field is read twice": (f"""
        %k: float32[4] = tile(%x, reps=(2,))
        %p: (float32[2], float32[2]) = split(%k, indices_or_sections=2)
        %y: float32[2] = %p.0
        %e: float32[2] = exp(%y)
        %r: float32[2] = %p.0
        %u: () = {WRITE}
        %z: float32[2] = exp(%y)
        %w: float32[2] = add(%z, %e)""", ""),
    "a part of a split is written": (f"""
        %k: float32[4] = concat((%x, %g))
        %p: (float32[2], float32[2]) = split(%k, indices_or_sections=2)
        %r: float32[2] = %p.0
        %u: () = {WRITE}
        %w: float32[2] = exp(%x)""", ""),
}  # fmt: skip
PASSES = (
    passes.canonicalize,
    passes.simplify,
    passes.fold_constant,
    passes.deduplicate,
    passes.eliminate_common_subexpressions,
    passes.dead_code,
    passes.inline,
)


def program(name: str) -> Module:
    body, function = PROGRAMS[name]
    return parse(f"""func @main(%x: float32[2], %g: float32[2], %c: bool[]) -> float32[2] {{
        %v: float32[2] = zeros_like(%g)
        {body}
        return %w
    }}
    {function}""")


def arguments() -> list[Any]:
    return [meta.array([1.0, 2.0]), meta.array([0.5, 0.5]), meta.array(True)]


def result(run: Callable[..., Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the result, and what the first argument is after the call."""
    args = arguments()
    return run(*args).numpy(), args[0].numpy()


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("step", [*PASSES, meta.vm.compile], ids=lambda step: step.__name__)
def test_reads_stay_on_their_side_of_a_write(name: str, step: Any) -> None:
    expected = result(lambda *args: run_module(program(name), args))
    made = step(program(name))
    run = (lambda *args: run_module(made, args)) if isinstance(made, Module) else made
    for found, right in zip(result(run), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-6)


def test_the_caller_gets_an_array_of_its_own() -> None:
    module = parse("""func @main(%x: float32[2], %y: float32[2]) -> float32[2] {
        %k: float32[4] = concat((%x, %y))
        %p: (float32[2], float32[2]) = split(%k, indices_or_sections=2)
        %r: float32[2] = %p.0
        return %r
    }""")
    x = meta.array([1.0, 2.0])
    assert run_module(passes.simplify(module), [x, x]) is not x


def test_summaries_follow_loops_and_functions() -> None:
    module = parse("""
    func @main(%x: float32[2], %y: float32[2], %z: float32[2]) -> float32[2] {
        %r: float32[2] = @f(%x, %y, %z)
        return %r
    }
    func @f(%a: float32[2], %b: float32[2], %c: float32[2]) -> float32[2] {
        %u: () = sgd(%b, %c, %b, learning_rate=1.0, mu=0.0)
        %r: float32[2] = @g(%c, %a)
        return %r
    }
    func @g(%a: float32[2], %b: float32[2]) -> float32[2] {
        %s: float32[] = sum(%a)
        %c: bool[] = greater(%s, 0.0)
        %r: float32[2] = if %c {
            %n: float32[2] = @g(%b, %b)
            yield %n
        } else {
            %n: float32[2] = exp(%a)
            yield %b
        }
        return %r
    }""")
    summaries = AliasSummaries(module)
    assert summaries["g"] == AliasSummary(frozenset(), frozenset({1}))
    assert summaries["f"] == AliasSummary(frozenset({1}), frozenset({0}))
    main = AliasSets(module.main, summaries)
    x, y, _ = module.main.params
    (call,) = module.main.body.bindings
    assert main.written == {y} and main.written_by(call) == {y}
    assert main.results == {x, call.var}


def test_loops_that_write_nothing_are_no_obstacle() -> None:
    text = """func @main(%x: float32[2]) -> float32[2] {{
        %a: float32[2] = exp(%x)
        %r: float32[2] = @f(%x)
        {0}
        return %c
    }}
    {1}"""
    before = "%b: float32[2] = exp(%x)\n %d: float32[2] = add(%a, %r)\n" + (
        "%c: float32[2] = add(%b, %d)"
    )
    after = "%d: float32[2] = add(%a, %r)\n%c: float32[2] = add(%a, %d)"
    found = passes.eliminate_common_subexpressions(parse(text.format(before, LOOP)))
    assert str(found) == str(parse(text.format(after, LOOP)))


def test_what_a_loop_hands_on_is_no_argument_of_its_own() -> None:
    """The sum with zero is a copy, which the caller of the loop writes to."""
    program = parse("""
    func @main(%x: float32[2], %g: float32[2], %v: float32[2]) -> (float32[2], float32[2]) {
      %y: float32[2] = @loop(const int32[] 1, %x)
      %u: () = sgd(%y, %g, %v, learning_rate=1.0, mu=0.0)
      return (%x, %y)
    }
    func @loop(%n: int32[], %x: float32[2]) -> float32[2] {
      %done: bool[] = less_equal(%n, 0)
      %r: float32[2] = if %done {
        yield %x
      } else {
        %m: int32[] = subtract(%n, 1)
        %copy: float32[2] = add(%x, -0.0)
        %again: float32[2] = @loop(%m, %copy)
        yield %again
      }
      return %r
    }""")
    for changed in (program, passes.simplify(program)):
        arrays = [meta.array([1.0, 2.0]), meta.array([1.0, 1.0]), meta.array([0.0, 0.0])]
        x, y = run_module(changed, arrays)
        assert x.numpy().tolist() == [1.0, 2.0] and y.numpy().tolist() == [0.0, 1.0]
