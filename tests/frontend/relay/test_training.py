"""Fine-tuning an imported network: loss, gradients, parameters and running statistics are those of
the same network in torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import meta
from meta.frontend import relay
from meta.frontend.relay import RelayModel

RATE = 0.01
TEXT = Path(__file__).parents[2] / "data" / "relay" / "models" / "resnet20" / "model.relay"


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    """Return weights of He's initialisation for the parameters that the text declares."""
    made = torch.Generator().manual_seed(seed)
    found = {}
    for var in relay.read(TEXT).functions["main"].params[1:]:
        shape = var.type.shape  # type: ignore[union-attr]
        if len(shape) > 1:
            fan_in = int(np.prod(shape[1:]))
            found[var.name] = torch.randn(shape, generator=made) * (2 / fan_in) ** 0.5
        elif var.name.endswith(("gamma", "moving_var")):
            found[var.name] = torch.rand(shape, generator=made) + 0.5
        else:
            found[var.name] = torch.randn(shape, generator=made) * 0.1
    return found


def in_torch(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """ResNet-20 in pre-activation form in train mode, as the text describes it."""

    def bn(x: torch.Tensor, name: str) -> torch.Tensor:
        gamma = None if name == "bn_data" else p[f"{name}_gamma"]
        moving = p[f"{name}_moving_mean"], p[f"{name}_moving_var"]
        return F.batch_norm(x, *moving, gamma, p[f"{name}_beta"], True, 0.1, 2e-5)

    x = F.conv2d(bn(x, "bn_data"), p["conv0_weight"], padding=1)
    for stage in (1, 2, 3):
        for unit in (1, 2, 3):
            name = f"stage{stage}_unit{unit}"
            stride = 2 if stage > 1 and unit == 1 else 1
            first = F.relu(bn(x, f"{name}_bn1"))
            y = F.conv2d(first, p[f"{name}_conv1_weight"], stride=stride, padding=1)
            y = F.conv2d(F.relu(bn(y, f"{name}_bn2")), p[f"{name}_conv2_weight"], padding=1)
            x = y + (F.conv2d(first, p[f"{name}_sc_weight"], stride=stride) if unit == 1 else x)
    x = F.relu(bn(x, "bn1")).mean((2, 3))
    return F.softmax(F.linear(x, p["fc1_weight"], p["fc1_bias"]), -1)


def parameters(model: RelayModel) -> dict[str, torch.Tensor]:
    """Return a copy of the state for torch; what the model trains requires a gradient."""
    trained = dict(model.named_parameters())
    return {
        n: a.torch().detach().clone().requires_grad_(n in trained) for n, a in model.state().items()
    }


def close(found: Any, want: torch.Tensor, what: str, tolerance: float = 1e-4) -> None:
    np.testing.assert_allclose(
        found.numpy(), want.detach().numpy(), tolerance, tolerance, err_msg=what
    )


def backward(p: dict[str, torch.Tensor], x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """Return torch's result; its gradients are in ``p``."""
    for array in p.values():
        array.grad = None
    y = in_torch(p, x)
    (y * dy).sum().backward()
    return y


def finetune(steps: int, dtype: str, compiled: bool) -> None:
    """Train, and compare each step with torch's from the same weights; and the last result with
    that of torch left alone.
    """
    values = {n: a.to(getattr(torch, dtype)) for n, a in weights().items()}
    model = relay.load(TEXT.read_text().replace("float32", dtype), values)
    model.train()
    alone = parameters(model)
    optimizer = torch.optim.SGD([a for a in alone.values() if a.requires_grad], RATE, 0.9)
    training = meta.optim.with_sgd(RATE, 0.9)(model)
    training.lr = meta.array(RATE, dtype)
    step: Any = training
    data = torch.Generator().manual_seed(1)
    for i in range(steps):
        x, dy = (
            torch.randn(shape, generator=data).to(getattr(torch, dtype))
            for shape in ((1, 3, 32, 32), (1, 10))
        )
        if compiled and i == 0:
            step = meta.vm.compile(training, dy, x)
        reference = parameters(model)
        velocity = {n: v.torch().clone() for n, v in training.optimizer.velocity.items()}
        y, want = step(dy, x), backward(reference, x, dy)
        close(y, want, f"the result of step {i}")
        close((y.torch() * dy).sum(), (want * dy).sum(), f"the loss of step {i}")
        for name, new in training.optimizer.velocity.items():
            gradient = new.torch() - 0.9 * velocity[name]
            expected = reference[name].grad
            close(gradient, torch.zeros_like(gradient) if expected is None else expected, name)
            close(model.state()[name], reference[name] - RATE * new.torch(), name, 1e-6)
        for name, array in model.state().items():
            if name.endswith(("moving_mean", "moving_var")):
                close(array, reference[name], name)
        left_alone = backward(alone, x, dy)
        optimizer.step()
    close(y, left_alone, "the last result")


def test_a_few_steps() -> None:
    with meta.dialect.only("torch"):
        finetune(3, "float32", compiled=False)


@pytest.mark.slow
def test_fifty_steps() -> None:
    """In float64: of float32, rounding puts a unit of a ReLU on its other side every few steps,
    which no tolerance tells from an error.
    """
    finetune(50, "float64", compiled=True)


def test_modes_and_names() -> None:
    model = relay.load(TEXT, weights())
    assert not model.training
    assert "bn1_moving_mean" in model.state()
    assert "bn1_moving_mean" not in dict(model.named_parameters())
    assert "bn1_gamma" in dict(model.named_parameters())
    x = torch.randn((1, 3, 32, 32), generator=torch.Generator().manual_seed(2))
    with meta.dialect.only("torch"):
        before = model(x).numpy()
        trained = model.train()(x).numpy()
        assert np.abs(before - trained).max() > 1e-3
        model.eval()
        assert np.abs(before - model(x).numpy()).max() > 1e-5  # the statistics have moved
