"""Products of a few rows in CUDA, with what stands around them, run as C++ on the CPU, beside torch
in float64.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.base.call_context import override_context
from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.dialect.core import Unsupported
from meta.dialect.cuda import cuda
from meta.dialect.cuda.few_rows import alone, product
from meta.ir import TensorType, parse
from meta.passes import dispatch, fuse_dialect, infer_type
from meta.runtime import gpu_properties
from meta.runtime.allocate import storage_address

GPU = Device("cuda:0")
TOLERANCES = {"float16": 2e-3, "bfloat16": 1.6e-2}
ACTIVATIONS = {
    None: lambda x: x,
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def types(*tensors: torch.Tensor | None) -> list[Any]:
    names = {v: k for k, v in TO_TORCH.items()}
    return [t if t is None else TensorType(tuple(t.shape), names[t.dtype]) for t in tensors]


@pytest.mark.usefixtures("emulated")
@pytest.mark.product
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    ("rows", "width", "columns", "parts"),
    [
        ((1,), 256, 12, ""),
        ((1, 1), 264, 37, "n"),
        ((3,), 8, 5, "ba"),
        ((2, 2), 520, 9, "nba"),
        ((4,), 16, 6, "n"),
        ((2,), 1032, 3, "a"),
        ((7,), 136, 33, "n"),
        ((2, 8), 512, 20, "ba"),
    ],
)
@pytest.mark.parametrize(("activation", "gates"), [(None, False), ("silu", True), ("gelu", False)])
def test_against_float64(
    rows: tuple[int, ...],
    width: int,
    columns: int,
    parts: str,
    activation: str | None,
    gates: bool,
    dtype: str,
) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(TO_TORCH[dtype])

    x, w = draw(*rows, width), draw(columns * (1 + gates), width) / width**0.5
    scale = draw(width) if "n" in parts and dtype == "bfloat16" else None
    bias = draw(w.shape[0]) if "b" in parts else None
    addend = draw(*rows, columns) if "a" in parts else None
    out = torch.full((*rows, columns), float("nan"), dtype=x.dtype)
    typed = types(scale, bias, addend)
    made = product(*types(x, w, out), GPU, typed[0], 1e-3, *typed[1:], activation, gates)
    made.run(*[t for t in (x, w, scale, bias, addend) if t is not None], out)
    y = x.double()
    if scale is not None:
        y = F.rms_norm(y, (width,), scale.double(), 1e-3)
    y = F.linear(y, w.double(), None if bias is None else bias.double())
    if gates:
        gate, up = y.chunk(2, -1)
        y = ACTIVATIONS[activation](gate) * up
    else:
        y = ACTIVATIONS[activation](y)
    y = y if addend is None else y + addend.double()
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(out.double(), y, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("emulated")
@pytest.mark.product
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    ("kind", "width", "group"),
    [
        ("int8", 528, None),
        ("int8", 96, 48),
        ("int8", 640, 32),  # the scales of a step are copied with the matrix, here 8 bytes
        ("int4", 1056, 32),
        ("int4", 64, None),
        ("int4", 1536, 128),
        ("int4", 1024, 32),
    ],
)
@pytest.mark.parametrize(
    ("rows", "symmetric", "norm", "gates"),
    [
        (1, True, True, False),
        (1, False, False, True),
        (3, False, True, False),
        (11, False, True, True),
    ],
)
def test_quantised_matrices(
    kind: str,
    width: int,
    group: int | None,
    rows: int,
    symmetric: bool,
    norm: bool,
    gates: bool,
    dtype: str,
) -> None:
    generator = torch.Generator().manual_seed(0)
    columns = 6
    x = torch.randn(rows, width, generator=generator).to(TO_TORCH[dtype])
    w = torch.randn(columns * (1 + gates), width, generator=generator) / width**0.5
    how = {"group": group, "symmetric": symmetric, "scale_dtype": "float16"}
    packed, scales, zeros = op.quantize_weight(meta.array(w), kind, **how)
    exact = op.dequantize_weight(packed, scales, zeros, dtype="float64").torch()
    scale = torch.randn(width, generator=generator).bfloat16()
    scale = scale if norm and dtype == "bfloat16" else None
    out = torch.full((rows, columns), float("nan"), dtype=x.dtype)
    given = [packed.torch(), scales.torch(), None if zeros is None else zeros.torch()]
    tx, tw, ts, tz, to = types(x, *given, out)
    options = {"scales": ts, "zeros": tz, "activation": "silu" if gates else None, "gates": gates}
    made = product(tx, tw, to, GPU, types(scale)[0], 1e-3, **options)
    made.run(*[t for t in (x, *given, scale) if t is not None], out)
    y = x.double()
    if scale is not None:
        y = F.rms_norm(y, (width,), scale.double(), 1e-3)
    y = y @ exact.T
    if gates:
        gate, up = y.chunk(2, -1)
        y = F.silu(gate) * up
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(out.double(), y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("x", "w", "result", "why"),
    [
        (("float32", 1, 8), ("float32", 4, 8), ("float32", 1, 4), "half precision"),
        (("float16", 17, 8), ("float16", 4, 8), ("float16", 17, 4), "17 rows"),
        (("float16", 1, 12), ("float16", 4, 12), ("float16", 1, 4), "not read by 8"),
        (("float16", 2, 8), ("float16", 4, 8), ("float16", 1, 8), "no rows of 4"),
        (("float16", 0, 8), ("float16", 4, 8), ("float16", 0, 4), "empty"),
    ],
)
def test_what_it_declines(x: Any, w: Any, result: Any, why: str) -> None:
    given = [TensorType(tuple(shape), dtype) for dtype, *shape in (x, w, result)]
    with pytest.raises(Unsupported, match=why):
        product(*given, GPU)


@pytest.mark.usefixtures("emulated")
def test_the_product_alone() -> None:
    x, w = torch.randn(2, 16).half(), torch.randn(5, 16).half()
    out = torch.empty(2, 5).half()
    made = alone(op.dense.call_values(tuple(types(x, w)), GPU))
    for memory in (frozenset[int](), frozenset({storage_address(w)})):
        with override_context(only_read=memory):
            made.run(x, w, out.fill_(0))
        torch.testing.assert_close(out, F.linear(x, w), rtol=2e-3, atol=2e-3)


PROGRAM = """
func @main(%x: bfloat16[1, 1, 16], %s: bfloat16[16], %w: bfloat16[{n}, 16], %b: bfloat16[{n}]
{more}) {{
  %n = rms_norm(%x, %s, eps=0.001)
  %f = reshape(%n, shape=(1, 16))
  %d = dense(%f, %w)
  {body}
}}"""
WHOLE = "%y = reshape(%d, shape=(1, 1, {n}))"
SPLIT = "%p = split(%y, indices_or_sections=2, axis=-1)\n  %g = %p.0\n  %u = %p.1"


@pytest.mark.parametrize(
    ("body", "more", "kernel", "operators"),
    [
        ("return %d", "", "few_rows_joined", 2),
        ("%e = bias_add(%d, %b, axis=1)\n  return %e", "", "few_rows_joined", 3),
        (
            f"{WHOLE}\n  %e = bias_add(%y, %b, axis=2)\n  %r = add(%z, %e)\n  return %r",
            ", %z: bfloat16[1, 1, {n}]",
            "few_rows_added",
            4,
        ),
        (f"{WHOLE}\n  %r = gelu(%y)\n  return %r", "", "few_rows_gelu", 3),
        (
            f"{WHOLE}\n  {SPLIT}\n  %a = silu(%g)\n  %r = multiply(%a, %u)\n  return %r",
            "",
            "few_rows_silu_gated",
            5,
        ),
        ("%r = relu(%d)\n  %q = multiply(%r, %d)\n  return %q", "", "few_rows_joined", 2),
    ],
)
def test_what_one_kernel_runs(
    body: str, more: str, kernel: str, operators: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cuda.__dict__, "unavailable", None)
    monkeypatch.setattr(gpu_properties, "query", lambda device: gpu_properties.DEFAULT)
    text = PROGRAM.format(n=6, body=body.format(n=6), more=more.format(n=6))
    with meta.dialect.only("cuda"):
        found = fuse_dialect(infer_type(parse(text)), device=GPU)
    fused = [f for name, f in found.functions.items() if name != "main"]
    assert [f.attrs["kernel"] for f in fused] == [kernel]
    assert "scale" in dict(fused[0].attrs["arguments"])
    calls = str(fused[0]).count("(%") - 1 - str(fused[0]).count("reshape(")
    assert calls >= operators, str(fused[0])


def test_what_stands_around_a_quantised_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cuda.__dict__, "unavailable", None)
    monkeypatch.setattr(gpu_properties, "query", lambda device: gpu_properties.DEFAULT)
    text = """func @main(%x: bfloat16[1, 1, 32], %s: bfloat16[32], %w: uint8[8, 16],
%g: float16[8, 1], %b: bfloat16[8], %c: bfloat16[1, 1, 8]) {
  %n = rms_norm(%x, %s)
  %y = quantized_matmul(%n, %w, %g)
  %e = bias_add(%y, %b, axis=2)
  %r = add(%e, %c)
  return %r
}"""
    with meta.dialect.only("cuda"):
        found = fuse_dialect(infer_type(parse(text)), device=GPU)
    (fused,) = (f for name, f in found.functions.items() if name != "main")
    assert fused.attrs["kernel"] == "few_rows_added"
    assert {n for n, _ in fused.attrs["arguments"]} == {"x", "w", "scales", "scale", "b", "c"}


def test_dispatch_chooses_it_for_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cuda.__dict__, "unavailable", None)
    monkeypatch.setattr(gpu_properties, "query", lambda device: gpu_properties.DEFAULT)
    text = "func @main(%x: float16[{n}, 16], %w: float16[6, 16]) {{ %r = dense(%x, %w) return %r }}"
    for rows, takes in ((16, True), (17, False)):
        module = infer_type(parse(text.format(n=rows)))
        with meta.dialect.only("cuda", "torch"):
            assert ("cuda.dense(" in str(dispatch(module, device=GPU))) == takes
