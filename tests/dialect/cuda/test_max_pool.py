"""The gradient of the maximum over windows in CUDA, run as C++ on the CPU, beside torch's."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta.base.device import Device
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cuda import max_pool
from meta.ir import parse_type
from tests.emulator.handwritten import Function


def env(x: str, y: str, *how: Any) -> OpEnv:
    """Return the kernel of a call with data of these types."""
    base = meta.op.max_pool2d_dx
    types = parse_type(x), parse_type(y), parse_type(y)
    bound = base.schema.bind((*types, *how), {}, lambda t: t)
    return max_pool.max_pool2d_dx.make(base.call_values(bound, Device("cuda:0")))


@pytest.mark.parametrize(
    ("dtype", "shape", "window"),
    [
        ("float16", (2, 21, 19, 72), (3, 2, 1, 1, False)),
        pytest.param(
            *("float32", (1, 18, 17, 3), ((2, 3), (1, 2), (1, 0, 0, 2), 1, False)),
            marks=pytest.mark.slow,
        ),
        pytest.param("float32", (1, 20, 9, 8), (3, 3, 1, 2, True), marks=pytest.mark.slow),
    ],
)
def test_the_first_maximum_takes_the_gradient(
    emulated: list[Function], dtype: str, shape: tuple[int, ...], window: tuple[Any, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    # Few values, so that most windows have several maxima.
    x = torch.randint(0, 4, shape, generator=generator).to(getattr(torch, dtype))
    x[0, 5, 5] = float("nan")
    kernel, stride, padding, dilation, ceil_mode = window
    with meta.dialect.only("torch"):
        y = meta.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode, layout="NHWC").torch()
        dy = torch.randint(1, 5, y.shape, generator=generator).to(x.dtype)
        arguments = x, y, dy, *window, True, "NHWC"
        wanted = meta.max_pool2d_dx(*arguments).torch()
    dx = torch.empty_like(x)
    types = (f"{dtype}{list(t.shape)}" for t in (x, y))
    env(*types, *window, True, "NHWC").run(x, y, dy, dx)
    assert torch.equal(dx, wanted)


def loops(
    x: torch.Tensor, dy: torch.Tensor, kernel: Any, stride: Any, pads: Any, dilation: Any
) -> torch.Tensor:
    """Return dy at the first maximum of each window, or its first NaN, in row order."""
    _, height, width, _ = x.shape
    images, channels = torch.meshgrid(*map(torch.arange, (x.shape[0], x.shape[3])), indexing="ij")
    dx = torch.zeros(x.shape, dtype=torch.float64)
    for row, column in product(range(dy.shape[1]), range(dy.shape[2])):
        best = torch.full(images.shape, -torch.inf, dtype=torch.float64)
        at = torch.full(images.shape, -1)
        for a, b in product(range(kernel[0]), range(kernel[1])):
            h = row * stride[0] - pads[0] + a * dilation[0]
            v = column * stride[1] - pads[1] + b * dilation[1]
            if 0 <= h < height and 0 <= v < width:
                value = x[:, h, v].double()
                wins = (at < 0) | (value > best) | (value.isnan() & ~best.isnan())
                best, at = torch.where(wins, value, best), torch.where(wins, h * width + v, at)
        dx[images, at // width, at % width, channels] += dy[:, row, column].double()
    return dx


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize(
    ("dtype", "shape", "how"),
    [
        ("float16", (2, 19, 18, 8), ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1), False)),
        ("bfloat16", (1, 14, 20, 3), ((4, 3), (4, 1), (1, 1, 2, 0), (2, 1), True)),
        ("float32", (1, 26, 11, 72), ((3, 3), (1, 3), (0, 0, 1, 0), (1, 2), True)),
        ("float32", (2, 17, 17, 4), ((1, 2), (2, 4), (0, 1, 0, 0), (1, 1), False)),
    ],
)
@pytest.mark.slow
def test_ties_infinities_and_several_nans(
    emulated: list[Function], dtype: str, shape: tuple[int, ...], how: tuple[Any, ...], start: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-2, 3, shape, generator=generator).to(getattr(torch, dtype))
    x[torch.rand(shape, generator=generator) < 0.05] = float("nan")
    x[torch.rand(shape, generator=generator) < 0.2] = float("-inf")
    kernel, stride, pads, dilation, _ = how
    data, windows = f"{dtype}{list(shape)}", {"layout": "NHWC"}
    pool = meta.op.max_pool2d
    bound = pool.schema.bind((parse_type(data), *how), windows, lambda t: t)
    y = torch.empty(pool.call_values(bound, Device("cpu")).out.static_shape)
    dy = torch.randint(1, 5, y.shape, generator=generator).to(x.dtype)
    dx = torch.empty(x.numel() + start, dtype=x.dtype)[start:].view(shape)
    env(data, f"{dtype}{list(y.shape)}", *how, True, "NHWC").run(x, y, dy, dx)
    assert torch.equal(dx.double(), loops(x, dy, kernel, stride, pads, dilation))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ((2, 2, 0, 1, False, True), "channels on the last axis"),
        ((20, 2, 0, 1, False, True, "NHWC"), "small windows"),
    ],
)
def test_refusals(how: tuple[Any, ...], reason: str) -> None:
    layout = how[-1] if isinstance(how[-1], str) else "NCHW"
    x = {"NHWC": "float32[1, 32, 32, 8]", "NCHW": "float32[1, 8, 32, 32]"}[layout]
    count = (32 - how[0]) // how[1] + 1
    y = x.replace("32, 32", f"{count}, {count}")
    with pytest.raises(Unsupported, match=reason):
        env(x, y, *how)


def test_gradients_by_torch_agree_with_its_own() -> None:
    """What the kernel is compared with is right itself."""
    x = torch.randperm(2 * 6 * 6 * 3).reshape(2, 6, 6, 3).double()
    image = x.permute(0, 3, 1, 2).clone().requires_grad_()
    y = F.max_pool2d(image, 3, 2, 1)
    dy = torch.rand_like(y)
    (wanted,) = torch.autograd.grad(y, image, dy)
    last = [t.detach().permute(0, 2, 3, 1).contiguous() for t in (y, dy)]
    found = meta.max_pool2d_dx(x, *last, 3, 2, 1, 1, False, True, "NHWC").torch()
    torch.testing.assert_close(found, wanted.permute(0, 2, 3, 1))
