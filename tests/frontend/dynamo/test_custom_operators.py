"""Operators of our own in graphs of AOTAutograd's: less is saved, and running statistics are
written where they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from meta.frontend.dynamo import compiler, custom_operators

META = torch.ops.meta
ROLES = "forward", "backward"


class Block(nn.Module):
    """Two convolutions with normalisations, a pool between them, and a sum."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(n, 8, 3, padding=1, bias=False) for n in (3, 8))
        self.n, self.m = norm(8), norm(8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.n(self.a(x))), 3, 2, 1)
        return torch.relu(self.m(self.b(x)) + x).mean((2, 3))


class Twice(Block):
    """One normalisation is called twice: its second call reads what the first has written."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.n(self.n(self.a(x)))
        return self.m(x).square().mean((2, 3))


class Reads(Block):
    """The running statistics are read before and behind the call."""

    def forward(self, x: Tensor) -> Tensor:
        before = self.n.running_mean.sum()
        y = self.n(self.a(x)).square().mean((2, 3))
        return y * self.n.running_var.sum() + before


def trained(network: nn.Module, call: Any, x: Tensor, steps: int = 3) -> list[Tensor]:
    """Return results, gradients and buffers of some steps."""
    found = []
    for step in range(steps):
        network.zero_grad()
        given = (x + step).detach().requires_grad_()
        y = call(given)
        (y * torch.arange(1, y.numel() + 1).to(y).view_as(y)).sum().backward()
        found += [y.detach(), given.grad]
        found += [p.grad for p in network.parameters() if p.grad is not None]
        found += [b.clone() for b in network.buffers()]
    return found


NORMS = {
    "usual": nn.BatchNorm2d,
    "no affine": lambda n: nn.BatchNorm2d(n, affine=False),
    "no statistics": lambda n: nn.BatchNorm2d(n, track_running_stats=False),
    "momentum": lambda n: nn.BatchNorm2d(n, momentum=0.4, eps=1e-2),
    "instance": lambda n: nn.InstanceNorm2d(n, affine=True),
}


@pytest.mark.parametrize(
    ("network", "norm"), [*((Block, n) for n in NORMS), (Twice, "usual"), (Reads, "usual")]
)
def test_steps_are_those_of_torch(network: type[Block], norm: str) -> None:
    torch.manual_seed(0)
    model = network(NORMS[norm]).to(memory_format=torch.channels_last)
    narrow, wide = copy.deepcopy(model), copy.deepcopy(model).double()
    x = torch.randn(4, 3, 9, 10).contiguous(memory_format=torch.channels_last)
    call = torch.compile(model, backend="meta", fullgraph=True)
    found, theirs = trained(model, call, x), trained(narrow, narrow, x)
    expected = trained(wide, wide, x.double())
    for a, b, exact in zip(found, theirs, expected, strict=True):
        bound = 2e-5 * (1 + float(exact.abs().max())) + 8 * float((b - exact).abs().max())
        assert_close(a, exact.to(a.dtype), rtol=0, atol=bound)


def graphs_of(model: nn.Module, x: Tensor) -> dict[str, list[str]]:
    """Return the targets of a training step's graphs, and the numbers of what they save."""
    with compiler.record_compiled_graphs() as graphs:
        torch.compile(model, backend="meta", fullgraph=True)(x).sum().backward()
    return {g.role: [str(n.target) for n in g.graph.graph.nodes] for g in graphs}


def test_what_is_saved() -> None:
    found = graphs_of(Block(), torch.randn(4, 3, 8, 8))
    forward, backward = found["forward"], found["backward"]
    assert forward.count("meta.batch_norm_update.default") == 2
    assert backward.count("meta.batch_norm_dxwb.default") == 2
    assert backward.count("meta.max_pool_dx.default") == 1
    assert not any("native_batch_norm" in t or "with_indices_b" in t for t in forward + backward)


ACTIVATIONS = {
    "silu": nn.SiLU(),
    "over its argument": nn.Hardswish(inplace=True),
    "gelu": nn.GELU(),
    "relu6": nn.ReLU6(),
    "leaky_relu": nn.LeakyReLU(0.2),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_what_an_activation_is_of_is_not_saved(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two layers, what each convolution reads and gives is saved."""
    monkeypatch.setattr(custom_operators, "AGAIN_ON", {"cpu"})
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), ACTIVATIONS[name]]
    layers += [nn.Conv2d(8, 6, 3, bias=False), nn.BatchNorm2d(6), ACTIVATIONS[name]]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    wide, x = copy.deepcopy(model).double(), torch.randn(4, 3, 9, 10)
    with compiler.record_compiled_graphs() as graphs:
        found = trained(model, torch.compile(model, backend="meta", fullgraph=True), x, 1)
    for a, exact in zip(found, trained(wide, wide, x.double(), 1), strict=True):
        assert_close(a, exact.to(a.dtype), rtol=1e-4, atol=2e-5 * (1 + float(exact.abs().max())))
    forward, backward = (next(g.graph.graph for g in graphs if g.role == r) for r in ROLES)
    assert len(backward.find_nodes(op="call_function", target=META.batch_norm_again.default)) == 2
    results = next(n for n in forward.nodes if n.op == "output").args[0]
    saved = [n for n in results if n.op != "placeholder" and n.meta["val"].ndim == 4]
    assert len(saved) == 3


class Gated(nn.Module):
    """Squeeze and excitation, of whose gates some are closed."""

    def __init__(self, gate: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.excite, self.last = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 6, 1, bias=False)
        self.gate, self.activation = gate, activation
        self.excite.bias.data += torch.tensor([0.0, 0.0, -9.0, 9.0, 0.0, 1.0, -1.0, -9.0])

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.norm(self.first(x)))
        gate = self.gate(self.excite(y.mean((2, 3), keepdim=True)))
        return self.last(y * gate).mean((2, 3))


@pytest.mark.parametrize(
    ("gate", "activation", "dtype", "saved"),
    [
        (nn.Sigmoid(), nn.SiLU(), torch.float32, 2),
        (nn.Hardsigmoid(), nn.Hardswish(), torch.float32, 2),
        (nn.Hardsigmoid(), nn.Hardswish(), torch.bfloat16, 2),
        (nn.Sigmoid(), nn.ReLU(), torch.bfloat16, 2),
        (nn.Sigmoid(), nn.ReLU(), torch.float32, 3),  # whose gradient reads what is gated
        (nn.Tanh(), nn.SiLU(), torch.float32, 3),  # where it is 0, its gradient is not
    ],
)
def test_what_is_gated_is_not_saved(
    gate: nn.Module,
    activation: nn.Module,
    dtype: torch.dtype,
    saved: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(custom_operators, "AGAIN_ON", {"cpu"})
    torch.manual_seed(0)
    model = Gated(gate, activation).to(dtype)
    wide, x = copy.deepcopy(model).double(), torch.randn(4, 3, 9, 10).to(dtype)
    with compiler.record_compiled_graphs() as graphs:
        found = trained(model, torch.compile(model, backend="meta", fullgraph=True), x, 1)
    for a, exact in zip(found, trained(wide, wide, x.double(), 1), strict=True):
        bound = (200 if dtype is torch.float32 else 8) * torch.finfo(dtype).eps
        assert_close(a, exact.to(a.dtype), rtol=bound, atol=bound * (1 + float(exact.abs().max())))
    forward = next(g.graph.graph for g in graphs if g.role == "forward")
    results = next(n for n in forward.nodes if n.op == "output").args[0]
    images = [n.meta["val"] for n in results if n.op != "placeholder"]
    assert sum(v.ndim == 4 and v.shape[2:] == (7, 8) for v in images) == saved


@pytest.fixture
def sums_as_on_cuda() -> Iterator[None]:
    """Autocast on the CPU sums into float32, as that on CUDA does."""
    library = torch.library.Library("aten", "IMPL")
    within = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def wide(x: Tensor, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        with torch._C._ExcludeDispatchKeyGuard(within):
            dtype = torch.float32 if dtype is None and x.dtype == torch.bfloat16 else dtype
            result: Tensor = torch.ops.aten.sum.dim_IntList(x, dim, keepdim, dtype=dtype)
            return result

    library.impl("sum.dim_IntList", wide, "AutocastCPU")
    yield
    library._destroy()


@pytest.mark.parametrize("gate", [nn.Sigmoid(), nn.Hardsigmoid()], ids=str)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.usefixtures("sums_as_on_cuda")
def test_what_is_gated_under_autocast(
    gate: nn.Module, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custom_operators, "AGAIN_ON", {device})
    torch.manual_seed(0)
    model = Gated(gate, nn.SiLU()).to(device)
    wide, x = copy.deepcopy(model).double(), torch.randn(4, 3, 9, 10).to(device)

    compiled = torch.compile(model, backend="meta", fullgraph=True)

    def half(x: Tensor) -> Any:
        with torch.autocast(device, torch.bfloat16):  # whose rules hold for the gradient as well
            return compiled(x)

    with compiler.record_compiled_graphs() as graphs:
        found = trained(model, half, x, 1)
    for a, exact in zip(found, trained(wide, wide, x.double(), 1), strict=True):
        bound = 8 * torch.finfo(torch.bfloat16).eps
        assert_close(
            a.double(), exact.double(), rtol=bound, atol=bound * (1 + float(exact.abs().max()))
        )
    forward = next(g.graph.graph for g in graphs if g.role == "forward")
    results = next(n for n in forward.nodes if n.op == "output").args[0]
    images = [n.meta["val"] for n in results if n.op != "placeholder"]
    assert sum(v.ndim == 4 and v.shape[2:] == (7, 8) for v in images) == 2


def test_statistics_that_others_read_are_copied_at_the_end() -> None:
    forward = graphs_of(Reads(), torch.randn(4, 3, 8, 8))["forward"]
    assert "meta.batch_norm_update.default" not in forward
    assert "aten._native_batch_norm_legit_functional.default" in forward


def test_layers_that_save_nothing() -> None:
    layer, x = nn.LayerNorm(6), torch.randn(3, 6)
    with compiler.record_compiled_graphs() as graphs, torch.no_grad():
        found = torch.compile(layer, backend="meta", fullgraph=True)(x)
    assert_close(found, layer(x))
    assert "= layer_norm(" in str(graphs[0].for_all.converted.module)
    torch._dynamo.reset()
    with compiler.record_compiled_graphs() as graphs:
        torch.compile(layer, backend="meta", fullgraph=True)(x)
    assert "= layer_norm_train(" in str(graphs[0].for_all.converted.module)  # a gradient reads them


WINDOWS = [
    (2, (3,), (), (1,), (1,), False),
    (2, (3, 2), (2, 1), (1, 0), (1, 2), True),
    (3, (2, 2, 2), (2, 2, 2), (0, 1, 0), (1, 1, 1), False),
]


@pytest.mark.product
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("batch", [(2,), ()], ids=["batch", "one"])
def test_windows(window: Any, batch: tuple[int, ...]) -> None:
    n, kernel, stride, *rest = window
    pool = getattr(F, f"max_pool{n}d")
    x = torch.randint(0, 5, (*batch, 3, 7, 8, 6)[-n - 1 - len(batch) :]).float()  # many are equal
    x.requires_grad_()

    def loss(x: Tensor) -> Tensor:
        return (pool(x, kernel, stride or None, *rest) ** 2).sum()

    expected = torch.autograd.grad(loss(x), x)
    compiled = torch.compile(loss, backend="meta", fullgraph=True)
    assert_close(torch.autograd.grad(compiled(x), x), expected)


def test_in_pytorch() -> None:
    """Called back, they compute the same."""
    torch.manual_seed(0)
    x, dy = torch.randn(4, 3, 5, 6), torch.randn(4, 3, 5, 6)
    w, b, mean, var = torch.rand(3) + 0.5, torch.randn(3), torch.randn(3), torch.rand(3)
    args = x.clone().requires_grad_(), w.clone().requires_grad_(), b.clone().requires_grad_()
    m, v = mean.clone(), var.clone()
    y = F.batch_norm(args[0], m, v, args[1], args[2], True, 0.3, 1e-3)
    assert_close(META.batch_norm_update(x, w, b, mean, var, 0.3, 1e-3), y)
    assert_close((mean, var), (m, v))
    assert_close(META.batch_norm_again(dy, x, w, b, 1e-3), y)
    assert_close(META.batch_norm_dxwb(dy, x, w, 1e-3), torch.autograd.grad(y, args, dy))
    x = x.requires_grad_()
    y = F.max_pool2d(x, 3, 2, 1)
    gradient = torch.autograd.grad(y, x, y)[0]
    window = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    assert_close(META.max_pool_dx(y.detach(), x.detach(), y.detach(), *window), gradient)
