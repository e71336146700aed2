"""Language models against transformers' own: outputs, loss, every gradient, files of weights."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import ArgumentError, TypeInferError
from meta.model import zoo
from meta.model.zoo.transformer import attend
from tests.model.zoo.text import (
    BERT,
    GPT2,
    LLAMA,
    NO_TYPES,
    TEXTS,
    Text,
    WithLoss,
    expected,
    relative_error,
    transformers,
    without_dropout,
)

LIMIT = 1e-4


def inputs_of(text: Text) -> tuple[dict[str, Any], Any]:
    batch = {n: meta.array(t.numpy()) for n, t in text.batch().items()}
    labels = batch.pop("labels")
    return batch, labels


def compare_gradients(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Check that the gradients are those of the reference.

    An error is relative to the tensor's largest gradient, or to 1e-4 of the model's largest: what
    is smaller is a difference of larger terms, and rounding (keys' biases have none at all).
    """
    named = {name.removeprefix("network."): g for name, g in found.items()}
    unused = named.keys() - wanted.keys()  # torch leaves them without a gradient
    assert named.keys() >= wanted.keys() and not any(named[n].torch().any() for n in unused)
    largest = max(float(w.abs().max()) for w in wanted.values())
    for name, gradient in wanted.items():
        own = float(gradient.abs().max())
        error = float((named[name].torch() - gradient).abs().max())
        assert error < LIMIT * max(own, 1e-4 * largest), name


@pytest.mark.parametrize("name", TEXTS)
def test_transformers(name: str, tmp_path: Path) -> None:
    text = TEXTS[name]
    ours, theirs = text.pair(tmp_path)
    result, loss, gradients = expected(text, theirs)
    batch, labels = inputs_of(text)
    outputs = ours(**batch)
    logits = (
        {"logits": outputs}
        if text.their_loss is None
        else dict(zip(("last_hidden_state", "pooler_output"), outputs, strict=True))
    )
    for key, found in logits.items():
        assert relative_error(found, result[key]) < LIMIT, key
    model = WithLoss(ours, text.loss)
    # The tape follows the interpreter; the VM runs forward and backward as one program.
    y = model(batch, labels)
    assert relative_error(y, loss) < LIMIT
    y.backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    compare_gradients(found, gradients)
    arguments = (meta.array(1.0), batch, labels)
    step = meta.vm.compile(meta.model.value_and_grad(model), *arguments)
    y, found = step(*arguments)
    assert relative_error(y, loss) < LIMIT
    compare_gradients(found, gradients)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_padding_at_the_beginning(name: str, tmp_path: Path) -> None:
    text = TEXTS[name]
    ours, theirs = text.pair(tmp_path)
    ids = torch.randint(1, 61, (2, 7))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    wanted = theirs.eval()(input_ids=ids, attention_mask=mask, position_ids=positions).logits
    given = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    found = ours(**{n: meta.array(t.numpy()) for n, t in given.items()})
    # What is computed for padding is nobody's: transformers lets it look at everything.
    seen = mask.bool()
    assert relative_error(meta.array(found.numpy()[seen.numpy()]), wanted[seen]) < LIMIT


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_dropout_of_attention(causal: bool, masked: bool) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 3)
    mask = torch.rand(2, 1, 1, 6) < 0.7 if masked else None
    seen = torch.ones(5, 6).tril().bool() if causal else torch.ones(5, 6).bool()
    seen = (seen if mask is None else seen & mask).expand(2, 4, 5, 6)
    meta.random.seed(3)
    kept = torch.tensor(meta.dropout_train(meta.array(np.ones((2, 4, 5, 6))), 0.3)[1].numpy())
    scores = query @ key.repeat_interleave(2, 1).transpose(2, 3) * 0.5
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1).nan_to_num()
    wanted = (weights * kept / 0.7) @ value.repeat_interleave(2, 1)
    meta.random.seed(3)
    arrays = [meta.array(t.transpose(1, 2).contiguous().numpy()) for t in (query, key, value)]
    given = None if mask is None else meta.array(mask.numpy())
    found = attend(*arrays, given, causal=causal, scale=0.5, dropout_p=0.3)
    assert relative_error(found, wanted.transpose(1, 2)) < LIMIT


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_dropout_in_train_mode_only(name: str) -> None:
    changes = {"attention_dropout": 0.5} if name == "llama" else {}
    rates = {n: 0.5 for n in TEXTS[name].values if n.endswith(("pdrop", "dropout_prob"))}
    text = replace(TEXTS[name], changes={**changes, **rates})
    model, (batch, _) = text.ours(), inputs_of(text)
    first, second = model(**batch).numpy(), model(**batch).numpy()
    assert not np.array_equal(first, second)
    model.eval()
    np.testing.assert_array_equal(model(**batch).numpy(), model(**batch).numpy())


def test_initial_values() -> None:
    model = zoo.GPT2LMHeadModel(zoo.GPT2Config.from_dict({**GPT2, "n_embd": 96}))
    state = {n: a.numpy() for n, a in model.state().items()}
    assert abs(state["transformer.h.0.mlp.c_fc.weight"].std() - 0.02) < 5e-4
    assert abs(state["transformer.h.0.mlp.c_proj.weight"].std() - 0.01) < 5e-4
    assert not state["transformer.h.1.attn.c_attn.bias"].any()
    assert (state["transformer.ln_f.weight"] == 1).all()
    words = zoo.BertModel(zoo.BertConfig.from_dict(BERT)).embeddings.word_embeddings
    assert not words.weight.numpy()[0].any() and words.weight.numpy()[1:].all()


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (zoo.BertConfig, {"num_attention_heads": 5}, "divide"),
        (zoo.BertConfig, {"hidden_act": "gelo"}, "no activation function"),
        (zoo.BertConfig, {"is_decoder": True}, "is_decoder"),
        (zoo.BertConfig, {"model_type": "roberta"}, "model_type='bert'"),
        (zoo.LlamaConfig, {"model_type": "qwen2"}, "model_type='llama'"),
        (zoo.GPT2Config, {"add_cross_attention": True}, "add_cross_attention"),
        (zoo.LlamaConfig, {"num_key_value_heads": 3}, "divide"),
        (zoo.LlamaConfig, {"rope_scaling": {"type": "spiral"}}, "rope_type 'spiral'"),
        (zoo.LlamaConfig, {"rope_scaling": {"type": "yarn"}}, "type 'yarn' lack factor"),
        (zoo.LlamaConfig, {"rope_scaling": {"rope_type": "linear"}}, "factor"),
    ],
)
def test_configurations_that_are_refused(config: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        config.from_dict(values)


def test_configuration_of_an_older_file() -> None:
    scaling = {"type": "linear", "factor": 2.0}
    config = zoo.LlamaConfig.from_dict({"rope_theta": 500.0, "rope_scaling": scaling})
    assert config.rope_parameters == {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}


def test_mask_that_is_none() -> None:
    model = zoo.GPT2LMHeadModel(zoo.GPT2Config.from_dict(GPT2))
    with pytest.raises(TypeInferError, match="no attention mask"):
        model(meta.array([[1, 2]]), meta.array([[0.0, 1.0]]))


def older(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state under the names of the first versions, with what files had beside."""
    names = {
        r"LayerNorm\.weight$": "LayerNorm.gamma",
        r"LayerNorm\.bias$": "LayerNorm.beta",
    }
    for pattern, name in names.items():
        state = {re.sub(pattern, name, n): x for n, x in state.items()}
    more = {
        r"(.*)embeddings\.word_embeddings\.weight": ["embeddings.position_ids"],
        r"(.*)h\.0\.ln_1\.weight": ["h.0.attn.bias", "h.0.attn.masked_bias"],
        r"(.*)layers\.0\.input_layernorm\.weight": ["layers.0.self_attn.rotary_emb.inv_freq"],
    }
    found = [(re.fullmatch(p, n), own) for n in state for p, own in more.items()]
    kept = {m.group(1) + o: torch.zeros(1) for m, own in found if m is not None for o in own}
    return {**state, **kept}


CROSSED = [
    ("BertForMaskedLM", "BertForPreTraining"),
    ("BertModel", "BertForMaskedLM"),
    ("BertModel", "BertForSequenceClassification"),
    ("BertForSequenceClassification", "BertModel"),
    ("GPT2LMHeadModel", "GPT2Model"),
    ("GPT2Model", "GPT2LMHeadModel"),
    ("LlamaForCausalLM", "LlamaModel"),
    ("LlamaModel", "LlamaForCausalLM"),
]


@pytest.mark.parametrize(("own", "source"), CROSSED)
def test_published_weights_are_often_of_another_head(own: str, source: str) -> None:
    """With and without a head, and in old files, as gpt2's and bert-base-uncased's are."""
    values = {"B": BERT, "G": GPT2, "L": {**LLAMA, "tie_word_embeddings": True}}[own[0]]
    model = Text(own, values, zoo.masked_lm_loss).ours()
    state = Text(source, values, zoo.masked_lm_loss).theirs().state_dict()
    left = model.load_state_dict(older(state), strict=False)
    new = ("bert.pooler", "classifier", "pooler") if own == "BertForSequenceClassification" else ()
    absent = ("pooler",) if own == "BertModel" and source == "BertForMaskedLM" else new
    assert all(n.startswith(absent) for n in left.missing) and not left.unknown
    loaded = {n: x for n, x in model.state().items() if n not in left.missing}
    assert len(loaded) > 8
    for n, x in loaded.items():
        near = (n, n.partition(".")[2], *(p + n for p in ("bert.", "transformer.", "model.")))
        assert torch.equal(x.torch(), state[next(m for m in near if m in state)])


def test_texts_that_are_too_long() -> None:
    for values, network in ((BERT, "BertModel"), (GPT2, "GPT2Model")):
        model = Text(network, values, zoo.masked_lm_loss).ours()
        with pytest.raises(TypeInferError, match=r"at most 16 tokens[^$]*17 tokens"):
            model(meta.array(np.ones((1, 17), "int64")))


def test_a_configuration_of_transformers_is_converted_first() -> None:
    for family, network in (("Bert", "BertModel"), ("GPT2", "GPT2Model"), ("Llama", "LlamaModel")):
        theirs = getattr(transformers, f"{family}Config")()
        with pytest.raises(ArgumentError, match=r"from_dict\(config.to_dict\(\)\)"):
            getattr(zoo, network)(theirs)
        with pytest.raises(ArgumentError, match=r"config.to_dict\(\)"):
            getattr(zoo, f"{family}Config").from_dict(theirs)


# BERT-base, the small GPT-2, and two layers as wide as those of Llama 3.2 1B.
FULL = {
    "bert": Text("BertForMaskedLM", without_dropout(BERT), zoo.masked_lm_loss),
    "gpt2": Text("GPT2LMHeadModel", without_dropout(GPT2), zoo.causal_lm_loss),
    "llama": Text(
        "LlamaForCausalLM",
        {
            "vocab_size": 32000,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 2,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "tie_word_embeddings": True,
        },
        zoo.causal_lm_loss,
        NO_TYPES,
    ),
}


def gradient_errors(found: dict[str, Any], exact: dict[str, torch.Tensor]) -> dict[str, float]:
    """Return each gradient's error, relative as in `compare_gradients`."""
    largest = max(float(w.abs().max()) for w in exact.values())
    return {
        name: float((found[name].double() - w).abs().max())
        / max(float(w.abs().max()), 1e-4 * largest)
        for name, w in exact.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_full_size(name: str, tmp_path: Path) -> None:
    """Beside transformers in float64. Tokens of random weights become alike from layer to layer, so
    that a gradient of queries and keys is a small difference of large terms: transformers' own in
    float32, with the attention that it chooses, are up to 3e-4 off.
    """
    text = FULL[name]
    ours, theirs = text.pair(tmp_path)
    theirs.set_attn_implementation("sdpa")
    rounded = {n: g.clone() for n, g in expected(text, theirs)[2].items()}
    theirs.set_attn_implementation("eager")
    result, wanted, exact = expected(text, theirs.double())
    del theirs
    allowed = max(LIMIT, 1.5 * max(gradient_errors(rounded, exact).values()))
    del rounded
    batch, labels = inputs_of(text)
    assert relative_error(ours(**batch), result.logits) < LIMIT
    assert relative_error(meta.vm.compile(ours, **batch)(**batch), result.logits) < LIMIT
    model, one = WithLoss(ours, text.loss), meta.array(1.0)
    y = model(batch, labels)
    y.backward()
    taped = {n: p.grad for n, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = None
    step = meta.vm.compile(meta.model.value_and_grad(model), one, batch, labels)
    for loss, gradients in ((y, taped), step(one, batch, labels)):
        assert relative_error(loss, wanted) < LIMIT
        found = {n.removeprefix("network."): g.torch() for n, g in gradients.items()}
        assert found.keys() == exact.keys()
        errors = gradient_errors(found, exact)
        worst = max(errors, key=errors.__getitem__)
        assert errors[worst] < allowed, (worst, errors[worst], allowed)
