"""Images that are kept for a gradient lie with the channels last."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from meta.frontend.dynamo import compiler
from meta.frontend.dynamo.compiled import CompiledGraph, TorchGraph
from meta.frontend.dynamo.compiler import record_compiled_graphs
from meta.frontend.dynamo.conversion import NoProgram
from meta.frontend.dynamo.outputs import Result


class Residual(nn.Module):
    """Convolutions of a few kinds, batch normalisation, pooling and a sum."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        # The gradient of a bias before the normalisation would be 0.
        self.first = nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.deep = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.wide = nn.Conv2d(channels, channels, 1)
        self.last = nn.Linear(channels, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a row for each image."""
        x = nn.functional.relu(self.norm(self.first(x)))
        x = x + self.wide(nn.functional.silu(self.deep(x)))
        return self.last(nn.functional.avg_pool2d(x, 2).mean((2, 3)))


def _trained(model: nn.Module, run: Any, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    x = x.detach().requires_grad_()
    y = run(x)
    y.square().sum().backward()
    found = [y.detach(), x.grad, *(p.grad for p in model.parameters())]
    return [t.clone() for t in found if t is not None]


def _programs(model: nn.Module, x: torch.Tensor) -> list[CompiledGraph | TorchGraph]:
    run = torch.compile(model, backend="meta", fullgraph=True)
    with record_compiled_graphs() as graphs:
        found = _trained(model, run, x)
    expected = _trained(model, model, x)
    for one, other in zip(found, expected, strict=True):
        scale = max(other.abs().max().item(), 1e-3)
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4 * scale)
    return [p for g in graphs for p in g.programs()]


def _transposed_images(program: CompiledGraph | TorchGraph) -> int:
    """Return how many kernels transpose images of eight channels."""
    assert program.executable is not None
    main = str(program.executable.module).split("\n}\n")[0]
    lines = [line for line in main.splitlines() if "tvm.permute_dims(" in line]
    return sum("float32[4, 8, " in line or ", 8] = " in line for line in lines)


def _laid_out(program: CompiledGraph | TorchGraph) -> int:
    """Return how many results have their axes in another order."""
    assert isinstance(program, CompiledGraph)
    found = program.converted.outputs
    return sum(isinstance(o, Result) and o.axes is not None for o in found)


def test_nothing_is_transposed_on_the_way_to_the_gradient() -> None:
    torch.manual_seed(0)
    model = Residual()
    programs = _programs(model, torch.randn(4, 3, 32, 32))
    assert [_transposed_images(p) for p in programs] == [0, 0]
    assert _laid_out(programs[0])


def test_float64_stays_as_torch_says() -> None:
    torch.manual_seed(0)
    programs = _programs(Residual().double(), torch.randn(4, 3, 32, 32).double())
    assert not _laid_out(programs[0])


def test_what_pytorch_runs_is_given_what_it_was_traced_with(monkeypatch: Any) -> None:
    """Views in its graph need the strides of the trace."""
    convert = compiler.convert_graph

    def forward_only(graph: Any, *args: Any, **options: Any) -> Any:
        if any("tangents" in n.name for n in graph.graph.nodes):
            raise NoProgram("this is a gradient")
        return convert(graph, *args, **options)

    monkeypatch.setattr(compiler, "convert_graph", forward_only)
    torch.manual_seed(0)
    forward, backward = _programs(Residual(), torch.randn(4, 3, 32, 32))
    assert isinstance(backward, TorchGraph)
    assert _laid_out(forward)


def test_what_is_read_by_its_place_in_memory() -> None:
    class Read(Residual):
        """Reads a convolution's result as a matrix of other strides."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return a matrix."""
            y = self.wide(self.deep(torch.relu(self.first(x))))
            return y.as_strided((4, 7), (5, 3)) * y.as_strided((4, 1), (2, 1))

    torch.manual_seed(0)
    _programs(Read(), torch.randn(4, 3, 32, 32))
