"""The table of models whose mixed precision is tested. To add one, add a line to `MODELS`.

An entry makes a loss model and its inputs; the loss is computed from ``logits``, the model without
the loss, whose first result is compared, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import meta
from meta import op
from meta.model import Model, trace, zoo
from tests.model import networks

IMAGES = {"num_classes": 10}
TEXT = {"vocab_size": 37}
BATCH, STEPS = 2, 9


class Loss(Model):
    """Cross entropy of a network's result."""

    def build(self, network: Model, loss: Callable[..., Any]) -> None:
        self.network, self._loss = network, loss

    @trace
    def forward(self, x: Any, labels: Any) -> Any:
        return self._loss(self.network(x), labels)


@dataclass(frozen=True)
class Case:
    """A network, its loss and inputs, made from a seed."""

    network: Callable[[], Model]
    x: Callable[[], torch.Tensor]
    labels: Callable[[], torch.Tensor]
    loss: Callable[..., Any]

    def make(self) -> tuple[Loss, tuple[meta.ndarray, meta.ndarray]]:
        """Return the model with its loss, and inputs."""
        torch.manual_seed(0)
        meta.random.seed(0)
        model = Loss(self.network(), self.loss)
        return model, (meta.array(self.x()), meta.array(self.labels()))


def image_loss(logits: Any, labels: Any) -> Any:
    return op.cross_entropy(logits, labels)


def of_images(network: Callable[[], Model], *shape: int, batch: int = 4) -> Case:
    return Case(
        network,
        lambda: torch.randn(batch, *shape),
        lambda: torch.randint(0, 10, (batch,)),
        image_loss,
    )


def of_text(network: Callable[[], Model], loss: Callable[..., Any]) -> Case:
    def words() -> torch.Tensor:
        return torch.randint(0, TEXT["vocab_size"], (BATCH, STEPS))

    return Case(network, words, words, loss)


def bert() -> Model:
    return zoo.BertForMaskedLM(
        zoo.BertConfig(
            **TEXT, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=16, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def gpt2() -> Model:
    return zoo.GPT2LMHeadModel(
        zoo.GPT2Config(
            **TEXT, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0,
        )
    )  # fmt: skip


def llama() -> Model:
    return zoo.LlamaForCausalLM(
        zoo.LlamaConfig(
            **TEXT, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16,
        )
    )  # fmt: skip


def vit() -> Model:
    return zoo.vit_b_16(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        image_size=14, patch_size=7, num_labels=10,
    )  # fmt: skip


def resnet(bottleneck: bool) -> Model:
    return zoo.ResNet(
        zoo.ResNetConfig(layers=(1, 1, 1, 1), bottleneck=bottleneck, width=8, **IMAGES)
    )


def vgg() -> Model:
    return zoo.VGG(
        zoo.VGGConfig(layers=((8,), (16,)), hidden=32, dropout=0.0, batch_norm=True, **IMAGES)
    )


class Recurrent(Model):
    """A recurrent network whose steps are a loop of the program (Elman, 1990)."""

    def build(self, inputs: int, hidden: int) -> None:
        self.inside, self.outside = (
            networks.parameter(hidden, inputs),
            meta.model.Linear(hidden, 10),
        )
        self.again, self.bias = networks.parameter(hidden, hidden), networks.parameter(hidden)

    @trace
    def forward(self, x: Any) -> Any:
        def step(h: Any, row: Any) -> tuple[Any, Any]:
            h = op.tanh(op.dense(row, self.inside) + op.dense(h, self.again) + self.bias)
            h = op.astype(h, "float32")
            return h, h

        start = op.zeros((x.shape[1], self.again.shape[0]), "float32")
        return self.outside(meta.scan(step, start, x)[0])


def over_steps(network: Callable[[], Model]) -> Case:
    """Sequences of 5 steps of 4 examples, with 6 features each."""
    return Case(
        network, lambda: torch.randn(5, 4, 6), lambda: torch.randint(0, 10, (4,)), image_loss
    )


MODELS: dict[str, Case] = {
    "lenet": of_images(lambda: zoo.LeNet(), 1, 28, 28),
    "resnet18": of_images(lambda: resnet(False), 3, 64, 64),
    "resnet50": of_images(lambda: resnet(True), 3, 64, 64),
    "vgg11": of_images(vgg, 3, 28, 28),
    "vit": of_images(vit, 3, 14, 14),
    "bert": of_text(bert, zoo.masked_lm_loss),
    "gpt2": of_text(gpt2, zoo.causal_lm_loss),
    "llama": of_text(llama, zoo.causal_lm_loss),
    "lstm": over_steps(lambda: networks.LSTM(6, 8)),
    "recurrent": over_steps(lambda: Recurrent(6, 8)),
    "encoder": Case(
        lambda: networks.Encoder(12, 3),
        lambda: torch.randn(4, 7, 12),
        lambda: torch.randint(0, 10, (4,)),
        image_loss,
    ),
    "mlp": of_images(networks.MLP, 5),
}
