"""PyTorch modules come in with equal outputs, names and structure."""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any

import pytest
import torch
from torch import nn

import meta
from meta.frontend import from_torch
from meta.frontend.aten import AtenError
from meta.op.core import tree


class Block(nn.Module):
    """The basic block of a residual network (He et al., arXiv:1512.03385)."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != out:
            conv = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    """Eight basic blocks behind a stem, as torchvision has them, narrow."""

    def __init__(self, width: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.layers = nn.Sequential(
            *(
                nn.Sequential(Block(a, b, 1 if i == 0 else 2), Block(b, b, 1))
                for i, (a, b) in enumerate(itertools.pairwise(widths))
            )
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(self.layers(x)), 1))


class Bert(nn.Module):
    """Two layers of BERT (Devlin et al., arXiv:1810.04805), narrow."""

    def __init__(self, width: int = 16, heads: int = 2, words: int = 30, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(12, width)
        self.types = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.pooler = nn.Linear(width, width)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        at = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.words(input_ids) + self.positions(at) + self.types(token_type_ids)
        y = self.encoder(self.norm(x), src_key_padding_mask=attention_mask == 0)
        return {"last_hidden_state": y, "pooled": torch.tanh(self.pooler(y[:, 0]))}


def randomized(module: nn.Module) -> nn.Module:
    """Give running statistics values that matter."""
    with torch.no_grad():
        for m in module.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.running_mean.uniform_(-0.2, 0.2)
                m.running_var.uniform_(0.7, 1.3)
    return module


def check(found: Any, wanted: Any) -> None:
    found, structure = tree.flatten(found)
    wanted, expected = tree.flatten(wanted)
    assert structure == expected
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f.torch(), w.detach(), rtol=1e-4, atol=1e-5)


def bert_inputs() -> tuple[torch.Tensor, ...]:
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 8:] = 0
    return torch.randint(30, (2, 12)), mask, torch.randint(2, (2, 12))


def resnet_inputs() -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 3, 32, 32),)


@pytest.mark.parametrize("make,inputs", [(ResNet18, resnet_inputs), (Bert, bert_inputs)])
def test_whole_models(make: Any, inputs: Any) -> None:
    torch.manual_seed(0)
    module, given = randomized(make()).eval(), inputs()
    model = from_torch(module, given)
    arrays = [meta.array(x) for x in given]
    wanted = module(*given)
    with meta.dialect.prefer("torch"):
        check(model(*arrays), wanted)
    check(meta.vm.compile(model, *arrays)(*arrays), wanted)
    assert set(model.state()) == set(module.state_dict())
    assert set(dict(model.named_parameters())) == {n for n, _ in module.named_parameters()}


def test_training_updates_statistics_and_gives_torchs_gradients() -> None:
    torch.manual_seed(0)
    module = randomized(ResNet18()).train()
    x, dy = torch.randn(4, 3, 32, 32), torch.randn(4, 10)
    model = from_torch(copy.deepcopy(module), (x,)).train()
    with meta.dialect.prefer("torch"):
        y = model(meta.array(x))
        y.backward(meta.array(dy))
    module(x).backward(dy)
    for name, parameter in module.named_parameters():
        found = model.state()[name].grad.torch()
        torch.testing.assert_close(found, parameter.grad, rtol=1e-3, atol=1e-4)
    for name, buffer in module.named_buffers():
        if "running" in name:
            torch.testing.assert_close(model.state()[name].torch(), buffer, rtol=1e-4, atol=1e-5)


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3))
        self.register_buffer("fixed", torch.randn(3), persistent=False)

    def forward(self, pair: Any, *, scale: torch.Tensor) -> Any:
        a, more = pair
        return {"sum": a + more["b"] * self.w, "rest": (a * scale, [more["b"] + self.fixed])}


def test_structures_and_keywords() -> None:
    module = Structured()
    a, b, s = torch.randn(2, 3), torch.randn(2, 3), torch.randn(())
    model = from_torch(module, ((a, {"b": b}),), {"scale": s})
    pair = (meta.array(a), {"b": meta.array(b)})
    with meta.dialect.prefer("torch"):
        check(model(pair, scale=meta.array(s)), module((a, {"b": b}), scale=s))
    assert model.input_names == ("pair", "scale")
    assert list(model.state()) == ["w"]
    with pytest.raises(meta.errors.ArgumentError, match="another structure"):
        model((meta.array(a), meta.array(b)), scale=meta.array(s))


def test_extents_that_vary() -> None:
    module = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Flatten(0)).eval()
    shapes = ({0: torch.export.Dim("n", min=2, max=64)},)
    model = from_torch(module, (torch.randn(4, 3),), dynamic_shapes=shapes)
    for n in (2, 7):
        x = torch.randn(n, 3)
        with meta.dialect.prefer("torch"):
            check(model(meta.array(x)), module(x))
    with pytest.raises(meta.errors.ArgumentError, match="has the shape"):
        model(meta.array(torch.randn(2, 4)))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids))


@pytest.mark.parametrize("padding", [None, 0, -1])
def test_the_row_of_padding_gets_no_gradient(padding: int | None) -> None:
    module, ids = nn.Embedding(5, 3, padding_idx=padding), torch.tensor([[0, 4, 1], [1, 0, 4]])
    with torch.no_grad():
        module.weight.uniform_(1, 2)
    model, dy = from_torch(module, (ids,)), torch.randn(2, 3, 3)
    with meta.dialect.prefer("torch"):
        y = model(meta.array(ids))
        y.backward(meta.array(dy))
    wanted = module(ids)
    wanted.backward(dy)
    check(y, wanted)
    torch.testing.assert_close(
        dict(model.named_parameters())["weight"].grad.torch(), module.weight.grad
    )


def test_tied_weights_are_one_array() -> None:
    module, ids = Tied(), torch.tensor([1, 5])
    model = from_torch(module, (ids,))
    assert len(list(model.parameters())) == 1
    with meta.dialect.prefer("torch"):
        check(model(meta.array(ids)), module(ids))


def test_a_copy_has_arrays_of_its_own() -> None:
    module, x = nn.Linear(3, 2), torch.randn(4, 3)
    model = from_torch(module, (x,))
    copied = copy.deepcopy(model)
    copied.load_state_dict({"bias": [5.0, 5.0]}, strict=False)
    with meta.dialect.prefer("torch"):
        check(model(meta.array(x)), module(x))
        check(copied(meta.array(x)), x @ module.weight.T + 5)


def test_the_modes_of_the_module_stay() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train()
    module[1].eval()
    model = from_torch(module, (torch.randn(1, 2),))
    assert [m.training for m in module.modules()] == [True, True, False]
    assert not model.training


class Called(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.logsumexp((1, 2)),
        lambda x: x.amin(1, keepdim=True) + x.amax(),
        lambda x: nn.functional.interpolate(x, size=(5, 7)),
        lambda x: nn.functional.interpolate(x, scale_factor=2.0, mode="nearest"),
        lambda x: nn.functional.interpolate(x, scale_factor=0.7),
        lambda x: nn.functional.interpolate(x, scale_factor=0.7, mode="bilinear"),
        lambda x: nn.functional.interpolate(x, (5, 7), mode="bilinear", align_corners=True),
        lambda x: nn.functional.interpolate(x, (4, 3), mode="bilinear", antialias=True),
        lambda x: nn.functional.max_pool2d(x, 2, return_indices=True),
        lambda x: nn.functional.avg_pool2d(x, 2, divisor_override=3),
        lambda x: nn.functional.instance_norm(x),
        lambda x: nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True),
        lambda x: x[:, -1],
        lambda x: x[:, :1].squeeze((1, 2)),
        lambda x: x.mean(()),
        lambda x: x.var(()),
        lambda x: torch.fft.fft2(x).abs() + torch.linalg.norm(x, dim=(1, 2)).sum(),
        lambda x: torch.cross(x, x + 1, dim=1) + torch.trapezoid(x, dim=0),
        lambda x: (x * 9).int().clamp(0.5),
        lambda x: torch.sub(x, x + 1, alpha=2),
        lambda x: torch.rsub(x, x + 1, alpha=2),
        lambda x: (x * 3).int() * 0.5 + (x > 0) * 2,
        lambda x: (x * 9).int() / 2,
        lambda x: (x * 9).int().cumsum(1),
        lambda x: nn.functional.selu(x),
        lambda x: nn.functional.elu(x, 0.3),
        lambda x: nn.functional.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False),
        lambda x: x.mean((0, 1, 2))[torch.arange(5, -1, -2)],
        lambda x: x.new_zeros(4) + torch.arange(1.0, -1.0, -0.5),
        lambda x: nn.functional.scaled_dot_product_attention(x, x, x).view(2, 24, 6),
        lambda x: (
            nn.functional.scaled_dot_product_attention(
                *3 * [x.transpose(1, 2)], attn_mask=torch.ones(3, 3)
            )
            .transpose(1, 2)
            .view(6, 48)
        ),
    ],
)
def test_functions(function: Any) -> None:
    x = torch.randn(2, 3, 8, 6)
    with meta.dialect.prefer("torch"):
        check(from_torch(Called(function), (x,))(meta.array(x)), function(x))


FIRST, SECOND = torch.tensor([2, 0, 1]), torch.tensor([1, 2, -3])
PLACES: list[tuple[Any, ...]] = [
    (FIRST,),
    (FIRST, SECOND),
    (None, FIRST, SECOND),
    (FIRST, None, SECOND),
    (None, FIRST, None, SECOND),
    (FIRST[None], SECOND[:, None]),
    (None, FIRST[None], SECOND[:, None]),
    (FIRST[:, None], None, SECOND),
    (None, FIRST, SECOND[:, None], FIRST),
    (FIRST, SECOND[:1]),
]


def assigned(x: torch.Tensor, at: tuple[Any, ...], values: torch.Tensor, add: bool) -> torch.Tensor:
    return torch.ops.aten.index_put(x, [*at], values, add)


@pytest.mark.long
@pytest.mark.parametrize("at", PLACES)
def test_arrays_of_positions(at: tuple[Any, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 3, 3, 3)
    slices = tuple(slice(None) if i is None else i for i in at)
    functions = [lambda x: x[slices]]
    for values in (torch.randn_like(x[slices]), torch.tensor(2.0), torch.randn(3)):
        functions += [
            lambda x, values=values, add=add: assigned(x, at, values, add) for add in (False, True)
        ]
    for function in functions:
        with meta.dialect.prefer("torch"):
            check(from_torch(Called(function), (x,))(meta.array(x)), function(x))


@pytest.mark.parametrize(
    "function,why,hint",
    [
        (lambda x: x.add_(1), "writes to its input 'x'", "x.clone()"),
        (lambda x: x if x.sum() > 0 else -x, "torch.export refuses.*data-dependent", "is named"),
        (lambda x: torch.from_numpy(x.numpy()), "torch.export refuses.*numpy", "is named"),
    ],
)
def test_what_is_refused(function: Any, why: str, hint: str) -> None:
    with pytest.raises(AtenError, match=why) as caught:
        from_torch(Called(function), (torch.randn(2, 3, 8, 6),))
    told(caught.value, hint)


def test_what_draws_random_numbers_by_itself() -> None:
    module = Called(lambda x: x * random.random())
    with pytest.raises(meta.errors.TraceError, match="Python's random draws") as caught:
        from_torch(module, (torch.randn(2),))
    told(caught.value, "draw outside")


def told(error: Any, hint: str | None) -> None:
    """Check that an error is one for the user: it names this file, and what to do."""
    assert hint is None or hint in str(error.hint)
    assert isinstance(error, meta.errors.MetaError) and "test_from_torch.py" in str(error.span)


class Unsupported(nn.Module):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.special.airy_ai(x) + torch.special.bessel_j1(x) + at


def test_errors() -> None:
    with pytest.raises(AtenError, match=r"airy_ai.*\n.*bessel_j1") as caught:
        from_torch(Unsupported(), (torch.randn(4), torch.randn(4)))
    told(caught.value, None)
    with pytest.raises(meta.errors.ArgumentError, match=r"torch\.nn\.Module"):
        from_torch(lambda x: x, (torch.randn(2),))
    with pytest.raises(meta.errors.ArgumentError, match="a tuple of inputs"):
        from_torch(nn.ReLU(), torch.randn(2))
