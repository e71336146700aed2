"""Models under torch.compile(backend="meta") against themselves in eager PyTorch."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.frontend.dynamo.models import MODELS, made

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@pytest.fixture(autouse=True)
def _with_rnns():
    with torch._dynamo.config.patch(allow_rnn=True):  # Dynamo does not follow an LSTM without
        yield


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare to a thousandth part of the largest, in float64 to rounding."""
    if not expected.is_floating_point():
        assert torch.equal(found, expected)
        return
    tolerance = 1e-9 if expected.dtype == torch.float64 else 1e-4
    scale = max(expected.abs().max().item(), 1e-3)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * scale)


@pytest.mark.product
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_inference_is_torchs(name: str, dtype: str) -> None:
    model, inputs = made(name, DTYPES[dtype])
    model.eval()
    compiled = torch.compile(model, backend="meta", fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            close(compiled(*inputs), model(*inputs))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.long
def test_training_is_torchs(name: str, dtype: str) -> None:
    model, inputs = made(name, DTYPES[dtype])
    other = copy.deepcopy(model)
    compiled = torch.compile(model, backend="meta", fullgraph=True)
    steps = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (model, other)]
    for _ in range(3):
        losses = [f(*inputs).square().mean() for f in (compiled, other)]
        close(losses[0], losses[1])
        for loss, step in zip(losses, steps, strict=True):
            step.zero_grad()
            loss.backward()
        expected = dict(other.named_parameters())
        for path, parameter in model.named_parameters():
            close(parameter.grad, expected[path].grad)
        for step in steps:
            step.step()
    states = other.state_dict()
    for path, value in model.state_dict().items():
        close(value, states[path])
