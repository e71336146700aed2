"""Depthwise convolutions in CUDA, run as C++ on the CPU, beside torch in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from meta import op
from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.dialect.core import Unsupported
from meta.dialect.cuda import depthwise
from meta.ir import TensorType

CUDA = Device("cuda:0")
LAYOUTS = "NHWC", "OHWI", "NHWC"
TOLERANCES = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def drawn(*shape: int, dtype: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(TO_TORCH[dtype])


def of(tensor: torch.Tensor, dtype: str) -> TensorType:
    return TensorType(tuple(tensor.shape), dtype)


def close(found: torch.Tensor, expected: torch.Tensor, dtype: str) -> None:
    tolerance = TOLERANCES[dtype]
    largest = expected.abs().max().item()
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("extents", "kernel", "stride", "padding", "dilation", "dtype"),
    [
        ((2, 9, 11, 8), (3, 3), 1, 1, 1, "float16"),  # two channels or more to a thread
        ((2, 8, 8, 6), (7, 7), 1, 3, 1, "bfloat16"),
        ((1, 9, 10, 5), (3, 3), 2, 1, 1, "float32"),  # channels one by one, columns left over
        ((2, 10, 7, 12), (5, 5), 2, 2, 1, "float16"),
        ((1, 12, 9, 4), (3, 3), 1, 2, 2, "float32"),  # dilated
        ((1, 11, 9, 4), (3, 2), (3, 1), (0, 1, 2, 0), (1, 3), "float32"),  # uneven
        ((2, 5, 5, 70), (3, 3), 1, 4, 1, "float32"),  # more padding than window, many channels
        ((1, 3, 4, 4), (1, 1), 2, 0, 1, "bfloat16"),
        ((1, 10, 10, 2), (9, 9), 1, 4, 1, "float32"),
    ],
)
def test_as_torch(
    extents: tuple[int, ...],
    kernel: tuple[int, int],
    stride: Any,
    padding: Any,
    dilation: Any,
    dtype: str,
) -> None:
    channels = extents[3]
    x = drawn(*extents, dtype=dtype, seed=0)
    w = drawn(channels, *kernel, 1, dtype=dtype, seed=1)
    options = stride, padding, dilation, channels, *LAYOUTS
    call = op.conv2d.call_values((of(x, dtype), of(w, dtype), *options), CUDA)
    shape = call.outputs[0].static_shape
    y, dx, dw = (torch.full(s, torch.nan, dtype=x.dtype) for s in (shape, x.shape, w.shape))
    depthwise.forward(call).run(x, w, y)
    wide, kernels = (t.double().permute(0, 3, 1, 2).requires_grad_() for t in (x, w))
    top, left, bottom, right = padding if isinstance(padding, tuple) else 4 * (padding,)
    padded = torch.nn.functional.pad(wide, (left, right, top, bottom))
    expected = torch.nn.functional.conv2d(
        padded, kernels, stride=stride, dilation=dilation, groups=channels
    )
    close(y, expected.permute(0, 2, 3, 1).detach(), dtype)
    dy = drawn(*shape, dtype=dtype, seed=2)
    by_x, by_w = torch.autograd.grad(expected, (wide, kernels), dy.double().permute(0, 3, 1, 2))
    given = (of(w, dtype), None, of(dy, dtype), tuple(x.shape), *options)
    depthwise.by_input(op.conv2d_dx.call_values(given, CUDA)).run(w, dy, dx)
    close(dx, by_x.permute(0, 2, 3, 1), dtype)
    given = (of(x, dtype), None, of(dy, dtype), tuple(w.shape), *options)
    depthwise.by_kernel(op.conv2d_dw.call_values(given, CUDA)).run(x, dy, dw)
    close(dw, by_w.permute(0, 2, 3, 1), dtype)


@pytest.mark.usefixtures("emulated")
def test_a_gradient_that_is_given_the_result_and_misaligned_memory() -> None:
    types = [TensorType(s, "float16") for s in ((1, 6, 6, 8), (8, 3, 3, 1))]
    options = 1, 1, 1, 8, *LAYOUTS
    x = drawn(1 + 6 * 6 * 8, dtype="float16", seed=0)[1:].view(1, 6, 6, 8)
    w = drawn(8, 3, 3, 1, dtype="float16", seed=1)
    y, out = torch.empty(1, 6, 6, 8).half(), torch.empty(1, 6, 6, 8).half()
    depthwise.forward(op.conv2d.call_values((*types, *options), CUDA)).run(x, w, y)
    aligned = torch.empty_like(y)
    depthwise.forward(op.conv2d.call_values((*types, *options), CUDA)).run(x.clone(), w, aligned)
    assert y.equal(aligned)
    given = (types[1], types[0], types[0], (1, 6, 6, 8), *options)
    depthwise.by_input(op.conv2d_dx.call_values(given, CUDA)).run(w, y, y, out)
    assert out.isfinite().all()


@pytest.mark.parametrize(
    ("shape", "kernel", "groups", "layouts", "why"),
    [
        ((1, 6, 6, 8), (8, 3, 3, 2), 4, LAYOUTS, "each channel by itself"),
        ((1, 6, 6, 8), (16, 3, 3, 1), 8, LAYOUTS, "each channel by itself"),
        ((1, 8, 6, 6), (8, 1, 3, 3), 8, ("NCHW", "OIHW", "NCHW"), "channels come last"),
        ((1, 20, 20, 8), (8, 11, 11, 1), 8, LAYOUTS, "windows of up to"),
    ],
)
def test_others_are_refused(
    shape: tuple[int, ...], kernel: tuple[int, ...], groups: int, layouts: Any, why: str
) -> None:
    types = TensorType(shape, "float16"), TensorType(kernel, "float16")
    with pytest.raises(Unsupported, match=why):
        depthwise.forward(op.conv2d.call_values((*types, 1, 1, 1, groups, *layouts), CUDA))
