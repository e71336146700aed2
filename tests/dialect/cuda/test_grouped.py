"""Convolutions in groups in CUDA, run as C++ on the CPU, beside torch in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from meta import op
from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.dialect.core import Unsupported
from meta.dialect.cuda import grouped
from meta.ir import TensorType

CUDA = Device("cuda:0")
LAYOUTS = "NHWC", "OHWI", "NHWC"
TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2}


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
    ("extents", "groups", "outputs", "kernel", "stride", "padding", "dilation", "dtype"),
    [
        ((2, 9, 11, 48), 2, 48, (3, 3), 1, 1, 1, "bfloat16"),  # RegNet's groups
        ((1, 9, 10, 72), 3, 72, (3, 3), 2, 1, 1, "float16"),  # groups left over, strides
        ((1, 7, 7, 32), 4, 32, (3, 3), 1, 1, 1, "bfloat16"),  # ResNeXt's
        ((1, 10, 7, 32), 2, 32, (3, 3), 2, 1, 1, "bfloat16"),
        ((1, 6, 5, 48), 2, 48, (5, 5), 1, 2, 1, "float16"),  # results in parts
        ((2, 6, 7, 16), 2, 48, (1, 1), 1, 0, 1, "float16"),  # other numbers of results
        ((1, 8, 9, 48), 2, 16, (1, 1), 2, 0, 1, "bfloat16"),  # pixels that no window has
        ((1, 12, 9, 16), 2, 32, (3, 3), 1, 2, 2, "float16"),  # dilated
        ((1, 11, 9, 32), 2, 16, (3, 2), (3, 1), (0, 1, 2, 0), (1, 3), "bfloat16"),  # uneven
        ((1, 9, 8, 16), 2, 32, (7, 7), 1, 3, 1, "bfloat16"),
        ((1, 9, 8, 32), 2, 16, (3, 3), 2, 1, 2, "float16"),  # strides and dilation
    ],
)
def test_as_torch(
    extents: tuple[int, ...],
    groups: int,
    outputs: int,
    kernel: tuple[int, int],
    stride: Any,
    padding: Any,
    dilation: Any,
    dtype: str,
) -> None:
    x = drawn(*extents, dtype=dtype, seed=0)
    w = drawn(outputs, *kernel, extents[3] // groups, dtype=dtype, seed=1)
    options = stride, padding, dilation, groups, *LAYOUTS
    call = op.conv2d.call_values((of(x, dtype), of(w, dtype), *options), CUDA)
    shape = call.outputs[0].static_shape
    y, dx, dw = (torch.full(s, torch.nan, dtype=x.dtype) for s in (shape, x.shape, w.shape))
    grouped.forward(call).run(x, w, y)
    wide, kernels = (t.double().permute(0, 3, 1, 2).requires_grad_() for t in (x, w))
    top, left, bottom, right = padding if isinstance(padding, tuple) else 4 * (padding,)
    padded = torch.nn.functional.pad(wide, (left, right, top, bottom))
    expected = torch.nn.functional.conv2d(
        padded, kernels, stride=stride, dilation=dilation, groups=groups
    )
    close(y, expected.permute(0, 2, 3, 1).detach(), dtype)
    dy = drawn(*shape, dtype=dtype, seed=2)
    by_x, by_w = torch.autograd.grad(expected, (wide, kernels), dy.double().permute(0, 3, 1, 2))
    given = (of(w, dtype), None, of(dy, dtype), tuple(x.shape), *options)
    grouped.by_input(op.conv2d_dx.call_values(given, CUDA)).run(w, dy, dx)
    close(dx, by_x.permute(0, 2, 3, 1), dtype)
    given = (of(x, dtype), None, of(dy, dtype), tuple(w.shape), *options)
    call = op.conv2d_dw.call_values(given, CUDA)
    if extents[3] == outputs == 8 * groups:
        with pytest.raises(Unsupported, match="8 channels"):
            grouped.by_kernel(call)
        return
    grouped.by_kernel(call).run(x, dy, dw)
    close(dw, by_w.permute(0, 2, 3, 1), dtype)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("adds", "relu"), [(False, False), (False, True), (True, True)])
def test_what_follows(adds: bool, relu: bool) -> None:
    x, z = (drawn(1, 5, 6, 48, dtype="bfloat16", seed=i) for i in (0, 1))
    w, b = drawn(48, 3, 3, 24, dtype="bfloat16", seed=2), drawn(48, dtype="bfloat16", seed=3)
    options = 1, 1, 1, 2, *LAYOUTS
    call = op.conv2d.call_values((of(x, "bfloat16"), of(w, "bfloat16"), *options), CUDA)
    y = torch.full(x.shape, torch.nan, dtype=x.dtype)
    grouped.followed(call, adds, relu).run(x, w, b, *[z] * adds, y)
    wide, kernels = (t.double().permute(0, 3, 1, 2) for t in (x, w))
    expected = torch.nn.functional.conv2d(wide, kernels, b.double(), padding=1, groups=2)
    expected = expected.permute(0, 2, 3, 1) + (z.double() if adds else 0)
    close(y, expected.relu() if relu else expected, "bfloat16")


@pytest.mark.usefixtures("emulated")
def test_numbers_that_are_not_finite_stay_where_windows_have_them() -> None:
    x = torch.ones(1, 8, 7, 16, dtype=torch.float16)
    w = torch.ones(32, 1, 1, 8, dtype=torch.float16)
    x[0, 1::2] = torch.inf  # rows that no window has
    x[0, 0, 0, 8:] = torch.nan  # a group of one pixel
    options = (2, 2), 0, 1, 2, *LAYOUTS
    call = op.conv2d.call_values((of(x, "float16"), of(w, "float16"), *options), CUDA)
    y = torch.empty(call.outputs[0].static_shape, dtype=x.dtype)
    grouped.forward(call).run(x, w, y)
    expected = torch.full_like(y, 8)
    expected[0, 0, 0, 16:] = torch.nan
    assert y.isnan().equal(expected.isnan()) and y.nan_to_num(8).equal(expected.nan_to_num(8))
    x[0, 0, 0, 8:] = 1
    dw = torch.empty_like(w)
    given = (of(x, "float16"), None, of(y, "float16"), tuple(w.shape), *options)
    grouped.by_kernel(op.conv2d_dw.call_values(given, CUDA)).run(x, torch.ones_like(y), dw)
    assert dw.eq(16).all()


@pytest.mark.usefixtures("emulated")
def test_a_gradient_that_is_given_the_result_and_misaligned_memory() -> None:
    x, w, y, out = (
        drawn(1 + 6 * 6 * 16 * 8, dtype="float16", seed=i)[1:][:n].view(s)
        for i, (n, s) in enumerate(
            [
                (576, (1, 6, 6, 16)),
                (1152, (16, 3, 3, 8)),
                (576, (1, 6, 6, 16)),
                (576, (1, 6, 6, 16)),
            ]
        )
    )
    options = 1, 1, 1, 2, *LAYOUTS
    types = of(x, "float16"), of(w, "float16")
    call = op.conv2d.call_values((*types, *options), CUDA)
    grouped.forward(call).run(x, w, y)
    aligned = torch.empty(1, 6, 6, 16).half()
    grouped.forward(call).run(x.clone(), w.clone(), aligned)
    assert y.equal(aligned)
    given = (types[1], types[0], types[0], (1, 6, 6, 16), *options)
    grouped.by_input(op.conv2d_dx.call_values(given, CUDA)).run(w, x, y, out)
    given = (types[1], None, types[0], (1, 6, 6, 16), *options)
    grouped.by_input(op.conv2d_dx.call_values(given, CUDA)).run(w, y, aligned)
    assert out.equal(aligned)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("shape", "kernel", "groups", "layouts", "dtype", "why"),
    [
        ((1, 6, 6, 16), (16, 3, 3, 16), 1, LAYOUTS, "float16", "in groups"),
        ((1, 6, 6, 16), (16, 3, 3, 8), 2, LAYOUTS, "float32", "float16, bfloat16"),
        ((1, 6, 6, 8), (8, 3, 3, 4), 2, LAYOUTS, "float16", "multiples of 8"),
        ((1, 6, 6, 64), (64, 3, 3, 32), 2, LAYOUTS, "float16", "up to 24"),
        ((1, 16, 6, 6), (16, 8, 3, 3), 2, ("NCHW", "OIHW", "NCHW"), "float16", "come last"),
        ((0, 6, 6, 16), (16, 3, 3, 8), 2, LAYOUTS, "float16", "empty"),
        ((1, 9, 9, 48), (48, 7, 7, 24), 2, LAYOUTS, "float16", "registers"),
    ],
)
def test_others_are_refused(
    shape: tuple[int, ...], kernel: tuple[int, ...], groups: int, layouts: Any, dtype: str, why: str
) -> None:
    types = TensorType(shape, dtype), TensorType(kernel, dtype)
    with pytest.raises(Unsupported, match=why):
        grouped.forward(op.conv2d.call_values((*types, 1, 1, 1, groups, *layouts), CUDA))
