"""Small and depthwise convolutions with channels last, and gradients, beside PyTorch in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.dialect.core import only

LAYOUTS = "NHWC", "OHWI", "NHWC"
# [images, height, width, channels], kernel, stride, padding of depthwise ones
WINDOWS = [
    ((2, 7, 9, 24), (3, 3), (1, 1), (1, 1, 1, 1)),
    ((1, 8, 5, 16), (3, 3), (2, 2), (0, 1, 0, 1)),
    ((2, 6, 6, 8), (5, 3), (2, 1), (2, 0, 1, 1)),
    ((3, 4, 4, 48), (3, 3), (3, 3), (1, 1, 1, 1)),
    ((1, 9, 9, 32), (2, 2), (3, 3), (0, 0, 0, 0)),  # pixels that nothing reads
    ((2, 2, 2, 480), (3, 3), (1, 1), (1, 1, 1, 1)),  # windows that are larger than the image
    ((1, 10, 11, 8), (7, 7), (2, 2), (3, 3, 3, 3)),
    ((2, 12, 12, 96), (3, 3), (1, 2), (1, 1, 1, 1)),
    ((1, 5, 5, 8), (3, 3), (1, 1), (4, 4, 4, 4)),  # windows of padding alone
    ((1, 40, 40, 32), (3, 3), (1, 1), (1, 1, 1, 1)),  # on all threads
    ((1, 1, 1, 40), (1, 1), (1, 1), (0, 0, 0, 0)),
]
# and of others, before them the channels of the result and the groups
OTHERS = [
    (16, 1, (1, 6, 5, 8), (3, 3), (1, 1), (1, 1, 1, 1)),
    (32, 2, (2, 8, 9, 32), (3, 3), (2, 2), (1, 1, 1, 1)),
    (48, 2, (3, 4, 4, 64), (3, 3), (1, 2), (0, 1, 0, 1)),
    (8, 1, (2, 5, 5, 8), (5, 3), (2, 1), (2, 0, 1, 1)),
    (128, 1, (1, 2, 2, 64), (3, 3), (1, 1), (1, 1, 1, 1)),  # a kernel that is large for the image
    (72, 3, (1, 2, 3, 48), (3, 3), (2, 2), (1, 1, 1, 1)),
    (32, 2, (2, 9, 9, 16), (2, 2), (3, 3), (0, 0, 0, 0)),  # pixels that nothing reads
    (40, 5, (1, 5, 6, 40), (3, 3), (1, 1), (4, 4, 4, 4)),  # windows of padding alone
    (16, 2, (2, 3, 3, 32), (1, 1), (2, 2), (0, 0, 0, 0)),
    (64, 4, (4, 12, 12, 64), (3, 3), (1, 1), (1, 1, 1, 1)),  # on all threads
]
CASES = [(shape[3], shape[3], shape, *rest) for shape, *rest in WINDOWS] + OTHERS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("outputs", "groups", "shape", "taps", "stride", "padding"), CASES)
def test_results_and_gradients_are_those_of_pytorch(
    outputs, groups, shape, taps, stride, padding, dtype
) -> None:
    x = torch.randn(shape, dtype=dtype)
    w = torch.randn(outputs, *taps, shape[3] // groups, dtype=dtype)
    image, kernel = (t.double().permute(0, 3, 1, 2).detach().requires_grad_() for t in (x, w))
    top, left, bottom, right = padding
    padded = F.pad(image, (left, right, top, bottom))
    expected = F.conv2d(padded, kernel, None, stride, 0, 1, groups).permute(0, 2, 3, 1)
    dy = torch.randn(expected.shape, dtype=dtype)
    expected.backward(dy.double())
    how = stride, padding, (1, 1), groups, *LAYOUTS

    def results(x, w, dy):
        dx = op.conv2d_dx(w, None, dy, shape, *how)
        return op.conv2d.plain(x, w, *how), dx, op.conv2d_dw(x, None, dy, w.shape, *how)

    given = [meta.array(t) for t in (x, w, dy)]
    run = meta.vm.compile(meta.model.trace(results), *given)
    assert {"tvm.conv2d", "tvm.conv2d_dx", "tvm.conv2d_dw"} == set(run.kernels())
    wanted = (expected, *(t.grad.permute(0, 2, 3, 1) for t in (image, kernel)))
    for found, one in zip(run(*given), wanted, strict=True):
        tolerance = 16 * torch.finfo(dtype).eps * one.abs().max().item()
        torch.testing.assert_close(found.torch().double(), one, rtol=0, atol=tolerance)


def test_stages_before_and_behind_are_in_the_same_kernel() -> None:
    x, w, b = (meta.random.normal(s) for s in ((2, 6, 7, 16), (16, 3, 3, 1), (16,)))

    def block(x, w, b):
        return meta.relu(op.conv2d.plain(meta.exp(x), w, 1, 1, 1, 16, *LAYOUTS) + b)

    with only("tvm"):
        run = meta.vm.compile(meta.model.trace(block), x, w, b)
    assert any(name.startswith("tvm.fused_conv2d") for name in run.kernels())
    image, kernel = (t.torch().double().permute(0, 3, 1, 2) for t in (x, w))
    y = F.conv2d(image.exp(), kernel, None, 1, 1, 1, 16).permute(0, 2, 3, 1)
    expected = (y + b.torch().double()).relu()
    torch.testing.assert_close(run(x, w, b).torch().double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "outputs", "dilation", "dtype"),
    [
        ((2, 6, 6, 9), 9, 1, "float32"),  # channels that are no whole vectors
        ((2, 6, 6, 4), 16, 1, "float32"),
        ((2, 6, 6, 8), 8, 2, "float32"),
        ((2, 6, 6, 8), 8, 1, "bfloat16"),
    ],
)
def test_others_have_the_loops_that_they_had(shape, outputs, dilation, dtype) -> None:
    x = meta.random.normal(shape).astype(dtype)
    w = meta.random.normal((outputs, 3, 3, 1)).astype(dtype)

    def convolved(x, w):
        return op.conv2d.plain(x, w, 1, 1, dilation, shape[3], *LAYOUTS)

    run = meta.vm.compile(meta.model.trace(convolved), x, w)
    assert "torch.conv2d" in run.kernels()
    with only("tvm"):
        found = meta.vm.compile(meta.model.trace(convolved), x, w)(x, w).torch().double()
    image, kernel = (t.torch().double().permute(0, 3, 1, 2) for t in (x, w))
    expected = F.conv2d(image, kernel, None, 1, 1, dilation, shape[3]).permute(0, 2, 3, 1)
    tolerance = 1e-5 if dtype == "float32" else 4e-2
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
