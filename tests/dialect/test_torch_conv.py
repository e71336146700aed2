"""A convolution's gradient by its kernel: all ways in which ATen computes it are the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.dialect.torch import conv_products


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"padding": (1, 0, 2, 1)}, {"dilation": 2}])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_few_windows_and_many(
    options: dict[str, Any], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    used: list[int] = []
    product = conv_products._by_product
    counted = lambda *args: used.append(1) or product(*args)  # noqa: E731
    monkeypatch.setattr(conv_products, "_by_product", counted)
    shape = (2, 3, 7, 6) if layout == "NCHW" else (2, 7, 6, 3)
    x, w = meta.array(torch.randn(shape)), meta.array(torch.randn(4, 3, 3, 2))
    arguments: dict[str, Any] = {"stride": 1, "padding": 0, "dilation": 1, **options}
    arguments |= {"groups": 1, "layout": layout}
    with meta.dialect.only("torch"):
        dy = meta.array(torch.randn(meta.conv2d(x, w, **arguments).shape))
        results = []
        for limit in (10**6, 0):
            monkeypatch.setattr(conv_products, "FEW_WINDOWS", limit)
            results.append(meta.op.conv2d_dw(x, None, dy, w.shape, **arguments).torch())
    assert used == [1]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("kernel", [(4, 3, 1, 1), (4, 1, 3, 3)])
def test_one_tap_and_groups_are_left_to_the_library(
    kernel: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(conv_products, "_by_product", refuse)
    groups = 1 if kernel[1] == 3 else 4
    channels = kernel[1] * groups
    x = meta.array(torch.randn(2, channels, 5, 5))
    w = meta.array(torch.randn(kernel))
    with meta.dialect.only("torch"):
        dy = meta.conv2d(x, w, groups=groups)
        dw = meta.op.conv2d_dw(x, None, dy, w.shape, 1, 0, 1, groups)
    assert dw.shape == kernel


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("options", [{}, {"padding": (1, 0, 2, 1)}, {"dilation": 2}, {"stride": 2}])
@pytest.mark.parametrize("channels", [(1, 4), (3, 5), (12, 2), (8, 3), (3, 1)], ids=str)
def test_gradients_of_each_image(
    channels: tuple[int, int], options: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of groups that are no whole vectors, they are products; a part of the images at a time."""
    before, after = channels
    used: list[int] = []
    product = conv_products._by_products_of_groups
    counted = lambda *args: used.append(1) or product(*args)  # noqa: E731
    monkeypatch.setattr(conv_products, "_by_products_of_groups", counted)
    monkeypatch.setattr(conv_products, "WINDOW_ELEMENTS", 2 * before * 6 * 330)
    kind = getattr(torch, dtype)
    x, w = torch.randn(5, before, 20, 21, dtype=kind), torch.randn(after, before, 3, 2, dtype=kind)
    loss = lambda w, x: meta.sum(meta.conv2d(x[None], w, **options) ** 2)  # noqa: E731
    with meta.dialect.only("torch"):
        each = meta.vmap(meta.grad(loss), (None, 0))(*map(meta.array, (w, x)))
        one_by_one = [meta.grad(loss)(meta.array(w), meta.array(image)).torch() for image in x]
    assert bool(used) == (before % 8 != 0 and after > 1 and "stride" not in options)
    torch.testing.assert_close(each.torch(), torch.stack(one_by_one), rtol=1e-4, atol=1e-3)
