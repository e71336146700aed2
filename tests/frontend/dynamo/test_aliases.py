"""Results under torch.compile(backend="meta") that share memory with inputs and with one another,
at several sizes and integer arguments: values, strides, offsets, and what a write to one shows in
another are those of eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from meta.frontend.dynamo.compiler import record_compiled_graphs

CALLS = ((6, 2), (8, 3), (6, -2), (9, 0), (7, 4))
"""Rows of the input, of four columns, and the integer argument."""

VIEWS_OF_AN_INPUT: dict[str, Callable[[Tensor, int], Any]] = {
    "second half": lambda x, k: x[x.shape[0] // 2 :],
    "last row": lambda x, k: x[x.shape[0] - 1],
    "chunks": lambda x, k: x.chunk(2, 0),
    "splits": lambda x, k: x.split(3, 0),
    "columns": lambda x, k: x.unbind(1),
    "select": lambda x, k: x.select(0, k),
    "narrow": lambda x, k: x.narrow(0, abs(k), 1),
    "from k": lambda x, k: x[k:],
    "last k": lambda x, k: x[-k:],
    "last half": lambda x, k: x[-(x.shape[0] // 2) :],
    "columns from k": lambda x, k: x[:, -k - 1 :],
    "rows by k": lambda x, k: x[1 :: abs(k) + 1],
    "transposed": lambda x, k: x.t()[k:],
    "flat": lambda x, k: x.view(-1)[k:],
    "other rows": lambda x, k: x.view(x.shape[0] * 2, 2)[:, 1:],
    "diagonal": lambda x, k: x.diagonal(k),
    "windows": lambda x, k: x.unfold(0, 3, 2)[1:],
    "expanded": lambda x, k: x[k].expand(3, 4),
    "by strides": lambda x, k: x.as_strided((2, 2), (x.stride(0), 2), x.shape[0]),
    "other dtype": lambda x, k: x[k:].view(torch.int32),
    "beside a result": lambda x, k: (x * 2, x[k:], x),
}
VIEWS_OF_A_RESULT: dict[str, Callable[[Tensor, int], Any]] = {
    "chunks": lambda x, k: (x * 2).chunk(2, 0),
    "first and rest": lambda x, k: (lambda h: (h[0], h[1:]))(x * 2),
    "result and row": lambda x, k: (lambda h: (h, h[k]))(x * 2),
    "row and result": lambda x, k: (lambda h: (h[k], h))(x * 2),
    "overlapping rows": lambda x, k: (lambda h: (h[k:], h[1:], h.sum()))(x * 2),
    "transposed": lambda x, k: (lambda h: (h.t(), h[k:]))(x @ x.t()),
    "of a view": lambda x, k: (lambda h: (h.view(-1)[k:], h.view(-1, 2)))(x * 2),
    "twice": lambda x, k: (lambda h: (h, h.view(h.shape)))(x * 2),
    "alone": lambda x, k: (x * 2)[k:],
    "columns": lambda x, k: (x * 2).unbind(1),
}
WRITTEN: dict[str, Callable[[Tensor, int], Any]] = {
    "view of a written input": lambda x, k: (x.mul_(2)[k:],),
    "view before the write": lambda x, k: (lambda v: (v, x.add_(1).sum()))(x[x.shape[0] // 2 :]),
    "written through a view of one more axis": lambda x, k: (
        lambda v: (v.flatten(0, 1), v[-1:, :, k - 1].fill_(5), x)
    )(x.unsqueeze(0)),
    "written through a view": lambda x, k: (x[k:].mul_(3), x[: x.shape[0] // 2]),
    "last rows": lambda x, k: (lambda y: (y[-k:].zero_(), y))(x.clone()),
    "last row": lambda x, k: (lambda y: (y[-k].zero_(), y))(x.clone()),
    "columns": lambda x, k: (lambda y: (y[:, k:].fill_(5), y))(x.clone()),
    "last hundred": lambda x, k: (lambda y: (y[-100:].add_(k), y))(x.clone()),
    "up to a hundred": lambda x, k: (lambda y: (y[k:100].add_(1), y[..., k + 1 : 100]))(x.clone()),
    "every third from the end": lambda x, k: (lambda y: (y[-k::3].zero_(), y))(x.clone()),
    "by k rows": lambda x, k: (lambda y: (y[:: abs(k) + 1].neg_(), y))(x.clone()),
}


def rows(n: int, device: str = "cpu") -> Tensor:
    return torch.arange(n * 4.0, device=device).view(n, 4)


def listed(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


def layout(results: Sequence[Tensor], x: Tensor) -> list[Any]:
    """How tensors lie, and where in the memory of which earlier one."""
    found: list[Any] = []
    everything = [x, *results]
    for t in everything:
        memory = t.untyped_storage().data_ptr()
        first = next(
            j for j, o in enumerate(everything) if o.untyped_storage().data_ptr() == memory
        )
        offset = t.storage_offset() - everything[first].storage_offset()
        found.append((t.shape, t.dtype, t.stride(), first, offset))
    return found


def outcome(function: Callable[..., Any], x: Tensor, k: int) -> Any:
    """Layout, values, and what a write to each result shows in all; or the kind of an error."""
    try:
        results = listed(function(x, k))
    except (IndexError, RuntimeError) as error:
        return type(error) if isinstance(error, IndexError) else RuntimeError
    lies = layout(results, x)
    seen = [[t.tolist() for t in (x, *results)]]
    for t in results:
        if t.is_floating_point() and 0 not in t.stride():
            t.add_(100)
            seen.append([o.tolist() for o in (x, *results)])
    return lies, seen


def compare(
    function: Callable[..., Any],
    calls: Sequence[tuple[int, int]] = CALLS,
    device: str = "cpu",
) -> None:
    run = torch.compile(function, backend="meta", fullgraph=True)
    for n, k in calls:
        found, expected = (outcome(f, rows(n, device), k) for f in (run, function))
        assert found == expected, (n, k)


@pytest.mark.parametrize("name", VIEWS_OF_AN_INPUT)
def test_views_of_an_input(name: str) -> None:
    compare(VIEWS_OF_AN_INPUT[name])


@pytest.mark.parametrize("name", VIEWS_OF_A_RESULT)
def test_views_of_one_result(name: str) -> None:
    compare(VIEWS_OF_A_RESULT[name])


@pytest.mark.parametrize("name", WRITTEN)
def test_views_of_what_is_written(name: str) -> None:
    compare(WRITTEN[name])


@pytest.mark.cuda
@pytest.mark.parametrize("name", [*VIEWS_OF_A_RESULT, *WRITTEN])
def test_on_cuda(name: str) -> None:
    compare((VIEWS_OF_A_RESULT | WRITTEN)[name], CALLS[:3], "cuda")


def test_a_size_of_a_tensor_that_no_view_is_of() -> None:
    def function(x: Tensor, k: int) -> tuple[Tensor, ...]:
        y = x.relu()
        rows = torch.arange(y.shape[0] - 1, -1, -1)
        y.index_put_((rows,), torch.tensor(2, dtype=y.dtype))
        diagonal = y.diagonal(2)
        y.t().add_(0.25)
        return y, diagonal.reshape(-1, 2)

    compare(function, ((4, 1), (8, 1), (6, 2)))


def test_a_slice_of_nothing() -> None:
    def function(x: Tensor, k: int) -> tuple[Tensor, ...]:
        y = x.clone()
        return y[:, 4 - k : -1 : 2].add_(0.5), y

    compare(function, ((6, 3), (7, 2), (8, 1), (5, 1)))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo asks for that of inputs
def test_a_write_to_rows_of_a_transposed_input() -> None:
    def function(x: Tensor, y: Tensor, s: float) -> tuple[Tensor, ...]:
        y[y.shape[0] // 2 : 100, : -y.shape[1] + 1] = 1
        return torch.where(y > 0, y, s), x * x.shape[0]

    run = torch.compile(function, backend="meta")
    for n, s in ((4, 0.5), (5, -2.0), (7, 1.5)):
        seen = []
        for f in (function, run):
            leaf = torch.arange(4.0 * n).sub(7).view(4, n).requires_grad_()
            x = leaf.t().clone()
            results = f(x, x[:-1], s)
            (gradient,) = torch.autograd.grad([r.square().sum() for r in results], leaf)
            seen.append((*results, x, gradient))
        torch.testing.assert_close(*seen)


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_input_with_gaps_is_written_through_a_view(dynamic: bool) -> None:
    """The program has a copy without gaps: what it writes there is written back."""

    def function(x: Tensor) -> Tensor:
        flat = x.view(-1)
        flat.scatter_(0, flat.argsort(stable=True), flat.clone())
        return flat

    run = torch.compile(function, backend="meta", dynamic=dynamic, fullgraph=True)
    for n in (3, 5):
        seen = []
        for f in (function, run):
            x = rows(n).mul(7).remainder(23)[:, ::2]
            seen.append((f(x), x))
        torch.testing.assert_close(*seen, rtol=0, atol=0)


def test_an_input_with_an_offset() -> None:
    """The view of a view lies where it does in the memory of both."""
    run = torch.compile(lambda x: x[x.shape[0] // 2 :], backend="meta", dynamic=True)
    for n in (4, 6, 9):
        x = rows(n + 3)[3:]
        assert run(x).data_ptr() == x[n // 2 :].data_ptr()


@pytest.mark.parametrize("name", [*VIEWS_OF_A_RESULT])
def test_gradients_through_views(name: str) -> None:
    function = VIEWS_OF_A_RESULT[name]
    run = torch.compile(function, backend="meta", fullgraph=True)
    for n, k in CALLS[:3]:
        found = []
        for f in (run, function):
            x = rows(n).requires_grad_()
            results = listed(f(x, k))
            sum((i + 1) * r.square().sum() for i, r in enumerate(results)).backward()
            found.append((x.grad.tolist(), layout(results, x)))
        assert found[0] == found[1], (n, k)


@pytest.mark.parametrize("name", ["second half", "from k", "chunks", "transposed", "diagonal"])
def test_gradients_through_views_of_an_input(name: str) -> None:
    def function(x: Tensor, k: int) -> Any:
        return [*listed(VIEWS_OF_AN_INPUT[name](x * 1, k)), x[k:], (x * x).sum()]

    run = torch.compile(function, backend="meta", fullgraph=True)
    for n, k in CALLS[:3]:
        found = []
        for f in (run, function):
            x = rows(n).requires_grad_()
            results = f(x, k)
            sum((i + 1) * r.square().sum() for i, r in enumerate(results)).backward()
            found.append(x.grad)
        torch.testing.assert_close(*found, rtol=1e-6, atol=0)


def test_a_view_is_no_part_of_the_program() -> None:
    """PyTorch makes the view, and one program serves every size."""
    with record_compiled_graphs() as graphs:
        run = torch.compile(lambda x: (x + 1, x[x.shape[0] // 2 :]), backend="meta", dynamic=True)
        for n in (5, 7, 9):
            run(rows(n))
    (graph,) = graphs
    (program,) = graph.programs()
    assert "slice" not in str(program.converted.module)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, k: x * k,
        lambda x, k: x[-k:] * 1,
        lambda x, k: x[k - 3 : k] + 1,
        lambda x, k: x[-k] * 2,
        lambda x, k: x.narrow(0, -abs(k) - 1, 1) * 2,
        lambda x, k: torch.roll(x, k, 0),
        lambda x, k: torch.roll(x * 2, (-k, k + 1), (1, 0)),
        lambda x, k: (x * 2).roll(k),
        lambda x, k: torch.arange(k, k + 4) + x,
        lambda x, k: torch.tril(x, k),
        lambda x, k: torch.nn.functional.pad(x, (k, 1)),
        lambda x, k: x.repeat(abs(k) + 1, 1),
        lambda x, k: torch.full((3,), k),
    ],
)
def test_an_integer_argument_may_be_negative(function: Callable[..., Any]) -> None:
    """A program for all numbers is one for those that are at least 1."""
    compare(function, ((6, 2), (8, 3), (6, -2), (8, -3), (5, -1), (9, 0), (7, 4)))
