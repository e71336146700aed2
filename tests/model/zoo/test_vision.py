"""Image classifiers against torch: outputs, loss, every gradient, running statistics, files."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import meta
from meta import op
from meta.base.errors import ArgumentError, TypeInferError
from meta.model import Model, load_weights, save_weights, trace, zoo
from meta.model.state import array_names
from tests.model.zoo.vision import FULL, PARAMETERS, SMALL, Vision

LIMIT = 1e-4


class WithLoss(Model):
    """Cross entropy of a network's scores."""

    def build(self, network: Model) -> None:
        self.network = network

    @trace
    def forward(self, x: Any, labels: Any) -> Any:
        return op.cross_entropy(self.network(x), labels)


def error(found: Any, wanted: torch.Tensor, scale: float | None = None) -> float:
    """Return the largest difference as a part of the largest number, or of ``scale``."""
    assert found.shape == tuple(wanted.shape)
    difference = (found.torch().cpu().double() - wanted.detach().double()).abs().max().item()
    return difference / (scale or wanted.abs().max().item())


def pair(vision: Vision, path: Path) -> tuple[Model, torch.nn.Module, dict[str, str]]:
    """Return both networks, ours with the weights of a file of torch's state, and our names by
    torch's.
    """
    torch.manual_seed(0)
    theirs = vision.theirs()
    with torch.no_grad():
        for tensor in theirs.state_dict().values():
            if tensor.ndim == 1:  # nothing is 0 or 1, and right by accident
                tensor.add_(torch.rand_like(tensor) * 0.1)
    state = {n: v.contiguous() for n, v in theirs.state_dict().items()}
    safetensors.torch.save_file(state, path)
    ours = vision.ours()
    load_weights(ours, path, strict=True)
    names = array_names(ours)
    return ours, theirs.train(), {n: names.own(n) for n in state}


def gradients(module: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Any:
    """Return torch's scores, loss and gradients."""
    logits = module(images)
    loss = torch.nn.functional.cross_entropy(logits, labels)
    loss.backward()
    return logits, loss, {n: p.grad for n, p in module.named_parameters()}


def largest(arrays: Iterable[torch.Tensor]) -> float:
    return max(a.abs().max().item() for a in arrays)


def zeros(module: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> set[str]:
    """Return the parameters whose gradient is zero but for rounding: a bias before a normalisation,
    or that of an attention's keys.
    """
    exact = gradients(copy.deepcopy(module).double(), images.double(), labels)[2]
    bound = 1e-9 * largest(exact.values())
    return {n for n, g in exact.items() if largest([g]) < bound}


def moved_gradient(vision: Vision, path: Path) -> float:
    """Return how far torch's gradients move with images that differ by rounding: of some millions
    of activations one lies so near to zero that this decides about the mask of a ReLU.
    """
    _, theirs, _ = pair(vision, path)
    images, labels = vision.batch()
    wanted = gradients(copy.deepcopy(theirs), images, labels)[2]
    zero = zeros(theirs, images, labels)
    worst = 0.0
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        other = images * (1 + 3e-6 * torch.randn(images.shape, generator=generator))
        near = gradients(copy.deepcopy(theirs), other, labels)[2]
        scale = largest(wanted.values())
        errors = [
            (near[n] - w).abs().max().item() / (scale if n in zero else w.abs().max().item())
            for n, w in wanted.items()
        ]
        worst = max(worst, *errors)
    return worst


def worst_of(
    found: Mapping[str, Any], wanted: Mapping[str, torch.Tensor], zero: Iterable[str] = ()
) -> float:
    """Return the largest error of all arrays. Those that are ``zero`` are compared with the largest
    number of all.
    """
    assert found.keys() == wanted.keys()
    scale = largest(wanted.values())
    return max(error(found[n], v, scale if n in zero else None) for n, v in wanted.items())


def compare(vision: Vision, path: Path, device: str = "cpu") -> dict[str, float]:
    """Return the largest error of each quantity, in each executor; torch runs on the CPU."""
    ours, theirs, names = pair(vision, path)
    ours.to(device=device)
    images, labels = vision.batch()
    zero = {names[n] for n in zeros(theirs, images, labels)}
    logits, loss, by_name = gradients(theirs, images, labels)
    wanted = {names[n]: g for n, g in by_name.items()}
    statistics = {names[n]: b for n, b in theirs.named_buffers() if b.is_floating_point()}

    model, one = WithLoss(ours), meta.array(1.0, device=device)
    arguments = (meta.array(images, device=device), meta.array(labels, device=device))
    before = {n: a.torch().clone() for n, a in ours.state().items()}
    worst = {"output": error(ours(arguments[0]), logits)}
    # Each executor starts with the same running statistics.
    ours.load_state_dict(before)
    y = model(*arguments)
    y.backward()
    worst["loss"] = error(y, loss)
    found = {n: p.grad for n, p in ours.named_parameters()}
    worst["gradient"] = worst_of(found, wanted, zero)
    step = meta.vm.compile(meta.model.value_and_grad(model), one, *arguments)
    ours.load_state_dict(before)
    y, found = step(one, *arguments)
    worst["loss, vm"] = error(y, loss)
    found = {n.removeprefix("network."): g for n, g in found.items()}
    worst["gradient, vm"] = worst_of(found, wanted, zero)
    if statistics:
        kept = {n: ours.state()[n] for n in statistics}
        worst["statistics"] = worst_of(kept, statistics)

    ours.eval()
    logits = theirs.eval()(images)
    worst["output, inference"] = error(ours(arguments[0]), logits)
    executable = meta.vm.compile(ours, arguments[0])
    worst["output, inference, vm"] = error(executable(arguments[0]), logits)
    return worst


@pytest.mark.parametrize("vision", SMALL.values(), ids=SMALL)
def test_small(vision: Vision, tmp_path: Path) -> None:
    found = compare(vision, tmp_path / "model.safetensors")
    assert max(found.values()) < LIMIT, found


@pytest.mark.slow
@pytest.mark.parametrize("vision", SMALL.values(), ids=SMALL)
def test_small_with_generated_kernels(vision: Vision, tmp_path: Path) -> None:
    with meta.dialect.only("tvm", "torch"):
        found = compare(vision, tmp_path / "model.safetensors")
    assert max(found.values()) < LIMIT, found


@pytest.mark.cuda
@pytest.mark.parametrize("dialects", [("torch",), ("tvm", "torch")], ids="+".join)
@pytest.mark.parametrize("vision", SMALL.values(), ids=SMALL)
def test_small_on_cuda(vision: Vision, dialects: tuple[str, ...], tmp_path: Path) -> None:
    with meta.dialect.only(*dialects):
        found = compare(vision, tmp_path / "model.safetensors", "cuda")
    assert max(found.values()) < LIMIT, found


@pytest.mark.slow
@pytest.mark.parametrize("vision", FULL.values(), ids=FULL)
def test_full(vision: Vision, tmp_path: Path) -> None:
    found = compare(vision, tmp_path / "model.safetensors")
    kinks = moved_gradient(vision, tmp_path / "again.safetensors")
    for name, value in found.items():
        assert value < LIMIT + (2 * kinks if name.startswith("gradient") else 0), (found, kinks)


@pytest.mark.parametrize("vision", SMALL.values(), ids=SMALL)
def test_torch_loads_our_state(vision: Vision, tmp_path: Path) -> None:
    ours, theirs, names = pair(vision, tmp_path / "theirs")
    save_weights(ours, tmp_path / "ours")
    written = safetensors.torch.load_file(tmp_path / "ours")
    expected = {n: v for n, v in theirs.state_dict().items() if v.is_floating_point()}
    assert written.keys() == {names[n] for n in expected}
    again = vision.theirs()
    again.load_state_dict({n: written[names[n]] for n in expected}, strict=True)
    for name, value in expected.items():
        assert torch.equal(again.state_dict()[name], value)


TRANSFORMERS = {n: v for n, v in SMALL.items() if n.startswith(("resnet", "vit"))}


@pytest.mark.parametrize("vision", TRANSFORMERS.values(), ids=TRANSFORMERS)
def test_files_of_transformers(vision: Vision, tmp_path: Path) -> None:
    theirs = vision.theirs()
    theirs.network.save_pretrained(tmp_path)
    ours = vision.ours()
    load_weights(ours, tmp_path / "model.safetensors", strict=True)
    images = vision.batch()[0]
    assert error(ours.eval()(meta.array(images)), theirs.eval()(images)) < LIMIT


def test_a_file_of_transformers_in_parts(tmp_path: Path) -> None:
    vision = SMALL["resnet"]
    theirs = vision.theirs()
    theirs.network.save_pretrained(tmp_path, max_shard_size="100KB")
    assert not (tmp_path / "model.safetensors").exists()
    ours = vision.ours()
    load_weights(ours, tmp_path / "model.safetensors.index.json", strict=True)
    state = theirs.state_dict()
    names = array_names(ours)
    assert all(
        torch.equal(ours.state()[names.own(n)].torch(), v) for n, v in state.items() if v.ndim
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", PARAMETERS)
def test_the_number_of_parameters(name: str) -> None:
    model = getattr(zoo, name)()
    assert sum(a.size for a in model.parameters()) == PARAMETERS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "vgg11", "vgg11_bn"])
def test_torchvision(name: str, tmp_path: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    changes: dict[str, Any] = {"dropout": 0.0} if name.startswith("vgg") else {}
    vision = Vision(
        lambda: getattr(zoo, name)(**changes),
        lambda: getattr(torchvision.models, name)(weights=None, **changes),
        channels=3,
        side=64,
        classes=1000,
    )
    found = compare(vision, tmp_path / "model.safetensors")
    assert max(found.values()) < LIMIT, found


def test_initial_values() -> None:
    meta.random.seed(0)
    model = zoo.resnet18(num_classes=10)
    weight = model.layer2[0].conv2.weight.torch()
    assert weight.std().item() == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.02)
    model = zoo.VGG(zoo.VGGConfig(layers=((64, 64),), hidden=64))
    assert model.features[2].weight.torch().std().item() == pytest.approx(
        (2 / 576) ** 0.5, rel=0.02
    )
    assert not model.features[2].bias.torch().any()
    assert model.classifier[3].weight.torch().std().item() == pytest.approx(0.01, rel=0.05)


DROPPING: dict[str, Callable[[], Model]] = {
    "vgg": lambda: zoo.VGG(zoo.VGGConfig(layers=((8,),), hidden=64, num_classes=10)),
    "vit": lambda: zoo.vit_b_16(**TINY, hidden_dropout_prob=0.5),
    "vit's attention": lambda: zoo.vit_b_16(**TINY, attention_probs_dropout_prob=0.5),
}
TINY = {
    "hidden_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "image_size": 14,
    "patch_size": 7,
}


@pytest.mark.parametrize("make", DROPPING.values(), ids=DROPPING)
def test_dropout_in_train_mode_only(make: Callable[[], Model]) -> None:
    model, x = make(), meta.random.normal((2, 3, 14, 14))
    assert (model(x).numpy() != model(x).numpy()).any()
    model.eval()
    assert (model(x).numpy() == model(x).numpy()).all()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: zoo.LeNetConfig(image_size=8), "too small"),
        (lambda: zoo.ResNetConfig(layers=(1, 1, 1)), "four stages"),
        (lambda: zoo.ViTConfig(patch_size=15), "divide"),
        (lambda: zoo.ViTConfig(num_attention_heads=7), "divide"),
        (lambda: zoo.ViTConfig(hidden_act="gelo"), "no activation function"),
    ],
)
def test_configurations_that_are_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        make()


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(TypeInferError, match="not of the model's size"):
        zoo.vit_b_16(**TINY)(meta.zeros((2, 3, 14, 21)))


def test_a_config_json_of_transformers(tmp_path: Path) -> None:
    theirs = SMALL["vit"].theirs().network.config
    theirs.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    config = zoo.ViTConfig.from_dict(values)
    assert all(getattr(theirs, f.name) == getattr(config, f.name) for f in fields(config))


@pytest.mark.parametrize("labels", [1, 2, 7])
def test_the_labels_of_a_configuration_of_transformers(labels: int) -> None:
    from transformers import ViTConfig

    theirs = ViTConfig(num_labels=labels)
    for values in (theirs.to_dict(), json.loads(theirs.to_json_string())):  # which has no defaults
        assert zoo.ViTConfig.from_dict(values).num_labels == labels
    assert zoo.ViTConfig.from_dict({"num_labels": labels}).num_labels == labels
