"""A model on one rank, and divided among several: the same results, gradients and updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

import meta
from meta import distributed as dist
from meta.model import value_and_grad
from meta.model.zoo.bert import BertConfig, BertForMaskedLM
from meta.model.zoo.gpt2 import GPT2Config, GPT2LMHeadModel
from meta.model.zoo.llama import LlamaConfig, LlamaForCausalLM
from meta.model.zoo.transformer import causal_lm_loss
from meta.model.zoo.vit import ViTConfig, ViTForImageClassification
from meta.runtime.placement import Placement

WORDS = 24


class Scored(meta.Model):
    """A network of words, with the loss of what it predicts."""

    def build(self, net: meta.Model) -> None:
        self.net = net

    @meta.model.trace
    def forward(self, ids: Any, labels: Any) -> Any:
        """Return the loss."""
        return causal_lm_loss(self.net(ids), labels)


def mlp(dropout: float = 0.0) -> meta.Model:
    layers = meta.model.Linear(6, 12), meta.model.GELU(), meta.model.Linear(12, 4)
    return meta.model.Sequential(*layers)


def gpt2(dropout: float = 0.0) -> meta.Model:
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    config = GPT2Config(vocab_size=WORDS, n_positions=8, n_embd=24, n_layer=2, n_head=12, **drops)
    return Scored(GPT2LMHeadModel(config))


def bert(dropout: float = 0.0) -> meta.Model:
    drops = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=12,
        intermediate_size=36,
        max_position_embeddings=8,
        **drops,
    )
    return Scored(BertForMaskedLM(config))


def llama(dropout: float = 0.0, tied: bool = False) -> meta.Model:
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=12,
        num_key_value_heads=2,
        head_dim=4,
        intermediate_size=36,
        attention_dropout=dropout,
        attention_bias=True,
        tie_word_embeddings=tied,
    )
    return Scored(LlamaForCausalLM(config))


def vit(dropout: float = 0.0) -> meta.Model:
    config = ViTConfig(
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=12,
        intermediate_size=36,
        image_size=4,
        patch_size=2,
        num_labels=3,
    )
    return ViTForImageClassification(config)


def encoder(dropout: float = 0.0) -> meta.Model:
    return meta.model.TransformerEncoderLayer(24, 12, 36, dropout=dropout, batch_first=True)


def words(rows: int = 4) -> tuple[Any, ...]:
    ids = np.random.default_rng(0).integers(0, WORDS, (rows, 6))
    return ids, np.where(ids % 5 == 0, -100, ids)


def numbers(*shape: int) -> tuple[Any, ...]:
    return (np.random.default_rng(0).standard_normal(shape),)


MODELS: Mapping[str, tuple[Callable[..., meta.Model], tuple[Any, ...], Any]] = {
    "mlp": (mlp, numbers(4, 6), {"0": "column", "2": "row"}),
    "gpt2": (gpt2, words(), None),
    "bert": (bert, words(), None),
    "llama": (llama, words(), None),
    "vit": (vit, numbers(4, 3, 4, 4), None),
    "encoder": (encoder, numbers(4, 5, 24), None),
}
"""By name: what makes it, its arguments, and a plan, unless one comes with it."""


def made(make: Callable[..., meta.Model]) -> meta.Model:
    """Return a model in float64, the same on all ranks that are the first ones along "tp"."""
    meta.random.seed(1)
    net = make()
    net.to(dtype="float64")
    draws = np.random.default_rng(7)
    for array in net.state().values():
        array.update(meta.array(draws.standard_normal(array.shape) * 0.4))
    return net


Held = tuple[Any, Placement]


def held(arrays: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Held]:
    """Return what a rank has of arrays by name, and how it is placed."""
    return {n: (a.numpy(), like[n].placement) for n, a in arrays.items()}


def joined(ranks: Sequence[dict[str, Held]], tp: int = 0) -> dict[str, Any]:
    """Return whole arrays of what ranks have, on a mesh of so many along its last axis, "tp"; all
    of them unless given, and otherwise along "dp" and "tp".
    """
    found = {}
    for name, (_, placement) in ranks[0].items():
        parts = [torch.from_numpy(r[name][0]) for r in ranks]
        found[name] = placement.join(
            lambda at, p=parts: p[at.get("dp", 0) * tp + at.get("tp", 0)]
        ).numpy()
    return found


def gradients(
    make: Callable[..., meta.Model], inputs: Sequence[Any], plan: Any, over: str | None
) -> tuple[Any, dict[str, Held]]:
    """Return the result of a model and the gradients by its parameters, along random numbers."""
    net = made(make)
    if over is not None:
        dist.tensor_parallel(net, plan, over)
    given = [meta.array(x) for x in inputs]
    direction = np.random.default_rng(3).standard_normal(tuple(net(*given).shape))
    y, found = value_and_grad(net)(meta.array(direction, "float64"), *given)
    return y.numpy(), held(found, net.state())


def trained(
    name: str,
    over: str | None,
    compiled: bool = False,
    dp: str | None = None,
    device: str = "cpu",
    dtype: str = "float64",
    half: str | None = None,
    dropout: float = 0.0,
    look: Callable[[Any], None] = lambda run: None,
    **options: Any,
) -> dict[str, Held]:
    """Train a model of `MODELS` for some steps, on this rank's rows; return its arrays.

    half: the dtype of mixed precision. look: is given what was run, at the end.
    """
    make, inputs, plan = MODELS[name]
    if dp is not None or options:  # each rank's rows count alike
        inputs = (inputs[0], inputs[0]) if len(inputs) == 2 else inputs
    net = made(partial(make, dropout))
    net.to(device=device, dtype=dtype)
    if over is not None:
        dist.tensor_parallel(net, plan, over)
    rows = slice(None)
    if dp is not None:
        each = len(inputs[0]) // dist.size(dp)
        rows = slice(each * dist.rank(dp), each * dist.rank(dp) + each)
    drawn = [x if x.dtype == "int64" else x.astype(dtype) for x in inputs]
    given = [meta.array(x[rows], device=device) for x in drawn]
    computed = net if half is None else meta.amp.autocast(net, half)
    dy = meta.full(computed(*given).shape, 1.0, dtype, device)
    # The gradient of a key's bias is 0 but for rounding, which a smaller eps would make large.
    step = meta.optim.with_adamw(1e-2, eps=1e-4, over=dp, **options)(computed)
    run = meta.vm.compile(step, dy, *given) if compiled else step
    for _ in range(3):
        run(dy, *given)
    look(run)
    return held(net.state(), net.state())
