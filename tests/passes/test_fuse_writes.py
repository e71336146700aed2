"""Fused patterns of calls that write arguments: where they match, and that all later stages know of
what is written.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import meta
from meta import op
from meta.base.device import CPU
from meta.dialect import Dialect
from meta.dialect.core import HANDWRITTEN
from meta.ir import Module, parse, verify
from meta.passes import dispatch, explain_fusion, fuse_dialect, infer_type, memory_schedule
from meta.vm.compiler.bytecode import Invoke
from tests.registered import remove_dialects

X, C = "float32[4, 3]", "float32[3]"
HEAD = f"%x: {X}, %m: {C}, %v: {C}"


@pytest.fixture(autouse=True)
def acme() -> Iterator[Dialect]:
    """A dialect with one such pattern, which is forgotten after the test."""
    dialect = Dialect("acme", devices=("cpu",), plevel=HANDWRITTEN)

    @dialect.pattern(lambda x, m, v: op.relu(op.batch_norm_train(x, m, v)))
    def norm_relu(x, m, v, out):
        out.copy_(torch.nn.functional.batch_norm(x, m, v, training=True).clamp_(min=0))

    with meta.dialect.only("torch", "acme"):
        yield dialect
    remove_dialects(dialect)


def program(body: str, head: str = HEAD) -> Module:
    return infer_type(parse(f"func @main({head}) {{\n{body}\n}}"))


PLAIN = "%a = batch_norm_train(%x, %m, %v)\n %r = relu(%a)\n return %r"
READ_AFTER = "%a = batch_norm_train(%x, %m, %v)\n %r = relu(%a)\n %s = add(%r, %m)\n return %s"


def arrays() -> list[meta.ndarray]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, generator=generator)
    return [meta.array(t) for t in (x, torch.zeros(3), torch.ones(3))]


@pytest.mark.parametrize("body", [PLAIN, READ_AFTER])
def test_the_kernel_writes_and_others_see_it(body: str) -> None:
    module = program(body)
    fused = fuse_dialect(module, device=CPU)
    verify(fused, typed=True)
    assert "@norm_relu" in str(fused)
    results = []
    for level in (0, 2):
        given = arrays()
        y = meta.vm.compile(module, *given, opt_level=level)(*given)
        results.append([y.torch(), *(a.torch() for a in given)])
    for plain, found in zip(*results, strict=True):
        torch.testing.assert_close(found, plain)


def test_the_code_says_what_is_written() -> None:
    executable = meta.vm.compile(program(PLAIN), *arrays())
    assert "acme.norm_relu" in executable.kernels()
    instructions = executable.code.functions["main"].instructions()
    (call,) = (i for i in instructions if isinstance(i, Invoke))
    assert call.written == call.args[1:]


def test_a_schedule_keeps_the_order_of_writes() -> None:
    body = """%before = exp(%m)
      %a = batch_norm_train(%x, %m, %v)
      %r = relu(%a)
      %after = exp(%m)
      %s = add(%after, %before)
      %t = add(%r, %s)
      return %t"""
    module = dispatch(fuse_dialect(program(body), device=CPU), device=CPU)
    text = str(memory_schedule(module).main)
    order = [text.index(f"%{name}:") for name in ("before", "r", "after")]
    assert order == sorted(order)


@pytest.mark.parametrize(
    "between",
    [
        "%u = exp(%m)",  # reads what is written
        "%u = batch_norm_train(%x, %m, %v)",  # writes it
        "%e = reshape(%m, (3,))\n %u = exp(%e)",  # reads it through a view
        "%u = @reader(%m)",
    ],
)
def test_what_meets_the_write_in_between_refuses(between: str) -> None:
    text = f"""func @main({HEAD}) {{
      %a = batch_norm_train(%x, %m, %v)
      {between}
      %r = relu(%a)
      return (%r, %u)
    }}
    func @reader(%m: {C}) {{
      %r = exp(%m)
      return %r
    }}"""
    module = infer_type(parse(text))
    assert " in between, by %" in explain_fusion(module, device=CPU)
    assert "norm_relu" not in fuse_dialect(module, device=CPU).functions


def test_others_in_between_do_not_matter() -> None:
    body = """%a = batch_norm_train(%x, %m, %v)
      %u = exp(%x)
      %r = relu(%a)
      return (%r, %u)"""
    assert "norm_relu" in fuse_dialect(program(body), device=CPU).functions
