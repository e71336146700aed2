"""Frozen programs: weights are packed before the first call, and results stay what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import ArgumentError
from meta.model import zoo
from meta.model.layers import (
    BatchNorm,
    Conv1d,
    Conv2d,
    Flatten,
    Linear,
    MaxPool2d,
    ReLU,
    Sequential,
    SiLU,
)


def _array(*shape: int) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return meta.array(torch.randn(shape, generator=generator))


def _agree(model: Any, *inputs: Any, **options: Any) -> Any:
    """Compile a model frozen and as it is; compare, and return the frozen one."""
    frozen = meta.vm.compile(model, *inputs, freeze=True, **options)
    plain = meta.vm.compile(model, *inputs, **options)
    torch.testing.assert_close(
        frozen(*inputs).torch(), plain(*inputs).torch(), rtol=1e-3, atol=1e-4
    )
    return frozen


def _packed(executable: Any) -> int:
    """Return how many kernels read packed weights."""
    counts = executable.kernels().items()
    return sum(count for name, count in counts if "packed" in name)


def _block(inputs: int, outputs: int, groups: int = 1, stride: int = 1) -> list[Any]:
    convolution = Conv2d(inputs, outputs, 3, stride=stride, padding=1, groups=groups, bias=False)
    return [convolution, BatchNorm(outputs), SiLU()]


@pytest.mark.parametrize(
    ("layers", "shape", "packed"),
    [
        ([*_block(3, 16), *_block(16, 16, 16), Conv2d(16, 24, 1), Flatten()], (2, 3, 9, 8), 3),
        ([*_block(8, 16, 2, 2), MaxPool2d(2), Flatten(), Linear(64, 10)], (3, 8, 8, 8), 2),
        ([Conv2d(3, 21, 5, stride=2), ReLU(), Flatten(), Linear(189, 1001)], (1, 3, 9, 9), 2),
        ([*_block(8, 12, 4), *_block(12, 12, 12), *_block(12, 24, 2)], (2, 8, 4, 4), 0),
        ([Conv2d(4, 6, 3)], (1, 4, 5, 5), 0),  # its channels fill no block
        ([Linear(7, 5), ReLU(), Linear(5, 9)], (2, 3, 7), 1),
        ([Linear(16, 32)], (16,), 1),
    ],
)
def test_layers(layers: list[Any], shape: tuple[int, ...], packed: int) -> None:
    """Of any channels, groups and strides; what is flattened keeps the channels last."""
    net = Sequential(*layers).eval()
    frozen = _agree(net, _array(*shape))
    assert _packed(frozen) == packed
    if isinstance(layers[-1], Linear):
        assert not any("permute_dims" in name for name in frozen.kernels())


@pytest.mark.parametrize(
    ("layers", "shape", "packed"),
    [
        ([Conv1d(3, 16, 3, padding=1), ReLU(), Conv1d(16, 8, 5, stride=2)], (2, 3, 17), 2),
        ([Conv1d(1, 21, 8, stride=4, padding=3)], (1, 1, 64), 1),
        ([Conv1d(6, 24, 3, dilation=2), BatchNorm(24), SiLU(), Conv1d(24, 4, 1)], (3, 6, 9), 1),
        ([Conv1d(4, 16, 9)], (2, 4, 9), 1),
        ([Conv1d(8, 16, 3, groups=2)], (2, 8, 9), 0),
        ([Conv1d(8, 4, 3)], (2, 8, 9), 0),
    ],
)
def test_convolutions_along_one_axis(
    layers: list[Any], shape: tuple[int, ...], packed: int
) -> None:
    net = Sequential(*layers).eval()
    assert _packed(_agree(net, _array(*shape))) == packed
    type_ = meta.ir.parse_type(f"float32[n, {', '.join(map(str, shape[1:]))}]")
    run = meta.vm.compile(net, type_, freeze=True)
    assert _packed(run) == packed
    for count in (1, 4):
        x = _array(count, *shape[1:])
        torch.testing.assert_close(run(x).torch(), net(x).torch(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("front", ["2, 3", "n, 3", "2, n", "n, 1", "2, 1, n"])
def test_rows_that_are_joined_before_a_product_and_divided_behind_it(front: str) -> None:
    """As exporters write linear layers: what is behind one is computed with it."""
    w, b = _array(16, 5), _array(16)

    @meta.model.trace
    def layer(x, w, b):
        rows = meta.dense(meta.reshape(x, (-1, 5)), w)
        return meta.gelu(meta.reshape(rows, (*x.shape[:-1], 16)) + b), rows * 2.0

    x = meta.ir.parse_type(f"float32[{front}, 5]")
    run = meta.vm.compile(meta.model.trace(lambda x: layer(x, w, b)), x, freeze=True)
    assert _packed(run) == 1
    for count in (1, 4):
        given = _array(*(count if e == "n" else int(e) for e in front.split(", ")), 5)
        found, rows = (y.torch() for y in run(given))
        expected = given.torch().double() @ w.torch().double().T
        torch.testing.assert_close(rows, 2 * expected.reshape(-1, 16).float(), rtol=1e-4, atol=1e-5)
        wanted = torch.nn.functional.gelu(expected + b.torch())
        torch.testing.assert_close(found, wanted.float(), rtol=1e-4, atol=1e-5)


def test_a_network() -> None:
    """Every convolution and product of a network is packed, and nothing is transposed."""
    frozen = _agree(zoo.resnet18(num_classes=10).eval(), _array(1, 3, 64, 64))
    kernels = frozen.kernels()
    assert not any("conv2d" in n and "packed" not in n for n in kernels)
    assert not any("permute_dims" in n for n in kernels)


def test_weights_may_be_replaced(tmp_path: Path) -> None:
    """A write to an array, and a weight that is set by name, are packed anew."""
    net = Sequential(*_block(3, 16), Flatten(), Linear(256, 16)).eval()
    x = _array(2, 3, 4, 4)
    frozen = _agree(net, x)
    net[0].weight.update(net[0].weight * 2.0)
    torch.testing.assert_close(frozen(x).torch(), net(x).torch(), rtol=1e-3, atol=1e-4)
    module = meta.compile_model(net, x, freeze=True, workdir=tmp_path, name="net")
    loaded = meta.vm.modules.load_module(tmp_path / "net")
    weight, bias = net[4].weight.torch().clone(), net[4].bias.torch().clone()
    for one in (module, loaded):
        before = one.run_with_tensors({one.input_names[0]: x})["output"].clone()
        one.set_constant_with_tensor("4.bias", bias + torch.arange(16.0))
        one.set_constant_with_tensor("4.weight", 2 * weight)
        after = one.run_with_tensors({one.input_names[0]: x})["output"]
        expected = 2 * (before - bias) + bias + torch.arange(16.0)
        torch.testing.assert_close(after, expected, rtol=1e-3, atol=1e-3)


def test_weights_that_are_constants() -> None:
    """Of a program that has its weights in it, they are packed when it is compiled."""
    w = _array(16, 5)
    product = meta.model.trace(lambda x: meta.relu(meta.dense(x, w)))
    frozen = meta.vm.compile(product, _array(3, 5), freeze=True)
    assert _packed(frozen) == 1
    expected = (_array(3, 5).torch().double() @ w.torch().double().T).relu().float()
    torch.testing.assert_close(frozen(_array(3, 5)).torch(), expected, rtol=1e-4, atol=1e-5)


def test_other_kernels_are_preferred() -> None:
    """Where kernels for packed weights are excluded, nothing is packed."""
    net = Sequential(Linear(16, 16)).eval()
    with meta.dialect.only("torch"):
        assert _packed(meta.vm.compile(net, _array(2, 16), freeze=True)) == 0


def test_half_precision_stays() -> None:
    """Kernels for packed weights are those of float32."""
    net = Sequential(Linear(16, 16)).eval().to("bfloat16")
    x = meta.astype(_array(2, 16), "bfloat16")
    assert _packed(meta.vm.compile(net, x, freeze=True)) == 0


def test_what_is_refused() -> None:
    """A model in train mode changes its weights; a budget leaves no room for packed ones."""
    net = Sequential(Linear(16, 16))
    with pytest.raises(ArgumentError, match="train mode"):
        meta.vm.compile(net.train(), _array(2, 16), freeze=True)
    with pytest.raises(ArgumentError, match="memory_budget"):
        meta.vm.compile(net.eval(), _array(2, 16), freeze=True, memory_budget=1 << 20)
