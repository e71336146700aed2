"""A convolution's gradient by its kernel: both ways in which ATen computes it are the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.dialect.torch import conv


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"padding": (1, 0, 2, 1)}, {"dilation": 2}])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_few_windows_and_many(
    options: dict[str, Any], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    used: list[int] = []
    product = conv._by_product
    monkeypatch.setattr(conv, "_by_product", lambda *args: used.append(1) or product(*args))
    shape = (2, 3, 7, 6) if layout == "NCHW" else (2, 7, 6, 3)
    x, w = meta.array(torch.randn(shape)), meta.array(torch.randn(4, 3, 3, 2))
    arguments: dict[str, Any] = {"stride": 1, "padding": 0, "dilation": 1, **options}
    arguments |= {"groups": 1, "layout": layout}
    with meta.dialect.only("torch"):
        dy = meta.array(torch.randn(meta.conv2d(x, w, **arguments).shape))
        results = []
        for limit in (10**6, 0):
            monkeypatch.setattr(conv, "FEW_WINDOWS", limit)
            results.append(meta.op.conv2d_dw(x, None, dy, w.shape, **arguments).torch())
    assert used == [1]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("kernel", [(4, 3, 1, 1), (4, 1, 3, 3)])
def test_one_tap_and_groups_are_left_to_the_library(
    kernel: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(conv, "_by_product", refuse)
    groups = 1 if kernel[1] == 3 else 4
    channels = kernel[1] * groups
    x = meta.array(torch.randn(2, channels, 5, 5))
    w = meta.array(torch.randn(kernel))
    with meta.dialect.only("torch"):
        dy = meta.conv2d(x, w, groups=groups)
        dw = meta.op.conv2d_dw(x, None, dy, w.shape, 1, 0, 1, groups)
    assert dw.shape == kernel
