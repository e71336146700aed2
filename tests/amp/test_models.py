"""Whole models in mixed precision: forward and training step, on both executors, in both orders of
autocast and gradient, against float32; the casts are few, and none is undone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.dtype import TO_TORCH
from meta.model import Model, value_and_grad
from meta.op.core import tree
from meta.optim import with_adamw, with_sgd
from meta.testing import check
from tests.amp.final_casts import all_casts, cancelling
from tests.amp.models import BATCH, MODELS, Loss
from tests.frontend.relay import test_models as relay

HALVES = ["float16", "bfloat16"]
# Of results without batch statistics, and of losses.
RESULT = 1e-2
# Of what depends on statistics of few values, or on which side of zero a value is: so many times
# what rounding the weights and inputs alone does to it in float32 (see `rounding`).
FACTOR = 4
WORSE = {"lenet": 2}  # its pooling chooses another maximum for a few
# At most so many casts: of the forward program, of that with gradients, of gradients of the cast
# model.
CASTS = {
    "lenet": (12, 23, 23), "resnet18": (16, 31, 31), "resnet50": (21, 41, 41),
    "vgg11": (12, 23, 23), "vit": (40, 71, 78), "bert": (30, 61, 60), "gpt2": (27, 46, 53),
    "llama": (25, 42, 49), "lstm": (33, 68, 60), "recurrent": (9, 22, 19),
    "encoder": (18, 31, 35), "mlp": (6, 11, 11),
}  # fmt: skip
FAST = {"resnet18", "llama", "recurrent", "mlp"}
ZOO = ("lenet", "resnet18", "resnet50", "vgg11", "vit", "bert", "gpt2", "llama")
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
    both = [tuple(a.detach().torch().double().flatten() for a in pair) for pair in pairs]
    a, b = (torch.cat(parts) for parts in zip(*both, strict=True))
    return float((a - b).norm() / b.norm())


@dataclass(frozen=True)
class Rounding:
    """What rounding weights and inputs to a half dtype does to a model that is float32 otherwise:
    to its result in train mode, and to all gradients together.
    """

    logits: float
    gradients: float


@cache
def rounding(name: str, half: str) -> Rounding:
    """Return how sensitive a model is, whoever computes it in half precision."""

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(TO_TORCH[half]).to(tensor.dtype) if tensor.is_floating_point() else tensor

    found = []
    with meta.dialect.only("torch"):
        for change in (torch.clone, rounded):
            model, inputs = MODELS[name].make()
            model.load_state_dict(
                {n: meta.array(change(a.torch())) for n, a in model.state().items()}
            )
            x, labels = (meta.array(change(i.torch())) for i in inputs)
            found.append((model.network(x), value_and_grad(model)(meta.array(1.0), x, labels)[1]))
    (logits, gradients), (near, nearly) = found
    return Rounding(distance(near, logits), distance(nearly, gradients))


def gradient_limit(name: str, half: str) -> float:
    """Return how far gradients may be from those of float32."""
    return FACTOR * WORSE.get(name, 1) * rounding(name, half).gradients


def check_step(name: str, half: str, found: Any, expected: Any) -> None:
    (loss, gradients), (expected_loss, expected_gradients) = found, expected
    assert gradients.keys() == expected_gradients.keys()
    assert {g.dtype for g in gradients.values()} == {"float32"} == {loss.dtype}
    assert distance(loss, expected_loss) < RESULT
    assert distance(gradients, expected_gradients) < gradient_limit(name, half)


@pytest.mark.product
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", ZOO)
def test_a_zoo_model_and_a_step_of_its_training(name: str, half: str) -> None:
    """The result as one uses it, the loss of a whole step, and what the step does to parameters."""
    changes, losses, results = [], [], []
    for wrap in (lambda model: model, lambda model: meta.amp.autocast(model, half)):
        model, (x, labels) = MODELS[name].make()
        results.append(wrap(model.network.eval())(x))
        model.train()
        before = {n: p.detach().torch().clone() for n, p in model.named_parameters()}
        step = wrap(with_sgd(1.0)(model))
        losses.append(step(meta.array(1.0), x, labels))
        after = model.named_parameters()
        changes.append({n: meta.array(before[n] - p.detach().torch()) for n, p in after})
    assert distance(results[1], results[0]) < RESULT
    assert distance(losses[1], losses[0]) < RESULT
    assert distance(changes[1], changes[0]) < gradient_limit(name, half)


@pytest.mark.product
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", each_model(FAST))
def test_a_model_and_its_gradients(name: str, half: str) -> None:
    model, inputs = MODELS[name].make()
    cast = meta.amp.autocast(model, half)
    assert list(cast.state()) == list(model.state())
    assert all(cast.state()[n] is a for n, a in model.state().items())
    logits = meta.amp.autocast(model.network, half)(inputs[0])
    limit = FACTOR * rounding(name, half).logits
    assert distance(logits, model.network(inputs[0])) < limit
    plain, dy = value_and_grad(model), meta.array(1.0)
    expected = plain(dy, *inputs)
    check_step(name, half, value_and_grad(cast)(dy, *inputs), expected)
    both = meta.amp.autocast(plain, half)
    check_step(name, half, both(dy, *inputs), expected)
    forward, training, _ = CASTS[name]
    assert len(cast.explain(*inputs)) <= forward
    assert len(both.explain(dy, *inputs)) <= training
    # What the tape records of the cast model is what is computed in one function.
    cast(*inputs).backward()
    tape = {n: p.grad for n, p in model.named_parameters()}
    check_step(name, half, (expected[0], tape), expected)


def check_compiled(name: str, half: str) -> None:
    model, inputs = MODELS[name].make()
    dy = meta.array(1.0)
    expected = value_and_grad(model)(dy, *inputs)
    both = meta.amp.autocast(value_and_grad(model), half)
    apart = value_and_grad(meta.amp.autocast(model, half))
    for made, most in ((apart, CASTS[name][2]), (both, CASTS[name][1])):
        run = meta.vm.compile(made, dy, *inputs)
        check_step(name, half, run(dy, *inputs), expected)
        final = run.history[-1].module
        for record in run.history:  # fusion hides nothing: the pairs of its input are looked for
            if record.name in ("dispatch", run.history[-1].name):
                assert not cancelling(record.module)
        unfused = next(r.module for r in run.history if r.name == "dispatch")
        assert len(all_casts(unfused)) <= most
        assert all_casts(final)


@pytest.mark.product
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
    step.eval()
    assert not (cast.training or model.training or model.network.training)
    expected = model(*inputs)
    assert distance(cast(*inputs), expected) < RESULT
    cast.train()
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
    model = relay.load(folder, "model.relay").eval()
    args = relay.arguments(model, folder)
    cast = meta.amp.autocast(model, half)
    expected = tree.flatten(model(*args))[0]
    runs = [cast] if name not in ("lstm", "synthetic") else [cast, meta.vm.compile(cast, *args)]
    for run in runs:
        for found, wanted in zip(tree.flatten(run(*args))[0], expected, strict=True):
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
            a, b = (v.detach().torch().double() for v in (found, wanted))
            assert float((a - b).abs().max()) <= 1e-2 * max(float(b.abs().max()), 1e-6)


CHARACTERS = 300


@cache
def curve(half: str | None) -> list[float]:
    """Return the losses of a small GPT that learns to write the license, character by character."""
    text = (Path(__file__).parents[2] / "LICENSE").read_text("utf-8")
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(c) for c in text])
    torch.manual_seed(0)
    meta.random.seed(1)  # of 0 to 2 the least far apart from each other, whatever the threads
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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("given", ["float16", "bfloat16"])
def test_inputs_of_half_precision_meet_parameters_of_float32(dtype: str, given: str) -> None:
    net = meta.model.Sequential(meta.model.Linear(3, 5), meta.model.ReLU()).eval()
    x = meta.array([[0.5, -1.0, 2.0], [1.0, 0.25, -3.0]])
    half = x.to(dtype=given)
    cast = meta.amp.autocast(net, dtype)
    expected = cast(x)  # these numbers are the same in every dtype
    for found in (cast(half), meta.vm.compile(cast, half)(half)):
        assert found.dtype == expected.dtype
        check(found, expected, 1e-2, 1e-2)
    assert str(cast.explain(half))
    both = meta.model.trace(lambda a, b: a * b)
    assert both(x, half).dtype == "float32"
    with meta.strict_dtypes(), pytest.raises(meta.errors.TypeInferError, match="differ in dtype"):
        meta.model.trace(lambda a, b: a * b)(x, half)
