"""Cross entropy is one operator of the program, and its gradient another, in all forms of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import meta
from meta.frontend.dynamo import compiler, fuse_losses
from meta.ir import Call

CLASSES = 11
GENERATOR = torch.Generator().manual_seed(0)
WEIGHT = torch.rand(CLASSES, generator=GENERATOR) + 0.5

Loss = Callable[[Tensor, Tensor], Tensor]


def by_hand(x: Tensor, labels: Tensor, **options: object) -> Tensor:
    """The likelihood of rows, whose logarithms have more axes."""
    logs = F.log_softmax(x, -1).view(-1, CLASSES)
    return F.nll_loss(logs, labels.view(-1), **options)


def rows(x: Tensor, labels: Tensor, **options: object) -> Tensor:
    return F.cross_entropy(x.flatten(0, 1), labels.flatten(), **options)


def planes(x: Tensor, labels: Tensor, **options: object) -> Tensor:
    return F.cross_entropy(x.transpose(1, 2), labels, **options)


def successors(x: Tensor, labels: Tensor, **options: object) -> Tensor:
    return rows(x[:, :-1], labels[:, 1:], **options)


def module(x: Tensor, labels: Tensor) -> Tensor:
    return nn.CrossEntropyLoss()(x.flatten(0, 1), labels.flatten())


def widened(x: Tensor, labels: Tensor) -> Tensor:
    """As transformers has it."""
    padded = F.pad(labels, (0, 1), value=-100)
    return rows(x.float(), padded[..., 1:].contiguous())


FORMS: dict[str, Loss] = {
    "rows": rows,
    "a module": module,
    "rows, sum": partial(rows, reduction="sum"),
    "rows, none": partial(rows, reduction="none"),
    "rows, weights": partial(rows, weight=WEIGHT),
    "rows, weights, sum": partial(rows, weight=WEIGHT, reduction="sum", ignore_index=2),
    "rows, weights, none": partial(rows, weight=WEIGHT, reduction="none"),
    "rows, another label ignored": partial(rows, ignore_index=3),
    "rows, another label ignored, sum": partial(rows, ignore_index=-1, reduction="sum"),
    "by hand": by_hand,
    "by hand, sum": partial(by_hand, reduction="sum", ignore_index=0),
    "by hand, weights": partial(by_hand, weight=WEIGHT),
    "planes": planes,
    "planes, sum": partial(planes, reduction="sum"),
    "planes, none": partial(planes, reduction="none", ignore_index=1),
    "planes, weights": partial(planes, weight=WEIGHT),
    "successors": successors,
    "successors, sum": partial(successors, reduction="sum", ignore_index=2),
    "successors, none": partial(successors, reduction="none"),
    "successors, weights": partial(successors, weight=WEIGHT),
    "widened": widened,
}


class Head(nn.Module):
    """Scores of classes, and a loss."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last, self.loss = nn.Linear(8, CLASSES), loss

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.last(x), labels)


X, DY = torch.randn(3, 9, 8, generator=GENERATOR), torch.randn(90, generator=GENERATOR)
LABELS = torch.randint(CLASSES, (3, 9), generator=GENERATOR)


def learned(model: nn.Module, run: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """Return a loss and the gradients of the parameters."""
    model.zero_grad()
    loss = run(*inputs)
    dy = DY[: loss.numel()].view(loss.shape) if loss.ndim else torch.tensor(1.5)
    loss.backward(dy.to(loss.dtype))
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def programs(model: nn.Module, *inputs: Tensor, **options: bool) -> tuple[list[str], list[Tensor]]:
    """Return the compiled programs of a loss and its gradient, and what they give."""
    run = torch.compile(model, backend="meta", fullgraph=True, **options)
    with compiler.record_compiled_graphs() as graphs:
        found = learned(model, run, *inputs)
    return [str(p.executable.module) for g in graphs for p in g.programs()], found


def check(model: nn.Module, found: list[Tensor], *inputs: Tensor, rtol: float = 1e-5) -> None:
    expected = learned(model, model, *inputs)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=rtol, atol=rtol, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.long
def test_it_is_torchs(name: str, dtype: torch.dtype) -> None:
    """The scores are read by one operator and its gradient, where no weights and no result of each
    row are asked for.
    """
    loss = FORMS[name]
    if "weight" in name and dtype == torch.float64:
        loss = partial(loss, weight=WEIGHT.double())
    model, x = Head(loss).to(dtype), X.to(dtype)
    (forward, backward), found = programs(model, x, LABELS)
    exact = dtype == torch.float64 and name != "widened"  # which rounds to float32
    check(model, found, x, LABELS, rtol=1e-11 if exact else 1e-5)
    assert "nll_loss" not in forward + backward and "log_softmax_dx" not in backward
    plain = not re.search("none|weights|planes", name)
    assert ("cross_entropy_train(" in forward) == plain
    assert ("cross_entropy_train_dpred(" in backward) == plain


@pytest.mark.product
@pytest.mark.parametrize("name", ["rows", "by hand, sum", "planes", "widened", "rows, weights"])
@pytest.mark.parametrize(
    "labels",
    [
        torch.full((3, 9), -100),
        torch.zeros(3, 0, dtype=torch.int64),
        LABELS.where(LABELS > 3, -100),
    ],
    ids=["none counts", "none", "some count"],
)
def test_rows_that_do_not_count(name: str, labels: Tensor) -> None:
    model, x = Head(FORMS[name]), X[:, : labels.shape[1]]
    if name == "by hand, sum":
        labels = torch.where(labels == -100, 0, labels)
    _, found = programs(model, x, labels)
    check(model, found, x, labels)


@pytest.mark.product
@pytest.mark.parametrize("name", ["rows", "successors", "rows, none", "by hand", "planes"])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision(name: str, half: torch.dtype) -> None:
    """The loss is of the dtype that torch gives it, and the scores are saved as they are."""
    model = Head(FORMS[name])

    def run(x: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cpu", half):
            return model(x, labels)

    compiled = torch.compile(run, backend="meta", fullgraph=True)
    with compiler.record_compiled_graphs() as graphs:
        found = learned(model, compiled, X, LABELS)
    check_run = learned(model, run, X, LABELS)
    exact = learned(model, model, X, LABELS)
    for one, other, right in zip(found, check_run, exact, strict=True):
        assert one.dtype == other.dtype
        assert (one - right).norm() <= 1.2 * (other - right).norm() + 1e-3 * right.norm()
    forward = graphs[0].for_all.executable.module.main
    saved = [a.type for a in forward.body.result.fields]
    large = [t.dtype for t in saved if len(t.shape) > 1 and t.shape[-1] == CLASSES]
    assert large == [str(half).removeprefix("torch.")]


AS_ON_CUDA = {
    "align_products": {"devices": ("cpu",), "least_work": 1},
    "carry_padding": {"devices": ("cpu",)},
}


class Vocabulary(nn.Module):
    """Scores of 67 words, rows of which do not begin where tensor cores are fast."""

    def __init__(self, loss: Loss, bias: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last, self.loss = nn.Linear(80, 67, bias), loss

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.loss(self.last(x), labels)


@pytest.mark.product
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["rows", "successors", "widened", "rows, sum", "rows, none"])
def test_padded_scores_go_from_one_program_to_the_other(
    name: str, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No columns of scores are cut off, and none of their gradient are padded."""
    monkeypatch.setattr(fuse_losses, "PADDED_ON", ("cpu",))
    monkeypatch.setattr(fuse_losses, "LEAST_WORK", 1)
    x = torch.randn(9, 10, 80, generator=GENERATOR)
    labels = torch.randint(67, (9, 10), generator=GENERATOR)
    model = Vocabulary(FORMS[name], bias)
    with meta.PassContext(config=AS_ON_CUDA):
        (forward, backward), found = programs(model, x, labels)
    expected = learned(model, model, x, labels)
    torch.testing.assert_close(found[0], expected[0], rtol=3e-2, atol=3e-2)
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert (one - other).norm() < 0.02 * other.norm()
    assert all("bfloat16[90, 72]" in p.splitlines()[0] for p in (forward, backward))
    if name != "rows, none":
        assert not re.search(r"float\w+\[(90|9, 10|9, 9), 67\]", forward + backward)
        assert not re.search(r"(90|9, 10), 72\] = (tvm\.pad|tvm.strided_slice)", backward)


def test_a_model_in_half_precision() -> None:
    model = Head(rows).bfloat16()
    _, found = programs(model, X.bfloat16(), LABELS)
    check(model, found, X.bfloat16(), LABELS, rtol=2e-2)


@pytest.mark.parametrize("name", ["rows", "by hand", "planes", "successors"])
def test_any_number_of_rows(name: str) -> None:
    model = Head(FORMS[name])
    run = torch.compile(model, backend="meta", fullgraph=True, dynamic=True)
    for count in (3, 2, 5):
        x, labels = X.repeat(2, 1, 1)[:count], LABELS.repeat(2, 1)[:count]
        check(model, learned(model, run, x, labels), x, labels)


def test_rows_that_a_slice_leaves_out_may_be_no_numbers() -> None:
    x = X.clone()
    x[:, -1] = float("nan")
    model = Head(successors)
    (forward, backward), found = programs(model, x, LABELS)
    scores = rf"strided_slice[^\n]*: \w+\[[\d, ]*{CLASSES}\]"
    assert not re.search(scores, forward) and "strided_slice_dx" not in backward
    assert found[0].isfinite()


ENDLESS = torch.randn(6, 5, generator=GENERATOR)
ENDLESS[0], ENDLESS[1, 2], ENDLESS[2, 1] = -torch.inf, torch.inf, -torch.inf
ROWS, SQUARE = torch.randn(6, 5, generator=GENERATOR), torch.randn(5, 5, generator=GENERATOR)
GRID = torch.randn(8, 12, 5, generator=GENERATOR)
SPECIAL: dict[str, tuple[Loss, Tensor, int]] = {
    "infinite scores": (F.cross_entropy, ENDLESS, 6),
    "infinite scores, none": (partial(F.cross_entropy, reduction="none"), ENDLESS, 6),
    "large scores": (F.cross_entropy, ROWS * 1e4, 6),
    "large scores, none": (partial(F.cross_entropy, reduction="none"), ROWS * 1e4, 6),
    "weights of 0": (partial(F.cross_entropy, weight=torch.zeros(5)), ROWS, 6),
    "logarithms in float64": (
        lambda x, t: F.nll_loss(F.log_softmax(x, 1, dtype=torch.float64), t), ROWS, 6,
    ),
    "rows and columns that are left out": (
        lambda x, t: F.cross_entropy(x[1:, 1:-1].flatten(0, 1), t), GRID, 70,
    ),
    "a part of an axis by its number from the end": (
        lambda x, t: F.cross_entropy(x.narrow(-2, 0, 11).flatten(0, 1), t), GRID, 88,
    ),
    "classes that are left out": (lambda x, t: F.cross_entropy(x[:, :4], t), ROWS, 6),
    "classes in front": (lambda x, t: F.nll_loss(F.log_softmax(x, 0).t(), t), ROWS.mT, 6),
    "a softmax over rows": (lambda x, t: F.nll_loss(F.log_softmax(x, 0), t), SQUARE, 5),
    "a softmax of other rows": (
        lambda x, t: F.nll_loss(F.log_softmax(x, 0).view(6, 5), t), ROWS.mT.contiguous(), 6,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
def test_special_scores_and_parts(name: str) -> None:
    loss, scores, count = SPECIAL[name]
    labels = torch.randint(4, (count,), generator=torch.Generator().manual_seed(1))
    results = []
    for run in (torch.compile(loss, backend="meta", fullgraph=True), loss):
        x = scores.clone().requires_grad_()
        y = run(x, labels)
        y.sum().backward()
        results.append((y, x.grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)


def smoothed(x: Tensor, labels: Tensor) -> Tensor:
    return rows(x, labels, label_smoothing=0.1)


def of_probabilities(x: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(x.flatten(0, 1), F.one_hot(labels.flatten(), CLASSES).float())


def with_entropy(x: Tensor, labels: Tensor) -> Tensor:
    """Something else reads the logarithms."""
    logs = F.log_softmax(x.flatten(0, 1), 1)
    return F.nll_loss(logs, labels.flatten()) - (logs.exp() * logs).sum(1).mean()


def twice(x: Tensor, labels: Tensor) -> Tensor:
    logs = F.log_softmax(x.flatten(0, 1), 1)
    other = labels.flatten().flip(0)
    return F.nll_loss(logs, labels.flatten()) + F.nll_loss(logs, other)


@pytest.mark.parametrize("loss", [smoothed, of_probabilities, with_entropy, twice])
def test_others_stay_torchs(loss: Loss) -> None:
    model = Head(loss)
    (_, backward), found = programs(model, X, LABELS)
    assert "log_softmax_dx" in backward
    check(model, found, X, LABELS)


class Both(nn.Module):
    """A loss, and the logarithms for the user."""

    def __init__(self, detached: bool) -> None:
        super().__init__()
        self.last, self.detached = nn.Linear(8, CLASSES), detached

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logs = F.log_softmax(self.last(x).flatten(0, 1), 1)
        loss = F.nll_loss(logs, labels.flatten())
        return loss, logs.detach() if self.detached else logs


@pytest.mark.parametrize("detached", [True, False])
def test_logarithms_for_the_user(detached: bool) -> None:
    model = Both(detached)
    run = torch.compile(model, backend="meta", fullgraph=True)
    results = []
    for function in (run, model):
        model.zero_grad()
        loss, logs = function(X, LABELS)
        (loss if detached else loss + logs.square().sum()).backward()
        results.append([loss, logs, *(p.grad for p in model.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_without_a_gradient() -> None:
    model = Head(successors).requires_grad_(False)
    with compiler.record_compiled_graphs() as graphs:
        found = torch.compile(model, backend="meta", fullgraph=True)(X, LABELS)
    torch.testing.assert_close(found, model(X, LABELS))
    (program,) = (g.for_all.executable.module.main for g in graphs)
    called = [b.value.callee for b in program.body.bindings if isinstance(b.value, Call)]
    assert sum("cross_entropy" in str(c) for c in called) == 1


TRANSFORMS: dict[str, Callable[[Loss], Callable[[Tensor, Tensor], Tensor]]] = {
    "grad": lambda loss: lambda x, t: torch.func.grad(loss)(x, t),
    "grad of grad": lambda loss: torch.func.grad(
        lambda x, t: torch.func.grad(loss)(x, t).square().sum()
    ),
    "a gradient of each": lambda loss: torch.func.vmap(torch.func.grad(loss)),
}


@pytest.mark.product
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_functorchs(name: str, trained: bool) -> None:
    transformed = TRANSFORMS[name](lambda x, t: F.cross_entropy(x.view(-1, CLASSES), t.view(-1)))
    results = []
    for run in (torch.compile(transformed, backend="meta", fullgraph=True), transformed):
        x = torch.randn(3, 9, CLASSES, generator=torch.Generator().manual_seed(2))
        y = run(x.requires_grad_(trained), LABELS)
        if trained:
            y.square().sum().backward()
        results.append([y.detach(), x.grad])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("between", ["nothing", "a write", "no gradient", "a second reader"])
def test_what_is_between_scores_and_loss(between: str) -> None:
    """Scores are read where they were before a cast, unless that is another thing."""

    def loss(x: Tensor, labels: Tensor) -> Tensor:
        scores = (x @ x.mT).flatten(0, 1)
        with torch.set_grad_enabled(between != "no gradient"):
            wide = scores.double()[:, :].to(torch.float64)
        if between == "a write":
            scores.mul_(2.0)
        found = F.cross_entropy(wide, labels.flatten())
        return found + wide.square().mean() if between == "a second reader" else found + x.sum()

    x = torch.randn(3, 9, 9, generator=GENERATOR)
    results = []
    for run in (torch.compile(loss, backend="meta"), loss):
        given = x.clone().requires_grad_()
        y = run(given, LABELS.clamp(max=8))
        y.backward()
        results.append([y.detach(), given.grad])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def test_in_pytorch_where_a_graph_is_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two operators run there as well."""

    def refuse(*_args: object, **_options: object) -> None:
        raise compiler.NoProgram("none", found="a graph")

    monkeypatch.setattr(compiler, "convert_graph", refuse)
    for loss in FORMS.values():
        torch._dynamo.reset()
        model = Head(loss)
        run = torch.compile(model, backend="meta", fullgraph=True)
        check(model, learned(model, run, X, LABELS), X, LABELS)


def test_a_gradient_of_a_gradient_is_refused() -> None:
    model = Head(rows)
    loss = torch.compile(model, backend="meta", fullgraph=True)(X, LABELS)
    (dw,) = torch.autograd.grad(loss, model.last.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        dw.sum().backward()
