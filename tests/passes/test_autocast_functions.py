"""Mixed precision of branches, loops, functions, closures and data values."""

from __future__ import annotations

import pytest
import torch

import meta
from meta.ir import Function, Module, parse, verify
from meta.passes import autocast, dead_code, infer_type, inline, simplify
from meta.vm.run.interpreter import run_module
from tests.passes.casting import HALVES, TO_HALF, TO_WIDE, cast_module, casts, same_results

IF = """
func @main(%x: float32[3, 3], %w: float32[3, 3], %c: bool[]) -> float32[3, 3] {
  %a: float32[3, 3] = matmul(%x, %w)
  %b: float32[3, 3] = if %c {
    %d: float32[3, 3] = matmul(%a, %w)
    yield %d
  } else {
    %e: float32[3, 3] = OTHER
    yield %e
  }
  %f: float32[3, 3] = matmul(%b, %w)
  return %f
}"""


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("other", ["relu(%a)", "exp(%a)"])
def test_branches_meet(other: str, half: str) -> None:
    source = IF.replace("OTHER", other)
    made = cast_module(source, dtype=half)
    # w is cast once, outside; of exp's branch the result is float32, and so the other's is widened.
    assert casts(made).count(("float32", half)) == (2 if "relu" in other else 3)
    x, w = torch.randn(2, 3, 3).mul(0.3).unbind()
    for c in (True, False):
        same_results(infer_type(parse(source)), made, x, w, torch.tensor(c), rtol=3e-2)


def test_what_a_branch_writes_is_cast_once_more_in_it() -> None:
    made = cast_module("""
    func @main(%x: float32[3, 3], %w: float32[3, 3], %c: bool[]) -> float32[3, 3] {
      %a: float32[3, 3] = matmul(%x, %w)
      %b: float32[3, 3] = if %c {
        %u: () = multi_tensor_axpby((%x,), (%w,), 1.0, 1.0)
        %d: float32[3, 3] = matmul(%a, %w)
        %e: float32[3, 3] = matmul(%d, %w)
        yield %e
      } else {
        yield %a
      }
      return %b
    }""")
    assert casts(made) == [TO_HALF, TO_HALF, TO_HALF, TO_WIDE]  # x and w; w; the result


def test_a_branch_that_fails_has_the_type_of_the_other() -> None:
    made = cast_module("""
    func @main(%x: float32[3, 3], %c: bool[]) -> float32[3, 3] {
      %a: float32[3, 3] = if %c {
        %d: float32[3, 3] = matmul(%x, %x)
        yield %d
      } else {
        %e: float32[3, 3] = fail "no"() -> float32[3, 3]
        yield %e
      }
      %f: float32[3, 3] = matmul(%a, %x)
      return %f
    }""")
    assert casts(made) == [TO_HALF, TO_HALF, TO_WIDE] or casts(made) == [TO_HALF, TO_WIDE]


LOOP = """
func @main(%h: float32[2, 3], %w: float32[3, 3], %n: int64[]) -> float32[2, 3] {
  %y: float32[2, 3] = @loop(%h, %w, %n)
  return %y
}
func @loop(%h: float32[2, 3], %w: float32[3, 3], %n: int64[]) -> float32[2, 3] {
  %more: bool[] = greater(%n, 0)
  %y: float32[2, 3] = if %more {
    %a: float32[2, 3] = matmul(%h, %w)
    %b: float32[2, 3] = tanh(%a)
    %c: float32[2, 3] = RESULT
    %m: int64[] = subtract(%n, 1)
    %z: float32[2, 3] = @loop(%c, %w, %m)
    yield %z
  } else {
    yield %h
  }
  return %y
}"""


@pytest.mark.parametrize("half", HALVES)
def test_a_loop_keeps_its_state_and_casts_its_weights_once(half: str) -> None:
    source = LOOP.replace("RESULT", "add(%b, %h)")
    made = cast_module(source, dtype=half)
    assert casts(made, "main") == [("float32", half)]  # w
    # The state is cast for the product, and the product's result for the sum.
    assert casts(made, "loop") == [("float32", half), (half, "float32")]
    h, w = torch.randn(2, 3), torch.randn(3, 3) * 0.3
    same_results(infer_type(parse(source)), made, h, w, torch.tensor(5), rtol=3e-2)


def test_the_value_of_a_call_in_tail_position_is_not_touched() -> None:
    made = cast_module(LOOP.replace("RESULT", "add(%b, %b)"))
    choice = next(b.value for b in made.functions["loop"].body.bindings if b.var.name == "y")
    block = choice.then_block
    assert block.result is block.bindings[-1].var
    args = meta.array(torch.zeros(2, 3)), meta.array(torch.zeros(3, 3)), meta.array(20_000)
    run_module(made, args)  # in constant space


def test_a_function_is_made_for_each_choice_of_dtypes() -> None:
    source = """
    func @main(%x: float32[3, 3], %w: float32[3, 3]) -> (float32[3, 3], float32[3, 3]) {
      %a: float32[3, 3] = matmul(%x, %w)
      %b: float32[3, 3] = @f(%a)
      %c: float32[3, 3] = @f(%b)
      %d: float32[3, 3] = @f(%x)
      return (%c, %d)
    }
    func @f(%x: float32[3, 3]) -> float32[3, 3] {
      %y: float32[3, 3] = relu(%x)
      return %y
    }"""
    made = cast_module(source)
    assert {f.result_type.dtype for n, f in made.functions.items() if n != "main"} == {
        "float16", "float32",
    }  # fmt: skip
    assert len(made.functions) == 3
    assert casts(made) == [TO_HALF, TO_HALF, TO_WIDE]
    same_results(infer_type(parse(source)), made, *torch.randn(2, 3, 3).mul(0.3).unbind())


def test_tuples_are_taken_apart_where_a_dtype_differs() -> None:
    source = """
    func @main(%x: float32[4, 4], %c: bool[]) -> (float32[4, 2], (float32[4, 2], float32[4, 4])) {
      %a: float32[4, 4] = matmul(%x, %x)
      %s: (float32[4, 2], float32[4, 2]) = split(%a, indices_or_sections=2, axis=1)
      %t: (float32[4, 2], float32[4, 2]) = if %c {
        yield %s
      } else {
        %p: float32[4, 2] = %s.0
        %e: float32[4, 2] = exp(%p)
        yield (%e, %p)
      }
      %q: float32[4, 2] = %t.0
      return (%q, (%s.1, %a))
    }""".replace("(%s.1, %a)", "(%u, %a)").replace(
        "      return (%q,", "      %u: float32[4, 2] = %s.1\n      return (%q,"
    )
    made = cast_module(source)
    for c in (True, False):
        x = torch.randn(4, 4) * 0.3
        same_results(infer_type(parse(source)), made, x, torch.tensor(c))


def test_a_closure_keeps_its_signature_and_may_capture_half_precision() -> None:
    source = """
    func @main(%x: float32[3, 3], %c: bool[]) -> float32[3, 3] {
      %a: float32[3, 3] = matmul(%x, %x)
      %f: fn(float32[3, 3]) -> float32[3, 3] = if %c {
        %g: fn(float32[3, 3]) -> float32[3, 3] = fn(%y: float32[3, 3]) -> float32[3, 3] {
          %h: float32[3, 3] = matmul(%y, %a)
          return %h
        }
        yield %g
      } else {
        %g: fn(float32[3, 3]) -> float32[3, 3] = fn(%y: float32[3, 3]) -> float32[3, 3] {
          %h: float32[3, 3] = exp(%y)
          return %h
        }
        yield %g
      }
      %z: float32[3, 3] = %f(%a)
      return %z
    }"""
    made = cast_module(source)
    for c in (True, False):
        same_results(infer_type(parse(source)), made, torch.randn(3, 3) * 0.3, torch.tensor(c))


DATA = """
type Box {
  Empty()
  Box(float32[3, 3])
}
func @main(%x: float32[3, 3], %c: bool[]) -> float32[3, 3] {
  %a: float32[3, 3] = matmul(%x, %x)
  %b: type Box = if %c {
    %d: type Box = construct Box(%a) -> type Box
    yield %d
  } else {
    %e: type Box = construct Empty() -> type Box
    yield %e
  }
  %f: bool[] = is_variant Box(%b)
  %g: float32[3, 3] = if %f {
    %h: float32[3, 3] = get_field Box.0(%b) -> float32[3, 3]
    yield %h
  } else {
    yield %x
  }
  %r: ref(float32[3, 3]) = make_ref(%g)
  %i: float32[3, 3] = @through(%r, %x)
  return %i
}
func @through(%r: ref(float32[3, 3]), %x: float32[3, 3]) -> float32[3, 3] {
  %a: float32[3, 3] = read_ref(%r)
  %b: float32[3, 3] = matmul(%a, %x)
  %u: () = write_ref(%r, %b)
  %c: float32[3, 3] = read_ref(%r)
  return %c
}"""


def test_data_values_and_references_keep_their_types() -> None:
    made = cast_module(DATA)
    # x, the field; what is read, and what is written.
    assert casts(made, "main") == [TO_HALF, TO_WIDE]
    assert casts(made, "through") == [TO_HALF, TO_HALF, TO_WIDE]
    for c in (True, False):
        same_results(infer_type(parse(DATA)), made, torch.randn(3, 3) * 0.3, torch.tensor(c))


def function_names(module: Module) -> list[str]:
    return [n for n, f in module.functions.items() if isinstance(f, Function)]


def test_closures_that_are_known_are_functions() -> None:
    source = """
    func @main(%x: float32[3, 3], %w: float32[3, 3]) -> float32[3, 3] {
      %f: fn(float32[3, 3]) -> float32[3, 3] = fn(%a: float32[3, 3]) -> float32[3, 3] {
        %b: float32[3, 3] = matmul(%a, %w)
        return %b
      }
      %y: float32[3, 3] = %f(%x)
      %z: float32[3, 3] = %f(%y)
      return %z
    }"""
    made = cast_module(source)
    # Only the first call's argument is cast: the second one's comes in half precision.
    assert casts(simplify(dead_code(inline(made)))).count(TO_WIDE) == 1
    assert len(function_names(made)) == 2
    same_results(infer_type(parse(source)), made, *torch.randn(2, 3, 3).mul(0.3).unbind())


def test_gradients_of_a_cast_program_and_casts_of_a_program_with_gradients() -> None:
    source = LOOP.replace("RESULT", "add(%b, %h)")
    module = infer_type(parse(source))
    h, w = torch.randn(2, 3), torch.randn(3, 3) * 0.3
    dy, n = torch.randn(2, 3), torch.tensor(4)
    plain = infer_type(meta.passes.autodiff(module, wrt=["h", "w"]))
    args = dy, h, w, n
    for made in (
        infer_type(meta.passes.autodiff(autocast(module, dtype="bfloat16"), wrt=["h", "w"])),
        autocast(plain, dtype="bfloat16"),
    ):
        verify(made, typed=True)
        same_results(plain, made, *args, rtol=5e-2)
