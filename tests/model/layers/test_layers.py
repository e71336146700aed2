"""Each layer is torch's: arguments, state, result and gradients, in train and infer mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.base.errors import ArgumentError, TypeInferError
from meta.model import (
    Conv2d,
    ConvTranspose2d,
    Dropout,
    Embedding,
    InstanceNorm1d,
    LayerNorm,
    Linear,
    MaxPool2d,
    Model,
    ModuleDict,
    ModuleList,
    PixelShuffle,
    ReLU,
    Sequential,
    Upsample,
    layers,
)
from meta.testing import check
from tests.model.layers.cases import CASES, LayerCase


def pair(case: LayerCase) -> tuple[meta.Model, torch.nn.Module]:
    """Return both layers with the same random arrays, exchanged in both directions."""
    torch.manual_seed(3)
    theirs, ours = case.theirs(), case.ours()
    with torch.no_grad():
        for tensor in theirs.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.2)
    ours.load_state_dict(theirs.state_dict())
    again = case.theirs()
    again.load_state_dict({n: a.torch() for n, a in ours.state().items()})
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    return ours, theirs


def leaves(result: Any) -> list[Any]:
    """Return the arrays of nested tuples."""
    if isinstance(result, tuple):
        return [leaf for part in result for leaf in leaves(part)]
    return [] if result is None else [result]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_train_mode(case: LayerCase) -> None:
    close = {"rtol": case.tolerance, "atol": case.tolerance}
    ours, theirs = pair(case)
    xs = case.inputs()
    expected = leaves(theirs(*(x if case.indices else x.requires_grad_() for x in xs)))
    dys = [torch.randn_like(y) for y in expected]
    if expected[0].requires_grad:
        torch.autograd.backward(expected, dys)
    given = [meta.array(x.detach()) for x in xs]
    for array in given:
        array.requires_grad = not case.indices
    ys = leaves(ours.forward.function(ours, *given))
    for y, wanted in zip(ys, expected, strict=True):
        check(y, wanted.detach(), **close)
    if ys[0].requires_grad:
        total = sum(meta.sum(meta.multiply(y, dy)) for y, dy in zip(ys, dys, strict=True))
        total.backward()
    if not case.indices:
        for array, x in zip(given, xs, strict=True):
            check(array.grad, x.grad, **close)
    expected_gradients = {n: p.grad for n, p in theirs.named_parameters()}
    assert dict(ours.named_parameters()).keys() == expected_gradients.keys()
    for name, array in ours.named_parameters():
        check(array.grad, expected_gradients[name], **close, what=name)
    for name, array in ours.state().items():
        check(array, theirs.state_dict()[name], **close, what=name)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_infer_mode_traced(case: LayerCase) -> None:
    close = {"rtol": case.tolerance, "atol": case.tolerance}
    ours, theirs = pair(case)
    ours.eval()
    xs = case.inputs()
    expected = leaves(theirs.eval()(*xs))
    given = [meta.array(x) for x in xs]
    for run in (ours, meta.vm.compile(ours, *given)):
        for y, wanted in zip(leaves(run(*given)), expected, strict=True):
            check(y, wanted.detach(), **close)


def test_every_layer_has_a_case() -> None:
    assert {name.split()[0] for name in CASES} == set(layers.__all__)


INITIAL = [
    ("Linear", (300, 200)),
    ("Conv2d", (64, 32, 5)),
    ("ConvTranspose2d", (64, 32, 5)),
    ("Embedding", (300, 200)),
]


@pytest.mark.parametrize(("name", "arguments"), INITIAL)
def test_initial_values_are_spread_as_those_of_torch(name: str, arguments: tuple[int, ...]) -> None:
    meta.random.seed(0)
    theirs = getattr(torch.nn, name)(*arguments).state_dict()
    for key, array in getattr(layers, name)(*arguments).state().items():
        found, wanted = array.torch(), theirs[key]
        few = found.numel() < 1000
        assert found.std().item() == pytest.approx(wanted.std().item(), rel=0.3 if few else 0.03)
        assert abs(found.mean().item()) < (0.5 if few else 0.03) * wanted.std().item()


def test_a_sequential_is_a_sequence() -> None:
    model = Sequential(Linear(2, 3), ReLU(), Linear(3, 1))
    assert len(model) == 3
    assert [type(m).__name__ for m in model] == ["Linear", "ReLU", "Linear"]
    assert model[-1] is getattr(model, "2")
    assert isinstance(model[:2], Sequential)
    assert model[:2][0] is model[0]
    assert [*model[1:].state()] == ["1.weight", "1.bias"]


def test_a_module_list_is_a_list() -> None:
    a, b, c = Linear(2, 3), ReLU(), Linear(3, 1)
    models = ModuleList([a]).append(b).extend([c])
    assert len(models) == 3
    assert b in models
    assert models[-1] is c
    assert [*models[1:]] == [b, c]
    assert [*(models + ModuleList([a]))] == [a, b, c, a]
    models.insert(0, c)
    models[1] = b
    assert models.pop() is c
    del models[0]
    assert [*models] == [b, b]
    models[0] = a
    assert [*models.state()] == ["0.weight", "0.bias"]
    assert not any(model.training for model in models.eval().models())
    assert models.to(dtype="float16").state()["0.weight"].dtype == "float16"


def test_a_module_dict_is_a_dict() -> None:
    a, b = Linear(2, 3), ReLU()
    models = ModuleDict({"a": a})
    models["b"] = b
    assert len(models) == 2
    assert "b" in models
    assert [*models] == [*models.keys()] == ["a", "b"]
    assert [*models.items()] == [("a", a), ("b", b)]
    assert [*models.state()] == ["a.weight", "a.bias"]
    assert models.pop("a") is a
    del models["b"]
    models.update({"c": a})
    assert [*models.values()] == [a]
    models.clear()
    assert not models.state()


def test_a_model_shows_what_is_in_it() -> None:
    class Net(Model):
        def build(self) -> None:
            self.blocks = [Sequential(Linear(2, 3), Dropout(0.1)), MaxPool2d((2, 3))]
            self.scale, self.act = meta.array([1.0, 2.0]), ReLU()
            self.moments = {"m": self.scale, "v": self.scale}

    assert (
        repr(Net())
        == """\
Net(scale=float32[2], moments=2 arrays,
  blocks.0: Sequential(length=2,
    0: Linear(weight=float32[3, 2], bias=float32[3])
    1: Dropout(p=0.1)
  )
  blocks.1: MaxPool2d(kernel_size=(2, 3), stride=(2, 3), padding=0, dilation=1, \
ceil_mode=False, return_indices=False)
  act: ReLU()
)"""
    )


def test_attributes_of_containers() -> None:
    listed, named = ModuleList([Linear(1, 1)]), ModuleDict({"a": Linear(1, 1)})
    for models, item in ((listed, "0"), (named, "a")):
        models.scale = meta.model.parameter([2.0])
        models.count = meta.array(0)
        assert [*models.state()] == [f"{item}.weight", f"{item}.bias", "scale", "count"]
        assert len(models) == 1 and len(list(models.parameters())) == 3
        models.load_state_dict({"count": 5}, strict=False)
        assert models.count.item() == 5
    named["scale"] = Linear(1, 1)
    with pytest.raises(ArgumentError, match="a key is the name of an attribute"):
        named.state()


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Conv2d(1, 1, 3, stride=2, padding="same"), ArgumentError, "stride 1"),
        (lambda: Conv2d(1, 1, 3, padding="full"), ArgumentError, "padding"),
        (lambda: Conv2d(1, 1, (3, 3, 3)), TypeInferError, "kernel_size"),
        (lambda: Conv2d(3, 4, 3, groups=2), ArgumentError, "a divisor of 3 and 4"),
        (lambda: ConvTranspose2d(4, 3, 3, groups=2), ArgumentError, "a divisor of 4 and 3"),
        (lambda: Linear(-3, 4), ArgumentError, "no shape"),
        (lambda: Dropout(1.5), ArgumentError, "0 <= p <= 1"),
        (lambda: Embedding(3, 4, padding_idx=3), ArgumentError, "no such row"),
        (lambda: Sequential([Linear(1, 1)]), ArgumentError, r"Sequential\(\*models\)"),
        (lambda: ModuleList([3]), ArgumentError, "holds models"),
        (lambda: ModuleDict({"a.b": Linear(1, 1)}), ArgumentError, "no dot"),
        (lambda: Upsample(2, 3.0), ArgumentError, "one of size and scale_factor"),
        (lambda: PixelShuffle(0), ArgumentError, "at least 1"),
        (lambda: PixelShuffle(2)(meta.zeros((4, 3))), TypeInferError, "no image"),
        (lambda: PixelShuffle(2)(meta.zeros((1, 3, 2, 2))), TypeInferError, "divided by 4"),
        (lambda: InstanceNorm1d(4, track_running_stats=True), ArgumentError, "BatchNorm"),
        (lambda: InstanceNorm1d(4)(meta.zeros((2, 3, 5))), TypeInferError, "the second of 4"),
        (lambda: InstanceNorm1d(4)(meta.zeros((2, 4, 1))), TypeInferError, "variance is 0"),
        (lambda: LayerNorm((2, 3))(meta.zeros((4, 3, 2))), TypeInferError, "last axes"),
    ],
)
def test_what_cannot_be(make: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_maxima_return_to_their_places(axes: int) -> None:
    x = torch.randn(2, 3, *(5, 6, 4)[:axes], generator=torch.Generator().manual_seed(0))
    ours = getattr(meta.model, f"MaxPool{axes}d")(2, return_indices=True)
    back = getattr(meta.model, f"MaxUnpool{axes}d")(2)
    theirs = getattr(torch.nn, f"MaxPool{axes}d")(2, return_indices=True)
    y, indices = theirs(x)
    expected = getattr(torch.nn, f"MaxUnpool{axes}d")(2)(y, indices, output_size=x.shape)
    found = back(*ours(meta.array(x)), output_size=x.shape)
    assert torch.equal(found.torch(), expected)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_adaptive_pooling_returns_the_places_of_maxima(axes: int) -> None:
    x = torch.randn(2, 3, *(5, 6, 4)[:axes], generator=torch.Generator().manual_seed(0))
    size = (2, None, 3)[:axes]
    found = getattr(meta.model, f"AdaptiveMaxPool{axes}d")(size, return_indices=True)(x)
    expected = getattr(torch.nn, f"AdaptiveMaxPool{axes}d")(size, return_indices=True)(x)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.torch(), theirs)
