"""Products of one operand as one: which of them, and that programs then still give the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base import config
from meta.base.device import CPU
from meta.ir import Module, parse
from meta.model import Model, layers, trace, value_and_grad
from meta.passes import (
    canonicalize,
    dead_code,
    eliminate_common_subexpressions,
    infer_type,
    join_products,
    simplify,
)
from meta.passes.prepare import ARRAYS
from meta.testing import check
from meta.vm.compiler.calling_convention import Program
from tests.program_text import names

X, W, B = "%x: float16[4, 16]", "float16[8, 16]", "float16[8]"


def joined(head: str, body: str, arrays: int, results: str = "(%a, %b)") -> Module:
    text = f"func @main({X}, {head}) attrs(arrays={arrays}) {{\n{body}\nreturn {results}\n}}"
    module = infer_type(parse(text))
    return infer_type(dead_code(join_products(module, device=CPU, devices=("cpu",))))


TWO = "%a = dense(%x, %v)\n%b = dense(%x, %w)"
JOINED = ["concat", "dense", "split"]


def test_weights_that_stay_the_same_are_joined() -> None:
    head = f"%v: {W}, %w: {W}"
    assert names(joined(head, TWO, 2)) == JOINED
    assert names(joined(head, TWO, 0)) == ["dense", "dense"]
    other = infer_type(parse(f"func @main({X}, {head}) attrs(arrays=2) {{{TWO}\nreturn %a}}"))
    assert join_products(other, device=CPU) is other


def test_biases_are_joined_too_if_all_have_one() -> None:
    head = f"%v: {W}, %w: {W}, %c: {B}, %d: {B}"
    body = TWO.replace("%a", "%p").replace("%b", "%q")
    with_bias = f"{body}\n%a = bias_add(%p, %c)\n%b = bias_add(%q, %d)"
    found = names(joined(head, with_bias, 4))
    assert found == ["concat", "dense", "concat", "bias_add", "split"]
    of_one = f"{body}\n%a = bias_add(%p, %c)\n%b = relu(%q)"
    assert names(joined(head, of_one, 4)) == ["dense", "dense", "bias_add", "relu"]


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (f"%v: {W}, %w: float16[16, 16]", TWO),  # of different widths
        ("%v: float16[7, 16], %w: float16[7, 16]", TWO),  # whose rows would begin anywhere
        (f"%v: {W}, %w: {W}", "%a = dense(%x, %v)\n%r = relu(%x)\n%b = dense(%r, %w)"),
        (f"%v: {W}, %w: {W}", f"{TWO}\n%u = multi_tensor_axpby((%v,), (%w,), 1.0, 1.0)"),
        (f"%v: {W}, %w: {W}", f"{TWO}\n%u = multi_tensor_axpby((%b,), (%a,), 1.0, 1.0)"),
    ],
    ids=["widths", "odd", "operands", "written weights", "written result"],
)
def test_what_stays_apart(head: str, body: str) -> None:
    assert names(joined(head, body, 2)).count("dense") == 2


def test_rows_enough_to_fill_the_device_stay_apart() -> None:
    head = "%x: float16[16384, 64], %v: float16[4096, 64], %w: float16[4096, 64]"
    text = f"func @main({head}) attrs(arrays=2) {{\n{TWO}\nreturn (%a, %b)\n}}"
    module = infer_type(parse(text))
    assert names(join_products(module, device=CPU, devices=("cpu",))) == ["dense", "dense"]


def test_weights_that_are_computed_later_are_computed_earlier() -> None:
    head = f"%v: {W}, %w: float32[8, 16]"
    body = '%a = dense(%x, %v)\n%h = astype(%w, "float16")\n%r = relu(%h)\n%b = dense(%x, %r)'
    assert names(joined(head, body, 2)) == ["astype", "relu", *JOINED]


def test_constants_are_joined_now() -> None:
    torch.manual_seed(0)
    weights = [meta.array(torch.randn(8, 16)) for _ in range(3)]

    @meta.model.trace
    def model(x: Any) -> Any:
        return tuple(op.relu(op.dense(x, w)) for w in weights)

    x = meta.array(torch.randn(4, 16))
    with meta.PassContext(config={"join_products": {"devices": ("cpu",)}}):
        compiled = meta.vm.compile(model, x)
    found = compiled(x)
    for one, w in zip(found, weights, strict=True):
        check(one, (x.torch().double() @ w.torch().double().t()).relu())


def test_groups_are_small() -> None:
    head = ", ".join(f"%w{i}: {W}" for i in range(6))
    body = "\n".join(f"%a{i} = dense(%x, %w{i})" for i in range(6))
    results = "(" + ", ".join(f"%a{i}" for i in range(6)) + ")"
    assert names(joined(head, body, 6, results)) == JOINED * 2


class Strange(Model):
    """Cross attention, gates and a layer without bias, as no model of the zoo has them."""

    def build(self) -> None:
        self.query, self.key, self.value = (layers.Linear(16, 24) for _ in range(3))
        self.gate, self.up = (layers.Linear(24, 40, bias=False) for _ in range(2))
        self.down = layers.Linear(40, 16)

    @trace
    def forward(self, x: Any, memory: Any) -> Any:
        shape = 2, -1, 3, 8
        query = op.reshape(self.query(x), shape)
        key, value = (op.reshape(f(memory), shape) for f in (self.key, self.value))
        y = op.fused_attention(query, key, value, layout="BSHD")[0]
        y = op.reshape(y, (2, -1, 24))
        return op.add(self.down(op.multiply(op.silu(self.gate(y)), self.up(y))), x)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_model_gives_the_same(dtype: str) -> None:
    meta.random.seed(0)
    torch.manual_seed(0)
    model = Strange().to(dtype=dtype).eval()
    x, memory = (meta.array(torch.randn(2, n, 16).to(getattr(torch, dtype))) for n in (5, 7))
    program = model.program(x, memory)
    main = program.module.main
    main = replace(main, attrs={**main.attrs, ARRAYS: len(program.arrays)})
    results = []
    for devices in ((), ("cpu",)):
        module = program.module.with_functions({"main": main})
        for step in (infer_type, canonicalize, simplify, eliminate_common_subexpressions):
            module = step(module)
        module = infer_type(join_products(module, device=CPU, devices=devices))
        assert names(module).count("dense") == (4 if devices else 6)
        joined = Program(module, program.arrays, program.convention)
        results.append(meta.vm.compile(joined, x, memory)(x, memory).torch())
    tolerance = 1e-5 if dtype == "float32" else 4e-3
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)
    expected = model(x, memory).torch()
    torch.testing.assert_close(results[1], expected, rtol=tolerance, atol=tolerance)
    with meta.PassContext(config={"join_products": {"devices": ("cpu",)}}):
        compiled = meta.vm.compile(model, x, memory)
    assert sum(compiled.kernels()[k] for k in compiled.kernels() if k.endswith("split")) == 2
    assert not any(k.endswith("concat") for k in compiled.kernels())
    for _ in range(2):
        found = compiled(x, memory).torch()
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
        model.key.weight.torch().detach().mul_(-1.5)
        expected = model(x, memory).torch()


class Projections(Model):
    """Three projections of one array."""

    def build(self) -> None:
        self.query, self.key, self.value = (layers.Linear(16, 8) for _ in range(3))

    @trace
    def forward(self, x: Any) -> Any:
        query, key, value = (project(x) for project in (self.query, self.key, self.value))
        return op.add(op.multiply(query, key), op.sigmoid(value))


@pytest.mark.parametrize("tf32", [False, True])
def test_weights_that_are_trained_are_joined_on_tensor_cores(tf32: bool) -> None:
    meta.random.seed(0)
    model = Projections()
    x, dy = (meta.array(torch.randn(2, 5, n)) for n in (16, 8))
    leaves = []
    for devices in ("cuda",), ("cpu",):
        step = value_and_grad(model)
        with (
            config.override(META_TF32=tf32),
            meta.PassContext(config={"join_products": {"devices": devices}}),
        ):
            executable = meta.vm.compile(step, dy, x)
        whole = [b for b in executable.module.main.body.bindings if "[24, 16]" in str(b.var.type)]
        assert bool(whole) == (tf32 and devices == ("cpu",))
        leaves.append([a.torch() for a in meta.op.core.tree.flatten(executable(dy, x))[0]])
    for found, expected in zip(*leaves, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
