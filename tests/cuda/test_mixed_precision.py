"""Training in half precision on CUDA: losses and parameters as on the CPU, in few launches."""

from __future__ import annotations

import pytest
import torch

import meta
from meta.amp import autocast
from meta.optim import with_sgd
from tests.amp.test_bytes import LEFT, bert, resnet
from tests.amp.test_models import distance

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", LEFT)
def test_training_is_as_on_the_cpu(name: str, half: str) -> None:
    found = {}
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        meta.random.seed(0)
        model, inputs = {"bert": bert, "resnet": resnet}[name]()
        model.to(device=device)
        step = with_sgd(0.01)(autocast(model, half))
        args = [meta.array(a.torch().to(device)) for a in (meta.array(1.0), *inputs)]
        run = meta.vm.compile(step, *args)
        losses = [run(*args).item() for _ in range(3)]
        found[device] = losses, {n: a.to(device="cpu") for n, a in step.state().items()}
    (losses, state), (expected, wanted) = found["cuda"], found["cpu"]
    assert losses == sorted(losses, reverse=True)
    assert losses == pytest.approx(expected, rel=1e-2)
    assert distance(state, wanted) < 1e-2
