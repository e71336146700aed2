"""Depthwise convolutions in CUDA, run as C++ on the CPU, beside torch in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from meta import op
from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.dialect import only
from meta.dialect.core import Unsupported
from meta.dialect.cuda import conv, depthwise
from meta.ir import TensorType, parse
from meta.passes import fuse_dialect, infer_type
from meta.runtime import gpu_properties

CUDA = Device("cuda:0")
dialect = conv.dialect
LAYOUTS = "NHWC", "OHWI", "NHWC"
OPTIONS = "stride", "padding", "dilation", "groups", "layout", "kernel_layout", "out_layout"
STATE = "mean", "var", "scale", "shift"
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


FOLLOWING = {
    "norm": (lambda y: y, {}),
    "relu": (F.relu, {}),
    "silu": (F.silu, {}),
    "hardswish": (F.hardswish, {}),
    "clip": (lambda y: F.hardtanh(y, -0.25, 3), {"first": -0.25, "second": 3}),
}


@pytest.mark.usefixtures("emulated")
@pytest.mark.product
@pytest.mark.parametrize("name", FOLLOWING)
@pytest.mark.parametrize(
    ("extents", "kernel", "stride", "dtype", "parameters"),
    [
        ((2, 9, 11, 8), (3, 3), 1, "float16", "float32"),
        ((1, 9, 10, 5), (5, 5), 2, "float32", "float32"),
        ((2, 6, 5, 70), (3, 3), 1, "bfloat16", "bfloat16"),
    ],
)
def test_what_follows(
    name: str,
    extents: tuple[int, ...],
    kernel: tuple[int, int],
    stride: int,
    dtype: str,
    parameters: str,
) -> None:
    """A bias, a normalisation, or both, and an activation."""
    activation, numbers = FOLLOWING[name]
    channels = extents[3]
    x, w = drawn(*extents, dtype=dtype, seed=0), drawn(channels, *kernel, 1, dtype=dtype, seed=1)
    vectors = (drawn(channels, dtype=parameters, seed=i) for i in (2, 3, 4, 5))
    mean, var, scale, shift = vectors
    var = var.abs() + 0.5
    bias = drawn(channels, dtype=dtype, seed=6)
    padding = kernel[0] // 2
    options = dict(zip(OPTIONS, (stride, padding, 1, channels, *LAYOUTS), strict=True))
    wide, kernels = (t.double().permute(0, 3, 1, 2) for t in (x, w))
    plain = F.conv2d(wide, kernels, stride=stride, padding=padding, groups=channels)
    for b in (None, bias):
        for norm in [(mean, var, scale, shift), (mean, var, None, None), (None,) * 4]:
            if norm[0] is None and (name == "norm" or b is None):
                continue
            exact = plain if b is None else plain + b.double()[:, None, None]
            given = [None if t is None else t.double() for t in norm]
            if norm[0] is not None:
                exact = F.batch_norm(exact, *given, False, 0.0, 1e-3)
            exact = activation(exact).permute(0, 2, 3, 1)
            tensors = dict(zip(("x", "w", "bias", *STATE), (x, w, b, *norm), strict=True))
            known = {n: None if t is None else of(t, str(t.dtype)[6:]) for n, t in tensors.items()}
            literals = {"at": 3, "momentum": 0.1, "eps": 1e-3, "axis": -1, **options, **numbers}
            y = torch.full(exact.shape, torch.nan, dtype=x.dtype)
            pattern = dialect.patterns[f"conv2d_{name}"]
            env = pattern.prepare({**known, **literals}, of(y, dtype), CUDA)
            env.run(*(t for t in tensors.values() if t is not None), y)
            close(y, exact, dtype)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("relu", [False, True])
def test_a_bias_that_is_not_aligned(relu: bool) -> None:
    x, w = drawn(2, 6, 7, 8, dtype="float16", seed=0), drawn(8, 3, 3, 1, dtype="float16", seed=1)
    bias, y = drawn(9, dtype="float16", seed=2)[1:], torch.empty_like(x)
    options = dict(zip(OPTIONS, (1, 1, 1, 8, *LAYOUTS), strict=True))
    known = {name: of(t, "float16") for name, t in (("x", x), ("w", w), ("b", bias))}
    pattern = dialect.patterns["conv2d_bias" + "_relu" * relu]
    pattern.prepare({**known, **options, "axis": 3}, of(y, "float16"), CUDA).run(x, w, bias, y)
    wide, kernels = (t.double().permute(0, 3, 1, 2) for t in (x, w))
    exact = F.conv2d(wide, kernels, bias.double(), padding=1, groups=8)
    close(y, (exact.relu() if relu else exact).permute(0, 2, 3, 1), "float16")


@pytest.mark.parametrize(
    ("then", "name"),
    [
        ("%n = batch_norm_infer(%y, %m, %v, %s, %b, axis=3)\n %r = hardswish(%n)", "hardswish"),
        ("%r = batch_norm_infer(%y, %m, %v, %s, %b, axis=3)", "norm"),
        ("%a = bias_add(%y, %b, axis=3)\n %r = silu(%a)", "silu"),
        ("%a = bias_add(%y, %b, axis=3)\n %r = relu(%a)", "relu"),
        ("%r = bias_add(%y, %b, axis=3)", "bias"),
        ("%r = relu(%y)", "relu"),
    ],
)
def test_one_kernel_runs_what_follows(
    then: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(dialect.__dict__, "unavailable", None)
    monkeypatch.setattr(gpu_properties, "query", lambda device: gpu_properties.DEFAULT)
    layout = 'layout="NHWC", kernel_layout="OHWI", out_layout="NHWC"'
    body = f"%y = conv2d(%x, %w, padding=(1, 1), groups=8, {layout})\n {then}\n return %r"
    head = "%x: float16[2, 6, 6, 8], %w: float16[8, 3, 3, 1], %m: float32[8], %v: float32[8]"
    head += ", %s: float16[8], %b: float16[8]"
    program = infer_type(parse(f"func @main({head}) {{\n{body}\n}}"))
    with only("cuda"):
        found = fuse_dialect(program, device=CUDA)
    kernels = [f.attrs["kernel"] for f in found.functions.values() if "kernel" in f.attrs]
    assert kernels == [f"conv2d_{name}"] and len(found.main.body.bindings) == 1


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
