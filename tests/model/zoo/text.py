"""Language models of the zoo beside transformers' own, of the same configuration and weights."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

import transformers

import meta
from meta import op
from meta.model import Model, trace, zoo

BERT = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
GPT2 = {
    "vocab_size": 61,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 3,
    "n_positions": 16,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
LLAMA = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 16,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def without_dropout(values: dict[str, Any]) -> dict[str, Any]:
    """Return those of the fields that switch dropout off; all others have their defaults."""
    return {n: v for n, v in values.items() if n.endswith(("pdrop", "dropout_prob"))}


@dataclass(frozen=True)
class Text:
    """A network of both libraries, by the name that both give its class.

    ``loss`` is computed of our result; transformers computes its own from the labels, or
    ``their_loss`` from its result where it has none.
    """

    network: str
    values: dict[str, Any]
    loss: Callable[..., Any]
    inputs: tuple[str, ...] = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    their_loss: Callable[..., Any] | None = None
    changes: dict[str, Any] = field(default_factory=dict)

    def pair(self, folder: Path) -> tuple[Model, torch.nn.Module]:
        """Return both, ours with the weights of a file that transformers has written."""
        torch.manual_seed(0)
        theirs = self.theirs()
        with torch.no_grad():
            for parameter in theirs.parameters():  # nothing is 0 or 1, and right by accident
                # About 0: a mean that all weights have would drown what differs in rounding.
                parameter.add_((torch.rand_like(parameter) - 0.5) * 0.1)
        theirs.save_pretrained(folder)
        ours = self.ours()
        meta.model.load_weights(ours, folder / "model.safetensors", strict=True)
        return ours, theirs.train()

    def family(self) -> str:
        """Return what the class of the configuration begins with."""
        return next(f for f in ("Bert", "GPT2", "Llama") if self.network.startswith(f))

    def ours(self) -> Model:
        """Return our network."""
        config = getattr(zoo, f"{self.family()}Config")
        return getattr(zoo, self.network)(config.from_dict({**self.values, **self.changes}))

    def theirs(self) -> torch.nn.Module:
        """Return transformers' network."""
        config = getattr(transformers, f"{self.family()}Config")(**self.values, **self.changes)
        config._attn_implementation = "eager"
        return getattr(transformers, self.network)(config)

    def batch(self, n: int = 3, steps: int = 9) -> dict[str, torch.Tensor]:
        """Return the inputs: random tokens, the last sequences padded at their ends."""
        vocabulary = self.values.get("vocab_size", 1000)
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(1, vocabulary, (n, steps), generator=generator)
        seen = torch.arange(steps) < torch.tensor([steps - 2 * i for i in range(n)])[:, None]
        ids = torch.where(seen, ids, 0)
        drawn = torch.rand(n, steps, generator=generator)
        every = {
            "input_ids": ids,
            "attention_mask": seen.long(),
            "token_type_ids": torch.randint(0, 2, (n, steps), generator=generator),
            "position_ids": torch.arange(steps).flip(0).expand(n, steps).contiguous(),
            "labels": torch.where(seen & (drawn < 0.8), ids, -100),
        }
        if self.network == "BertForSequenceClassification":
            every["labels"] = torch.randint(0, 2, (n,), generator=generator)
        return {name: every[name] for name in (*self.inputs, "labels")}


class WithLoss(Model):
    """A network, its result and its loss."""

    def build(self, network: Model, loss: Callable[..., Any]) -> None:
        self.network, self.loss = network, loss

    @trace
    def forward(self, inputs: dict[str, Any], labels: Any) -> Any:
        result = self.network(**inputs)
        return self.loss(result, labels)


def pooled_loss(result: Any, labels: Any) -> Any:
    """Something that every number of a `BertModel`'s result counts in."""
    hidden, pooled = result
    return op.add(op.mean(op.multiply(hidden, hidden)), op.sum(pooled))


def their_pooled_loss(result: Any) -> torch.Tensor:
    return result.last_hidden_state.square().mean() + result.pooler_output.sum()


def classes_loss(result: Any, labels: Any) -> Any:
    return op.cross_entropy(result, labels)


NO_TYPES = ("input_ids", "attention_mask", "position_ids")
TEXTS = {
    "bert": Text("BertForMaskedLM", BERT, zoo.masked_lm_loss),
    "bert-untied": Text(
        "BertForMaskedLM",
        BERT,
        zoo.masked_lm_loss,
        ("input_ids",),
        changes={"tie_word_embeddings": False, "hidden_act": "gelu_new"},
    ),
    "bert-pooled": Text("BertModel", BERT, pooled_loss, their_loss=their_pooled_loss),
    "bert-classes": Text("BertForSequenceClassification", BERT, classes_loss),
    "gpt2": Text("GPT2LMHeadModel", GPT2, zoo.causal_lm_loss),
    "gpt2-plain": Text(
        "GPT2LMHeadModel",
        GPT2,
        zoo.causal_lm_loss,
        ("input_ids",),
        changes={
            "tie_word_embeddings": False,
            "n_inner": 32,
            "activation_function": "relu",
            "scale_attn_by_inverse_layer_idx": True,
        },
    ),
    "llama": Text("LlamaForCausalLM", LLAMA, zoo.causal_lm_loss, NO_TYPES),
    "llama-3": Text(
        "LlamaForCausalLM",
        LLAMA,
        zoo.causal_lm_loss,
        ("input_ids",),
        changes={
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
            "pad_token_id": 0,
            "rope_parameters": LLAMA3,
        },
    ),
}


def expected(text: Text, theirs: torch.nn.Module) -> tuple[Any, torch.Tensor, dict[str, Any]]:
    """Return transformers' result, loss and gradients."""
    batch = text.batch()
    if text.their_loss is not None:
        del batch["labels"]
    theirs.zero_grad()
    result = theirs(**batch)
    loss = result.loss if text.their_loss is None else text.their_loss(result)
    loss.backward()
    gradients = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    return result, loss.detach(), gradients


def relative_error(ours: Any, theirs: torch.Tensor) -> float:
    """Return the largest difference, as part of the largest number."""
    found, wanted = ours.numpy().astype(np.float64), theirs.detach().double().numpy()
    assert found.shape == wanted.shape
    scale = np.abs(wanted).max()
    return float(np.abs(found - wanted).max() / (scale if scale else 1.0))
