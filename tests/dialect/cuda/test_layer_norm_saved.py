"""Layer normalisation that saves statistics, with casts and sums beside it: which calls are one
kernel, and kernels run as C++ on the CPU, beside torch in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.dialect.core import Unsupported, only
from meta.dialect.cuda import cuda
from meta.ir import Call, TensorType, parse
from meta.passes import fuse_dialect, infer_type

CUDA = Device("cuda:0")
WIDE, SHAPE = "float32[4, 128, 768]", "[4, 128, 768]"
HEAD = (
    f"%x: {WIDE}, %h: bfloat16{SHAPE}, %r: {WIDE}, %s: float32[768], %b: float32[768], "
    f"%m: float32[4, 128], %i: float32[4, 128], %d: {WIDE}, %e: bfloat16{SHAPE}, %g: {WIDE}"
)
NORM = "%n = layer_norm_train({}, %s, %b)\n%y = %n.0\n%mean = %n.1\n%inv = %n.2\n"
CAST = '%c = astype(%y, dtype="bfloat16")\n'
SUM = '%w = astype(%h, dtype="float32")\n%t = add(%w, %r)\n'
GRADIENT = (
    "%n = layer_norm_train_dx(%x, %s, {}, %m, %i, eps=0.0)\n%dx = %n.0\n%dw = %n.1\n%db = %n.2\n"
)
ROOT = "%y = rms_norm({}, %s)\n"
ROOT_DX = "%n = rms_norm_dx(%x, %s, {})\n%dx = %n.0\n%dw = %n.1\n"
SLOPE = '%u = astype(%e, dtype="float32")\n'
HALF = '%p = astype(%h, dtype="float32")\n'
SWAPPED = '%w = astype(%h, dtype="float32")\n%t = add(%r, %w)\n'
BOTH = SLOPE + '%q = astype(%h, dtype="float32")\n%v = add(%u, %q)\n'
NARROW = '%z = astype({}, dtype="bfloat16")\n'


@pytest.fixture(autouse=True)
def _available(emulated: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(cuda.__dict__, "unavailable", None)
    with only("cuda"):
        yield


@pytest.mark.parametrize(
    ("body", "results", "kernel"),
    [
        (NORM.format("%x") + CAST, "%c, %mean, %inv", "layer_norm_cast"),
        (NORM.format("%x") + CAST, "%y, %c, %mean, %inv", "layer_norm_cast_too"),
        (SUM + NORM.format("%t") + CAST, "%t, %c, %mean, %inv", "add_layer_norm_cast"),
        (SUM + NORM.format("%t") + CAST, "%t, %y, %c, %mean, %inv", "add_layer_norm_cast_too"),
        (SUM + NORM.format("%t"), "%t, %y, %mean, %inv", "add_layer_norm_saved"),
        ("%t = add(%x, %r)\n" + NORM.format("%t") + CAST, "%t, %c, %mean, %inv",
         "add_layer_norm_cast"),
        (NORM.format("%x"), "%y, %mean, %inv", None),
        (SLOPE + GRADIENT.format("%u"), "%dx, %dw, %db", "layer_norm_saved_dx"),
        (GRADIENT.format("%d"), "%dx, %dw, %db", None),
        (SLOPE + GRADIENT.format("%u") + "%a = add(%dx, %g)\n" + NARROW.format("%a"),
         "%a, %z, %dw, %db", "layer_norm_saved_dx_cast_too"),
        (SLOPE + GRADIENT.format("%u") + "%a = add(%g, %dx)\n" + NARROW.format("%a"),
         "%z, %dw, %db", "layer_norm_saved_dx_cast"),
        (SLOPE + "%v = add(%u, %d)\n" + GRADIENT.format("%v") + NARROW.format("%dx"),
         "%dx, %z, %dw, %db", "layer_norm_saved_dx_cast_too"),
        ("%v = add(%g, %d)\n" + GRADIENT.format("%v"), "%dx, %dw, %db", "layer_norm_saved_dx"),
        (ROOT.format("%x") + CAST, "%c", "rms_norm_cast"),
        (ROOT.format("%x") + CAST, "%y, %c", "rms_norm_cast_too"),
        (SLOPE + ROOT.format("%u") + CAST, "%c", "rms_norm_cast"),
        (SLOPE + ROOT.format("%u"), "%y", "rms_norm_of_cast"),
        (SLOPE + ROOT.format("%u") + CAST, "%y, %c", "rms_norm_cast_too"),
        (SLOPE + NORM.format("%u"), "%y, %mean, %inv", "layer_norm_of_cast"),
        (SLOPE + NORM.format("%u") + CAST, "%c, %mean, %inv", "layer_norm_cast"),
        (HALF + GRADIENT.format("%d").replace("%x", "%p") + NARROW.format("%dx"), "%z, %dw, %db",
         "layer_norm_saved_dx_cast"),
        (HALF + SLOPE + GRADIENT.format("%u").replace("%x", "%p"), "%dx, %dw, %db",
         "layer_norm_saved_dx"),
        (HALF + SLOPE + ROOT_DX.format("%u").replace("%x", "%p") + NARROW.format("%dx"),
         "%z, %dw", "rms_norm_saved_dx_cast"),
        (SUM + ROOT.format("%t"), "%t, %y", "add_rms_norm"),
        (SUM + ROOT.format("%t") + CAST, "%t, %c", "add_rms_norm_cast"),
        (SUM + ROOT.format("%t") + CAST, "%t, %y, %c", "add_rms_norm_cast_too"),
        (SWAPPED + ROOT.format("%t") + CAST, "%t, %c", "add_rms_norm_cast"),
        (SWAPPED + NORM.format("%t") + CAST, "%t, %c, %mean, %inv", "add_layer_norm_cast"),
        (BOTH + ROOT_DX.format("%v") + "%a = add(%dx, %g)\n" + NARROW.format("%a"),
         "%a, %z, %dw", "rms_norm_saved_dx_cast_too"),
        (BOTH + GRADIENT.format("%v"), "%dx, %dw, %db", "layer_norm_saved_dx"),
        (SLOPE + "%v = add(%d, %u)\n" + GRADIENT.format("%v"), "%dx, %dw, %db",
         "layer_norm_saved_dx"),
        (ROOT.format("%x"), "%y", None),
        (SLOPE + ROOT_DX.format("%u"), "%dx, %dw", "rms_norm_saved_dx"),
        (SLOPE + ROOT_DX.format("%u") + "%a = add(%dx, %g)\n" + NARROW.format("%a"),
         "%a, %z, %dw", "rms_norm_saved_dx_cast_too"),
        (SLOPE + "%v = add(%u, %d)\n" + ROOT_DX.format("%v") + NARROW.format("%dx"),
         "%z, %dw", "rms_norm_saved_dx_cast"),
    ],
)  # fmt: skip
def test_what_is_one_kernel(body: str, results: str, kernel: str | None) -> None:
    module = infer_type(parse(f"func @main({HEAD}) {{\n{body}\nreturn ({results})\n}}"))
    found = fuse_dialect(module, device=CUDA)
    made = [f.attrs["kernel"] for f in found.functions.values() if f.attrs]
    assert made == ([kernel] if kernel else [])
    calls = [b for b in found.main.body.bindings if isinstance(b.value, Call)]
    assert kernel is None or len(calls) == 1


def of_type(tensor: torch.Tensor) -> TensorType:
    return TensorType(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def prepared(name: str, **captures: Any) -> Any:
    absent = dict.fromkeys(("addend", "more", "of", "wide", "narrow"))
    return cuda.patterns[name].prepare({**absent, **captures}, None, CUDA)


TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}


@pytest.mark.parametrize(
    ("dtype", "shape"), [("bfloat16", (45, 72)), ("float16", (3, 400)), ("float32", (5, 33))]
)
@pytest.mark.parametrize("both", [False, True], ids=["cast", "both"])
def test_sums_and_casts(dtype: str, shape: tuple[int, ...], both: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, addend = (torch.randn(shape, generator=generator) for _ in range(2))
    x = x.to(TO_TORCH[dtype])
    scale, bias = (torch.randn(shape[-1:], generator=generator) for _ in range(2))
    total, y = torch.empty_like(addend), torch.empty_like(addend)
    narrow = torch.empty(shape, dtype=torch.bfloat16)
    mean, inv = (torch.empty(shape[:-1]) for _ in range(2))
    captures = {"x": of_type(x), "addend": of_type(addend), "axis": -1, "eps": 1e-5}
    captures |= {"scale": of_type(scale), "bias": of_type(bias), "narrow": "bfloat16"}
    captures["wide"] = None if dtype == "float32" else "float32"
    made = prepared("add_layer_norm_cast_too" if both else "add_layer_norm_cast", **captures)
    made.run(x, addend, scale, bias, total, *([y] if both else []), narrow, mean, inv)
    assert torch.equal(total, x.float() + addend)
    exact = F.layer_norm(total.double(), shape[-1:], scale.double(), bias.double())
    if both:
        torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-5)
        assert torch.equal(narrow, y.bfloat16())
    torch.testing.assert_close(narrow.double(), exact, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(mean.double(), total.double().mean(-1), rtol=1e-5, atol=1e-5)
    deviation = (total.double().var(-1, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(1 / inv.double(), deviation, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "shape", "more", "adds", "kernel"),
    [
        ("bfloat16", (2, 11, 72), False, True, "layer_norm_saved_dx_cast_too"),
        ("float16", (9, 400), True, False, "layer_norm_saved_dx_cast_too"),
        ("float32", (5, 33), True, True, "layer_norm_saved_dx"),
        ("bfloat16", (3, 768), False, True, "layer_norm_saved_dx_cast"),
        # More rows than thread blocks: each has several.
        pytest.param("float16", (300, 96), True, True, "layer_norm_saved_dx_cast",
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_gradients(dtype: str, shape: tuple[int, ...], more: bool, adds: bool, kernel: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, dy, other, addend = (torch.randn(shape, generator=generator) for _ in range(4))
    dy, other = dy.to(TO_TORCH[dtype]), other.to(TO_TORCH[dtype if adds else "float32"])
    scale = torch.rand(shape[-1:], generator=generator) + 0.5
    mean, inv = x.mean(-1), (x.var(-1, correction=0) + 1e-5).rsqrt()
    captures = {"x": x, "scale": scale, "dy": dy, "mean": mean, "inv": inv}
    captures |= {"more": other} if more else {}
    captures |= {"addend": addend} if adds else {}
    types: dict[str, Any] = {name: of_type(tensor) for name, tensor in captures.items()}
    types |= {"axis": -1, "eps": 0.0, "wide": None if dtype == "float32" else "float32"}
    casts = "cast" in kernel
    made = prepared(kernel, **types, **({"narrow": "float16"} if casts else {}))
    out, narrow = torch.empty(shape), torch.empty(shape, dtype=torch.float16)
    results = [out, narrow] if kernel.endswith("too") else [narrow] if casts else [out]
    dw, db = torch.empty_like(scale), torch.empty_like(scale)
    made.run(*captures.values(), *results, dw, db)
    exact, gamma = x.double().requires_grad_(), scale.double().requires_grad_()
    beta = torch.zeros_like(gamma).requires_grad_()
    y = F.layer_norm(exact, shape[-1:], gamma, beta, 1e-5)
    slope = dy.double() + (other.double() if more else 0)
    dx, *sums = torch.autograd.grad(y, (exact, gamma, beta), slope)
    dx = dx + addend.double() if adds else dx
    for found in results:
        tolerance = TOLERANCE[str(found.dtype).removeprefix("torch.")]
        torch.testing.assert_close(found.double(), dx, rtol=tolerance, atol=tolerance)
    for found, correct in zip((dw, db), sums, strict=True):
        torch.testing.assert_close(found.double(), correct, rtol=1e-4, atol=1e-4)


@pytest.mark.product
@pytest.mark.parametrize("width", [72, 400, 33])
@pytest.mark.parametrize("adds", [False, True])
def test_root_mean_squares(width: int, adds: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, h, other, addend = (torch.randn(7, 5, width, generator=generator) for _ in range(4))
    other = other.bfloat16() if adds else other
    h, scale = h.bfloat16(), torch.rand(width, generator=generator) + 0.5
    captures: dict[str, Any] = {"scale": of_type(scale), "bias": None, "axis": -1, "eps": 1e-6}
    y, narrow = torch.empty_like(x), torch.empty(x.shape, dtype=torch.bfloat16)
    if adds:
        total = torch.empty_like(x)
        types = {"x": of_type(h), "addend": of_type(x), "wide": "float32", "narrow": "bfloat16"}
        made = prepared("add_rms_norm_cast_too", **captures, **types)
        made.run(h, x, scale, total, y, narrow)
        assert torch.equal(total, x + h)
    else:
        total = x
        made = prepared("rms_norm_cast_too", **captures, x=of_type(x), narrow="bfloat16")
        made.run(x, scale, y, narrow)
    exact, gamma = total.double().requires_grad_(), scale.double().requires_grad_()
    expected = F.rms_norm(exact, (width,), gamma, 1e-6)
    torch.testing.assert_close(y.double(), expected.detach(), rtol=1e-5, atol=1e-5)
    assert torch.equal(narrow, y.bfloat16())
    del captures["bias"]
    given = {"x": total, "scale": scale, "dy": h, "more": other}
    given |= {"addend": addend} if adds else {}
    types = {name: of_type(tensor) for name, tensor in given.items()}
    made = prepared(
        "rms_norm_saved_dx_cast_too", **captures | types, wide="float32", narrow="float16"
    )
    out, half, dw = torch.empty_like(x), torch.empty(x.shape).half(), torch.empty_like(scale)
    made.run(*given.values(), out, half, dw)
    slope = h.double() + other.double()
    dx, dgamma = torch.autograd.grad(expected, (exact, gamma), slope)
    dx = dx + addend.double() if adds else dx
    torch.testing.assert_close(out.double(), dx, rtol=1e-5, atol=1e-5)
    assert torch.equal(half, out.half())
    torch.testing.assert_close(dw.double(), dgamma, rtol=1e-4, atol=1e-4)


def test_what_does_not_fit() -> None:
    x, row = TensorType((4, 8), "float32"), TensorType((8,), "float32")
    half = TensorType((4, 8), "float16")
    statistics = TensorType((4,), "float32")
    forward = {"x": x, "scale": row, "bias": row, "axis": -1, "eps": 1e-5}
    with pytest.raises(Unsupported, match="addend is of"):
        prepared("add_layer_norm_saved", **forward, addend=row)
    with pytest.raises(Unsupported, match="cast to float64"):
        prepared("layer_norm_cast", **forward, narrow="float64")
    backward = {"x": x, "scale": row, "dy": half, "mean": statistics, "inv": statistics}
    backward |= {"axis": -1, "eps": 0.0}
    with pytest.raises(Unsupported, match="does not become"):
        prepared("layer_norm_saved_dx", **backward)
    with pytest.raises(Unsupported, match="nothing is beside it"):
        prepared("layer_norm_saved_dx", **{**backward, "dy": x})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("narrow", [None, "bfloat16"])
def test_a_norm_of_a_cast(dtype: str, narrow: str | None) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 5, 72, generator=generator).to(TO_TORCH[dtype])
    scale = torch.rand(72, generator=generator) + 0.5
    captures = {"x": of_type(x), "scale": of_type(scale), "bias": None, "axis": -1, "eps": 1e-6}
    name = "rms_norm_of_cast" if narrow is None else "rms_norm_cast"
    made = prepared(name, **captures, of="float32", narrow=narrow)
    out = torch.empty(x.shape, dtype=TO_TORCH[narrow or "float32"])
    made.run(x, scale, out)
    expected = F.rms_norm(x.float(), (72,), scale, 1e-6)
    torch.testing.assert_close(
        out, expected.to(out.dtype), rtol=1e-2 if narrow else 1e-5, atol=1e-5
    )


@pytest.mark.parametrize("narrow", [None, "bfloat16"])
@pytest.mark.parametrize("root", [False, True])
def test_gradients_of_a_cast(root: bool, narrow: str | None) -> None:
    """x is of half precision, and normalised in float32."""
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(7, 5, 72, generator=generator) for _ in range(2))
    x, scale = x.bfloat16(), torch.rand(72, generator=generator) + 0.5
    mean, inv = x.float().mean(-1), (x.float().var(-1, correction=0) + 1e-5).rsqrt()
    given = {"x": x, "scale": scale, "dy": dy} | ({} if root else {"mean": mean, "inv": inv})
    types: dict[str, Any] = {name: of_type(tensor) for name, tensor in given.items()}
    types |= {"axis": -1, "eps": 1e-5 if root else 0.0, "of": "float32", "narrow": narrow}
    norm = "rms_norm" if root else "layer_norm"
    made = prepared(f"{norm}_saved_dx{'' if narrow is None else '_cast'}", **types)
    out = torch.empty(x.shape, dtype=TO_TORCH[narrow or "float32"])
    sums = [torch.empty_like(scale) for _ in range(2 - root)]
    made.run(*given.values(), out, *sums)
    exact, gamma = x.double().requires_grad_(), scale.double().requires_grad_()
    if root:
        y = F.rms_norm(exact, (72,), gamma, 1e-5)
    else:
        y = F.layer_norm(exact, (72,), gamma, None, 1e-5)
    dx, dgamma = torch.autograd.grad(y, (exact, gamma), dy.double())
    close = 1e-2 if narrow else 1e-5
    torch.testing.assert_close(out.double(), dx, rtol=close, atol=close)
    torch.testing.assert_close(sums[0].double(), dgamma, rtol=1e-4, atol=1e-4)
