"""Models traced on types with symbolic dimensions: forward and training step."""

from __future__ import annotations

from typing import Any

import pytest

import meta
from meta.ir import parse, parse_type, structural_equal, verify
from meta.model import trace, value_and_grad
from meta.model.zoo import LeNet
from tests.model.networks import MLP, BasicBlock, Encoder, WithLoss

NETWORKS: dict[str, tuple[Any, str, str]] = {
    "mlp": (MLP, "float32[n, 5]", "float32[n, 10]"),
    "lenet": (LeNet, "float32[n, 1, 28, 28]", "float32[n, 10]"),
    "encoder": (lambda: Encoder(64, 4), "float32[n, 16, 64]", "float32[n, 10]"),
    "encoder of any length": (lambda: Encoder(64, 4), "float32[n, s, 64]", "float32[n, 10]"),
    "block": (lambda: BasicBlock(4, 8), "float32[n, 4, h, w]", "float32[n, 10]"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_forward(name: str) -> None:
    make, x, y = NETWORKS[name]
    module = make().eval().program(parse_type(x)).module
    verify(module, typed=True)
    assert str(module.main.result_type or module.main.body.result.type) == y
    assert structural_equal(parse(str(module)), module)


@pytest.mark.parametrize("name", ["mlp", "lenet", "encoder"])
def test_training_step(name: str) -> None:
    make, x, _ = NETWORKS[name]
    step = value_and_grad(WithLoss(make()))
    module = step.program(meta.array(1.0), parse_type(x), parse_type("int64[n]")).module
    verify(module, typed=True)


def test_a_number_asked_of_a_dimension_names_the_line() -> None:
    @trace
    def rows(x: Any) -> Any:
        return [x[i] for i in range(x.shape[0])]

    with pytest.raises(meta.errors.TypeInferError) as caught:
        rows.program(parse_type("float32[n, 2]"))
    assert "number of the dimension n" in str(caught.value)
    assert "meta.scan" in str(caught.value)
