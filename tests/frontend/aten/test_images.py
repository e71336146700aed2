"""Convolution, pooling, resizing and sampling: what torch's samples do not reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.frontend.aten.graph import convert
from meta.frontend.core import Unconvertible
from tests.frontend.aten.calls import Call, call, check, check_symbolic, draws

X, W, BIAS = draws(2, 4, 7, 6), draws(6, 2, 3, 3), draws(6)
LAST = X.contiguous(memory_format=torch.channels_last)
NORMAL = ([1, 1], [1, 1], [1, 1], False, [0, 0], 2)
STEPS = ([2, 1], [1, 0], [1, 2], False, [0, 0], 2)
TW = draws(4, 3, 3, 3)
BACK = ([3, 2], [1, 1], [1, 1], True, [1, 0], 2)
DILATED = ([2, 2], [2, 2], [3, 3], True, [2, 2], 2)
NAN = torch.where(draws(2, 3, 6, 6) > 1, float("nan"), draws(2, 3, 6, 6))
TIES = torch.zeros(1, 2, 5, 5)

CASES = [
    call("convolution", X, W, BIAS, *NORMAL),
    call("convolution", LAST, W, None, *STEPS, label="channels last"),
    call("convolution", X.bfloat16(), W.bfloat16(), BIAS.bfloat16(), *NORMAL),
    call("convolution", X[:0], W, BIAS, *NORMAL, label="no images"),
    call("convolution", X, TW, None, *BACK),
    call("convolution", X, TW, None, *DILATED, label="adds the whole stride"),
    call("convolution", draws(2, 4, 9), draws(3, 4, 3), None, [2], [1], [1], False, [0], 1),
    call("conv1d", draws(4, 9), draws(3, 4, 3), None, label="one example"),
    call("conv1d.padding", draws(2, 4, 9), draws(3, 4, 4), None, [1], "same"),
    call("conv2d.padding", X, W, BIAS, [2, 2], "valid", [1, 1], 2),
    call("conv3d", draws(1, 2, 4, 5, 5), draws(3, 2, 2, 3, 3), draws(3), [1], [1], [1], 1),
    call("conv_transpose2d.input", X, TW, None, [2, 2], [1, 1], [1, 1], 2, [1, 1]),
    call("conv_tbc", draws(9, 2, 4), draws(3, 4, 5), draws(5), 1),
    call("im2col", X, [3, 2], [1, 2], [1, 0], [2, 1]),
    call("im2col", X[0], [2, 2], [1, 1], [0, 0], [2, 2], label="one image"),
    call("col2im", draws(2, 16, 30), [7, 6], [2, 2], [1, 1], [0, 0], [1, 1]),
    call("col2im", draws(2, 16, 12), [6, 6], [2, 2], [1, 1], [1, 0], [2, 2]),
    call("max_pool2d_with_indices", NAN, [3, 3], [2, 2], [1, 1], label="NaN"),
    call("max_pool2d_with_indices", TIES, [2, 2], [1, 1], label="ties"),
    call("max_pool2d_with_indices", X[0], [3, 2], [], [1, 0], [2, 1], True),
    call("max_pool2d_with_indices", X.bfloat16(), [3, 3]),
    call("max_pool2d_with_indices", X[:0], [3, 3], label="no images"),
    call("max_pool3d_with_indices", draws(1, 2, 4, 5, 5), [2], [2]),
    call("max_pool1d", draws(2, 4, 9), [3], [2], [1]),
    call("adaptive_max_pool2d", X, [3, 2]),
    call("avg_pool2d", X, [3, 2], [2, 1], [1, 0], True, False),
    call("avg_pool2d", X, [3, 2], [], [1, 1], False, True, 5),
    call("avg_pool2d_backward", draws(2, 4, 3, 3), X, [3, 2], [2, 2], [0, 0], False, True, None),
    call("avg_pool2d_backward", draws(2, 4, 3, 3), X, [3, 2], [2, 2], [0, 0], False, True, 5),
    call("_adaptive_avg_pool2d", X, [3, 4]),
    call("_adaptive_avg_pool2d_backward", draws(2, 4, 3, 4), X),
    call("_adaptive_avg_pool3d_backward", draws(2, 1, 1, 1), draws(2, 4, 5, 5)),
    call("max_unpool2d", X[:, :, :2, :2], torch.arange(16).reshape(2, 2, 2, 2).repeat(1, 2, 1, 1),
         [4, 4]),
    call("upsample_bilinear2d", X, [9, 4], True),
    call("upsample_bilinear2d", X, [9, 4], False, 1.3, 0.7, label="scales that are broken"),
    call("upsample_bilinear2d.vec", X, None, False, [1.3, 0.7]),
    call("upsample_bicubic2d", X, [9, 4], False, 1.3, 0.7),
    call("upsample_bicubic2d", X.bfloat16(), [14, 12], False),
    call("upsample_nearest2d", X, [9, 4], 1.3, 0.7),
    call("upsample_nearest2d", torch.arange(16, dtype=torch.uint8).reshape(1, 1, 4, 4), [7, 3]),
    call("_upsample_nearest_exact2d", X, [9, 4], 1.3, 0.7),
    call("_upsample_nearest_exact1d", draws(2, 3, 5), [8]),
    call("upsample_trilinear3d", draws(1, 2, 3, 4, 5), [5, 4, 3], False),
    call("_upsample_bilinear2d_aa", X, [3, 2], False),
    call("_upsample_bicubic2d_aa", X, [3, 9], True),
    call("_upsample_lanczos2d_aa", X, [3, 9], False),
    call("_upsample_bicubic2d_aa_backward", draws(2, 4, 3, 9), [3, 9], [2, 4, 7, 6], False),
    call("upsample_bilinear2d_backward", draws(2, 4, 9, 4), [9, 4], [2, 4, 7, 6], False, 1.3, 0.7),
    call("affine_grid_generator", draws(2, 2, 3), [2, 3, 4, 1], False),
    call("affine_grid_generator", draws(2, 3, 4), [2, 3, 4, 2, 5], True),
    call("affine_grid_generator_backward", draws(2, 4, 5, 2), [2, 3, 4, 5], False),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("one", CASES, ids=lambda c: c.id)
def test_as_torch(one: Call) -> None:
    check(one)


MASKS = [[True, True, True], [True, False, False], [False, True, False], [False, False, True]]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("weight", "options"),
    [(W, NORMAL), (W, STEPS), (TW, BACK), (TW, DILATED)],
    ids=["normal", "steps", "transposed", "dilated"],
)
def test_gradients_of_convolutions(weight: torch.Tensor, options: Any, mask: list[bool]) -> None:
    y = torch.ops.aten.convolution(X, weight, None, *options)
    check(call("convolution_backward", draws(*y.shape), X, weight, [6], *options, mask), mask)


@pytest.mark.parametrize(
    "x", [X, X[0], X.double(), TIES, NAN], ids=["batch", "one", "double", "ties", "nan"]
)
@pytest.mark.parametrize("window", [([3, 2], [2, 1], [1, 0], [1, 2], True), ([2, 2], [], [0], [1])])
def test_gradients_of_maxima(x: torch.Tensor, window: Any) -> None:
    y, indices = torch.ops.aten.max_pool2d_with_indices(x, *window)
    ceil_mode = window[4:] or (False,)
    stride = window[1] or window[0]
    args = (torch.rand_like(y), x, window[0], stride, *window[2:4], *ceil_mode, indices)
    check(Call("max_pool2d_with_indices_backward", args))


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("mask", [[True, True], [True, False], [False, True]])
def test_gradients_of_sampling(mode: int, mask: list[bool]) -> None:
    grid = draws(2, 3, 4, 2) * 0.6
    check(call("grid_sampler_2d_backward", draws(2, 4, 3, 4), X, grid, mode, 0, False, mask), mask)


N4 = (("n", 4, 7, 6),)


@pytest.mark.parametrize(
    ("name", "arguments", "extents"),
    [
        ("max_pool2d_with_indices", lambda x: (x, [3, 3], [2, 2], [1, 1]), N4),
        ("avg_pool2d", lambda x: (x, [3, 3]), N4),
        ("_adaptive_avg_pool2d", lambda x: (x, [1, 1]), N4),
        ("im2col", lambda x: (x, [2, 2], [1, 1], [0, 0], [1, 1]), N4),
        ("upsample_bilinear2d.vec", lambda x: (x, None, False, [1.3, 0.7]), N4),
        ("upsample_nearest2d.vec", lambda x: (x, None, [2.0, 2.0]), (("n", 4, "h", "w"),)),
        (
            "upsample_bilinear2d",
            lambda x: (x, [x.shape[2] * 2, x.shape[3] * 3], False, 2.0, 3.0),
            (("n", 4, "h", "w"),),
        ),
    ],
)
def test_of_symbolic_extents(name: str, arguments: Any, extents: Any) -> None:
    check_symbolic(name, arguments, X, extents=extents)


def test_a_convolution_of_symbolic_images() -> None:
    extents = (("n", 4, "h", "w"), (6, 2, 3, 3))
    check_symbolic("convolution", lambda x, w: (x, w, None, *STEPS), X, W, extents=extents)


@pytest.mark.parametrize(
    ("name", "args", "why"),
    [
        ("avg_pool2d", (torch.ones(1, 1, 4, 4).long(), [2, 2]), "int64"),
        ("upsample_bilinear2d", (torch.ones(1, 1, 4, 4).byte(), [2, 2], False), "uint8"),
        ("convolution", (X.to(torch.complex64), W.to(torch.complex64), None, *NORMAL), "complex"),
        ("quantized_max_pool2d", (X, [2, 2]), "quantised"),
    ],
)
def test_what_is_declined(name: str, args: Any, why: str) -> None:
    overload = getattr(torch.ops.aten, name).default
    arrays = tuple(meta.array(a) if isinstance(a, torch.Tensor) else a for a in args)
    with pytest.raises(Unconvertible, match=why):
        convert(overload, arrays, {})
