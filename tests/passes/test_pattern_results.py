"""Patterns of several results: what they match, where the call stands, and kernels of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.device import CPU, Device
from meta.base.errors import ArgumentError, IRError, RegistrationError
from meta.dialect import Dialect, Unsupported
from meta.dialect.core import OpEnv
from meta.ir import Module, TensorType, TupleType, parse, verify
from meta.passes import explain_fusion, fuse_dialect, infer_type
from meta.passes.pattern import Pattern, explain, match, partition, pattern, rewrite


def program(body: str, params: str = "%x: float32[2, 3], %y: float32[2, 3]") -> Module:
    return infer_type(parse(f"func @main({params}) {{\n{body}\n}}"))


@pattern
def both(x: Any) -> Any:
    e = op.exp(x)
    return op.sigmoid(e), e


@pattern
def beside(x: Any, y: Any) -> Any:
    return op.multiply(x, y), op.sum(x, 1)


def names(what: Pattern, module: Module) -> list[list[str]]:
    return [[r.var.name for r in one.results] for one in match(what, module.main)]


def lines(what: Pattern, body: str, **more: Any) -> list[str]:
    """Return main's bindings after partition, as text without types."""
    after = partition(program(body, **more), what)
    verify(after, typed=True)
    text = str(after).split("}")[0].splitlines()[1:]
    return [line.split("#")[0].split(":")[0].strip() + " =" + line.split("=", 1)[1].rstrip()
            for line in text if "=" in line]  # fmt: skip


def test_a_result_may_be_what_another_is_made_of() -> None:
    body = "%e = exp(%x)\n %s = sigmoid(%e)\n %r = add(%s, %e)\n return %r"
    assert names(both, program(body)) == [["s", "e"]]
    assert lines(both, body) == [
        "%both = @both(%x)", "%s = %both.0", "%e = %both.1", "%r = add(%s, %e)",
    ]  # fmt: skip


def test_results_need_only_share_a_value() -> None:
    body = "%p = multiply(%x, %y)\n %s = sum(%x, axis=1)\n return (%p, %s)"
    assert names(beside, program(body)) == [["p", "s"]]
    swapped = "%s = sum(%x, axis=1)\n %p = multiply(%y, %x)\n return (%p, %s)"
    assert names(beside, program(swapped)) == [["p", "s"]]


def test_the_call_comes_before_the_first_use() -> None:
    body = """%s = sum(%x, axis=1)
      %t = exp(%s)
      %p = multiply(%x, %y)
      return (%p, %t)"""
    assert lines(beside, body) == [
        "%beside = @beside(%x, %y)", "%p = %beside.0", "%s = %beside.1", "%t = exp(%s)",
    ]  # fmt: skip


def test_the_call_comes_after_what_it_reads() -> None:
    body = """%s = sum(%x, axis=1)
      %z = exp(%y)
      %t = exp(%s)
      %p = multiply(%x, %z)
      return (%p, %t)"""
    assert lines(beside, body) == [
        "%z = exp(%y)", "%beside = @beside(%x, %z)", "%p = %beside.0", "%s = %beside.1",
        "%t = exp(%s)",
    ]  # fmt: skip


def test_a_result_that_the_other_needs_first_is_refused() -> None:
    body = """%s = sum(%x, axis=1, keepdims=True)
      %z = add(%y, %s)
      %p = multiply(%x, %z)
      return (%p, %s)"""
    module = program(body)
    kept = pattern(lambda x, y: (op.multiply(x, y), op.sum(x, 1, True)))
    assert not match(kept, module.main)
    assert "is used before all that the match reads is there" in explain(kept, module.main)


def test_matches_that_wait_for_one_another() -> None:
    """The second match reads a result of the first, whose call has moved."""
    body = """%s = sum(%x, axis=1)
      %p = multiply(%x, %y)
      %t = sum(%p, axis=1)
      %q = multiply(%p, %y)
      %u = add(%s, %t)
      return (%q, %u)"""
    after = lines(beside, body)
    assert ["(%x, %y)", "(%p, %y)"] == [line.split("@beside")[1] for line in after if "@" in line]


def test_a_view_may_be_used_elsewhere() -> None:
    @pattern
    def flat(x: Any, w: Any) -> Any:
        return op.matmul_tn(op.reshape(x, ...), w), op.sum(x, (0, 1))

    body = """%f = reshape(%x, shape=(6, 4))
      %s = sum(%x, axis=(0, 1))
      %a = matmul_tn(%f, %w)
      %b = exp(%f)
      return (%a, %s, %b)"""
    after = lines(flat, body, params="%x: float32[2, 3, 4], %w: float32[6, 5]")
    assert after == [
        "%f = reshape(%x, shape=(6, 4))", "%flat = @flat(%x, %w)", "%a = %flat.0", "%s = %flat.1",
        "%b = exp(%f)",
    ]  # fmt: skip


def test_a_view_of_what_is_gone_may_not() -> None:
    exp_flat = pattern(lambda x: op.negative(op.reshape(op.exp(x), ...)))
    body = "%e = exp(%x)\n %f = reshape(%e, shape=(6,))\n %r = negative(%f)\n return (%r, %f)"
    assert not match(exp_flat, program(body).main)
    assert "%f is also used as a result" in explain(exp_flat, program(body).main)


def test_a_write_between_is_a_refusal() -> None:
    body = """%s = sum(%x, axis=1)
      %u = sgd(%x, %y, %v, 0.1, 0.9)
      %p = multiply(%x, %y)
      return (%p, %s)"""
    params = "%x: float32[2, 3], %y: float32[2, 3], %v: float32[2, 3]"
    assert "is written in between" in explain(beside, program(body, params).main)


def test_what_is_no_pattern() -> None:
    with pytest.raises(ArgumentError, match="nothing in common"):
        pattern(lambda x, y: (op.exp(x), op.exp(y)))
    with pytest.raises(ArgumentError, match="twice"):
        pattern(lambda x: (op.exp(x),) * 1 + (lambda e: (e, e))(op.exp(x)))
    with pytest.raises(ArgumentError, match="result of an operator"):
        pattern(lambda x: (op.exp(x), x))
    with pytest.raises(ArgumentError, match="2 results"):
        rewrite(program("%r = exp(%x)\n return %r"), both, lambda x: op.exp(x))


BODY = "%p = multiply(%x, %y)\n %s = sum(%x, axis=1)\n %r = exp(%s)\n return (%p, %r)"


def results(module: Module) -> tuple[list[str], Any, Any]:
    """Return the kernels of a compiled program, its results, and those without fusion."""
    torch.manual_seed(0)
    arrays = [meta.array(torch.randn(2, 3)) for _ in range(2)]
    compiled = meta.vm.compile(module, *arrays)
    plain = meta.vm.compile(module, *arrays, opt_level=0)
    found, expected = ([a.torch() for a in c(*arrays)] for c in (compiled, plain))
    return list(compiled.kernels()), found, expected


@pytest.mark.parametrize("fills", [True, False])
def test_a_kernel_of_two_results(acme: Dialect, fills: bool) -> None:
    if fills:

        @acme.pattern(lambda x, y: (op.multiply(x, y), op.sum(x, (1,))))
        def two(y, x, out):
            product, total = out
            torch.mul(x, y, out=product)
            torch.sum(x, 1, out=total)
    else:

        @acme.pattern(lambda x, y: (op.multiply(x, y), op.sum(x, (1,))))
        def two(x, y):
            return x * y, x.sum(1)

    kernels, found, expected = results(program(BODY))
    assert kernels == ["acme.two", "torch.exp"]
    torch.testing.assert_close(found, expected)


def test_a_kernel_that_is_prepared(acme: Dialect) -> None:
    seen: list[Any] = []

    @acme.pattern_op(lambda x, y, axis: (op.multiply(x, y), op.sum(x, axis)))
    def two(x, axis, result, device):
        seen.append((x, axis, result, device))
        if x.shape[0] > 2:
            raise Unsupported("more than two rows")

        def run(x, y, product, total):
            torch.mul(x, y, out=product)
            torch.sum(x, axis, out=total)

        return OpEnv(run, allocates=False)

    kernels, found, expected = results(program(BODY))
    assert kernels == ["acme.two", "torch.exp"]
    torch.testing.assert_close(found, expected)
    kind = TensorType((2, 3), "float32")
    assert seen[-1] == (kind, (1,), (kind, TensorType((2,), "float32")), Device("cpu"))
    wide = program(BODY, "%x: float32[5, 3], %y: float32[5, 3]")
    assert "more than two rows" in explain_fusion(wide, device=CPU)
    assert list(fuse_dialect(wide, device=CPU).functions) == ["main"]


def test_one_value_for_two_captures_of_a_prepared_kernel(acme: Dialect) -> None:
    @acme.pattern_op(lambda x, y: (op.multiply(x, y), op.sum(x, (1,))))
    def two(result):
        def run(x, y, product, total):
            torch.mul(x, y, out=product)
            torch.sum(x, 1, out=total)

        return OpEnv(run, allocates=False)

    kernels, found, expected = results(program(BODY.replace("%y", "%x")))
    assert kernels == ["acme.two", "torch.exp"]
    torch.testing.assert_close(found, expected)


def test_fewer_results_go_first(acme: Dialect) -> None:
    @acme.pattern(lambda x: (op.sigmoid(e := op.exp(x)), e))
    def kept(x):
        e = torch.exp(x)
        return torch.sigmoid(e), e

    @acme.pattern(lambda x: op.sigmoid(op.exp(x)))
    def alone(x):
        return torch.sigmoid(torch.exp(x))

    body = "%e = exp(%x)\n %s = sigmoid(%e)\n return {}"
    assert "alone" in fuse_dialect(program(body.format("(%s, %s)")), device=CPU).functions
    assert "kept" in fuse_dialect(program(body.format("(%s, %e)")), device=CPU).functions


def test_a_maker_asks_for_what_there_is(acme: Dialect) -> None:
    with pytest.raises(RegistrationError, match=r"asks for \['z'\]"):

        @acme.pattern_op(lambda x: op.exp(op.exp(x)))
        def twice(x, z):
            raise AssertionError

    with pytest.raises(RegistrationError, match=r"\['result'\]"):

        @acme.pattern_op(lambda result: op.exp(op.exp(result)))
        def reserved():
            raise AssertionError


def test_a_function_that_does_not_say_what_the_maker_takes(acme: Dialect) -> None:
    @acme.pattern_op(lambda x, axis: op.exp(op.softmax(x, axis)))
    def made(x, axis):
        return OpEnv(lambda x, out: torch.exp(torch.softmax(x, axis), out=out), allocates=False)

    module = fuse_dialect(program("%a = softmax(%x)\n %r = exp(%a)\n return %r"), device=CPU)
    function = module.functions["made"]
    del function.attrs["literals"]
    with pytest.raises(IRError, match=r"takes as \['axis'\]"):
        acme.fused_kernel(function, CPU)
    assert not isinstance(function.result_type, TupleType)
