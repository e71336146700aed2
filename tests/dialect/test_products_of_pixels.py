"""Convolutions by 1x1 with the channels last are products of matrices, with the same results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.dialect.torch import conv
from meta.ir import parse

CASES = [(2, 5, 7, 3, 4), (1, 1, 1, 6, 2), (4, 16, 16, 3, 5), (2, 16, 24, 8, 3)]
"""Images, height, width, channels before and after; the last two are summed up in parts."""


def _data(case: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    n, height, width, before, after = case
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, before, height, width, generator=generator, dtype=torch.float64)
    w = torch.randn(after, before, 1, 1, generator=generator, dtype=torch.float64)
    dy = torch.randn(n, after, height, width, generator=generator, dtype=torch.float64)
    return tuple(t.to(dtype) for t in (x, w, dy))


def _last(t: torch.Tensor) -> torch.Tensor:
    return t.permute(0, 2, 3, 1).contiguous()


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the products that are asked for."""
    seen: list[str] = []

    def noted(name: str) -> Any:
        plain = getattr(conv, name)
        return lambda *args: seen.append(name) or plain(*args)

    for name in ("product", "product_dx", "product_dw"):
        monkeypatch.setattr(conv, name, noted(name))
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel_layout", ["OHWI", "OIHW", "HWIO"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_a_convolution_and_its_gradients(
    case: tuple[int, ...], stride: int, kernel_layout: str, dtype: torch.dtype, products: list[str]
) -> None:
    x, w, dy = _data(case, dtype)
    dy = dy[:, :, ::stride, ::stride]
    order = ["OIHW".index(axis) for axis in kernel_layout]
    laid = w.permute(order).contiguous()
    layouts = ("NHWC", kernel_layout, "NHWC")
    with meta.dialect.only("torch"):
        images = [meta.array(_last(t)) for t in (x, dy)]
        y = op.conv2d.plain(images[0], meta.array(laid), stride, 0, 1, 1, *layouts).torch()
        shape = tuple(images[0].shape)
        tail = (stride, 0, 1, 1, *layouts)
        dx = op.conv2d_dx(meta.array(laid), None, images[1], shape, *tail).torch()
        dw = op.conv2d_dw(images[0], None, images[1], tuple(laid.shape), *tail).torch()
    assert products == ["product", "product_dx", "product_dw"]
    exact = [t.double().requires_grad_() for t in (x, w)]
    expected = F.conv2d(*exact, stride=stride)
    gradients = torch.autograd.grad(expected, exact, dy.double())
    tolerance = {"rtol": 1e-5, "atol": 1e-4} if dtype == torch.float32 else {}
    for found, wanted in (
        (y, _last(expected)),
        (dx, _last(gradients[0])),
        (dw, gradients[1].permute(order)),
    ):
        torch.testing.assert_close(
            found.double(), wanted, **{"rtol": 1e-7, "atol": 1e-6, **tolerance}
        )


@pytest.mark.parametrize(
    ("stride", "padding", "groups"), [(1, (0, 1), 1), (2, 0, 1), (1, 0, 2), (1, 0, 1)]
)
@pytest.mark.parametrize("bias", [False, True])
def test_others_are_convolutions(
    stride: int, padding: int | tuple[int, int], groups: int, bias: bool
) -> None:
    """With padding or groups; and what has strides, or a bias, is one kernel, too."""
    window = f"{stride}, {padding}, 1, {groups}"
    module = parse(f"""
    func @main(%x: float64[2, 5, 6, 4], %w: float64[6, 1, 1, {4 // groups}], %b: float64[6]) {{
      %y = conv2d(%x, %w, {window}, layout="NHWC", kernel_layout="OHWI", out_layout="NHWC")
      %z = {"bias_add(%y, %b, 3)" if bias else "%y"}
      return %z
    }}""")
    executable = meta.vm.compile(module)
    assert list(executable.kernels()) == ["torch.conv2d_bias_last" if bias else "torch.conv2d"]
    generator = torch.Generator().manual_seed(0)
    x, w, b = (
        torch.randn(s, generator=generator, dtype=torch.float64)
        for s in ((2, 5, 6, 4), (6, 1, 1, 4 // groups), (6,))
    )
    first = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), b if bias else None
    expected = F.conv2d(*first, stride, padding, 1, groups)
    found = executable(*map(meta.array, (x, w, b))).torch()
    torch.testing.assert_close(found, _last(expected))
