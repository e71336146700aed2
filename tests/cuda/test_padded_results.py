"""Scores of a vocabulary whose rows are no multiple of 16 bytes, by cuBLASLt: compact ones of a
program, and padded ones, of which the user of torch.compile gets a view.
"""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

import meta
from meta import op
from meta.frontend.dynamo.compiler import record_compiled_graphs

pytestmark = pytest.mark.cuda

WIDTH = 512
WORDS = [4100, 30_522, 50_257, 128_100]
DTYPES = [torch.float16, torch.bfloat16]


def right(scores: Tensor, x: Tensor, head: nn.Linear) -> None:
    """Check scores beside those of float64, which they are once rounded."""
    wide = [p.detach().double() for p in head.parameters()]
    expected = nn.functional.linear(x.detach().double(), *wide)
    steps = torch.finfo(scores.dtype).eps
    torch.testing.assert_close(scores.detach().double(), expected, rtol=steps, atol=steps)


def made(words: int, bias: bool, dtype: torch.dtype) -> tuple[nn.Linear, list[Tensor]]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    head = nn.Linear(WIDTH, words, bias).cuda().to(dtype)
    return head, [torch.randn(4, 160, WIDTH).cuda().to(dtype) for _ in range(5)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("words", WORDS)
def test_a_view_of_padded_rows(words: int, bias: bool, dtype: torch.dtype) -> None:
    head, xs = made(words, bias, dtype)
    run = torch.compile(head, backend="meta")
    with torch.no_grad(), record_compiled_graphs() as graphs:
        held = [run(x) for x in xs]  # of replayed graphs, too
        held[0].zero_()
        again = run(xs[0])
    wide = words + -words % 8
    assert {y.stride() for y in held} == {(160 * wide, wide, 1)}
    for y, x in zip([*held[1:], again], [*xs[1:], xs[0]], strict=True):
        right(y, x, head)
    assert not held[0].any()
    (program,) = graphs[0].programs()
    name = "dense_bias_padded" if bias else "dense_padded"
    assert program.executable.kernels() == {f"cublas.{name}": 1}


@pytest.mark.parametrize("words", WORDS)
def test_trained_with_a_loss_outside(words: int) -> None:
    head, xs = made(words, True, torch.float16)
    run = torch.compile(head, backend="meta")
    labels = torch.randint(words, (640,)).cuda()
    exact = deepcopy(head).double()
    for x in xs:
        results = []
        for forward, module in ((run, head), (head, head), (exact, exact)):
            module.zero_grad()
            given = x.to(module.weight.dtype, copy=True).requires_grad_()
            scores = forward(given)
            if forward is run:
                assert scores.stride(1) % 8 == 0
                right(scores, x, head)
            nn.functional.cross_entropy(scores.view(-1, words).float(), labels).backward()
            results.append([given.grad.double(), *(p.grad.double() for p in module.parameters())])
        for ours, theirs, wanted in zip(*results, strict=True):
            error = (ours - wanted).norm()
            assert error <= 1.5 * (theirs - wanted).norm() + 1e-3 * wanted.norm()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("words", WORDS)
def test_compact_rows_of_a_program(words: int, dtype: torch.dtype) -> None:
    head, xs = made(words, True, dtype)
    weights = [meta.array(p.detach()) for p in head.parameters()]

    def scores(x: meta.ndarray, w: meta.ndarray, b: meta.ndarray) -> meta.ndarray:
        y = op.dense(op.reshape(x, (-1, WIDTH)), w)
        return op.reshape(op.bias_add(y, b, 1), (4, 160, words))

    compiled = meta.vm.compile(meta.model.trace(scores), meta.array(xs[0]), *weights)
    for x in xs:
        right(compiled(meta.array(x), *weights).torch(), x, head)
