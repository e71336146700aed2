"""Products whose rows are padded: which of them, and that programs then still give the same."""

from __future__ import annotations

import pytest
import torch

import meta
from meta import op
from meta.base import config
from meta.base.device import CPU
from meta.ir import Module, TensorType, parse
from meta.model import value_and_grad
from meta.model.layers import Linear
from meta.passes import align_products, infer_type
from tests.program_text import names

SHAPES = {
    "matmul": ((66, 70), (70, 67)),
    "matmul_nt": ((66, 70), (67, 70)),
    "matmul_tn": ((70, 66), (70, 67)),
    "matmul_tt": ((70, 66), (67, 70)),
    "dense": ((66, 70), (67, 70)),
    "batch_matmul": ((3, 66, 70), (3, 70, 67)),
    "batch_matmul_nt": ((3, 66, 70), (3, 67, 70)),
    "batch_matmul_tn": ((3, 70, 66), (1, 70, 67)),
    "batch_matmul_tt": ((1, 70, 66), (3, 67, 70)),
}


def product(name: str, first: object, second: object, dtype: str = "float16") -> Module:
    head = f"%x: {dtype}{list(first)}, %y: {dtype}{list(second)}"
    return infer_type(parse(f"func @main({head}) {{\n%z = {name}(%x, %y)\nreturn %z\n}}"))


def aligned(module: Module) -> Module:
    return infer_type(align_products(module, device=CPU, devices=("cpu",), least_work=1))


@pytest.mark.parametrize("name", SHAPES)
def test_rows_begin_at_multiples_of_16_bytes(name: str) -> None:
    found = aligned(product(name, *SHAPES[name]))
    (call,) = [b for b in found.main.body.bindings if b.value.callee.name == name]
    for atom in (*call.value.args, call.var):
        assert isinstance(atom.type, TensorType) and atom.type.shape[-1] % 8 == 0
    torch.manual_seed(0)
    x, y = (meta.array(torch.randn(shape).half()) for shape in SHAPES[name])
    result = meta.vm.compile(found, x, y)(x, y)
    expected = getattr(op, name)(x, y)
    torch.testing.assert_close(result.torch(), expected.torch(), rtol=2e-3, atol=2e-2)


def test_what_fits_or_is_small_stays() -> None:
    assert names(aligned(product("dense", (64, 72), (80, 72)))) == ["dense"]
    assert names(aligned(product("dense", (64, 7), (80, 7)))) == ["dense"]
    # The rows of the first operand are K, which fits; M is nowhere in a row.
    assert names(aligned(product("dense", (67, 72), (80, 72)))) == ["dense"]
    assert names(aligned(product("dense", (66, 70), (67, 70), "float32"))) == ["dense"]
    with config.override(META_TF32=True):
        assert names(aligned(product("dense", (66, 70), (67, 70), "float64"))) == ["dense"]
    small = align_products(product("dense", (66, 70), (67, 70)), device=CPU, devices=("cpu",))
    assert names(small) == ["dense"]
    assert names(align_products(product("dense", (66, 70), (67, 70)), device=CPU)) == ["dense"]


def test_float32_is_padded_where_it_may_be_rounded() -> None:
    with config.override(META_TF32=True):
        found = aligned(product("dense", (66, 70), (67, 70), "float32"))
    assert names(found) == ["pad", "pad", "dense", "strided_slice"]


def test_what_is_written_in_between_is_padded_again() -> None:
    head = "%x: float16[66, 72], %w: float16[67, 72], %g: float16[67, 72], %r: float32[]"
    twice = "%a = dense(%x, %w)\n{}%b = dense(%x, %w)\nreturn (%a, %b)"
    counts = []
    for between in ("", "%n = sgd(%w, %g, %g, %r, mu=0.9)\n"):
        text = f"func @main({head}) {{\n{twice.format(between)}\n}}"
        counts.append(names(aligned(infer_type(parse(text)))).count("pad"))
    assert counts == [1, 2]


def test_a_backward_pass_shares_what_is_padded() -> None:
    meta.random.seed(0)
    model = value_and_grad(Linear(72, 67, bias=False).to(dtype="float16"))
    dy, x = (meta.array(torch.randn(64, n).half()) for n in (67, 72))
    results = []
    for options in ({}, {"align_products": {"devices": ("cpu",), "least_work": 1}}):
        with meta.PassContext(config=options, disabled=["fuse_operators"]):
            executable = meta.vm.compile(model, dy, x)
        count = sum(n for name, n in executable.kernels().items() if name.endswith("pad"))
        assert count == (2 if options else 0)  # of the weight, and of dy
        leaves, _ = meta.op.core.tree.flatten(executable(dy, x))
        results.append([a.torch() for a in leaves])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-2)
