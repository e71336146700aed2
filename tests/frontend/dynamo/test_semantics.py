"""What PyTorch does around the arithmetic, under torch.compile(backend="meta"): writes to inputs
and buffers, views, graph breaks, modes, threads, optimizers.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.frontend.dynamo.models import Tied, cnn, made, mlp


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="meta", **options)


def both(function: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> tuple[Any, Any]:
    """Call a function compiled and as it is, with copies of inputs; return results and inputs."""
    answers = []
    for run in (compiled(function, fullgraph=True, **options), function):
        given = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        answers.append((run(*given), given))
    return answers[0], answers[1]


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


# Writes.


def test_an_input_is_written() -> None:
    def f(x, y):
        x.add_(y)
        return x * 2

    (found, given), (expected, wanted) = both(f, torch.randn(3, 4), torch.randn(4))
    same(found, expected)
    same(given, wanted)


def test_a_part_of_an_input_is_written() -> None:
    def f(x):
        x[1:, ::2].mul_(3.0)
        x.t()[0].zero_()
        return x.sum()

    (found, given), (expected, wanted) = both(f, torch.randn(4, 6))
    same(found, expected)
    same(given, wanted)


def test_an_input_that_is_not_compact_is_written() -> None:
    f = compiled(lambda x: x.add_(1.0).sum(), fullgraph=True)
    whole = torch.zeros(4, 6)
    assert f(whole[:, ::2]).item() == 12.0
    assert whole.sum().item() == 12.0
    assert f(whole.t()).item() == 36.0
    assert whole.sum().item() == 36.0


def test_inputs_that_share_memory() -> None:
    f = compiled(lambda x, y: (x.add_(1.0), y * 2)[1], fullgraph=True)
    x = torch.zeros(4)
    assert f(x, x).tolist() == [2.0] * 4
    x = torch.zeros(4)
    assert f(x[:3], x[1:]).tolist() == [2.0, 2.0, 0.0]


def test_statistics_of_batch_norm_are_written() -> None:
    torch.manual_seed(0)
    model = cnn()
    other = copy.deepcopy(model)
    run = compiled(model, fullgraph=True)
    for _ in range(3):
        x = torch.randn(2, 3, 12, 12)
        same(run(x), other(x))
        with torch.no_grad():
            same(run(x), other(x))
    same(dict(model.named_buffers()), dict(other.named_buffers()))


def test_a_parameter_that_was_written_is_seen() -> None:
    model = mlp()
    run = compiled(model, fullgraph=True)
    x = torch.randn(3, 8)
    with torch.no_grad():
        for write in (
            lambda p: p.mul_(2.0),
            lambda p: p.data.add_(1.0),
            lambda p: setattr(p, "data", torch.ones_like(p)),
        ):
            same(run(x), model(x))
            for p in model.parameters():
                write(p)
            same(run(x), model(x))


# Views.


def test_a_view_of_an_input_is_one() -> None:
    x = torch.zeros(3, 4)
    y = compiled(lambda x: x.t()[1], fullgraph=True)(x)
    y.fill_(5.0)
    assert x.sum().item() == 15.0


def test_an_input_that_is_returned_is_the_same() -> None:
    x = torch.zeros(3)
    found, other = compiled(lambda x: (x, x + 1), fullgraph=True)(x)
    assert found is x
    found.fill_(2.0)
    assert other.tolist() == [1.0] * 3


def test_results_do_not_share_memory_that_pytorchs_do_not() -> None:
    def f(x):
        y = torch.relu(x)
        return y, y.clone(), x.clone(), x.detach().reshape(-1).contiguous() + 0

    x = torch.ones(2, 3)
    results = compiled(f, fullgraph=True)(x)
    places = {r.untyped_storage().data_ptr() for r in results}
    assert len(places) == 4
    assert x.untyped_storage().data_ptr() not in places


@pytest.mark.parametrize("trained", [False, True])
def test_results_share_memory_as_pytorchs_do(trained: bool) -> None:
    def f(x):
        y = x * 2
        return y, y.view(-1), y.t()

    x = torch.ones(2, 3, requires_grad=trained)
    y, flat, turned = compiled(f, fullgraph=True)(x)
    with torch.no_grad():
        y.zero_()
    assert flat.sum().item() == 0
    assert turned.sum().item() == 0
    assert turned.shape == (3, 2)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.t() * 2,
        lambda x: (x * 2).t(),
        lambda x: (x + 1)[:, ::2],
        lambda x: (x + 1).sum(0).expand(5, 6),
        lambda x: (x + 1).t().contiguous(),
        lambda x: (x + 1).view(2, 2, 6).permute(1, 2, 0),
        lambda x: torch.empty_like(x.t()).fill_(2.0),
    ],
)
def test_strides_are_pytorchs(f: Callable[..., Any]) -> None:
    (found, _), (expected, _) = both(f, torch.randn(4, 6))
    same(found, expected)
    assert found.stride() == expected.stride()


def test_channels_last() -> None:
    torch.manual_seed(0)
    model = cnn().to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 12, 12).to(memory_format=torch.channels_last)
    other = copy.deepcopy(model)
    run = compiled(model, fullgraph=True)
    run(x).sum().backward()
    other(x).sum().backward()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        same(a.grad, b.grad)


def test_conjugated_and_negated_views() -> None:
    x = torch.randn(3, dtype=torch.complex64)
    run = compiled(lambda x: x + 0, fullgraph=True)
    same(run(x.conj()), x.conj() + 0)
    same(run(x.conj().imag), x.conj().imag + 0)


# Modes.


@pytest.mark.parametrize(
    "view",
    [
        lambda z: z.conj(),
        lambda z: z.conj().imag,
        lambda z: z.mT.conj(),
        torch.view_as_real,
        lambda z: z.real,
        lambda z: z.imag[0],
        lambda z: z.real.view(torch.int32),
    ],
)
def test_results_that_read_the_memory_of_another_one_otherwise(view: Callable[..., Any]) -> None:
    """As conjugates, as negatives, or in another dtype."""

    def f(x):
        z = x * (2 + 1j)
        return z, view(z), view(z).clone()

    x = torch.randn(3, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    (found, _), (expected, _) = both(f, x)
    same([t.resolve_conj().resolve_neg() for t in found], [*expected])


def test_the_gradient_of_eigenvectors_takes_conjugates() -> None:
    """The forward pass keeps the eigenvalues and their conjugates, which share memory."""
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    grads = []
    for run in (torch.linalg.eig, compiled(torch.linalg.eig, fullgraph=True)):
        values, vectors = run(x)
        total = vectors.abs().cumsum(0).square().sum() + values.imag.square().sum()
        grads += torch.autograd.grad(total, [x])
    same(*grads)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo looks at it
def test_graph_breaks() -> None:
    def f(x):
        y = torch.sin(x)
        if y.sum() > 0:  # Python decides by a value
            return y * 2
        return y - 1

    x = torch.ones(3, requires_grad=True)
    found = compiled(f)(x)
    same(found, f(x))
    found.sum().backward()
    same(x.grad, 2 * torch.cos(x.detach()))


def test_no_grad_and_inference_mode() -> None:
    model, x = mlp(), torch.randn(3, 8)
    run = compiled(model, fullgraph=True)
    with torch.no_grad():
        assert not run(x).requires_grad
        same(run(x), model(x))
    with torch.inference_mode():
        assert run(x).is_inference()
        same(run(x), model(x))
    assert run(x).requires_grad
    same(run(x), model(x))


def test_no_grad_within() -> None:
    def f(x, w):
        with torch.no_grad():
            scale = (x * w).abs().amax()
        return x * w / scale

    x, w = torch.randn(4), torch.randn(4, requires_grad=True)
    (found, given), (expected, wanted) = both(f, x, w)
    found.sum().backward()
    expected.sum().backward()
    same(given[1].grad, wanted[1].grad)


def test_autocast() -> None:
    model, x = mlp(), torch.randn(3, 8)
    other = copy.deepcopy(model)
    run = compiled(model, fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = run(x), other(x)
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    found.float().sum().backward()
    expected.float().sum().backward()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=3e-2, atol=3e-2)


def test_tied_weights_have_one_gradient() -> None:
    model = Tied()
    other = copy.deepcopy(model)
    x = torch.randint(0, 12, (2, 5))
    compiled(model, fullgraph=True)(x).square().sum().backward()
    other(x).square().sum().backward()
    same(model.out.weight.grad, other.out.weight.grad)
    assert model.out.weight is model.embedding.weight


def test_the_second_derivative_is_refused() -> None:
    x = torch.randn(3, requires_grad=True)
    y = compiled(lambda x: x.sin().sum(), fullgraph=True)(x)
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        g.sum().backward()


def test_threads() -> None:
    model, x = mlp(), torch.randn(64, 8)
    run = compiled(model, fullgraph=True)
    with torch.no_grad():
        expected = [model(x + i) for i in range(4)]
        run(x)
    found: dict[int, list[torch.Tensor]] = {}

    def work(i: int) -> None:
        with torch.no_grad():
            found[i] = [run(x + i) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i in range(4):
        for result in found[i]:
            same(result, expected[i])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # in torch's own optimizers
@pytest.mark.parametrize(
    "kind",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=0.01, capturable=False),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
    ],
)
def test_a_compiled_step_of_an_optimizer(kind: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    model = mlp()
    other = copy.deepcopy(model)
    optimizers = [kind(m.parameters()) for m in (model, other)]
    steps = [compiled(optimizers[0].step), optimizers[1].step]
    x = torch.randn(5, 8)
    for _ in range(3):
        for m, optimizer, step in zip((model, other), optimizers, steps, strict=True):
            optimizer.zero_grad()
            m(x).square().mean().backward()
            step()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        same(a, b)


def test_a_whole_training_step() -> None:
    torch.manual_seed(0)
    model = mlp()
    other = copy.deepcopy(model)
    x = torch.randn(5, 8)

    def loss_of(m):
        return m(x).square().mean()

    run = compiled(lambda: loss_of(model), fullgraph=True)
    for m, f in ((model, run), (other, lambda: loss_of(other))):
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            f().backward()
            optimizer.step()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        same(a, b)


def test_gradient_of_an_input_and_hooks() -> None:
    model, (x,) = made("transformer")
    seen: list[torch.Tensor] = []
    run = compiled(model, fullgraph=True)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = run(a)
    y.register_hook(lambda g: seen.append(g))
    y.square().sum().backward()
    model(b).square().sum().backward()
    same(a.grad, b.grad)
    assert len(seen) == 1


def test_a_module_in_ddp(tmp_path) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        model = mlp()
        other = copy.deepcopy(model)
        x = torch.randn(5, 8)
        run = compiled(nn.parallel.DistributedDataParallel(model))
        for _ in range(2):
            run(x).square().sum().backward()
            other(x).square().sum().backward()
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            same(a.grad, b.grad)
    finally:
        dist.destroy_process_group()


def test_numbers_in_python_may_change() -> None:
    run = compiled(lambda x, s: x * s, fullgraph=True)
    x = torch.ones(3)
    for s in (2.0, 3.5, 4, -1.25):
        same(run(x, s), x * s)


def test_what_was_before_a_write_is_kept() -> None:
    def f(x, y):
        before = x.clone()
        flat = x.reshape(-1).clone()
        x.add_(1.0)
        held = y.clone()
        y.copy_(x)
        x.copy_(held)
        return before, flat, held

    for trained in (False, True):
        inputs = torch.randn(2, 3), torch.randn(2, 3)
        w = torch.randn(2, 3, requires_grad=trained)

        def g(x, y, w):
            results = f(x, y)
            return *results, (w * results[0] * 2).sum()

        (found, given), (expected, wanted) = both(g, *inputs, w)
        same(found, expected)
        same(given, wanted)
        places = {t.untyped_storage().data_ptr() for t in (*found, *given)}
        assert len(places) == len(found) + len(given)


def test_inputs_are_exchanged() -> None:
    def f(x, y):
        held = x.clone()
        x.copy_(y)
        y.copy_(held)

    (_, given), (_, wanted) = both(f, torch.randn(2, 3), torch.randn(2, 3))
    same(given, wanted)


def test_a_half_precision_input_is_written() -> None:
    def f(x, y):
        x.copy_(y)
        x.mul_(2.0)

    (_, given), (_, wanted) = both(f, torch.zeros(2, 3).bfloat16(), torch.randn(3))
    same(given, wanted)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "labels",
    [
        [[1, 2, -1, 0, 0], [3, -1, 0, 0, 0], [0, 1, 2, 3, -1]],
        [[1, 2, 3, 0, -1], [3, 0, 1, 2, 4], [-1, 0, 0, 0, 0]],
        [[2, -1, 0, 0, 1]],
    ],
)
def test_labels_that_are_padded(labels: Any, reduction: str) -> None:
    """PyTorch's own decomposition counts the padding, Inductor's loss is another."""
    target = torch.tensor(labels)
    x = torch.randn(target.shape, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.multilabel_margin_loss(x, target, reduction=reduction)

    run = torch.compile(loss, backend="meta")
    found, expected = run(x, target), loss(x, target)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(y.sum(), x)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients)
    with torch.no_grad():
        torch.testing.assert_close(run(x, target), expected)
