"""Products with weights of 8 bits that a model casts, natively and under torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
import meta.frontend.dynamo
from meta.ir import Module, parse
from meta.passes import fuse_quantized_products
from meta.vm.compiler import pipeline

torch.manual_seed(0)
FORMS: dict[str, Callable[..., torch.Tensor]] = {
    "scaled behind": lambda x, w, s, b: F.linear(x, w.to(x.dtype)) * s.to(x.dtype),
    "scaled before": lambda x, w, s, b: F.linear(x, w.to(x.dtype) * s[:, None].to(x.dtype)),
    "with a bias": lambda x, w, s, b: F.linear(x, w.to(x.dtype), b.to(x.dtype)),
    "transposed": lambda x, w, s, b: x @ (w.to(x.dtype) * s[:, None].to(x.dtype)).T,
}


class Form(torch.nn.Module):
    """One of the forms."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.form = FORMS[name]
        self.register_buffer("w", torch.randint(-127, 128, (12, 64), dtype=torch.int8))
        self.register_buffer("s", torch.rand(12) + 0.5)
        self.register_buffer("b", torch.randn(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.form(x, self.w, self.s, self.b)


@pytest.mark.product
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FORMS)
def test_a_model_that_is_imported(name: str, dtype: torch.dtype) -> None:
    x, model = torch.randn(2, 3, 64, dtype=dtype), Form(name)
    run = meta.vm.compile(meta.frontend.from_torch(model, (x,)), meta.array(x))
    assert "quantized_matmul" in str(run.module)
    close = {"rtol": 2e-2, "atol": 8.0} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-2}
    found = run(meta.array(x)).torch().double()
    torch.testing.assert_close(found, model(x.double()), **close)


def test_gradients_pass_it() -> None:
    w, s = torch.randint(-9, 10, (12, 64), dtype=torch.int8), torch.rand(12, 1)

    class Loss(meta.Model):
        def build(self) -> None:
            self.w, self.s = meta.array(w), meta.model.parameter(meta.array(s))

        @meta.model.trace
        def forward(self, x: Any) -> Any:
            return meta.sum(meta.op.dense(x, meta.astype(self.w, "float32") * self.s))

    x, one = torch.randn(3, 64), meta.array(torch.ones(()))
    arrays = meta.array(x)
    run = meta.vm.compile(meta.model.value_and_grad(Loss()), one, arrays)
    assert "quantized_matmul" in str(run.module)
    leaf = s.double().requires_grad_()
    expected = (x.double() @ (w.double() * leaf).T).sum()
    expected.backward()
    value, found = run(one, arrays)
    torch.testing.assert_close(value.torch().double(), expected, rtol=1e-4, atol=1e-3)
    (slope,) = [g for g in meta.op.core.tree.flatten(found)[0] if g.shape == (12, 1)]
    torch.testing.assert_close(slope.torch().double(), leaf.grad, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", FORMS)
def test_under_torch_compile(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Module] = []

    def spied(module: Module, *, trained: Any = None) -> Module:
        seen.append(fuse_quantized_products(module, trained=trained))
        return seen[-1]

    steps = [
        pipeline.PassStep(s.level, spied) if s.run is fuse_quantized_products else s
        for s in pipeline.STEPS
    ]
    monkeypatch.setattr(pipeline, "STEPS", tuple(steps))
    torch._dynamo.reset()
    x, model = torch.randn(3, 64), Form(name)
    with torch.no_grad():
        found = torch.compile(model, backend="meta")(x)
    torch.testing.assert_close(found.double(), model(x.double()), rtol=1e-4, atol=1e-2)
    assert "quantized_matmul" in str(seen[-1])


@pytest.mark.parametrize(
    ("w", "scale"),
    [("int16[8, 64]", "float32[8, 1]"), ("uint8[8, 64]", "float32[8, 1]"),
     ("int8[8, 64]", "float32[1, 64]"), ("int8[8, 64]", "float32[8, 64]")],
)  # fmt: skip
def test_what_stays(w: str, scale: str) -> None:
    module = parse(f"""
    func @main(%x: float32[1, 64], %w: {w}, %s: {scale}) -> float32[1, 8] {{
      %0: float32[8, 64] = astype(%w, dtype="float32")
      %1: float32[8, 64] = multiply(%0, %s)
      %2: float32[1, 8] = dense(%x, %1)
      return %2
    }}""")
    assert "quantized_matmul" not in str(fuse_quantized_products(module))
