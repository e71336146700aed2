"""Programs with control flow on the machine, beside the interpreter: calls, closures, tuples, and
what is written in place.
"""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base.errors import ArgumentError, IRError, TraceError
from meta.ir import parse
from meta.model import Model, parameter, trace
from meta.testing import check
from meta.vm.compiler.calling_convention import module_program
from meta.vm.run.interpreter import interpret
from tests.program_text import module

FIBONACCI = """
func @fib(%n: int64[]) -> int64[] {
  %small: bool[] = less(%n, 2)
  %y: int64[] = if %small {
    yield %n
  } else {
    %m: int64[] = subtract(%n, 1)
    %a: int64[] = @fib(%m)
    %k: int64[] = subtract(%n, 2)
    %b: int64[] = @fib(%k)
    %c: int64[] = add(%a, %b)
    yield %c
  }
  return %y
}

func @main(%n: int64[]) -> int64[] {
  %y: int64[] = @fib(%n)
  return %y
}"""

GCD = """
func @main(%a: int64[], %b: int64[]) -> int64[] {
  %done: bool[] = equal(%b, 0)
  %y: int64[] = if %done {
    yield %a
  } else {
    %r: int64[] = remainder(%a, %b)
    %g: int64[] = @main(%b, %r)
    yield %g
  }
  return %y
}"""

PARITY = """
func @even(%n: int64[]) -> bool[] {
  %zero: bool[] = equal(%n, 0)
  %y: bool[] = if %zero {
    yield const bool[] True
  } else {
    %m: int64[] = subtract(%n, 1)
    %o: bool[] = @odd(%m)
    yield %o
  }
  return %y
}

func @odd(%n: int64[]) -> bool[] {
  %zero: bool[] = equal(%n, 0)
  %y: bool[] = if %zero {
    yield const bool[] False
  } else {
    %m: int64[] = subtract(%n, 1)
    %e: bool[] = @even(%m)
    yield %e
  }
  return %y
}

func @main(%n: int64[]) -> (bool[], bool[]) {
  %e: bool[] = @even(%n)
  %o: bool[] = @odd(%n)
  return (%e, %o)
}"""

NESTED_IFS = """
func @main(%x: float32[2], %p: bool[], %q: bool[]) -> (float32[2], float32[2]) {
  %t: float32[2] = tanh(%x)
  %y: float32[2] = if %p {
    %z: float32[2] = if %q {
      %a: float32[2] = exp(%t)
      yield %a
    } else {
      yield %t
    }
    %s: float32[2] = add(%z, %t)
    yield %s
  } else {
    %b: float32[2] = if %q {
      yield %x
    } else {
      yield const float32[2] [7.0, 8.0]
    }
    yield %b
  }
  %w: float32[2] = multiply(%y, 2.0)
  return (%w, %y)
}"""

CLOSURES_IN_CLOSURES = """
func @main(%x: float32[], %y: float32[]) -> float32[] {
  %u: float32[] = exp(%y)
  %f: fn(float32[]) -> float32[] = fn(%a: float32[]) -> float32[] {
    %g: fn(float32[]) -> float32[] = fn(%b: float32[]) -> float32[] {
      %p: float32[] = multiply(%a, %b)
      %q: float32[] = add(%p, %u)
      return %q
    }
    %c: float32[] = %g(%a)
    %d: float32[] = %g(%c)
    return %d
  }
  %r: float32[] = %f(%x)
  %s: float32[] = %f(%r)
  return %s
}"""

SELECTED = """
func @twice(%f: fn(float32[]) -> float32[], %x: float32[]) -> float32[] {
  %y: float32[] = %f(%x)
  %z: float32[] = %f(%y)
  return %z
}

func @double(%x: float32[]) -> float32[] {
  %y: float32[] = multiply(%x, 2.0)
  return %y
}

func @main(%x: float32[], %p: bool[]) -> (float32[], float32[]) {
  %k: float32[] = add(%x, 10.0)
  %f: fn(float32[]) -> float32[] = if %p {
    %g: fn(float32[]) -> float32[] = fn(%a: float32[]) -> float32[] {
      %b: float32[] = subtract(%a, %k)
      return %b
    }
    yield %g
  } else {
    yield @double
  }
  %y: float32[] = %f(%x)
  %z: float32[] = @twice(%f, %x)
  return (%y, %z)
}"""

TUPLES = """
func @swap(%t: ((float32[2], float32[2]), float32[1]))
    -> ((float32[2], float32[2]), float32[1]) {
  %p: (float32[2], float32[2]) = %t.0
  %a: float32[2] = %p.0
  %b: float32[2] = %p.1
  %c: float32[1] = %t.1
  return ((%b, %a), %c)
}

func @main(%x: float32[2], %y: float32[1], %p: bool[])
    -> (float32[4], ((float32[2], float32[2]), float32[1]), float32[4]) {
  %e: float32[2] = exp(%x)
  %t: ((float32[2], float32[2]), float32[1]) = if %p {
    yield ((%x, %e), %y)
  } else {
    %s: ((float32[2], float32[2]), float32[1]) = @swap(((%x, %e), %y))
    yield %s
  }
  %pair: (float32[2], float32[2]) = %t.0
  %c: float32[4] = concat(%pair)
  %f: fn((float32[2], float32[2])) -> float32[4] = fn(%q: (float32[2], float32[2])) -> float32[4] {
    %l: float32[2] = %q.1
    %r: float32[4] = concat((%l, %e))
    return %r
  }
  %d: float32[4] = %f(%pair)
  return (%c, %t, %d)
}"""

KEPT_ACROSS_A_CALL = """
func @f(%n: int64[], %x: float32[3]) -> float32[3] {
  %t: float32[3] = tanh(%x)
  %s: float32[3] = exp(%t)
  %last: bool[] = less(%n, 1)
  %y: float32[3] = if %last {
    %z: float32[3] = negative(%s)
    yield %z
  } else {
    %m: int64[] = subtract(%n, 1)
    %u: float32[3] = add(%x, 0.5)
    %r: float32[3] = @f(%m, %u)
    %v: float32[3] = multiply(%r, %s)
    %w: float32[3] = add(%v, %t)
    yield %w
  }
  return %y
}

func @main(%n: int64[], %x: float32[3]) -> float32[3] {
  %y: float32[3] = @f(%n, %x)
  return %y
}"""

UNKNOWN_EXTENTS = """
func @main(%x: float32[6], %p: bool[]) -> (float32[?], float32[]) {
  %y: float32[?] = if %p {
    %u: float32[?] = unique(%x)
    yield %u
  } else {
    yield %x
  }
  %e: float32[?] = exp(%y)
  %v: float32[?, ?] = reshape(%e, shape=(-1, 1))
  %c: float32[?] = concat((%e, %y))
  %s: float32[] = sum(%v)
  return (%c, %s)
}"""


def array(*values: float, dtype: str = "float32") -> meta.ndarray:
    return meta.array(np.array(values), dtype)


def both(text: str, *args: Any) -> Any:
    """Run under interpreter and VM; the arguments that they write, and the results, are equal."""
    mine, others = ([meta.array(a) for a in args] for _ in range(2))
    found = interpret(module_program(module(text)), *mine)
    executable = meta.vm.compile(module(text), *others)
    check(executable(*others), found, 1e-6, 1e-6)
    check(others, mine, 1e-6, 1e-6)
    for opt_level in (0, 3):
        again = [meta.array(a) for a in args]
        check(meta.vm.compile(module(text), *again, opt_level=opt_level)(*again), found, 1e-6, 1e-6)
    return found


def scalar(value: float, dtype: str) -> meta.ndarray:
    return meta.array(value, dtype)


def test_fibonacci() -> None:
    assert both(FIBONACCI, scalar(12, "int64")).item() == 144


@pytest.mark.parametrize(("a", "b"), [(12, 18), (17, 5), (0, 7), (2**40, 2**30)])
def test_greatest_common_divisor(a: int, b: int) -> None:
    assert both(GCD, scalar(a, "int64"), scalar(b, "int64")).item() == math.gcd(a, b)


def test_mutual_recursion() -> None:
    for n in (0, 7, 10):
        even, odd = both(PARITY, scalar(n, "int64"))
        assert (even.item(), odd.item()) == (n % 2 == 0, n % 2 == 1)


@pytest.mark.parametrize("p", [False, True])
@pytest.mark.parametrize("q", [False, True])
def test_nested_branches(p: bool, q: bool) -> None:
    both(NESTED_IFS, array(0.5, -1.0), scalar(p, "bool"), scalar(q, "bool"))


def test_closures_in_closures() -> None:
    both(CLOSURES_IN_CLOSURES, scalar(0.5, "float32"), scalar(-1.0, "float32"))


def test_a_closure_that_a_branch_selects() -> None:
    assert [y.item() for y in both(SELECTED, scalar(3.0, "float32"), scalar(True, "bool"))] == [
        -10.0,
        -23.0,
    ]
    assert [y.item() for y in both(SELECTED, scalar(3.0, "float32"), scalar(False, "bool"))] == [
        6.0,
        12.0,
    ]


@pytest.mark.parametrize("p", [False, True])
def test_tuples_across_branches_calls_and_closures(p: bool) -> None:
    both(TUPLES, array(0.5, -1.0), array(3.0), scalar(p, "bool"))


def test_memory_of_an_activation_is_its_own() -> None:
    both(KEPT_ACROSS_A_CALL, scalar(20, "int64"), array(0.5, -1.0, 0.0))


@pytest.mark.parametrize("p", [False, True])
def test_unknown_extents(p: bool) -> None:
    both(UNKNOWN_EXTENTS, array(1.0, 2.0, 1.0, 3.0, 2.0, 1.0), scalar(p, "bool"))


def test_an_error_at_run_time_names_the_user_s_line() -> None:
    text = """
    func @main(%x: float32[4]) -> float32[1, 2] {
      %u: float32[?] = unique(%x)
      %v: float32[1, 2] = reshape(%u, shape=(1, 2))  # model.py:12
      return %v
    }"""
    good, bad = array(1.0, 2.0, 2.0, 1.0), array(1.0, 2.0, 3.0, 1.0)
    run = meta.vm.compile(parse(text), good)
    assert run(good).numpy().tolist() == [[1.0, 2.0]]
    with pytest.raises(meta.errors.TypeInferError) as caught:
        run(bad)
    assert str(caught.value.span) == "model.py:12"
    assert run(good).numpy().tolist() == [[1.0, 2.0]]


CALL_NARROWS = """
func @f(%t: (float32[2], float32[4])) -> float32[2] {
  %y: float32[2] = %t.0
  %z: float32[2] = exp(%y)
  return %z
}

func @main(%x: float32[4]) -> float32[2] {
  %u: float32[?] = unique(%x)
  %z: float32[2] = @f((%u, %x))
  return %z
}"""

CLOSURE_NARROWS = """
func @main(%x: float32[4]) -> float32[2] {
  %f: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
    %b: float32[2] = exp(%a)
    return %b
  }
  %u: float32[?] = unique(%x)
  %z: float32[2] = %f(%u)
  return %z
}"""


@pytest.mark.parametrize("text", [CALL_NARROWS, CLOSURE_NARROWS])
def test_extents_that_the_program_claims_are_checked(text: str) -> None:
    """A kernel is made for two elements; it must not be given three."""
    both(text, array(1.0, 2.0, 2.0, 1.0))
    run = meta.vm.compile(parse(text), array(1.0, 2.0, 2.0, 1.0))
    with pytest.raises(IRError, match="does not have the extents") as caught:
        run(array(1.0, 2.0, 3.0, 1.0))
    assert "expected: float32[2]" in str(caught.value)
    assert "found:    float32[3]" in str(caught.value)


def test_a_function_that_needs_more_than_it_is_given_is_refused() -> None:
    text = """
    func @twice(%f: fn(float32[?]) -> float32[?], %x: float32[?]) -> float32[?] {
      %y: float32[?] = %f(%x)
      return %y
    }

    func @exp(%x: float32[2]) -> float32[2] {
      %y: float32[2] = exp(%x)
      return %y
    }

    func @main(%x: float32[2]) -> float32[?] {
      %y: float32[?] = @twice(@exp, %x)
      return %y
    }"""
    with pytest.raises(IRError, match="more than is wanted"):
        meta.vm.compile(parse(text), array(1.0, 2.0))


# In place.


WRITES = """
func @step(%i: int64[], %x: float32[2], %v: float32[2], %d: float32[2]) -> float32[2] {
  %more: bool[] = less(%i, 5)
  %y: float32[2] = if %more {
    %big: bool[] = less(%i, 3)
    %0: () = if %big {
      %1: () = sgd(%x, %d, %v, 0.5, 0.5)
      yield ()
    } else {
      %flat: float32[1, 2] = reshape(%x, shape=(1, 2))
      %e: float32[1, 2] = ones(shape=(1, 2), dtype="float32")
      %w: float32[1, 2] = reshape(%v, shape=(1, 2))
      %2: () = sgd(%flat, %e, %w, 0.25, 0.5)
      yield ()
    }
    %j: int64[] = add(%i, 1)
    %r: float32[2] = @step(%j, %x, %v, %d)
    yield %r
  } else {
    yield %x
  }
  return %y
}

func @main(%x: float32[2], %v: float32[2], %d: float32[2]) -> (float32[2], float32[2]) {
  %before: float32[2] = add(%x, 0.0)
  %y: float32[2] = @step(const int64[] 0, %x, %v, %d)
  %z: float32[2] = multiply(%y, %before)
  return (%z, %y)
}"""


def test_writes_in_branches_and_loops() -> None:
    both(WRITES, array(1.0, 2.0), array(0.0, 0.0), array(0.5, -0.5))


def test_a_strided_argument_that_a_function_writes() -> None:
    base, v, d = torch.tensor([[1.0, 0.0], [2.0, 0.0]]), array(0.0, 0.0), array(0.5, -0.5)
    x = meta.ndarray(base[:, 0])
    expected = array(1.0, 2.0)
    run = meta.vm.compile(parse(WRITES), x, v, d)
    run(x, v, d)
    interpret(module_program(parse(WRITES)), expected, array(0.0, 0.0), d)
    assert base[:, 0].tolist() == expected.numpy().tolist()
    assert base[:, 1].tolist() == [0.0, 0.0]
    with pytest.raises(ArgumentError, match="share memory"):
        run(meta.ndarray(torch.ones(1).expand(2)), v, d)
    # This one is only read.
    run(expected, v, meta.ndarray(torch.ones(1).expand(2)))


CLOSURE_WRITES = """
func @main(%x: float32[1], %d: float32[1], %v: float32[1]) -> float32[1] {
  %write: fn(float32[1]) -> () = fn(%s: float32[1]) -> () {
    %0: () = sgd(%x, %s, %v, 1.0, 0.0)
    return ()
  }
  %1: () = %write(%d)
  %2: () = %write(%d)
  %y: float32[1] = add(%x, 0.0)
  return %y
}"""


def test_a_closure_writes_what_it_captured() -> None:
    both(CLOSURE_WRITES, array(5.0), array(1.0), array(0.0))


CONSTANT_OR_NOT = """
func @write(%x: float32[1], %v: float32[1]) -> () {
  %0: () = sgd(%x, const float32[1] [1.0], %v, 1.0, 0.0)  # model.py:3
  return ()
}

func @main(%p: bool[], %x: float32[1], %v: float32[1]) -> () {
  %t: float32[1] = if %p {
    yield %x
  } else {
    yield const float32[1] [9.0]
  }
  %0: () = @write(%t, %v)
  return ()
}"""


def test_a_constant_is_not_written_whatever_way_it_comes() -> None:
    x, v = array(5.0), array(0.0)
    run = meta.vm.compile(parse(CONSTANT_OR_NOT), scalar(True, "bool"), x, v)
    run(scalar(True, "bool"), x, v)
    assert x.item() == 4.0
    with pytest.raises(IRError, match="writes to a constant") as caught:
        run(scalar(False, "bool"), x, v)
    assert str(caught.value.span) == "model.py:3"


def test_results_that_may_be_constants_are_copied() -> None:
    run = meta.vm.compile(
        parse(NESTED_IFS), array(1.0, 1.0), scalar(False, "bool"), scalar(False, "bool")
    )
    for _ in range(2):
        _, y = run(array(1.0, 1.0), scalar(False, "bool"), scalar(False, "bool"))
        assert y.numpy().tolist() == [7.0, 8.0]
        y.update([0.0, 0.0])


# Traced programs.


def newton(x: Any) -> Any:
    """Square roots by Newton's iteration, until they change little."""

    def improve(state: Any) -> Any:
        y, _ = state
        better = (y + x / y) * 0.5
        return better, op.max(op.abs(better - y))

    start = (op.ones_like(x), op.max(x) + 1.0)
    y, change = meta.while_loop(lambda s: op.greater(s[1], 1e-6), improve, start)
    return {"root": y, "change": change}


def test_a_traced_loop() -> None:
    x = array(2.0, 9.0, 100.0)
    run = meta.vm.compile(trace(newton), x)
    check(run(x)["root"], torch.tensor([2.0, 9.0, 100.0]).sqrt())
    check(run(x)["change"], newton(x)["change"], 1e-6, 1e-6)


def test_a_traced_scan() -> None:
    def cumulative(x: Any) -> Any:
        return meta.scan(
            lambda total, row: (total + row, op.tanh(total)), op.zeros((2,), "float32"), x
        )

    x = meta.array(np.arange(10.0).reshape(5, 2), "float32")
    check(meta.vm.compile(trace(cumulative), x)(x), cumulative(x))


class Branching(Model):
    """A model that scales its input in one of two ways, three times."""

    def build(self) -> None:
        self.w = parameter(array(0.5, 2.0))

    @trace
    def forward(self, x: Any) -> Any:
        def scale(state: Any) -> Any:
            i, y = state
            positive = op.less(0.0, op.sum(y))
            y = meta.cond(positive, lambda a: op.tanh(a * self.w), lambda a: a - self.w * self.w, y)
            return i + 1, y

        return meta.while_loop(lambda s: op.less(s[0], 3), scale, (op.zeros((), "int64"), x))[1]


def test_gradients_through_loops_and_branches() -> None:
    model, dy = Branching(), array(1.0, 2.0)
    for x in (array(1.0, -0.5), array(-1.0, 0.5)):
        y, grads = meta.vm.compile(meta.model.value_and_grad(model), dy, x)(dy, x)
        model.w.grad = None
        expected = model(x)
        expected.backward(dy)
        check(y, expected, 1e-6, 1e-6)
        check(grads["w"], model.w.grad, 1e-6, 1e-6)


# What is done once.


def test_kernels_are_linked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = meta.vm.compile(parse(FIBONACCI), scalar(1, "int64"))
    assert len(run.code.kernels) == 4
    assert run.kernels() == {"torch.less": 1, "torch.subtract": 2, "torch.add": 1}

    def refuse(*_: Any) -> None:
        raise AssertionError("a kernel is looked up while the program runs")

    monkeypatch.setattr("meta.vm.compiler.kernels.dispatch", refuse)
    monkeypatch.setattr(sys.modules["meta.vm.eager.decided_call"], "dispatch", refuse)
    assert run(scalar(10, "int64")).item() == 55


def test_values_die_after_their_last_use() -> None:
    text = """
    func @main(%x: float32[2], %p: bool[]) -> float32[?] {
      %a: float32[?] = unique(%x)
      %b: float32[2] = exp(%x)
      %y: float32[?] = if %p {
        yield %a
      } else {
        %c: float32[2] = tanh(%b)
        yield %c
      }
      %z: float32[?] = negative(%y)
      return %z
    }"""
    run = meta.vm.compile(parse(text), array(1.0, 2.0), scalar(True, "bool"), opt_level=0)
    assert str(run.code) == LISTING


LISTING = """\
@main(r0: float32[2], r1: bool[]) -> float32[?], 7 registers
  b0:
    r2 = k0(r0)
    r3 = k1(r0)
    branch r1 ? b1 : b2
  b1:
    release r3
    r4 = r2
    release r2
    jump b3
  b2:
    release r2
    r5 = k2(r3)
    release r3
    r4 = r5
    release r5
    jump b3
  b3:
    r6 = k3(r4)
    return r6
k0 = torch.unique(float32[2], False, False)
k1 = torch.exp(float32[2])
k2 = torch.tanh(float32[2])
k3 = torch.negative(float32[?])"""


def test_several_threads_call_one_executable() -> None:
    run = meta.vm.compile(parse(KEPT_ACROSS_A_CALL), scalar(1, "int64"), array(0.0, 0.0, 0.0))
    expected = [run(scalar(n, "int64"), array(0.1 * n, -0.5, 0.25)).numpy() for n in range(4)]
    wrong = []

    def work(n: int) -> None:
        for _ in range(20):
            found = run(scalar(n, "int64"), array(0.1 * n, -0.5, 0.25)).numpy()
            if not np.array_equal(found, expected[n]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_function_is_no_result() -> None:
    text = (
        "func @main(%x: float32[1]) -> fn() -> float32[1] {\n  return @f\n}\n"
        "func @f() -> float32[1] {\n  return const float32[1] [1.0]\n}"
    )
    with pytest.raises(TraceError, match="takes and returns arrays"):
        meta.vm.compile(parse(text), array(1.0))
