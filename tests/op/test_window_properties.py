"""Pooling over any window, against torch: what it takes itself, and sums over windows for the rest.

Everything is drawn: the number of axes, sizes, kernels, strides, paddings and dilations.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import meta
from meta.base.errors import TypeInferError
from meta.dialect import only
from tests.op.pool import avg_pool, max_pool

COUNTS = [1, 2, 3]
# Every drawn window is a kernel to compile for tvm: few, and the same in every run.
DIALECTS = [("torch", 40), ("tvm", 2)]


@st.composite
def windows(draw: Any, count: int, symmetric: bool) -> tuple[Any, ...]:
    """Draw a shape of x, then kernel, stride, padding, dilation and ceil_mode over it.

    symmetric: as torch has padding, the same on both sides and at most half a kernel.
    """

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(count))

    kernel, stride, dilation = each(1, 4), each(1, 4), each(1, 3)
    extents = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    if symmetric:
        before = after = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    else:
        before, after = (tuple(draw(st.integers(0, e - 1)) for e in extents) for _ in range(2))
    sizes = [
        max(1, e - b - a) + draw(st.integers(0, 5))
        for e, b, a in zip(extents, before, after, strict=True)
    ]
    # As a type function demands: the taps of no window jump over the input.
    sizes = [max(n, d) for n, d in zip(sizes, dilation, strict=True)]
    padding = before if symmetric else before + after
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 2)), *sizes)
    return shape, kernel, stride, padding, dilation, draw(st.booleans())


def random(shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def compare(name: str, dialect: str, x: torch.Tensor, expected: torch.Tensor, *args: Any) -> None:
    """Compare an operator and its gradient with a result of torch's that x leads to."""
    ours = meta.array(x.detach().clone())
    ours.requires_grad = True
    with only(dialect):
        y = getattr(meta, name).plain(ours, *args)
        torch.testing.assert_close(y.torch(), expected.detach(), rtol=1e-9, atol=1e-9)
        dy = random(expected.shape)
        y.backward(meta.array(dy))
    (dx,) = torch.autograd.grad(expected, x, dy)
    torch.testing.assert_close(ours.grad.torch(), dx, rtol=1e-9, atol=1e-9)


def drawn(test: Any) -> Any:
    """Run a test of (count, dialect, data) for every number of axes on both dialects."""

    def run(count: int, dialect: str, examples: int) -> None:
        chosen = settings(max_examples=examples, derandomize=dialect == "tvm", database=None)
        chosen(given(data=st.data())(lambda data: test(count, dialect, data)))()

    for names, values in (("count", COUNTS), (("dialect", "examples"), DIALECTS)):
        run = pytest.mark.parametrize(names, values)(run)
    run.__doc__ = test.__doc__
    return run


@drawn
def test_maxima_are_torch_s(count: int, dialect: str, data: Any) -> None:
    """With dilation, ceil_mode and torch's own padding."""
    shape, kernel, stride, padding, dilation, ceil = data.draw(windows(count, True))
    x = random(shape).requires_grad_()
    pool = getattr(F, f"max_pool{count}d")
    expected = pool(x, kernel, stride, padding, dilation, ceil_mode=ceil)
    compare(f"max_pool{count}d", dialect, x, expected, kernel, stride, padding, dilation, ceil)


@drawn
def test_means_are_torch_s(count: int, dialect: str, data: Any) -> None:
    """With ceil_mode, with and without the padding's zeros (torch: count_include_pad)."""
    shape, kernel, stride, padding, _, ceil = data.draw(windows(count, True))
    x, include = random(shape).requires_grad_(), data.draw(st.booleans())
    if any(n < k for n, k in zip(shape[2:], kernel, strict=True)):
        return  # torch averages no such input over three axes; below, the sums do
    pool = getattr(F, f"avg_pool{count}d")
    expected = pool(x, kernel, stride, padding, ceil, include)
    arguments = (kernel, stride, padding, 1, ceil, include)
    compare(f"avg_pool{count}d", dialect, x, expected, *arguments)


@drawn
def test_windows_that_torch_does_not_have(count: int, dialect: str, data: Any) -> None:
    """With other padding on either side, and means with dilation."""
    shape, *window = data.draw(windows(count, False))
    check_windows(count, dialect, shape, window, data.draw(st.booleans()))


def check_windows(
    count: int, dialect: str, shape: tuple[int, ...], window: list[Any], include: bool
) -> None:
    """Compare a maximum and a mean over windows with sums over taps."""
    x = random(shape).requires_grad_()
    for name, oracle in (("max", max_pool), ("avg", avg_pool)):
        expected = oracle(x, *window, include)
        compare(f"{name}_pool{count}d", dialect, x, expected, *window, include)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("dialect", ["torch", "tvm"])
def test_an_input_that_is_smaller_than_its_window_is_averaged(dialect: str, include: bool) -> None:
    """ATen refuses it over three axes, though the padding makes up for what is missing."""
    window = [(2, 1, 1), (1, 1, 1), (1, 0, 0, 1, 0, 0), (1, 1, 1), False]
    check_windows(3, dialect, (1, 1, 1, 1, 1), window, include)


@drawn
def test_regions_are_torch_s(count: int, dialect: str, data: Any) -> None:
    """Adaptive pooling to fewer and to more elements than there are."""
    extents = st.tuples(*[st.integers(1, 7)] * count)
    sizes, out = data.draw(extents), data.draw(extents)
    x = random((2, 2, *sizes)).requires_grad_()
    for kind in ("max", "avg"):
        expected = getattr(F, f"adaptive_{kind}_pool{count}d")(x, out)
        compare(f"adaptive_{kind}_pool{count}d", dialect, x, expected, out)


def test_a_window_that_jumps_over_the_input_is_refused() -> None:
    x = meta.array(torch.zeros(1, 1, 1))
    with pytest.raises(TypeInferError, match="no element of the input"):
        meta.max_pool1d(x, 2, 1, 1, 2)
    with pytest.raises(TypeInferError, match="no element of the input"):
        meta.avg_pool1d(meta.array(torch.zeros(1, 1, 0)), 2, 1, 1)
    beside = meta.max_pool1d(x, 2, 1, (0, 2), 2)
    assert beside.torch().tolist() == [[[0.0]]]
