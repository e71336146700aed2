"""Mixed precision of whole programs: few casts, typed programs, the same results."""

from __future__ import annotations

import pytest
import torch

import meta
from meta.base.errors import AutocastError
from meta.ir import parse
from meta.ir.types import TensorType
from meta.op.core import Op, Tensor
from meta.passes import autocast, explain_autocast, infer_type
from meta.testing import check
from meta.vm.run.interpreter import run_module
from tests.passes.casting import TO_HALF, TO_WIDE, cast_module, casts, same_results


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
      %b: float32[3, 3] = astype(%a, dtype="float32")
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
      %a: float16[3, 3] = astype(%x, dtype="float16")
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
    ["matmul(%x, %x)", 'astype(%h, dtype="float32")'],
    ids=["computed in half precision", "widened by the program"],
)
def test_what_was_widened_and_then_written_is_cast_anew(made: str) -> None:
    source = f"""
    func @main(%x: float32[3, 3], %d: float32[3, 3]) -> float32[3, 3] {{
      %h: float16[3, 3] = astype(%x, dtype="float16")
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
