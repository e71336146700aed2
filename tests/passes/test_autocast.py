"""Mixed precision of whole programs: few casts, typed programs, the same results."""

from __future__ import annotations

import pytest
import torch

import meta
from meta.base.errors import AutocastError
from meta.ir import Call, Function, Module, bindings, parse, text, verify
from meta.ir.types import TensorType
from meta.op.core import Op, Tensor
from meta.passes import autocast, dead_code, explain_autocast, infer_type, inline, simplify
from meta.passes.call_of import base_op
from meta.testing import check
from meta.vm.interpreter import run_module

HALVES = ["float16", "bfloat16"]


def cast_module(source: str, **options: str) -> Module:
    """Parse a program and cast it; it is well typed, and a second time changes nothing."""
    module = infer_type(parse(source))
    made = autocast(module, **options)
    verify(made, typed=True)
    assert len(explain_autocast(made, **options)) == 0, text(made)
    return made


def casts(module: Module, name: str | None = None) -> list[tuple[str, str]]:
    """Return (from, to) of every cast, in the order of the text."""
    functions = module.functions if name is None else {name: module.functions[name]}
    return [
        (binding.value.args[0].type.dtype, binding.var.type.dtype)
        for function in functions.values()
        for binding in bindings(function)
        if is_cast(binding.value)
    ]


def is_cast(value: object) -> bool:
    op = base_op(value.callee) if isinstance(value, Call) else None
    return op is not None and op.name == "cast"


def same_results(module: Module, made: Module, *args: torch.Tensor, rtol: float = 1e-2) -> None:
    """The interpreter and the VM get from the cast program what the original one gives."""
    given = [meta.array(a) for a in args]
    expected = run_module(module, given)
    for found in (run_module(made, given), meta.vm.compile(made)(*given)):
        pairs = zip(_flat(found), _flat(expected), strict=True)
        for one, wanted in pairs:
            check(one, wanted.torch().to(one.torch().dtype), rtol, rtol)


def _flat(value: object) -> list[meta.ndarray]:
    return [v for f in value for v in _flat(f)] if isinstance(value, tuple) else [value]


TO_HALF, TO_WIDE = ("float32", "float16"), ("float16", "float32")


def test_a_cast_is_shared_by_all_who_need_it() -> None:
    made = cast_module(
        """
    func @main(%x: float32[3, 3], %w: float32[3, 3]) -> float32[3, 3] {
      %a: float32[3, 3] = matmul(%x, %w)
      %b: float32[3, 3] = matmul(%x, %a)
      %c: float32[3, 3] = exp(%b)
      %d: float32[3, 3] = sum(%b, axis=(), keepdims=0)
      %e: float32[3, 3] = add(%c, %d)
      return %e
    }""".replace("%d: float32[3, 3]", "%d: float32[]")
    )
    assert casts(made) == [TO_HALF, TO_HALF, TO_WIDE]


def test_what_was_widened_exactly_is_not_cast_back() -> None:
    made = cast_module("""
    func @main(%x: float32[3, 3], %w: float32[3, 3]) -> (float32[3, 3], float32[3, 3]) {
      %a: float32[3, 3] = matmul(%x, %w)
      %b: float32[3, 3] = cast(%a, dtype="float32")
      %c: float32[3, 3] = matmul(%b, %w)
      %d: float32[3, 3] = exp(%b)
      return (%c, %d)
    }""")
    # x, w; the user's own cast of a, which the second product looks through; the result.
    assert casts(made) == [TO_HALF, TO_HALF, TO_WIDE, TO_WIDE]


def test_what_was_rounded_is_not_taken_for_the_original() -> None:
    made = cast_module(
        """
    func @main(%x: float32[3, 3]) -> (float32[3, 3], float32[3, 3]) {
      %a: float16[3, 3] = cast(%x, dtype="float16")
      %b: float32[3, 3] = exp(%a)
      %c: float32[3, 3] = exp(%x)
      return (%b, %c)
    }""".replace("%b: float32[3, 3] = exp", "%b: float16[3, 3] = exp").replace(
            "-> (float32[3, 3]", "-> (float16[3, 3]"
        )
    )
    x = torch.tensor([[1.0001, 2.0001, 3.0001]] * 3)
    b, c = run_module(made, [meta.array(x)])
    check(c, x.exp(), 1e-6, 1e-6)
    assert b.dtype == "float16" and c.dtype == "float32"


def test_out_dtype() -> None:
    source = """
    func @main(%x: float32[2, 3], %w: float32[4, 3]) -> float32[2, 4] {
      %y: float32[2, 4] = dense(%x, %w)
      return %y
    }"""
    assert cast_module(source).main.result_type == TensorType((2, 4), "float32")
    half = autocast(infer_type(parse(source)), out_dtype="float16")
    assert half.main.result_type == TensorType((2, 4), "float16")
    assert casts(half) == [TO_HALF, TO_HALF]
    wide = autocast(infer_type(parse(source)), dtype="bfloat16", out_dtype="float64")
    assert wide.main.result_type == TensorType((2, 4), "float64")


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
        %e: float32[3, 3] = fail "no" -> float32[3, 3]
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
    %d: type Box = construct Box:Box(%a)
    yield %d
  } else {
    %e: type Box = construct Box:Empty()
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


def test_what_is_written_in_place_keeps_its_dtype_and_is_cast_anew() -> None:
    source = """
    func @main(%x: float32[3, 3], %w: float32[3, 3], %v: float32[3, 3]) -> float32[3, 3] {
      %a: float32[3, 3] = matmul(%x, %w)
      %u: () = sgd(%w, %a, %v, learning_rate=0.5, mu=0.0)
      %b: float32[3, 3] = matmul(%x, %w)
      return %b
    }"""
    made = cast_module(source)
    # x, w, the gradient (in float32, as w is), w again after it was written, the result.
    assert casts(made) == [TO_HALF, TO_HALF, TO_WIDE, TO_HALF, TO_WIDE]
    x, w, v = torch.randn(3, 3, 3).mul(0.5).unbind()
    args = [meta.array(t) for t in (x, w, v)]
    found = run_module(made, args)
    wanted = w - 0.5 * (x @ w)
    check(args[1], wanted, 1e-2, 1e-2)
    check(found, x @ wanted, 1e-2, 1e-2)


def test_a_buffer_made_inside_keeps_its_dtype_if_it_is_written() -> None:
    source = """
    func @main(%x: float32[3, 3], %d: float32[3, 3]) -> float32[3, 3] {
      %w: float32[3, 3] = matmul(%x, %x)
      %v: float32[3, 3] = zeros_like(%w)
      %u: () = sgd(%w, %d, %v, learning_rate=0.5, mu=0.0)
      %b: float32[3, 3] = exp(%w)
      return %b
    }"""
    made = cast_module(source)
    x, d = torch.randn(2, 3, 3).mul(0.5).unbind()
    same_results(infer_type(parse(source)), made, x, d)


@pytest.mark.parametrize(
    "made",
    ["matmul(%x, %x)", 'cast(%h, dtype="float32")'],
    ids=["computed in half precision", "widened by the program"],
)
def test_what_was_widened_and_then_written_is_cast_anew(made: str) -> None:
    source = f"""
    func @main(%x: float32[3, 3], %d: float32[3, 3]) -> float32[3, 3] {{
      %h: float16[3, 3] = cast(%x, dtype="float16")
      %w: float32[3, 3] = {made}
      %f: float32[9] = reshape(%w, shape=(-1,))
      %g: float32[9] = reshape(%d, shape=(-1,))
      %v: float32[9] = zeros_like(%f)
      %u: () = sgd(%f, %g, %v, learning_rate=0.5, mu=0.0)
      %b: float32[3, 3] = matmul(%w, %w)
      return %b
    }}"""
    x, d = torch.randn(2, 3, 3).mul(0.5).unbind()
    same_results(infer_type(parse(source)), cast_module(source), x, d)


@pytest.mark.parametrize("inside", [True, False])
def test_a_view_that_is_written_through_is_no_view_of_a_cast(inside: bool) -> None:
    view = "reshape(%x, shape=(-1,))"
    source = f"""
    func @main(%x: float32[3, 3], %d: float32[9]) -> float32[3, 3] {{
      %f: float32[9] = {"@flat(%x)" if inside else view}
      %v: float32[9] = zeros_like(%f)
      %u: () = sgd(%f, %d, %v, learning_rate=0.5, mu=0.0)
      %b: float32[3, 3] = exp(%x)
      return %b
    }}
    func @flat(%x: float32[3, 3]) -> float32[9] {{
      %f: float32[9] = {view}
      return %f
    }}"""
    x, d = torch.randn(3, 3), torch.randn(9)
    with meta.amp.custom_rules({"reshape": meta.amp.generic_cast(True)}):
        made = cast_module(source)
    for module in (infer_type(parse(source)), made):
        given = meta.array(x)
        check(run_module(module, [given, meta.array(d)]), (x - d.view(3, 3) / 2).exp(), 1e-6, 1e-6)
        check(given, x - d.view(3, 3) / 2, 1e-6, 1e-6)


def test_constants_are_cast_once_and_for_all() -> None:
    made = cast_module("""
    func @main(%x: float32[2, 2]) -> float32[2, 2] {
      %y: float32[2, 2] = matmul(%x, const float32[2, 2] [1.0, 2.0, 3.0, 4.0])
      %z: float32[2, 2] = matmul(%y, %x)
      return %z
    }""")
    assert casts(made) == [TO_HALF, TO_WIDE]


def test_float64_and_integers_are_left_alone() -> None:
    made = cast_module("""
    func @main(%x: float64[3, 3], %i: int64[3]) -> (float64[3, 3], int64[3]) {
      %a: float64[3, 3] = matmul(%x, %x)
      %j: int64[3] = add(%i, 1)
      return (%a, %j)
    }""")
    assert casts(made) == []


def test_operators_without_a_rule_are_listed_at_once() -> None:
    def identity(x: Tensor) -> Tensor:
        return x

    one, two = (
        Op(identity, name=name, schema=meta.relu.schema, random=False) for name in ("one", "two")
    )
    module = parse("""
    func @main(%x: float32[3]) -> float32[3] {
      %a: float32[3] = relu(%x)
      %b: float32[3] = relu(%a)
      %c: float32[3] = relu(%b)
      return %c
    }""")
    first, second, third = module.main.body.bindings
    first.value.callee, second.value.callee = two, one
    assert third.value.callee is meta.relu
    with pytest.raises(AutocastError, match="no cast rule: one, two") as caught:
        autocast(infer_type(module))
    assert "meta.amp.always(op), never(op), infer(op)" in str(caught.value)
    with meta.amp.custom_rules({one: meta.amp.infer_cast(), two: meta.amp.generic_cast(True, 1)}):
        made = autocast(infer_type(module))
    assert made.main.body.bindings[1].var.type.dtype == "float16"


def test_rules_of_a_block() -> None:
    source = """
    func @main(%x: float32[3, 3]) -> float32[3, 3] {
      %a: float32[3, 3] = matmul(%x, %x)
      %b: float32[3, 3] = softmax(%a, axis=-1)
      return %b
    }"""
    with meta.amp.custom_rules(
        {"softmax": meta.amp.infer_cast(1), "matmul": lambda *_: (None,) * 2}
    ):
        assert casts(cast_module(source)) == []
        with meta.amp.custom_rules({meta.matmul: meta.amp.generic_cast(True)}):
            assert casts(cast_module(source)) == [TO_HALF, TO_WIDE]
    assert casts(cast_module(source)) == [TO_HALF, TO_WIDE]


def test_the_report() -> None:
    module = infer_type(
        parse("""
    func @main(%x: float32[2, 3], %w: float32[4, 3]) -> float32[2, 4] {
      %h: float32[2, 4] = dense(%x, %w)
      %y: float32[2, 4] = softmax(%h, axis=-1)
      %z: float32[2, 4] = exp(%h)
      %s: float32[2, 4] = add(%y, %z)
      return %s
    }""")
    )
    report = explain_autocast(module)
    assert [(c.value, c.source.dtype, c.dtype) for c in report] == [
        ("x", *TO_HALF), ("w", *TO_HALF), ("h", *TO_WIDE),
    ]  # fmt: skip
    shared = report.casts[2]
    assert [why.consumer for why in shared.needs] == ["softmax.x", "exp.x"]
    assert all(why.rule.file.endswith("rules.py") for why in shared.needs)
    assert report.operators == {"float16": 1, "float32": 3}
    assert "3 casts: 2 float32 -> float16, 1 float16 -> float32" in str(report)
    assert report.as_data()["casts"][0]["needs"][0]["consumer"] == "dense.x1"


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
