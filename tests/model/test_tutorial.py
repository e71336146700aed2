"""The first model that one writes: softmax with an axis, on each backend and executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import TypeInferError
from meta.model import Model, trace
from meta.testing import check, get_testable_devices, randn_torch


class ByAttribute(Model):
    def build(self, axis: int) -> None:
        self.axis = axis

    @trace
    def forward(self, x: Any) -> Any:
        return meta.op.softmax(x, axis=self.axis)


class ByArgument(Model):
    @trace
    def forward(self, x: Any, axis: int) -> Any:
        return meta.op.softmax(x, axis=axis)


TOLERANCE = {"float16": 2e-3, "float32": 1e-5}
BIG = (3, 2, 5, 8, 4, 7)
CASES = [
    *((shape, axis, dtype) for shape in ((3,), (3, 2))
      for axis in range(-len(shape), len(shape)) for dtype in TOLERANCE),
    *((BIG, axis, "float32") for axis in range(-6, 6)),
    *((BIG, axis, "float16") for axis in (0, -4, 5)),
]  # fmt: skip


def compiled(model: Model, device: str, *args: Any) -> Any:
    return meta.vm.compile(model, *args, device=device)(*args)


def compare(shape: tuple[int, ...], axis: int, dtype: str, device: str) -> None:
    """Forward and backward, under the interpreter and the VM, against torch."""
    x, tx = randn_torch(shape, device=device, dtype=dtype, requires_grad=True)
    dy, tdy = randn_torch(shape, device=device, dtype=dtype)
    expected = torch.softmax(tx, axis)
    expected.backward(tdy)
    bound = TOLERANCE[dtype]
    by_attribute, by_argument = ByAttribute(axis), ByArgument()
    found = by_attribute(x)
    check(found, expected, bound, bound)
    found.backward(dy)
    check(x.grad, tx.grad, bound, bound)
    assert (found.dtype, x.grad.dtype) == (dtype, dtype)
    check(compiled(by_attribute, device, x), expected, bound, bound)
    check(by_argument(x, axis), expected, bound, bound)
    check(compiled(by_argument, device, x, axis), expected, bound, bound)


@pytest.mark.parametrize("device", get_testable_devices())
@pytest.mark.parametrize(("shape", "axis", "dtype"), CASES)
@meta.dialect.only("torch")
def test_on_torch(shape: tuple[int, ...], axis: int, dtype: str, device: str) -> None:
    compare(shape, axis, dtype, device)


# What is compiled depends on the axis, not on how it is counted: fewer cases do.
@pytest.mark.product
@pytest.mark.parametrize("device", get_testable_devices())
@pytest.mark.parametrize(
    ("shape", "axis", "dtype"),
    [c for c in CASES if len(c[0]) < 3 or (c[1], c[2]) in ((0, "float32"), (-3, "float16"))],
)
@meta.dialect.only("tvm")
def test_on_tvm(shape: tuple[int, ...], axis: int, dtype: str, device: str) -> None:
    compare(shape, axis, dtype, device)


@pytest.mark.parametrize("device", get_testable_devices())
@meta.dialect.only("tvm")
def test_the_gradient_as_a_result_of_the_vm(device: str) -> None:
    class Scaled(Model):
        def build(self) -> None:
            self.w, _ = randn_torch((3, 2), device=device, requires_grad=True)

        @trace
        def forward(self, axis: int) -> Any:
            return meta.op.softmax(self.w, axis=axis)

    model = Scaled()
    dy, tdy = randn_torch((3, 2), device=device)
    tw = model.w.detach().torch().clone().requires_grad_()
    expected = torch.softmax(tw, -2)
    expected.backward(tdy)
    y, gradients = compiled(meta.model.value_and_grad(model), device, dy, -2)
    check(y, expected)
    check(gradients["w"], tw.grad)


@pytest.mark.parametrize(("shape", "axis"), [((3,), 1), ((3, 2), -3), (BIG, 6), ((), 0), ((), -1)])
def test_an_axis_that_does_not_exist(shape: tuple[int, ...], axis: int) -> None:
    x, _ = randn_torch(shape)
    for run in (lambda: ByAttribute(axis)(x), lambda: compiled(ByArgument(), "cpu", x, axis)):
        with pytest.raises(TypeInferError) as caught:
            run()
        assert f"softmax: axis {axis} is out of range for ndim {len(shape)}" in str(caught.value)
        assert f"at:       {__file__}:{caught.value.span.line}" in str(caught.value)
        lines = Path(__file__).read_text("utf-8").splitlines()
        assert "meta.op.softmax(x, axis=" in lines[caught.value.span.line - 1]
