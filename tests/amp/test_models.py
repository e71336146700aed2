"""Whole models in mixed precision: forward and training step, on both executors, in both orders of
autocast and gradient, against float32; the casts are few, and none is undone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.model import Model, value_and_grad
from meta.op.core import tree
from meta.optim import with_adamw, with_sgd
from tests.amp.final_casts import all_casts, cancelling
from tests.amp.models import BATCH, MODELS, Loss
from tests.frontend.relay import test_models as relay

HALVES = ["float16", "bfloat16"]
# What a rounding of all stored values costs: of a loss, of logits, of all gradients together. The
# last stages of the residual networks normalise 16 values each, and the pooling of lenet chooses
# another maximum for a few.
LOSS = 1e-2
LOGITS = {"float16": 1e-2, "bfloat16": 4e-2}
GRADIENTS = {"float16": 2e-2, "bfloat16": 1e-1}
WORSE = {"resnet18": 8, "resnet50": 8}
# At most so many casts: of the forward program, of that with gradients.
CASTS = {
    "lenet": (12, 23), "resnet18": (16, 31), "resnet50": (21, 41), "vgg11": (12, 23),
    "vit": (40, 71), "bert": (30, 61), "gpt2": (27, 46), "llama": (25, 43), "lstm": (33, 68),
    "recurrent": (9, 21), "encoder": (18, 31), "mlp": (6, 11),
}  # fmt: skip
FAST = {"lenet", "resnet18", "gpt2", "llama", "recurrent", "mlp"}
COMPILED = {"lenet", "llama", "recurrent"}


def each_model(fast: set[str]) -> list[Any]:
    """Return all models; those that are like others are left to the slow runs."""
    return [n if n in fast else pytest.param(n, marks=pytest.mark.slow) for n in MODELS]


@pytest.fixture(autouse=True)
def torch_kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing is compiled, unless a test wants it."""
    if "generated" in request.node.name:
        yield
    else:
        with meta.dialect.only("torch"):
            yield


def distance(found: Any, expected: Any) -> float:
    """Return the norm of the difference, relative to that of what is expected."""
    pairs = zip(tree.flatten(found)[0], tree.flatten(expected)[0], strict=True)
    both = [(f.torch().double().flatten(), e.torch().double().flatten()) for f, e in pairs]
    a, b = (torch.cat(parts) for parts in zip(*both, strict=True))
    return float((a - b).norm() / b.norm())


def check_step(name: str, half: str, found: Any, expected: Any) -> None:
    (loss, gradients), (expected_loss, expected_gradients) = found, expected
    assert gradients.keys() == expected_gradients.keys()
    assert {g.dtype for g in gradients.values()} == {"float32"} == {loss.dtype}
    assert distance(loss, expected_loss) < LOSS
    assert distance(gradients, expected_gradients) < GRADIENTS[half] * WORSE.get(name, 1)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", each_model(FAST))
def test_a_model_and_its_gradients(name: str, half: str) -> None:
    model, inputs = MODELS[name].make()
    cast = meta.amp.autocast(model, half)
    assert list(cast.state()) == list(model.state())
    assert all(cast.state()[n] is a for n, a in model.state().items())
    logits = meta.amp.autocast(model.network, half)(inputs[0])
    assert distance(logits, model.network(inputs[0])) < LOGITS[half]
    plain, dy = value_and_grad(model), meta.array(1.0)
    expected = plain(dy, *inputs)
    check_step(name, half, value_and_grad(cast)(dy, *inputs), expected)
    both = meta.amp.autocast(plain, half)
    check_step(name, half, both(dy, *inputs), expected)
    forward, training = CASTS[name]
    assert len(cast.explain(*inputs)) <= forward
    assert len(both.explain(dy, *inputs)) <= training
    # What the tape records of the cast model is what is computed in one function.
    cast(*inputs).backward()
    tape = {n: p.grad for n, p in model.parameters().items()}
    check_step(name, half, (expected[0], tape), expected)


def check_compiled(name: str, half: str) -> None:
    model, inputs = MODELS[name].make()
    dy = meta.array(1.0)
    expected = value_and_grad(model)(dy, *inputs)
    both = meta.amp.autocast(value_and_grad(model), half)
    for made in (value_and_grad(meta.amp.autocast(model, half)), both):
        run = meta.vm.compile(made, dy, *inputs)
        check_step(name, half, run(dy, *inputs), expected)
        final = run.history[-1].module
        for record in run.history:  # fusion hides nothing: the pairs of its input are looked for
            if record.name in ("dispatch", run.history[-1].name):
                assert not cancelling(record.module)
        unfused = next(r.module for r in run.history if r.name == "dispatch")
        # Gradients of a cast model are those of its casts, too: a few more than casts of both.
        assert len(all_casts(unfused)) <= 1.15 * CASTS[name][1]
        assert all_casts(final)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", each_model(COMPILED))
def test_compiled(name: str, half: str) -> None:
    check_compiled(name, half)


@pytest.mark.slow
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", MODELS)
def test_compiled_with_generated_kernels(name: str, half: str) -> None:
    check_compiled(name, half)


STEPS = {"sgd": with_sgd(0.05, momentum=0.9), "adamw": with_adamw(0.01)}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("name", ["mlp", pytest.param("resnet18", marks=pytest.mark.slow)])
def test_training_in_both_orders(name: str, kind: str, half: str) -> None:
    """Parameters, running statistics and moments stay float32, and the losses those of float32."""
    curves = []
    for wrap in (
        lambda model: STEPS[kind](model),
        lambda model: STEPS[kind](meta.amp.autocast(model, half)),
        lambda model: meta.amp.autocast(STEPS[kind](model), half),
    ):
        model, inputs = MODELS[name].make()
        before = {n: a.dtype for n, a in model.state().items()}
        step = wrap(model)
        dtypes = {n: a.dtype for n, a in step.state().items()}
        run = meta.vm.compile(step, meta.array(1.0), *inputs) if kind == "sgd" else step
        curves.append([run(meta.array(1.0), *inputs).item() for _ in range(5)])
        assert {n: a.dtype for n, a in model.state().items()} == before
        assert {n: a.dtype for n, a in step.state().items()} == dtypes
    expected = curves[0]
    assert expected[-1] < expected[0]
    for found in curves[1:]:
        assert np.allclose(found, expected, rtol=0.03, atol=0.02), (found, expected)


def test_a_recurrent_network_casts_its_weights_once() -> None:
    model, inputs = MODELS["recurrent"].make()
    report = meta.amp.autocast(model, "bfloat16").explain(*inputs)
    outside = [c for c in report if c.function == "main"]
    weights = {c.value for c in outside}
    assert {"network.again", "network.inside"} <= weights, str(report)


def test_the_mode_is_that_of_the_model() -> None:
    model, inputs = MODELS["vgg11"].make()
    cast = meta.amp.autocast(model, "bfloat16")
    step = with_sgd(0.1)(cast)
    assert cast.training and model.training
    step.infer_mode()
    assert not (cast.training or model.training or model.network.training)
    expected = model(*inputs)
    assert distance(cast(*inputs), expected) < LOSS
    cast.train_mode()
    assert model.training
    twin = copy.deepcopy(cast)
    assert twin.model is not model and twin.training
    assert distance(twin(*inputs), cast(*inputs)) == 0


def test_rules_of_a_block_make_another_program() -> None:
    model, inputs = MODELS["mlp"].make()
    cast = meta.amp.autocast(model.network, "bfloat16", out_dtype="bfloat16")
    assert cast(inputs[0]).dtype == "bfloat16"
    with meta.amp.custom_rules({"dense": meta.amp.generic_cast(False)}):
        assert distance(cast(inputs[0]).to(dtype="float32"), model.network(inputs[0])) < 4e-3
        assert [c.source.dtype for c in cast.explain(inputs[0])] == ["float32"]
    assert len(cast.forward.programs) == 2


def test_what_has_no_mixed_precision() -> None:
    with pytest.raises(meta.errors.ArgumentError, match="16 bits"):
        meta.amp.autocast(Loss, "float32")
    with pytest.raises(meta.errors.ArgumentError, match="no mixed precision"):
        meta.amp.autocast(lambda x: x)
    with pytest.raises(meta.errors.ArgumentError, match="out_dtype"):
        meta.amp.autocast(MODELS["mlp"].make()[0], "float16", "int64")

    class Untraced(Model):
        def forward(self, x: Any) -> Any:
            return x

    with pytest.raises(meta.errors.ArgumentError, match="not traced"):
        meta.amp.autocast(Untraced())(meta.array([1.0]))


IMPORTED = {folder.name: folder for folder in relay.MODELS if (folder / "model.relay").exists()}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", IMPORTED)
def test_imported_models(name: str, half: str) -> None:
    folder = IMPORTED[name]
    model = relay.load(folder, "model.relay").infer_mode()
    args = relay.arguments(model, folder)
    cast = meta.amp.autocast(model, half)
    expected = tree.flatten(model(*args))[0]
    runs = [cast] if name not in ("lstm", "synthetic") else [cast, meta.vm.compile(cast, *args)]
    for run in runs:
        for found, wanted in zip(tree.flatten(run(*args))[0], expected, strict=True):
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
            a, b = found.torch().double(), wanted.torch().double()
            assert float((a - b).abs().max()) <= 1e-2 * max(float(b.abs().max()), 1e-6)


CHARACTERS = 300


@cache
def curve(half: str | None) -> list[float]:
    """Return the losses of a small GPT that learns to write the license, character by character."""
    text = (Path(__file__).parents[2] / "LICENSE").read_text("utf-8")
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(c) for c in text])
    torch.manual_seed(0)
    meta.random.seed(0)
    config = meta.model.zoo.GPT2Config(
        vocab_size=len(letters), n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model: Model = Loss(meta.model.zoo.GPT2LMHeadModel(config), meta.model.zoo.causal_lm_loss)
    if half is not None:
        model = meta.amp.autocast(model, half)
    step = with_adamw(3e-3)(model)
    places = torch.randint(0, len(codes) - 32, (CHARACTERS, 4 * BATCH))
    batches = [meta.array(torch.stack([codes[p : p + 32] for p in row])) for row in places]
    run = meta.vm.compile(step, meta.array(1.0), batches[0], batches[0])
    return [run(meta.array(1.0), batch, batch).item() for batch in batches]


@pytest.mark.parametrize("half", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_the_loss_curve_of_a_character_model_is_that_of_float32(half: str) -> None:
    expected, found = np.array(curve(None)), np.array(curve(half))
    assert expected[-20:].mean() < 0.75 * expected[:5].mean()
    ours, theirs = (np.convolve(c, np.ones(10) / 10, "valid") for c in (found, expected))
    assert np.abs(ours / theirs - 1).max() < 0.03
