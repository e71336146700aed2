"""`linear_cross_entropy` in all forms beside torch's in float64, in pieces, and how much memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import meta
from meta import op
from meta.base.errors import IndexOutOfRange, TypeInferError
from meta.dialect.torch import linear_loss
from meta.ir import parse_type
from meta.model import parameter, trace, value_and_grad
from meta.testing import check

N, CLASSES, FEATURES = 6, 19, 5


def rand(*shape: int, seed: int = 0, dtype: Any = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator, dtype=torch.float64) * 4 - 2).to(dtype)


X, WEIGHT, BIAS = rand(N, FEATURES), rand(CLASSES, FEATURES, seed=1), rand(CLASSES, seed=2)
LABELS = torch.tensor([0, 18, 7, 7, 3, 12])
FACTORS = rand(CLASSES, seed=3).abs()


def by_torch(x: Any, matrix: Any, target: Any, *, linear_bias: Any = None, **options: Any) -> Any:
    """The function as torch defines it, which versions before 2.13 do not have."""
    return F.cross_entropy(F.linear(x, matrix, linear_bias), target, **options)


def compare(target: torch.Tensor, leaves: list[torch.Tensor], **options: Any) -> None:
    """Compare values and gradients of the sum of squares."""
    given = [t.clone().requires_grad_() for t in leaves]
    bias = given[2] if len(given) > 2 else None
    expected = by_torch(given[0], given[1], target, linear_bias=bias, **options)
    slopes = torch.autograd.grad((expected * expected).sum(), given)
    arrays = [meta.array(t.clone()) for t in leaves]
    for array in arrays:
        array.requires_grad = True
    bias = arrays[2] if len(arrays) > 2 else None
    own = {k: meta.array(v) if k == "weight" and v is not None else v for k, v in options.items()}
    y = meta.linear_cross_entropy(*arrays[:2], meta.array(target), linear_bias=bias, **own)
    check(y, expected, 1e-10, 1e-10)
    check(meta.grad.grad(meta.sum(y * y), arrays), slopes, 1e-9, 1e-9)


@pytest.fixture(params=["at once", "in pieces"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight classes at a time, of 19."""
    if request.param == "in pieces":
        monkeypatch.setattr(linear_loss, "ELEMENTS", 1)
        monkeypatch.setattr(linear_loss, "LEAST_CLASSES", 8)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("ignored", [None, 7, -1])
def test_labels(ignored: int | None) -> None:
    labels = LABELS if ignored is None else torch.where(LABELS == 3, ignored, LABELS)
    more = {} if ignored is None else {"ignore_index": ignored}
    weights, reductions = (None, FACTORS), ("mean", "sum", "none")
    for leaves in ([X, WEIGHT], [X, WEIGHT, BIAS]):
        for weight, reduction, part in product(weights, reductions, (0.0, 0.3)):
            options = {"weight": weight, "reduction": reduction, "label_smoothing": part}
            compare(labels, leaves, **options, **more)


@pytest.mark.usefixtures("pieces")
def test_all_ignored_and_no_rows() -> None:
    for reduction in ("sum", "none", "mean"):
        compare(torch.full((N,), -100), [X, WEIGHT, BIAS], reduction=reduction)
        compare(LABELS[:0], [X[:0], WEIGHT], reduction=reduction)


def test_one_row_and_probabilities() -> None:
    compare(LABELS[1], [X[1], WEIGHT, BIAS])
    compare(LABELS[1], [X[1], WEIGHT], reduction="none")
    compare(rand(N, CLASSES).softmax(1), [X, WEIGHT, BIAS], label_smoothing=0.1, weight=FACTORS)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "uint32", "uint64"])
def test_labels_of_any_integers(dtype: str) -> None:
    labels = meta.astype(meta.array(LABELS), dtype)
    found = meta.linear_cross_entropy(meta.array(X), meta.array(WEIGHT), labels)
    check(found, by_torch(X, WEIGHT, LABELS), 1e-12, 1e-12)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_of_half_precision_are_not_rounded(dtype: torch.dtype) -> None:
    x, weight, bias = (t.to(dtype) for t in (X * 4, WEIGHT * 4, BIAS))
    losses, total = op.linear_cross_entropies(*map(meta.array, (x, weight, LABELS, bias)))
    scores = F.linear(x.double(), weight.double(), bias.double())
    check(losses, F.cross_entropy(scores, LABELS, reduction="none"), 1e-5, 1e-5)
    check(total, scores.logsumexp(1), 1e-5, 1e-5)
    y = meta.linear_cross_entropy(*map(meta.array, (x, weight, LABELS)))
    assert y.torch().dtype == dtype


@pytest.mark.usefixtures("pieces")
def test_infinite_scores_as_torch_has_them() -> None:
    bias = BIAS.clone()
    bias[[2, 11]] = -torch.inf
    x, weight, labels = meta.array(X), meta.array(WEIGHT), meta.array(LABELS)
    for value, reduction in product((0.0, torch.nan, torch.inf), ("none", "mean")):
        bias[5] = value
        found = meta.linear_cross_entropy(
            x, weight, labels, linear_bias=meta.array(bias), reduction=reduction
        )
        check(found, by_torch(X, WEIGHT, LABELS, linear_bias=bias, reduction=reduction), 1e-9, 1e-9)
    _, total = op.linear_cross_entropies(x, weight, labels, meta.array(bias))
    assert (total.torch() == torch.inf).all()


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("where", ["row", "class"])
def test_gradients_of_infinite_scores_as_torch_has_them(where: str) -> None:
    """One row has an infinite score, also where its label is ignored; or one class has them."""
    x, weight, bias = X.clone(), WEIGHT.abs(), BIAS.clone()
    if where == "row":
        x[1:3] = torch.finfo(x.dtype).max
    else:
        bias[5] = torch.inf
    labels = LABELS.clone()
    labels[2] = -100
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    F.cross_entropy(F.linear(*leaves), labels, reduction="none").sum().backward()
    arrays = [meta.array(t) for t in (x, weight, bias)]
    for array in arrays:
        array.requires_grad = True
    given = arrays[0], arrays[1], meta.array(labels)
    y = meta.linear_cross_entropy(*given, linear_bias=arrays[2], reduction="sum")
    assert y.torch().isnan()
    check(meta.grad.grad(y, arrays), [t.grad for t in leaves], 1e-9, 1e-9)


@pytest.mark.usefixtures("pieces")
def test_gradients_flow_through_the_logsumexp() -> None:
    """A penalty of its square, as in Chowdhery et al., PaLM, 2022, section 5."""
    labels = torch.where(LABELS == 7, -100, LABELS)
    leaves = [t.clone().requires_grad_() for t in (X, WEIGHT, BIAS)]
    scores = F.linear(*leaves)
    (F.cross_entropy(scores, labels) + 1e-1 * scores.logsumexp(1).square().sum()).backward()
    arrays = [meta.array(t.clone()) for t in (X, WEIGHT, BIAS)]
    for array in arrays:
        array.requires_grad = True
    losses, total = op.linear_cross_entropies(*arrays[:2], meta.array(labels), arrays[2])
    y = meta.sum(losses) / 4.0 + meta.sum(total * total) * 1e-1
    check(meta.grad.grad(y, arrays), [t.grad for t in leaves], 1e-9, 1e-9)


def test_compiled_and_differentiated() -> None:
    def loss(x: Any, weight: Any, bias: Any) -> Any:
        own = {"linear_bias": bias, "label_smoothing": 0.1, "weight": meta.array(FACTORS)}
        return meta.linear_cross_entropy(x, weight, meta.array(LABELS), **own)

    arrays = [meta.array(t) for t in (X, WEIGHT, BIAS)]
    check(meta.vm.compile(trace(loss), *arrays)(*arrays), loss(*arrays), 1e-12, 1e-12)
    for array in arrays:
        array.requires_grad = True
    y = loss(*arrays)
    slopes = meta.grad.grad(y, arrays)
    leaves = [t.clone().requires_grad_() for t in (X, WEIGHT, BIAS)]
    options = {"linear_bias": leaves[2], "label_smoothing": 0.1, "weight": FACTORS}
    expected = by_torch(*leaves[:2], LABELS, **options)
    check(y, expected, 1e-10, 1e-10)
    check(slopes, torch.autograd.grad(expected, leaves), 1e-9, 1e-9)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"x": torch.zeros(2, 3, FEATURES)}, r"op\.reshape\(x, \(-1, d\)\)"),
        ({"linear_weight": WEIGHT[0]}, "x must be rows and linear_weight a matrix"),
        ({"x": LABELS}, "x must be floating point"),
        ({"linear_bias": BIAS[:3]}, "linear_bias does not fit"),
        ({"linear_bias": LABELS}, "linear_bias must be floating point"),
        ({"weight": FACTORS[:3]}, "weight does not fit"),
        ({"target": LABELS[:3]}, "one label per row"),
        ({"target": LABELS > 3}, "labels must be integers"),
        ({"target": X}, "probabilities have the shape of the prediction"),
        ({"reduction": "median"}, "there is no such reduction"),
        ({"label_smoothing": 1.5}, "label_smoothing is a part"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], match: str) -> None:
    given = {"x": X, "linear_weight": WEIGHT, "target": LABELS, **change}
    arrays = {k: meta.array(v) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    with pytest.raises(TypeInferError, match=match):
        meta.linear_cross_entropy(**arrays)


@pytest.mark.parametrize("ignored", [-100, 3])
@pytest.mark.parametrize("label", [CLASSES, -1, -99])
def test_a_label_that_is_no_class_is_an_error(label: int, ignored: int) -> None:
    labels = meta.array(torch.where(LABELS == 12, label, LABELS))
    with pytest.raises(IndexOutOfRange):
        meta.linear_cross_entropy(meta.array(X), meta.array(WEIGHT), labels, ignore_index=ignored)


class Peak(TorchDispatchMode):
    """The most bytes of what operators of ATen returned that were alive at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple | list) else (result,):
            if isinstance(made, torch.Tensor):
                self.see(made.untyped_storage())
        return result

    def see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self.alive:
            self.alive.add(key)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self.gone, key, size)

    def gone(self, key: int, size: int) -> None:
        self.alive.discard(key)
        self.now -= size


class Last(meta.Model):
    """The last layer of a language model with its loss."""

    def build(self, loss: Callable[..., Any], classes: int, features: int, dtype: str) -> None:
        self.loss = loss
        self.weight = parameter(meta.zeros((classes, features), dtype))

    @trace
    def forward(self, x: Any, target: Any) -> Any:
        return self.loss(x, self.weight, target)


def in_memory(x: Any, weight: Any, target: Any) -> Any:
    return meta.cross_entropy(meta.linear(x, weight), target)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_planned_memory_of_a_step_of_gpt2(dtype: str) -> None:
    """It is a seventh of what it is with all scores in memory. The gradient of the weight, which is
    a result, is most of it.
    """
    n, classes, features = 4096, 50257, 768
    x = parse_type(f"{dtype}[{n}, {features}]")
    peaks = []
    for loss in (in_memory, meta.linear_cross_entropy):
        model = Last(loss, classes, features, dtype)
        dy, labels = parse_type(f"{dtype}[]"), parse_type(f"int64[{n}]")
        report = meta.vm.compile(value_and_grad(model), dy, x, labels).memory()
        peaks.append(report.peak + report.workspaces)
    assert peaks[1] < 0.16 * peaks[0]


def test_memory_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of scores alone there would be 8 MiB, and as much of their gradients."""
    monkeypatch.setattr(linear_loss, "ELEMENTS", 1 << 18)
    n, classes, features = 256, 8192, 4
    x, weight = rand(n, features, dtype=torch.float32), rand(classes, features, dtype=torch.float32)
    labels = meta.array(torch.arange(n))
    most = []
    for loss in (in_memory, meta.linear_cross_entropy):
        arrays = [meta.array(x), meta.array(weight)]
        arrays[1].requires_grad = arrays[0].requires_grad = True
        with Peak() as peak:
            loss(*arrays, labels).backward()
        most.append(peak.most)
    assert most[0] > 2 * (4 * n * classes)
    assert most[1] < 0.05 * most[0]
