"""Convolutions differentiated twice: any window, groups and order of axes, against torch."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meta
from meta.grad import grad
from tests.op.conv import SPATIAL, conv, conv_transpose


@st.composite
def calls(draw: Any, count: int, transposed: bool) -> tuple[tuple[int, ...], ...]:
    """Draw shapes of x and w in some layout, and the other arguments."""

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(count))

    kernel, stride, dilation = each(1, 3), each(1, 3), each(1, 2)
    extents = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    # Less than a window of padding, so that a transposed convolution leaves something of each.
    before = tuple(draw(st.integers(0, min(2, e - 1))) for e in extents)
    after = tuple(
        draw(st.integers(0, min(2, e - 1 - b))) for e, b in zip(extents, before, strict=True)
    )
    least = [1 if transposed else e - b - a for e, b, a in zip(extents, before, after, strict=True)]
    sizes = [n + draw(st.integers(0, 3)) for n in least]
    groups, inputs, outputs = (draw(st.integers(1, 2)) for _ in range(3))

    letters = SPATIAL[count]
    layout, kernel_layout, out_layout = (
        "".join(draw(st.permutations(channels + letters))) for channels in ("NC", "OI", "NC")
    )
    extent = {"N": draw(st.integers(1, 2)), "C": groups * inputs}
    channels = {"I": inputs, "O": groups * outputs}
    window: tuple[Any, ...] = (stride, before + after, dilation, groups)
    if transposed:
        channels = {"I": groups * inputs, "O": outputs}
        extra = tuple(draw(st.integers(0, s - 1)) for s in stride)
        window = (stride, before + after, extra, dilation, groups)
    extent |= dict(zip(letters, sizes, strict=True))
    taps = channels | dict(zip(letters, kernel, strict=True))
    x, w = tuple(extent[c] for c in layout), tuple(taps[c] for c in kernel_layout)
    return x, w, (*window, layout, kernel_layout, out_layout)


def leaf(values: torch.Tensor) -> meta.ndarray:
    array = meta.array(values.detach().clone())
    array.requires_grad = True
    return array


@pytest.mark.heavy
@pytest.mark.product
@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("count", [1, 2, 3])
@settings(max_examples=60)
@given(data=st.data())
def test_second_derivatives_are_torch_s(count: int, transposed: bool, data: Any) -> None:
    """The gradients of ``<v, dx> + <u, dw>`` by x, w and dy."""
    x_shape, w_shape, options = data.draw(calls(count, transposed))
    oracle = conv_transpose if transposed else conv
    generator = torch.Generator().manual_seed(0)

    def random(shape: Any) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    theirs = [random(x_shape), random(w_shape)]
    y = oracle(*theirs, *options)
    theirs.append(random(y.shape))
    first = torch.autograd.grad(y, theirs[:2], theirs[2], create_graph=True)
    seeds = [random(g.shape).detach() for g in first]
    second = torch.autograd.grad(first, theirs, seeds, allow_unused=True)

    ours = [leaf(t) for t in theirs]
    name = f"conv_transpose{count}d" if transposed else f"conv{count}d"
    result = getattr(meta, name).plain(*ours[:2], *options)
    found = grad(result, ours[:2], ours[2], create_graph=True)
    again = grad(found, ours, [meta.array(seed) for seed in seeds])
    for a, b in zip((result, *found, *again), (y, *first, *second), strict=True):
        torch.testing.assert_close(a.torch(), b.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_the_result_is_not_kept(name: str) -> None:
    x, w = leaf(torch.ones(1, 2, 4, 4)), leaf(torch.ones(2, 2, 3, 3))
    result = getattr(meta, name)(x, w)
    held = weakref.ref(result.tensor)
    loss = meta.sum(result)
    del result
    gc.collect()
    assert held() is None
    loss.backward()
    assert x.grad is not None and w.grad is not None


@pytest.mark.parametrize("name", ["conv2d_dx", "conv2d_dw"])
def test_a_forward_result_that_is_given_has_gradient_zero(name: str) -> None:
    other, y = leaf(torch.ones(1, 1, 3, 3)), leaf(torch.ones(1, 1, 1, 1))
    result = getattr(meta, name)(other, y, y, (1, 1, 3, 3), 1, 0, 1, 1)
    y_alone = leaf(torch.ones(1, 1, 1, 1))
    alone = getattr(meta, name)(other, y_alone, meta.array(y.torch()), (1, 1, 3, 3), 1, 0, 1, 1)
    assert not grad(meta.sum(alone), y_alone).torch().any()
    assert grad(meta.sum(result), y).item() == 9
