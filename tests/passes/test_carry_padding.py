"""Padded columns that are carried: how far, and that programs then still give the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.base.config import override
from meta.base.device import CPU
from meta.base.errors import IndexOutOfRange
from meta.ir import Call, Module, TensorType, parse, type_of, verify
from meta.model import Model, trace, value_and_grad
from meta.model.layers import Linear
from meta.passes import carry_padding, infer_type

ROWS, CLASSES, WIDE = 6, 67, 72
HEAD = "%x: float16[6, 8], %w: float16[67, 8], %b: float16[67], %l: int64[6], %d: float32[]"
PRODUCT = """%p = pad(%w, (0, 5, 0, 0))
%y = dense(%x, %p)
%c = strided_slice(%y, (0, 0), (6, 67))
"""


def carried(body: str, result: str, head: str = HEAD) -> Module:
    module = infer_type(parse(f"func @main({head}) {{\n{PRODUCT}{body}\nreturn {result}\n}}"))
    return infer_type(carry_padding(module, device=CPU, devices=("cpu",)))


def names(module: Module) -> list[str]:
    values = [b.value for b in module.main.body.bindings]
    return [v.callee.name for v in values if isinstance(v, Call)][2:]


def test_other_devices_stay() -> None:
    module = infer_type(parse(f"func @main({HEAD}) {{\n{PRODUCT}return %c\n}}"))
    assert carry_padding(module, device=CPU) is module


def test_a_loss_reads_all_columns_and_its_gradient_has_them() -> None:
    body = """%s = bias_add(%c, %b, 1)
    %f = astype(%s, "float32")
    %v = cross_entropy(%f, %l)
    %g = cross_entropy_dpred(%d, %f, %l)
    %h = astype(%g, "float16")
    %q = pad(%h, (0, 0, 0, 5))
    %dw = matmul_tn(%q, %x)
    %r = reshape(%h, (2, 3, 67))
    %db = sum(%r, (0, 1))"""
    found = carried(body, "(%v, %dw, %db)")
    scores = ["pad", "bias_add", "astype", "cross_entropy", "cross_entropy_dpred"]
    assert names(found) == [*scores, "astype", "matmul_tn", "reshape", "sum", "strided_slice"]
    wide = [b.var.type.shape[-1] for b in found.main.body.bindings if b.var.name == "wide"]
    assert set(wide) == {WIDE}


def test_a_loss_is_told_how_many_columns_are_classes() -> None:
    found = carried('%f = astype(%c, "float32")\n%v = cross_entropy(%f, %l)', "%v")
    assert names(found) == ["astype", "cross_entropy"]
    assert "classes=67" in str(found)


def test_scores_that_are_returned_padded_are_the_product() -> None:
    body = """%s = bias_add(%c, %b, 1)
    %w1 = pad(%s, (0, 0, 0, 5))
    %f = astype(%w1, "float32")
    %v = cross_entropy(%f, %l, classes=67)"""
    found = carried(body, "(%v, %w1)")
    assert names(found) == ["pad", "bias_add", "astype", "cross_entropy"]


def test_a_loss_with_statistics_is_told_too() -> None:
    body = """%f = astype(%c, "float32")
    %t = cross_entropy_train(%f, %l)
    %v = %t.0
    %m = %t.1
    %s = %t.2
    %g = cross_entropy_train_dpred(%d, %f, %l, %m, %s)
    %q = pad(%g, (0, 0, 0, 5))"""
    found = carried(body, "(%v, %q)")
    assert names(found) == ["astype", "cross_entropy_train", "cross_entropy_train_dpred"]
    assert str(found).count("classes=67") == 2


def test_the_gradient_of_scores_that_are_given_padded_has_all_columns() -> None:
    text = """func @main(%x: float16[6, 8], %y: float16[6, 72], %l: int64[6], %d: float32[]) {
    %f = astype(%y, "float32")
    %g = cross_entropy_dpred(%d, %f, %l, classes=67)
    %h = astype(%g, "float16")
    %c = strided_slice(%h, (0, 0), (6, 67))
    %q = pad(%c, (0, 0, 0, 5))
    %dw = matmul_tn(%q, %x)
    %db = sum(%c, (0,))
    return (%dw, %db)
    }"""
    module = infer_type(parse(text))
    found = infer_type(carry_padding(module, device=CPU, devices=("cpu",)))
    called = [b.value.callee.name for b in found.main.body.bindings]
    assert called == [
        "astype", "cross_entropy_dpred", "astype", "matmul_tn", "sum", "strided_slice",
    ]  # fmt: skip
    # Of other columns nothing is known.
    for other in ("(6, 66)", "(6, 68)"):
        module = infer_type(parse(text.replace("(6, 67)", other).replace("0, 5", "0, 1")))
        assert carry_padding(module, device=CPU, devices=("cpu",)) is module


@pytest.mark.parametrize(
    ("body", "result", "expected"),
    [
        ("%s = relu(%c)", "%s", ["strided_slice", "relu"]),
        # What is needed as it was is cut off where it is needed.
        ("%s = bias_add(%c, %b, 1)\n%r = relu(%s)\n%t = exp(%s)", "(%r, %t)",
         ["pad", "bias_add", "strided_slice", "relu", "exp"]),
        ("%s = bias_add(%c, %b, 1)", "(%s, %c)",
         ["pad", "bias_add", "strided_slice", "strided_slice"]),
        # Another axis, other columns.
        ("%t = permute_dims(%c)\n%s = bias_add(%t, %b, 0)", "%s",
         ["strided_slice", "permute_dims", "bias_add"]),
        ("%s = reshape(%c, (402,))", "%s", ["strided_slice", "reshape"]),
        ("%s = sum(%c, (1,))", "%s", ["strided_slice", "sum"]),
        ("%s = sum(%c, (0,), (0,))", "%s", ["sum", "strided_slice"]),
        ("%s = sum(%c)", "%s", ["strided_slice", "sum"]),
        # What is written in place is an array of its own.
        ("%u = multi_tensor_axpby((%c,), (%c,), 1.0, 1.0)\n%s = bias_add(%c, %b, 1)", "%s",
         ["strided_slice", "multi_tensor_axpby", "bias_add"]),
    ],
)  # fmt: skip
def test_how_far_columns_are_carried(body: str, result: str, expected: list[str]) -> None:
    assert names(carried(body, result)) == expected


class Head(Model):
    """Words from a hidden state, with a bias or not, and their loss."""

    def build(self, width: int, classes: int, bias: bool, direct: bool) -> None:
        self.last = Linear(width, classes, bias)
        self.direct = direct

    @trace
    def forward(self, x: Any, labels: Any) -> Any:
        scores = self.last(op.relu(x))
        flat = scores if self.direct else op.reshape(scores, (-1, scores.shape[-1]))
        return op.cross_entropy(flat, op.reshape(labels, (-1,))), op.mean(scores)


CONFIG = {
    "align_products": {"devices": ("cpu",), "least_work": 1},
    "carry_padding": {"devices": ("cpu",)},
}


@pytest.mark.parametrize(
    ("result", "returned", "expected"),
    [
        ("(%f, %x)", (0,), [WIDE, 8]),
        ("(%f, %x)", (1,), [CLASSES, 8]),
        ("(%f, %f)", (0, 1), [WIDE, WIDE]),
        ("(%f, %f)", (0,), [CLASSES, CLASSES]),
        ("(%r, %f)", (0, 1), [3, CLASSES]),
        ("(%v, %f)", (0, 1), [None, WIDE]),
        ("%f", (0,), [CLASSES]),
    ],
)
def test_what_is_returned_with_all_columns(
    result: str, returned: tuple[int, ...], expected: list[int | None]
) -> None:
    body = """%s = bias_add(%c, %b, 1)
    %f = astype(%s, "float32")"""
    body += "\n%r = strided_slice(%f, (0, 0), (6, 3))" if "%r" in result else ""
    body += "\n%v = cross_entropy(%f, %l)" if "%v" in result else ""
    module = infer_type(parse(f"func @main({HEAD}) {{\n{PRODUCT}{body}\nreturn {result}\n}}"))
    found = carry_padding(module, device=CPU, devices=("cpu",), returned=returned)
    verify(found)
    types = type_of(found.main.body.result)
    shapes = [t.shape for t in getattr(types, "fields", (types,))]
    assert [s[-1] if s else None for s in shapes] == expected
    assert infer_type(found).main.result_type == found.main.result_type


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("dtype", "classes", "labels"),
    [("float16", 67, "int64"), ("bfloat16", 70, "int32"), ("float16", 129, "int64")],
)
def test_training_gives_what_torch_gives(
    dtype: str, classes: int, labels: str, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels are not looked at, as on CUDA, and rows of those that are no classes are left out."""
    monkeypatch.setattr("meta.vm.compiler.emit_values.checks_indices", lambda device: False)
    meta.random.seed(0)
    torch.manual_seed(0)
    model = Head(72, classes, bias, direct=False)
    shape = 5, 14
    x = torch.randn(*shape, 72)
    target = torch.randint(classes, shape, dtype=getattr(torch, labels))
    # No classes, some of them among those that are padded.
    target[0, :6] = torch.tensor([-100, -1, classes, classes + 1, classes + 2, 30000])
    step = meta.amp.autocast(value_and_grad(model), dtype)
    dy = meta.array(2.0), meta.array(0.5)
    arguments = dy, meta.array(x), meta.array(target)
    with meta.PassContext(config=CONFIG), override(META_PROGRAM_CACHE=False):
        compiled = meta.vm.compile(step, *arguments)
    types = [b.var.type for b in compiled.module.main.body.bindings]
    wide = [
        t for t in types if isinstance(t, TensorType) and t.shape[-1:] == (-(-classes // 8) * 8,)
    ]
    assert any(t.dtype == dtype and t.shape[0] == 70 for t in wide)
    (loss, _), gradients = compiled(*arguments)
    state = {n: a.detach().torch().double().requires_grad_() for n, a in model.named_parameters()}
    scores = F.linear(x.double().relu(), state["last.weight"], state.get("last.bias"))
    known = torch.where((target >= 0) & (target < classes), target, -100).long().flatten()
    expected = F.cross_entropy(scores.flatten(0, 1), known)
    total = 2 * expected + 0.5 * scores.mean()
    tolerance = 4e-3 if dtype == "float16" else 3e-2
    assert abs(loss.item() - expected.item()) <= tolerance * expected.item()
    for name, correct in zip(state, torch.autograd.grad(total, list(state.values())), strict=True):
        found = gradients[name].torch().double()
        assert (found - correct).abs().max() <= tolerance * correct.abs().max(), name


def test_labels_of_the_padding_are_no_classes() -> None:
    model = Head(8, 67, True, direct=True).to(dtype="float16")
    x, dy = meta.array(torch.rand(4, 8).half()), (meta.array(1.0, dtype="float16"),) * 2
    good = meta.array([0, 66, -100, 5])
    with meta.PassContext(config=CONFIG):
        compiled = meta.vm.compile(value_and_grad(model), dy, x, good)
    compiled(dy, x, good)
    for label in (-1, 67, 71, 72):
        with pytest.raises(IndexOutOfRange, match=r"at \[2\] of target"):
            compiled(dy, x, meta.array([0, 66, label, 5]))


@pytest.mark.parametrize("scale", [1.0, 100.0, 30000.0])
def test_scores_of_any_size(scale: float) -> None:
    meta.random.seed(0)
    model = Head(8, 67, True, direct=True).to(dtype="float16")
    x = meta.array((torch.rand(66, 8) * scale).half())
    target = meta.array(torch.where(torch.arange(66) > 0, torch.arange(66) - 1, -100))
    step, dy = value_and_grad(model), (meta.array(1.0, dtype="float16"),) * 2
    results = []
    for config in ({}, CONFIG):
        with meta.PassContext(config=config):
            found = meta.vm.compile(step, dy, x, target)(dy, x, target)
        results.append([a.torch() for a in op.core.tree.flatten(found)[0]])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=4e-3, atol=1e-3, equal_nan=True)
