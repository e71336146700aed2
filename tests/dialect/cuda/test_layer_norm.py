"""Gradients of layer normalisation in CUDA, with what follows them, run as C++ on the CPU, beside
torch in float64.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.dialect.core import OpEnv, Unsupported, only
from meta.dialect.cuda import cuda
from meta.dialect.cuda.layer_norm import backward
from meta.ir import TensorType, parse
from meta.passes import fuse_dialect, infer_type

CUDA = Device("cuda:0")


def of_type(tensor: torch.Tensor) -> TensorType:
    return TensorType(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("dtype", "shape", "adds", "summed"),
    [
        ("float16", (2, 11, 72), True, True),  # 8 rows at a time, by two blocks
        # Two warps for a row.
        pytest.param("bfloat16", (3, 400), True, False, marks=pytest.mark.slow),
        pytest.param("float16", (3, 400), False, True, marks=pytest.mark.slow),
        # One element of an access.
        pytest.param("float32", (5, 33), True, True, marks=pytest.mark.slow),
        pytest.param("float32", (2, 3, 33), False, False, marks=pytest.mark.slow),
    ],
)
def test_gradients(dtype: str, shape: tuple[int, ...], adds: bool, summed: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, dy, addend = (torch.randn(shape, generator=generator).to(TO_TORCH[dtype]) for _ in range(3))
    scale = torch.randn(shape[-1:], generator=generator)
    call = meta.op.layer_norm_dx.call_values(
        (of_type(x), of_type(scale), of_type(dy), -1, 1e-3), CUDA
    )
    out = torch.full_like(x, float("nan"))
    sums = [torch.full_like(scale, float("nan")) for _ in range(2 + summed)]
    types = {"addend": dtype} if adds else {}
    backward(call, types, summed=summed).run(x, scale, dy, *([addend] if adds else []), out, *sums)
    wide, gamma = x.double().requires_grad_(), scale.double().requires_grad_()
    beta = torch.zeros_like(gamma).requires_grad_()
    y = F.layer_norm(wide, shape[-1:], gamma, beta, 1e-3)
    dx, dgamma, dbeta = torch.autograd.grad(y, (wide, gamma, beta), dy.double())
    dx = dx + addend.double() if adds else dx
    rows = out.double().flatten(0, -2).sum(0)  # of the numbers as they are rounded
    tolerance = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
    torch.testing.assert_close(out.double(), dx, rtol=tolerance, atol=tolerance)
    for found, correct in zip(sums, (dgamma, dbeta, rows), strict=False):
        torch.testing.assert_close(found.double(), correct, rtol=1e-4, atol=1e-4)


HEAD = "%x: {t}, %s: float32[768], %d: {t}, %c: {t}"
GRADIENT = "%g = layer_norm_dx(%x, %s, %d)\n%a = %g.0\n%p = %g.1\n%q = %g.2\n"
ADD, CAST = "%y = add(%c, %a)\n", '%h = astype({0}, "float32")\n'


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("body", "results", "dtype", "kernel"),
    [
        (ADD, "%y, %p, %q", "float16", "layer_norm_dx_add"),
        (CAST.format("%a") + "%z = sum(%h, (0, 1), True)", "%a, %p, %q, %z", "float16",
         "layer_norm_dx_sum"),
        (ADD + CAST.format("%y") + "%z = sum(%h, (0, 1))", "%y, %p, %q, %z", "bfloat16",
         "layer_norm_dx_add_sum"),
        (ADD + "%z = sum(%y, (0, 1))", "%y, %p, %q, %z", "float32",
         "layer_norm_dx_add_sum"),
        # The sum is another one, or both the gradient and its sum with what is added are needed.
        (CAST.format("%a") + "%z = sum(%h, (1,))", "%a, %p, %q, %z", "float16", None),
        (ADD, "%y, %p, %q, %a", "float16", None),
        ("%z = sum(%a, (0, 1))", "%a, %p, %q, %z", "float16", None),
    ],
)  # fmt: skip
def test_what_follows_is_part_of_it(
    body: str, results: str, dtype: str, kernel: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cuda.__dict__, "unavailable", None)
    head = HEAD.format(t=f"{dtype}[4, 128, 768]")
    text = f"func @main({head}) {{\n{GRADIENT}{body}\nreturn ({results})\n}}"
    with only("cuda"):
        found = fuse_dialect(infer_type(parse(text)), device=CUDA)
    made = [f.attrs["kernel"] for f in found.functions.values() if f.attrs]
    assert made == ([kernel] if kernel else [])


@pytest.mark.usefixtures("emulated")
def test_a_sum_behind_a_gradient_without_a_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cuda.__dict__, "unavailable", None)
    head = HEAD.format(t="bfloat16[4, 128, 768]")
    body = "%g = rms_norm_dx(%x, %s, %d)\n%a = %g.0\n%p = %g.1\n%y = add(%a, %c)"
    with only("cuda"):
        module = infer_type(parse(f"func @main({head}) {{\n{body}\nreturn (%y, %p)\n}}"))
        found = fuse_dialect(module, device=CUDA)
    assert [f.attrs["kernel"] for f in found.functions.values() if f.attrs] == ["rms_norm_saved_dx"]


def prepared(name: str, **captures: Any) -> OpEnv:
    """Return the kernel of a pattern that looks at no result."""
    return cuda.patterns[name].prepare(captures, None, CUDA)


def test_a_tensor_of_another_shape_is_added_apart() -> None:
    x, row = TensorType((4, 8), "float32"), TensorType((8,), "float32")
    with pytest.raises(Unsupported, match="is not of the type of x"):
        prepared("layer_norm_dx_add", x=x, scale=row, dy=x, axis=-1, eps=1e-5, addend=row)


SUMS = {
    "mixed_add_layer_norm": ("%y",),
    "mixed_add_layer_norm_rounded": ("%r", "%y"),
    "mixed_add_layer_norm_sum": ("%t", "%y"),
    "mixed_add_layer_norm_all": ("%t", "%r", "%y"),
}
MIXED = """%w = astype(%x, "float32")
%t = add(%c, %w)
%r = astype(%t, "bfloat16")
%y = layer_norm(%r, %s, %b)"""
PLAIN = "%t = add(%x, %c)\n%y = layer_norm(%t, %s, %b)"


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("body", "stream", "results", "kernel"),
    [
        *((MIXED, "float32[4, 128, 768]", r, k) for k, r in SUMS.items()),
        (PLAIN, "bfloat16[4, 128, 768]", ("%y",), "add_layer_norm"),
        (PLAIN, "bfloat16[4, 128, 768]", ("%t", "%y"), "add_layer_norm_sum"),
        (PLAIN, "bfloat16[128, 768]", ("%t", "%y"), None),  # is repeated
    ],
)
def test_a_sum_before_is_part_of_it(
    body: str, stream: str, results: tuple[str, ...], kernel: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setitem(cuda.__dict__, "unavailable", None)
    head = f"%x: bfloat16[4, 128, 768], %c: {stream}, %s: float32[768], %b: float32[768]"
    text = f"func @main({head}) {{\n{body}\nreturn ({', '.join(results)})\n}}"
    with only("cuda"):
        found = fuse_dialect(infer_type(parse(text)), device=CUDA)
    made = [f.attrs["kernel"] for f in found.functions.values() if f.attrs]
    assert made == ([kernel] if kernel else [])


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("dtype", "stream", "shape"),
    [
        ("bfloat16", "float32", (45, 72)),  # several rows of each thread
        pytest.param("float16", "float16", (3, 5, 1030), marks=pytest.mark.slow),
        pytest.param("float32", "float32", (7, 33), marks=pytest.mark.slow),
    ],
)
def test_normalised_sums(dtype: str, stream: str, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, addend = (torch.randn(shape, generator=generator).to(TO_TORCH[t]) for t in (dtype, stream))
    scale, bias = (torch.randn(shape[-1:], generator=generator) for _ in range(2))
    captures = {"x": of_type(x), "addend": of_type(addend), "axis": -1, "eps": 1e-5}
    captures |= {"scale": of_type(scale), "bias": of_type(bias)}
    out, rounded, wide = torch.empty_like(x), torch.empty_like(x), torch.empty_like(addend)
    if dtype == stream:
        made = prepared("add_layer_norm_sum", **captures)
        made.run(x, addend, scale, bias, rounded, out)
        wide = x + addend
    else:
        made = prepared("mixed_add_layer_norm_all", **captures, narrow=dtype)
        made.run(x, addend, scale, bias, wide, rounded, out)
    assert torch.equal(wide, x + addend)
    assert torch.equal(rounded, wide.to(x.dtype))
    exact = F.layer_norm(rounded.double(), shape[-1:], scale.double(), bias.double())
    tolerance = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
    torch.testing.assert_close(out.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("emulated")
def test_given_statistics() -> None:
    """The threads of a row are in two warps, which meet once for each row."""
    x, dy = (torch.randn(9, 400, generator=torch.Generator().manual_seed(i)) for i in range(2))
    mean, deviation = x.mean(-1), (x.var(-1, correction=0) + 1e-5).sqrt()
    scale = torch.linspace(0.5, 2, 400)
    types = [of_type(t) for t in (x, scale, dy, mean, mean)]
    call = meta.op.layer_norm_train_dx.call_values((*types, -1, 1e-5), CUDA)
    out, dscale, dbias = torch.empty_like(x), torch.empty_like(scale), torch.empty_like(scale)
    backward(call).run(x, scale, dy, mean, 1 / deviation, out, dscale, dbias)
    wide, gamma = x.double().requires_grad_(), scale.double().requires_grad_()
    F.layer_norm(wide, (400,), gamma, None, 1e-5).backward(dy.double())
    torch.testing.assert_close(out.double(), wide.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dscale.double(), gamma.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(dbias, dy.sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("adds", [False, True])
def test_gradients_without_a_mean(adds: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, dy, addend = (torch.randn(21, 72, generator=generator).bfloat16() for _ in range(3))
    scale = torch.randn(72, generator=generator)
    types = of_type(x), of_type(scale), of_type(dy), -1, 1e-3
    out, dscale = torch.empty_like(x), torch.empty_like(scale)
    if adds:
        captures = dict(zip(("x", "scale", "dy", "axis", "eps"), types, strict=True))
        captures |= {"addend": of_type(addend), "of": None, "wide": None, "more": None}
        made = prepared("rms_norm_saved_dx", **captures)
        made.run(x, scale, dy, addend, out, dscale)
    else:
        backward(meta.op.rms_norm_dx.call_values(types, CUDA)).run(x, scale, dy, out, dscale)
    wide, gamma = x.double().requires_grad_(), scale.double().requires_grad_()
    F.rms_norm(wide, (72,), gamma, 1e-3).backward(dy.double())
    expected = wide.grad + addend.double() if adds else wide.grad
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(dscale.double(), gamma.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("width", [33, 400])
def test_equal_numbers(width: int) -> None:
    """What their mean rounds away is not divided by the root of eps."""
    x = torch.tensor([6.7312, -0.1371, 1234.567, 3e-3])[:, None].repeat(1, width)
    call = meta.op.layer_norm.call_values((of_type(x), None, None, -1, 1e-5), CUDA)
    out = torch.full_like(x, float("nan"))
    cuda.ops["layer_norm"].make(call).run(x, out)
    assert abs(out).max() < 1e-6
