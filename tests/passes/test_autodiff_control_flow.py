"""Gradients of calls, loops, conditionals and closures: the eager tape, through the interpreter,
and torch's formulas are the oracles.
"""

from __future__ import annotations

import re

import pytest
import torch

import meta
from meta.base.errors import ArgumentError, GradientError, IRError, UnknownName
from meta.ir import Module, bindings, first_difference, parse, structural_equal, verify
from meta.passes import autodiff, dead_code, infer_type, inline, simplify
from meta.testing import check
from meta.vm.compiler.calling_convention import module_program
from meta.vm.run.interpreter import interpret, run_module
from tests.program_text import module

BRANCH = """
func @main(%x: float32[3], %w: float32[3], %p: bool[]) -> float32[3] {
  %a: float32[3] = tanh(%x)
  %y: float32[3] = if %p {
    %b: float32[3] = multiply(%a, %w)
    yield %b
  } else {
    %q: bool[] = less(const float32[] 0.5, 1.0)
    %c: float32[3] = if %q {
      %d: float32[3] = exp(%x)
      yield %d
    } else {
      yield %w
    }
    %e: float32[3] = multiply(%c, %a)
    yield %e
  }
  %z: float32[3] = add(%y, %w)
  return %z
}"""

LOOP = """
func @loop(%i: int32[], %h: float32[3], %w: float32[3]) -> float32[3] {
  %more: bool[] = greater(%i, 0)
  %y: float32[3] = if %more {
    %j: int32[] = subtract(%i, 1)
    %m: float32[3] = multiply(%h, %w)
    %t: float32[3] = tanh(%m)
    %r: float32[3] = @loop(%j, %t, %w)
    yield %r
  } else {
    yield %h
  }
  return %y
}

func @main(%i: int32[], %h: float32[3], %w: float32[3]) -> float32[3] {
  %y: float32[3] = @loop(%i, %h, %w)
  return %y
}"""

FIBONACCI = """
func @fib(%n: int32[], %x: float32[2]) -> float32[2] {
  %small: bool[] = less(%n, 2)
  %y: float32[2] = if %small {
    yield %x
  } else {
    %a: int32[] = subtract(%n, 1)
    %b: int32[] = subtract(%n, 2)
    %u: float32[2] = @fib(%a, %x)
    %v: float32[2] = @fib(%b, %x)
    %s: float32[2] = sin(%u)
    %p: float32[2] = multiply(%s, %v)
    yield %p
  }
  return %y
}

func @main(%n: int32[], %x: float32[2]) -> float32[2] {
  %y: float32[2] = @fib(%n, %x)
  return %y
}"""

# An integer loop decides how often the float is scaled: gcd(a, b) by Euclid.
GCD = """
func @gcd(%a: int64[], %b: int64[], %x: float32[2]) -> (int64[], float32[2]) {
  %done: bool[] = equal(%b, 0)
  %y: (int64[], float32[2]) = if %done {
    yield (%a, %x)
  } else {
    %r: int64[] = remainder(%a, %b)
    %f: float32[] = astype(%r, "float32")
    %s: float32[2] = multiply(%x, %f)
    %t: float32[2] = sin(%s)
    %z: (int64[], float32[2]) = @gcd(%b, %r, %t)
    yield %z
  }
  return %y
}

func @main(%a: int64[], %b: int64[], %x: float32[2]) -> (int64[], float32[2]) {
  %y: (int64[], float32[2]) = @gcd(%a, %b, %x)
  return %y
}"""

# Two functions that call each other, with tuples as parameter and result.
MUTUAL = """
func @even(%i: int32[], %s: (float32[2], (int32[], float32[2]))) -> (float32[2], float32[2]) {
  %stop: bool[] = less(%i, 1)
  %a: float32[2] = %s.0
  %in: (int32[], float32[2]) = %s.1
  %b: float32[2] = %in.1
  %y: (float32[2], float32[2]) = if %stop {
    yield (%b, %a)
  } else {
    %j: int32[] = subtract(%i, 1)
    %c: float32[2] = multiply(%a, %b)
    %n: (float32[2], float32[2]) = (%c, %a)
    %z: (float32[2], float32[2]) = @odd(%j, %n)
    yield %z
  }
  return %y
}

func @odd(%i: int32[], %s: (float32[2], float32[2])) -> (float32[2], float32[2]) {
  %a: float32[2] = %s.0
  %b: float32[2] = %s.1
  %c: float32[2] = cos(%a)
  %t: (float32[2], (int32[], float32[2])) = (%b, (%i, %c))
  %j: int32[] = subtract(%i, 1)
  %z: (float32[2], float32[2]) = @even(%j, %t)
  return %z
}

func @main(%i: int32[], %x: float32[2], %y: float32[2]) -> (float32[2], float32[2]) {
  %t: (float32[2], (int32[], float32[2])) = (%x, (%i, %y))
  %z: (float32[2], float32[2]) = @even(%i, %t)
  return %z
}"""

# main calls itself, and a function that no gradient flows through.
RECURSIVE_MAIN = """
func @pred(%n: float32[]) -> float32[] {
  %m: float32[] = subtract(%n, 1.0)
  return %m
}

func @main(%x: float32[], %n: float32[]) -> float32[] {
  %last: bool[] = less(%n, 1.0)
  %y: float32[] = if %last {
    yield const float32[] 1.0
  } else {
    %m: float32[] = @pred(%n)
    %f: float32[] = @main(%x, %m)
    %p: float32[] = multiply(%x, %f)
    yield %p
  }
  return %y
}"""

SEVERAL_CALLS = """
func @f(%x: float32[2], %y: float32[2]) -> (float32[2], float32[2]) {
  %a: float32[2] = multiply(%x, %y)
  %b: float32[2] = exp(%y)
  return (%a, %b)
}

func @main(%x: float32[2], %y: float32[2]) -> float32[2] {
  %t: (float32[2], float32[2]) = @f(%x, %y)
  %a: float32[2] = %t.0
  %u: (float32[2], float32[2]) = @f(const float32[2] [1.0, 2.0], %a)
  %v: (float32[2], float32[2]) = @f(const float32[2] [3.0, 2.0], const float32[2] [1.0, 2.0])
  %b: float32[2] = %u.1
  %c: float32[2] = %v.0
  %d: float32[2] = multiply(%b, %c)
  return %d
}"""

# A closure over a parameter, which calls another one and is called in a branch.
CLOSURES = """
func @main(%x: float32[2], %w: float32[2], %p: bool[]) -> float32[2] {
  %scale: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
    %b: float32[2] = multiply(%a, %w)
    return %b
  }
  %curve: fn(float32[2]) -> float32[2] = fn(%c: float32[2]) -> float32[2] {
    %inner: fn(float32[2]) -> float32[2] = fn(%d: float32[2]) -> float32[2] {
      %e: float32[2] = multiply(%d, %c)
      return %e
    }
    %f: float32[2] = %scale(%c)
    %g: float32[2] = %inner(%f)
    %h: float32[2] = sin(%g)
    return %h
  }
  %u: float32[2] = %curve(%x)
  %y: float32[2] = if %p {
    %v: float32[2] = %curve(%u)
    yield %v
  } else {
    %z: float32[2] = %scale(%u)
    yield %z
  }
  return %y
}"""

# A function of the module is given closures, in tuples and under other names, and loops over them.
HIGHER_ORDER = """
func @repeat(%n: int32[], %f: fn(float32[2]) -> float32[2], %x: float32[2]) -> float32[2] {
  %more: bool[] = greater(%n, 0)
  %y: float32[2] = if %more {
    %m: int32[] = subtract(%n, 1)
    %z: float32[2] = %f(%x)
    %r: float32[2] = @repeat(%m, %f, %z)
    yield %r
  } else {
    yield %x
  }
  return %y
}

func @double(%x: float32[2]) -> float32[2] {
  %y: float32[2] = multiply(%x, 2.0)
  return %y
}

func @main(%n: int32[], %x: float32[2], %w: float32[2]) -> float32[2] {
  %step: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
    %b: float32[2] = multiply(%a, %w)
    %c: float32[2] = cos(%b)
    return %c
  }
  %pair: (fn(float32[2]) -> float32[2], float32[2]) = (%step, %x)
  %same: fn(float32[2]) -> float32[2] = %pair.0
  %u: float32[2] = @repeat(%n, %same, %x)
  %v: float32[2] = @repeat(%n, @double, %u)
  %z: float32[2] = @repeat(%n, %step, %v)
  return %z
}"""

CHOSEN = """
func @main(%x: float32[2], %p: bool[]) -> float32[2] {
  %f: fn(float32[2]) -> float32[2] = if %p {
    %g: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
      %d: float32[2] = multiply(%a, %x)
      return %d
    }
    yield %g
  } else {
    %h: fn(float32[2]) -> float32[2] = fn(%b: float32[2]) -> float32[2] {
      %c: float32[2] = exp(%b)
      return %c
    }
    yield %h
  }
  %y: float32[2] = %f(%x)  # model.py:7
  return %y
}"""

RETURNED = """
func @make(%x: float32[2]) -> (int32[], fn(float32[2]) -> float32[2]) {
  %g: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
    %b: float32[2] = multiply(%a, %x)
    return %b
  }
  return (const int32[] 1, %g)
}

func @main(%x: float32[2], %y: float32[2]) -> float32[2] {
  %t: (int32[], fn(float32[2]) -> float32[2]) = @make(%x)
  %f: fn(float32[2]) -> float32[2] = %t.1
  %z: float32[2] = %f(%y)
  %u: float32[2] = %f(%z)
  return %u
}"""

# A closure that grows with each step: x -> w * (w * (... tanh(x))), and one of the module's own.
COMPOSED = """
func @compose(%n: int32[], %f: fn(float32[2]) -> float32[2], %w: float32[2])
    -> fn(float32[2]) -> float32[2] {
  %more: bool[] = greater(%n, 0)
  %r: fn(float32[2]) -> float32[2] = if %more {
    %m: int32[] = subtract(%n, 1)
    %g: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
      %b: float32[2] = %f(%a)
      %c: float32[2] = multiply(%b, %w)
      return %c
    }
    %h: fn(float32[2]) -> float32[2] = @compose(%m, %g, %w)
    yield %h
  } else {
    yield %f
  }
  return %r
}

func @tanh(%x: float32[2]) -> float32[2] {
  %y: float32[2] = tanh(%x)
  return %y
}

func @main(%n: int32[], %x: float32[2], %w: float32[2]) -> float32[2] {
  %f: fn(float32[2]) -> float32[2] = @compose(%n, @tanh, %w)
  %y: float32[2] = %f(%x)
  return %y
}"""

PROGRAMS = {
    "branch taken": (BRANCH, [[0.1, -0.2, 0.3], [1.0, 2.0, -1.0], True]),
    "branch not taken": (BRANCH, [[0.1, -0.2, 0.3], [1.0, 2.0, -1.0], False]),
    "loop": (LOOP, [7, [0.1, -0.2, 0.3], [1.0, 2.0, -1.0]]),
    "loop of no step": (LOOP, [0, [0.1, -0.2, 0.3], [1.0, 2.0, -1.0]]),
    "fibonacci": (FIBONACCI, [7, [0.7, 1.5]]),
    "gcd": (GCD, [24, 15, [0.2, -0.1]]),
    "mutual": (MUTUAL, [5, [0.7, 1.5], [0.3, -0.4]]),
    "recursive main": (RECURSIVE_MAIN, [1.5, 4.0]),
    "closures": (CLOSURES, [[0.7, 1.5], [0.3, -0.4], True]),
    "closures, not taken": (CLOSURES, [[0.7, 1.5], [0.3, -0.4], False]),
    "functions as arguments": (HIGHER_ORDER, [3, [0.7, 1.5], [0.3, -0.4]]),
    "chosen closure": (CHOSEN, [[0.7, 1.5], True]),
    "chosen closure, not taken": (CHOSEN, [[0.7, 1.5], False]),
    "returned closure": (RETURNED, [[0.7, 1.5], [0.3, -0.4]]),
    "closures over closures": (COMPOSED, [3, [0.7, 1.5], [0.3, -0.4]]),
    "several calls": (SEVERAL_CALLS, [[0.7, 1.5], [0.3, -0.4]]),
}


def arguments(program: Module, values: list[object]) -> list[meta.ndarray]:
    return [meta.array(v, p.type.dtype) for v, p in zip(values, program.main.params, strict=True)]


def run(program: Module, *args: meta.ndarray) -> object:
    return interpret(module_program(program), *args)


def run_compiled(program: Module, *args: meta.ndarray) -> object:
    return meta.vm.compile(program, *args)(*args)


def flat(result: object) -> list[meta.ndarray]:
    return [r for part in result for r in flat(part)] if isinstance(result, tuple) else [result]


def by_tape(program: Module, args: list[meta.ndarray]) -> tuple[list, list, list]:
    """Return results, one dy per floating point result, and the gradients of float arguments."""
    leaves = [meta.array(a.torch().clone()) for a in args]
    for leaf in leaves:
        leaf.requires_grad = leaf.dtype == "float32"
    results = flat(run(program, *leaves))
    floats = [r for r in results if r.dtype == "float32"]
    dys = [meta.array(torch.linspace(1, 2, r.torch().numel()).reshape(r.shape)) for r in floats]
    for result, dy in zip(floats, dys, strict=True):
        if result.requires_grad:
            result.backward(dy)
    grads = [
        meta.zeros_like(a) if a.grad is None else a.grad for a in leaves if a.dtype == "float32"
    ]
    return results, dys, grads


def optimized(program: Module) -> Module:
    """Apply what stands between autodiff and the executors, and verify each step."""
    for step in (simplify, dead_code, infer_type):
        program = step(program)
        verify(program, typed=True)
    return program


@pytest.mark.product
@pytest.mark.parametrize("result", ["inline", "closure"])
@pytest.mark.parametrize(("text", "values"), PROGRAMS.values(), ids=PROGRAMS)
def test_gradients_are_those_of_the_tape(text: str, values: list[object], result: str) -> None:
    program = module(text)
    args = arguments(program, values)
    expected, dys, grads = by_tape(program, args)
    wrt = [i for i, a in enumerate(args) if a.dtype == "float32"]
    found = autodiff(program, wrt=wrt, result=result)
    verify(found, typed=True)
    assert structural_equal(infer_type(found), found)
    for executed in (found, optimized(found)):
        if result == "closure":
            executed = with_caller(executed)
        for execute in (run, run_compiled):
            y, gradients = execute(executed, *dys, *args)
            check(flat(y), expected, 1e-6, 1e-6)
            check(list(gradients), grads, 1e-5, 1e-5)


def with_caller(program: Module) -> Module:
    """Add a main that calls the pullback which the module's main returns."""
    main = program.main
    pullback = main.result_type.fields[1]
    dys = ", ".join(f"%dy{i}: {t}" for i, t in enumerate(pullback.params))
    params = ", ".join(f"%p{i}: {p.type}" for i, p in enumerate(main.params))
    names = ", ".join(f"%p{i}" for i in range(len(main.params)))
    y, result = main.result_type.fields[0], pullback.result
    caller = f"""
func @main({dys}, {params}) -> ({y}, {result}) {{
  %both: {main.result_type} = @forward({names})
  %y: {y} = %both.0
  %pullback: {pullback} = %both.1
  %g: {result} = %pullback({", ".join(f"%dy{i}" for i in range(len(pullback.params)))})
  return (%y, %g)
}}"""
    found = parse(re.sub(r"@main\b", "@forward", str(program)) + caller)
    verify(found, typed=True)
    return found


def becomes(before: str, after: str, **options: object) -> None:
    found, expected = dead_code(autodiff(module(before), **options)), module(after)
    assert structural_equal(found, expected), f"{first_difference(found, expected)}\n{found}"


def test_both_blocks_yield_the_gradients_of_all_that_either_uses() -> None:
    becomes(
        """
        func @main(%x: float32[], %w: float32[], %v: float32[]) -> float32[] {
          %p: bool[] = less(%x, 0.0)
          %y: float32[] = if %p {
            %a: float32[] = multiply(%w, %v)
            yield %a
          } else {
            yield %x
          }
          return %y
        }""",
        """
        func @main(%dy: float32[], %x: float32[], %w: float32[], %v: float32[])
            -> (float32[], (float32[], float32[])) {
          %p: bool[] = less(%x, 0.0)
          %0: (float32[], fn(float32[]) -> (float32[], float32[])) = if %p {
            %a: float32[] = multiply(%w, %v)
            %f: fn(float32[]) -> (float32[], float32[]) = fn(%d: float32[])
                -> (float32[], float32[]) {
              %1: float32[] = multiply(%d, %v)
              %2: float32[] = zeros_like(%x)
              return (%2, %1)
            }
            yield (%a, %f)
          } else {
            %g: fn(float32[]) -> (float32[], float32[]) = fn(%e: float32[])
                -> (float32[], float32[]) {
              %3: float32[] = zeros_like(%w)
              return (%e, %3)
            }
            yield (%x, %g)
          }
          %y: float32[] = %0.0
          %pullback: fn(float32[]) -> (float32[], float32[]) = %0.1
          %4: (float32[], float32[]) = %pullback(%dy)
          %5: float32[] = %4.0
          %6: float32[] = %4.1
          return (%y, (%6, %5))
        }""",
        wrt=["w", "x"],
    )


def test_a_loop_makes_one_closure_per_step() -> None:
    becomes(
        LOOP,
        """
        func @main(%i: int32[], %h: float32[3], %w: float32[3])
            -> (float32[3], fn(float32[3]) -> (float32[3],)) {
          %0: (float32[3], fn(float32[3]) -> (float32[3],)) = @loop_vjp(%i, %h, %w)
          %y: float32[3] = %0.0
          %b: fn(float32[3]) -> (float32[3],) = %0.1
          return (%y, %b)
        }

        func @loop_vjp(%i: int32[], %h: float32[3], %w: float32[3])
            -> (float32[3], fn(float32[3]) -> (float32[3],)) {
          %more: bool[] = greater(%i, 0)
          %0: (float32[3], fn(float32[3]) -> (float32[3],)) = if %more {
            %j: int32[] = subtract(%i, 1)
            %m: float32[3] = multiply(%h, %w)
            %t: float32[3] = tanh(%m)
            %1: (float32[3], fn(float32[3]) -> (float32[3],)) = @loop_vjp(%j, %t, %w)
            %r: float32[3] = %1.0
            %b: fn(float32[3]) -> (float32[3],) = %1.1
            %f: fn(float32[3]) -> (float32[3],) = fn(%d: float32[3]) -> (float32[3],) {
              %2: (float32[3],) = %b(%d)
              %3: float32[3] = %2.0
              %4: float32[3] = tanh_dx(x=None, y=%t, dy=%3)
              %5: float32[3] = multiply(%4, %w)
              return (%5,)
            }
            yield (%r, %f)
          } else {
            %g: fn(float32[3]) -> (float32[3],) = fn(%e: float32[3]) -> (float32[3],) {
              return (%e,)
            }
            yield (%h, %g)
          }
          %y: float32[3] = %0.0
          %p: fn(float32[3]) -> (float32[3],) = %0.1
          return (%y, %p)
        }""",
        wrt=["h"],
        result="closure",
    )


def test_what_no_gradient_flows_through_is_called_as_before() -> None:
    found = autodiff(module(RECURSIVE_MAIN), wrt=["x"])
    assert sorted(found.functions) == ["main", "main_1_vjp", "pred"]
    assert "@pred(" in str(found.functions["main_1_vjp"])


def test_a_function_is_differentiated_once_and_its_original_goes() -> None:
    found = autodiff(module(SEVERAL_CALLS), wrt=["x", "y"])
    # One of the three calls is of constants only.
    assert sorted(found.functions) == ["f", "f_vjp", "main"]
    assert str(found.main).count("@f_vjp(") == 2


def test_a_tuple_parameter_has_a_tuple_of_gradients() -> None:
    program = module("""
        func @main(%t: (float32[2], (int32[2], float32[2]))) -> float32[2] {
          %a: float32[2] = %t.0
          %u: (int32[2], float32[2]) = %t.1
          %b: float32[2] = %u.1
          %c: float32[2] = multiply(%a, %a)
          return %c
        }""")
    found = autodiff(program, wrt=[0])
    verify(found, typed=True)
    assert str(found.main.result_type) == "(float32[2], ((float32[2], float32[2]),))"
    x = meta.array([3.0, 4.0])
    (main,) = found.functions.values()
    _, ((da, db),) = run_module(found, [meta.array([1.0, 1.0]), (x, (meta.array([1, 2]), x))])
    assert len(main.params) == 2
    assert da.numpy().tolist() == [6.0, 8.0]
    assert db.numpy().tolist() == [0.0, 0.0]


def test_a_loop_of_ten_thousand_steps() -> None:
    program = module(LOOP)
    found = optimized(autodiff(program, wrt=["h", "w"]))
    args = arguments(program, [10_000, [0.1, -0.2, 0.3], [1.001, 1.0, 1.002]])
    y, gradients = run(found, meta.array([1.0, 1.0, 1.0]), *args)
    h, w = (a.detach().torch().clone().requires_grad_() for a in args[1:])
    expected = h
    for _ in range(10_000):
        expected = torch.tanh(expected * w)
    expected.sum().backward()
    check(y, meta.array(expected.detach()), 1e-4, 1e-4)
    check(list(gradients), [meta.array(h.grad), meta.array(w.grad)], 1e-3, 1e-3)


def test_the_types_of_a_differentiated_program_are_inferred() -> None:
    """Variables of main and of `_vjp` functions need no types; declared results are enough."""
    found = autodiff(module(FIBONACCI), wrt=["x"])
    bare = parse(re.sub(r"(?m)^( *%\w+): .*? = (?!fn)", r"\1 = ", str(found)))
    assert any(b.var.type is None for b in bindings(bare.main))
    assert first_difference(infer_type(bare), found) is None


def test_a_second_derivative_through_functions_that_do_not_recur() -> None:
    """The pullbacks that the first derivative calls are known once their makers are inlined."""
    program = module("""
        func @f(%x: float32[2], %w: float32[2]) -> float32[2] {
          %a: float32[2] = multiply(%x, %w)
          %y: float32[2] = sin(%a)
          return %y
        }

        func @main(%x: float32[2], %w: float32[2]) -> float32[2] {
          %y: float32[2] = @f(%x, %w)
          %z: float32[2] = @f(%y, %w)
          return %z
        }""")
    first = optimized(autodiff(program, wrt=["x"]))
    second = autodiff(inline(first), wrt=["x"])
    verify(second, typed=True)
    x, w, ones = (
        torch.tensor([0.3, 0.7], requires_grad=True),
        torch.tensor([1.5, -2.0]),
        torch.ones(2),
    )
    (slope,) = torch.autograd.grad(torch.sin(torch.sin(x * w) * w).sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x)
    args = [meta.array(a.detach()) for a in (torch.zeros(2), ones, ones, x, w)]
    (_, (dx,)), (found,) = run(second, *args)
    check(dx, meta.array(slope.detach()), 1e-5, 1e-5)
    check(found, meta.array(bend), 1e-5, 1e-5)


GIVEN = """
func @main(%x: float32[2], %f: fn(float32[2]) -> float32[2]) -> float32[2] {
  %y: float32[2] = %f(%x)  # model.py:7
  return %y
}"""

OPERATORS = """
func @main(%x: float32[2], %p: bool[]) -> float32[2] {
  %f: fn(float32[2]) -> float32[2] = if %p {
    yield exp
  } else {
    yield tanh
  }
  %y: float32[2] = %f(%x)  # model.py:7
  return %y
}"""


@pytest.mark.parametrize("text", [GIVEN, OPERATORS])
def test_a_function_that_is_no_part_of_the_program_is_an_error_of_the_call(text: str) -> None:
    with pytest.raises(GradientError, match="not known where it is called") as caught:
        autodiff(module(text), wrt=["x"])
    assert str(caught.value.span) == "model.py:7"
    assert caught.value.hint is not None


def test_an_unknown_closure_that_needs_no_gradient_is_no_error() -> None:
    text = GIVEN.replace("return %y\n}", "%z: float32[2] = add(%y, %w)\n  return %z\n}")
    text = text.replace("%x: float32[2],", "%x: float32[2], %w: float32[2],", 1)
    found = autodiff(module(text), wrt=["w"])
    verify(found, typed=True)


X = "func @main(%x: float32[2], %i: int32[2])"


@pytest.mark.parametrize(
    ("text", "wrt", "error", "says"),
    [
        (f"{X} -> float32[2] {{\n return %x\n}}", ["i"], GradientError, "'i' of main has no grad"),
        (f"{X} -> float32[2] {{\n return %x\n}}", ["X"], UnknownName, "no parameter 'X'"),
        (
            f"{X} -> int64[] {{\n %a: int64[] = argmax(%x)  # m.py:2\n return %a\n}}",
            ["x"],
            GradientError,
            "m.py:2",
        ),
        (
            f"{X} -> fn(float32[2]) -> float32[2] {{\n"
            " %f: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {  # m.py:2\n"
            " return %a\n }\n return %f\n}",
            ["x"],
            GradientError,
            "m.py:2",
        ),
        (f"{X} -> float32[2] {{\n %a = exp(%x)\n return %a\n}}", ["x"], IRError, "infer_type"),
    ],
)
def test_what_cannot_be_differentiated(
    text: str, wrt: list[str], error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as caught:
        autodiff(parse(text), wrt=wrt)
    assert says in str(caught.value)


def test_the_form_of_the_result_is_checked() -> None:
    with pytest.raises(ArgumentError, match="unknown form"):
        autodiff(module(LOOP), wrt=["h"], result="tape")


def test_a_recursive_function_needs_a_result_type() -> None:
    with pytest.raises(IRError, match="needs a declared result type"):
        infer_type(parse("func @main(%x: float32[]) {\n %y = @main(%x)\n return %y\n}"))
    with pytest.raises(IRError, match="does not have its result type"):
        infer_type(
            parse(
                "func @main(%x: float32[], %p: bool[]) -> float32[2] {\n %y = @main(%x, %p)\n"
                " %z = if %p {\n yield %x\n } else {\n yield %x\n }\n return %z\n}"
            )
        )


OVERWRITTEN = """
func @step(%x: float32[2], %s: float32[2]) -> float32[2] {
  %0: () = sgd(%s, %x, %x, 0.1, 0.0)
  return %x
}

func @main(%x: float32[2], %p: bool[]) -> float32[2] {
  %s: float32[2] = negative(%x)
  %v: float32[1, 2] = reshape(%s, (1, 2))
  %y: float32[2] = tanh(%s)
  %z: float32[2] = if %p {
    %a: float32[2] = multiply(%s, %y)  # model.py:6
    yield %a
  } else {
    yield %y
  }
  WRITE
  return %z
}"""


@pytest.mark.parametrize(
    "write",
    [
        "%0: () = sgd(%s, %x, %x, 0.1, 0.0)",
        "%0: () = sgd(%v, %v, %v, 0.1, 0.0)",
        "%0: float32[2] = @step(%x, %s)",
    ],
)
def test_what_is_overwritten_cannot_be_read_again(write: str) -> None:
    program = module(OVERWRITTEN.replace("WRITE", write))
    with pytest.raises(GradientError, match="is written in place after the call") as caught:
        autodiff(program, wrt=["x"])
    assert str(caught.value.span) == "model.py:6"


def test_what_is_written_before_it_is_read_is_no_error() -> None:
    text = OVERWRITTEN.replace("WRITE", "").replace(
        "%y: float32[2] = tanh", "%0: float32[2] = @step(%x, %s)\n  %y: float32[2] = tanh"
    )
    verify(autodiff(module(text), wrt=["x"]), typed=True)
