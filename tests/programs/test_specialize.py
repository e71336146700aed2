"""Programs with symbolic dimensions on the CPU: code for a call's extents, kernels for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta.base import config
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.specialize import extents_of, is_symbolic, specialized

SIZES = [(1, 4), (3, 9), (8, 5), (2, 17), (16, 33), (1, 4)]


class Net(meta.Model):
    """Two symbolic dimensions, fused kernels, views, reductions, products, and two results."""

    def build(self) -> None:
        self.conv = meta.model.Conv2d(3, 8, 3, padding=1)
        self.norm = meta.model.BatchNorm(8)
        self.rows = meta.model.Linear(8, 24)
        self.layer = meta.model.LayerNorm(24)
        self.head = meta.model.Linear(24, 10)

    @meta.model.trace
    def forward(self, images: Any, scale: Any) -> Any:
        x = meta.relu(self.norm(self.conv(images)))
        x = meta.max_pool2d(x, 2)
        x = meta.permute_dims(meta.reshape(x, (x.shape[0], 8, 16)), (0, 2, 1))
        hidden = self.layer(meta.gelu(self.rows(x)))
        pooled = meta.mean(hidden, axis=1)
        return meta.softmax(self.head(pooled), -1), meta.multiply(scale, 2.0) + 1.0


def _types() -> list[Any]:
    return [meta.ir.parse_type(t) for t in ("float32[n, 3, 8, 8]", "float32[n, m]")]


def _inputs(n: int, m: int) -> list[Any]:
    generator = torch.Generator().manual_seed(n * 100 + m)
    shapes = (n, 3, 8, 8), (n, m)
    return [meta.array(torch.randn(shape, generator=generator)) for shape in shapes]


def _expected(net: Net, images: Any, scale: Any) -> list[torch.Tensor]:
    """PyTorch's results, in float64."""
    s = {name: array.torch().detach().double() for name, array in net.state_dict().items()}
    x = F.conv2d(images.torch().double(), s["conv.weight"], s["conv.bias"], padding=1)
    mean, variance = s["norm.running_mean"], s["norm.running_var"]
    x = F.batch_norm(x, mean, variance, s["norm.weight"], s["norm.bias"]).relu()
    x = F.max_pool2d(x, 2).flatten(2).mT
    x = F.gelu(F.linear(x, s["rows.weight"], s["rows.bias"]))
    x = F.layer_norm(x, (24,), s["layer.weight"], s["layer.bias"]).mean(1)
    y = F.linear(x, s["head.weight"], s["head.bias"]).softmax(-1)
    return [y.float(), scale.torch() * 2 + 1]


def _compare(run: Any, net: Net, sizes: Any = SIZES) -> None:
    for n, m in sizes:
        inputs = _inputs(n, m)
        for found, expected in zip(run(*inputs), _expected(net, *inputs), strict=True):
            torch.testing.assert_close(found.torch(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("freeze", [False, True])
def test_any_extents(freeze: bool) -> None:
    """All sizes are right, one after the other, and whoever looks at kernels sees them."""
    net = Net().eval()
    run = meta.vm.compile(net, *_types(), dims={"n": (1, 16)}, freeze=freeze)
    assert is_symbolic(run.code)
    _compare(run, net)
    net.rows.weight.update(net.rows.weight * 2.0)
    _compare(run, net)
    assert run.profile(*_inputs(3, 9)).rows
    with config.override(META_DEBUG_NANS="raise"):
        _compare(run, net, SIZES[:2])
    with pytest.raises(meta.base.errors.ArgumentError, match="17"):
        run(*_inputs(17, 4))


def test_verified() -> None:
    """META_VERIFY compares the values of each pass."""
    net = Net().eval()
    with config.override(META_VERIFY=1):
        run = meta.vm.compile(net, *_types(), freeze=True)
        _compare(run, net, SIZES[:3])


def test_saved(tmp_path: Path) -> None:
    """A folder has the kernels for all extents."""
    net = Net().eval()
    run = meta.vm.compile(net, *_types(), freeze=True)
    run.save(tmp_path / "net")
    loaded = meta.vm.load(tmp_path / "net")
    assert loaded.kernels() == run.kernels()
    _compare(loaded, net)


def test_memory_is_planned() -> None:
    """With the extents known, what lives inside lies in one storage, as in a static program."""
    net = Net().eval()
    run = meta.vm.compile(net, *_types(), freeze=True)
    static = meta.vm.compile(net, *_inputs(4, 9), freeze=True)
    code = specialized(run.code, {"n": 4, "m": 9})
    assert extents_of(run.code) == {"n": (0, 0), "m": (1, 1)}
    instructions = list(code.functions[code.entry].instructions())
    made = [i for i in instructions if isinstance(i, bc.AllocateTensor)]
    assert all(i.type.is_static for i in made)
    assert sum(i.storage is None for i in made) == 2  # the results
    (storage,) = [i for i in instructions if isinstance(i, bc.AllocateStorage)]
    assert storage.size <= 1.5 * static.arena_bytes
    assert {i.kernel for i in instructions if isinstance(i, bc.Invoke) and not i.fills} == set()


def test_a_loop_is_not_specialized() -> None:
    """Control flow allocates as it goes."""

    @meta.model.trace
    def total(x: Any) -> Any:
        double = lambda state: (state[0] + 1, state[1] * 2.0)  # noqa: E731
        return meta.model.while_loop(lambda state: state[0] < 3, double, (0, x))[1]

    run = meta.vm.compile(total, meta.ir.parse_type("float32[n, 4]"))
    assert not is_symbolic(run.code)
    for n in (1, 5):
        x = meta.ones((n, 4))
        assert bool(meta.all(run(x) == 8.0))
