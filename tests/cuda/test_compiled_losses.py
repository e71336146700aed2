"""Language models' losses over a vocabulary, and their GELU, under `torch.compile(backend="meta")`:
programs, results, memory.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import meta.frontend.dynamo  # noqa: F401  (registers the backend)
from meta.frontend.dynamo import compiler

pytestmark = pytest.mark.cuda

WORDS = 30_522


class Head(nn.Module):
    """Scores of words from a hidden state, and their loss: of each row, or of its successor."""

    def __init__(self, bias: bool, successors: bool) -> None:
        super().__init__()
        self.last, self.successors = nn.Linear(96, WORDS, bias), successors

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        scores = self.last(x)
        if self.successors:
            scores, labels = scores[:, :-1], labels[:, 1:]
        return cross_entropy(scores.reshape(-1, WORDS), labels.reshape(-1))


def _learned(run: Any, model: nn.Module, x: Tensor, labels: Tensor, dtype: Any) -> list[Tensor]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    with torch.autocast("cuda", dtype, enabled=dtype is not None):
        loss = run(x, labels)
    loss.backward()
    return [loss.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("bias", "successors"), [(True, False), (False, True)])
def test_a_vocabulary(bias: bool, successors: bool, dtype: torch.dtype) -> None:
    """Scores are padded by the product, read once forward, and read and written once backward."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Head(bias, successors).cuda()
    x, labels = torch.randn(8, 96, 96).cuda(), torch.randint(WORDS, (8, 96)).cuda()
    labels[0, :7] = -100
    run = torch.compile(model, backend="meta", fullgraph=True)
    with compiler.record_compiled_graphs() as graphs:
        for _ in range(3):
            found = _learned(run, model, x, labels, dtype)
    compiled = [str(p.executable.module) for g in graphs for p in g.programs()]
    forward, backward = compiled
    assert forward.count("tvm.cross_entropy_train(") == 1
    assert backward.count("tvm.cross_entropy_train_dpred(") == 1
    for program in compiled:
        assert not re.search(r"log_softmax|nll_loss", program)
        assert not re.search(rf"\[(8, 96|8, 95|768|760), {WORDS}\]", program)
        assert not re.search(r"(8, 96|768), 30528\] = (tvm\.pad|tvm.strided_slice)", program)
    exact = _learned(model.double(), model, x.double(), labels, None)
    theirs = _learned(model.float(), model, x, labels, dtype)
    for one, other, right in zip(found, theirs, exact, strict=True):
        assert one.dtype == other.dtype
        error = (one.double() - right).norm()
        assert error <= 1.5 * (other.double() - right).norm() + 1e-3 * right.norm()


def test_a_gelu_that_is_written_out_keeps_its_argument_alone() -> None:
    """Autocast computes the power, and what follows, in float32."""
    torch._dynamo.reset()

    def network(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w.mT
        y = 0.5 * y * (1.0 + torch.tanh(0.7978845608028654 * (y + 0.044715 * torch.pow(y, 3.0))))
        return y @ w

    x, w = torch.randn(48, 64).cuda(), torch.randn(96, 64).cuda().requires_grad_()
    results = []
    with compiler.record_compiled_graphs() as graphs:
        for run in (torch.compile(network, backend="meta", fullgraph=True), network):
            with torch.autocast("cuda", torch.bfloat16):
                y = run(x, w)
            results.append([y, *torch.autograd.grad(y.float().square().sum(), w)])
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype
        assert (one.float() - other.float()).norm() <= 2e-2 * other.float().norm()
    forward, backward = (str(p.executable.module) for g in graphs for p in g.programs())
    assert "gelu(" in forward and "gelu_dx(" in backward and "tanh(" not in forward + backward
    assert "float32[48, 96]" not in backward.splitlines()[0].split("->")[0]


def test_memory_is_that_of_the_scores() -> None:
    """Little else of their size is there at once but their gradient."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Head(True, False).cuda()
    x, labels = torch.randn(8, 256, 96).cuda(), torch.randint(WORDS, (8, 256)).cuda()
    run = torch.compile(model, backend="meta", fullgraph=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        _learned(run, model, x, labels, torch.float16)
    scores = 2 * x.shape[0] * x.shape[1] * 30_528
    weights = 4 * sum(p.numel() for p in model.parameters())
    assert torch.cuda.max_memory_allocated() - before < 4 * scores + 6 * weights
