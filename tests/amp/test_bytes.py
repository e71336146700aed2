"""Training steps in half precision: kernels that compute the casts of what they read move fewer
bytes than kernels that share a wide copy, need no more memory, and give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import meta
from meta.amp import autocast
from meta.analysis import flops, memory
from meta.base.device import CPU
from meta.model import Model, zoo
from meta.optim import with_adamw, with_sgd
from meta.passes import fusion_groups
from meta.vm.compiler.pipeline import pipeline
from tests.amp.models import Loss, image_loss


def bert() -> tuple[Model, tuple[Any, ...]]:
    config = zoo.BertConfig(
        vocab_size=37, hidden_size=64, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=256, max_position_embeddings=32, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    words = [meta.array(torch.randint(0, 37, (8, 32))) for _ in range(2)]
    return Loss(zoo.BertForMaskedLM(config), zoo.masked_lm_loss), tuple(words)


def resnet() -> tuple[Model, tuple[Any, ...]]:
    config = zoo.ResNetConfig(layers=(1, 1, 1, 1), bottleneck=False, width=8, num_classes=10)
    images, labels = torch.randn(4, 3, 128, 128), torch.randint(0, 10, (4,))
    return Loss(zoo.ResNet(config), image_loss), (meta.array(images), meta.array(labels))


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One wide result for all who read a cast, as without any of this."""
    growth = fusion_groups._growth
    monkeypatch.setattr(fusion_groups, "_growth", lambda binding: min(growth(binding), 0))
    with meta.PassContext(disabled=["bypass_casts"]):
        yield


STEPS = {"sgd": with_sgd(0.1, momentum=0.9), "adamw": with_adamw(0.01)}
# By the share of the bytes that a step moves, and of its peak, that is left at most.
LEFT = {"bert": (0.93, 1.0), "resnet": (0.96, 1.0)}


def step_of(name: str, optimizer: str) -> tuple[Model, tuple[Any, ...]]:
    torch.manual_seed(0)
    meta.random.seed(0)
    model, inputs = {"bert": bert, "resnet": resnet}[name]()
    return STEPS[optimizer](autocast(model, "float16")), (meta.array(1.0), *inputs)


@pytest.mark.parametrize("name", LEFT)
def test_fewer_bytes_are_moved(name: str, request: pytest.FixtureRequest) -> None:
    step, args = step_of(name, "sgd")
    program = step.program(*args).module
    with meta.PassContext(disabled=["channels_last"]):  # whose transposes move the same in both
        found = pipeline(CPU)(program)
        request.getfixturevalue("shared")
        before = pipeline(CPU)(program)
    fewer, less = LEFT[name]
    assert flops(found).bytes < fewer * flops(before).bytes
    assert memory(found).peak <= less * memory(before).peak


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", STEPS)
@pytest.mark.parametrize("name", LEFT)
def test_the_results_are_the_same_bits(
    name: str, optimizer: str, request: pytest.FixtureRequest
) -> None:
    def trained() -> dict[str, torch.Tensor]:
        step, args = step_of(name, optimizer)
        run = meta.vm.compile(step, *args)
        losses = torch.stack([run(*args).torch().clone() for _ in range(3)])
        return {"losses": losses, **{n: a.torch().clone() for n, a in step.state().items()}}

    found = trained()
    request.getfixturevalue("shared")
    for key, wanted in trained().items():
        assert torch.equal(found[key], wanted), key
