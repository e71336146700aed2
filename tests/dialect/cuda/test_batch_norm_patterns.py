"""What becomes of batch normalisation in networks: which calls one kernel runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import meta
from meta.base.device import Device
from meta.dialect.cuda import cuda
from meta.ir import Call, Expr, GlobalVar, Module, parse
from meta.passes import explain_fusion, fuse_dialect, infer_type
from meta.runtime import gpu_properties

CUDA = Device("cuda:0")
X, C = "float16[4, 5, 6, 8]", "float32[8]"
STATE = f"%m: {C}, %v: {C}, %w: {C}, %b: {C}"
NORM = "batch_norm_train(%x, %m, %v, %w, %b, axis=3)"
GRADIENT = "batch_norm_train_dxwb(%g, %x, %w, b=None, eps=1e-05, axis=3)"
FIELDS = "%dx = %d.0\n %dw = %d.1\n %db = %d.2"


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The dialect as on a machine that has a device."""
    monkeypatch.setitem(cuda.__dict__, "unavailable", None)
    monkeypatch.setattr(gpu_properties, "query", lambda device: gpu_properties.DEFAULT)
    with meta.dialect.only("cuda"):
        yield


def program(body: str, *images: str) -> Module:
    head = ", ".join([*(f"%{name}: {X}" for name in ("x", *images)), STATE])
    return infer_type(parse(f"func @main({head}) {{\n{body}\n}}"))


def fused(body: str, *images: str) -> tuple[list[str], Module]:
    after = fuse_dialect(program(body, *images), device=CUDA)
    calls = [b.value for b in after.main.body.bindings if isinstance(b.value, Call)]
    return [members(c.callee, after) for c in calls], after


def members(callee: Expr, module: Module) -> str:
    """Return the names of the operators that a call runs."""
    if not isinstance(callee, GlobalVar):
        return callee.name
    values = [b.value for b in module.functions[callee.name].body.bindings]
    return " ".join(v.callee.name for v in values if isinstance(v, Call))


@pytest.mark.parametrize(
    ("then", "operators", "name"),
    [
        ("%r = relu(%a)", "batch_norm_train relu", "batch_norm_relu"),
        ("%c = add(%a, %z)\n %r = relu(%c)", "batch_norm_train add relu", "batch_norm_relu"),
        ("%c = add(%z, %a)\n %r = relu(%c)", "batch_norm_train add relu", "batch_norm_relu"),
        ("%r = add(%z, %a)", "batch_norm_train add", "batch_norm_add"),
        ("%r = silu(%a)", "batch_norm_train silu", "batch_norm_silu"),
        ("%r = clip(%a, 0, 6)", "batch_norm_train clip", "batch_norm_clip"),
        (
            "%c = add(%a, %z)\n %r = hardswish(%c)",
            "batch_norm_train add hardswish",
            "batch_norm_hardswish",
        ),
        ('%r = gelu(%a, approximate="tanh")', "batch_norm_train gelu", "batch_norm_gelu_tanh"),
    ],
)
def test_forward(then: str, operators: str, name: str) -> None:
    found, module = fused(f"%a = {NORM}\n {then}\n return %r", "z")
    assert found == [operators] and module.functions[name].attrs["kernel"] == name


def test_of_two_that_are_added_one_reads_the_other() -> None:
    found, _ = fused(
        f"%a = {NORM}\n %e = batch_norm_train(%z, %w, %b, axis=3)\n %c = add(%e, %a)\n"
        "%r = relu(%c)\n return %r", "z"
    )  # fmt: skip
    assert found == ["batch_norm_train", "batch_norm_train add relu"]


def test_what_is_used_elsewhere_is_a_kernel_of_its_own() -> None:
    found, _ = fused(f"%a = {NORM}\n %r = relu(%a)\n return (%r, %a)")
    assert found == ["batch_norm_train", "relu"]
    found, _ = fused(f"%a = {NORM}\n %c = add(%a, %z)\n %r = relu(%c)\n return (%r, %c)", "z")
    assert found == ["batch_norm_train add", "relu"]


@pytest.mark.parametrize("mask", ["x=None, y=%y", "x=%y, y=None"])
def test_backward(mask: str) -> None:
    body = f"%g = relu_dx({mask}, dy=%dy)\n %d = {GRADIENT}\n {FIELDS}\n"
    found, module = fused(f"{body} return (%dx, %dw, %db)", "y", "dy")
    assert found == ["relu_dx batch_norm_train_dxwb"]
    literals = dict(module.functions["batch_norm_relu_dxwb"].attrs["literals"])
    assert literals["z"] is None and literals["b"] is None


AGAIN = """%u = astype(%x, dtype="float32")
    %e = mean(%u, axis=(0, 1, 2))
    %s = var(%u, axis=(0, 1, 2))
    %n = batch_norm_infer(%x, %e, %s, %w, %b, axis=3)"""


@pytest.mark.parametrize(
    ("gradient", "name"),
    [
        ("%g = silu_dx(%n, %dy)", "silu"),
        ("%g = hardswish_dx(%n, %dy)", "hardswish"),
        ("%g = gelu_dx(%n, y=None, dy=%dy)", "gelu"),
        ("%g = leaky_relu_dx(%n, %dy, 0.1)", "leaky_relu"),
        (
            "%lo = less_equal(%n, 0.0)\n %hi = greater_equal(%n, 6.0)\n %o = logical_or(%lo, %hi)"
            "\n %i = logical_not(%o)\n %g = where(%i, %dy, 0.0)",
            "clip",
        ),
    ],
)
def test_backward_through_an_activation(gradient: str, name: str) -> None:
    """The normalisation is done again in the same launches."""
    body = f"{AGAIN}\n {gradient}\n %d = {GRADIENT}\n {FIELDS}\n return (%dx, %dw, %db)"
    found, module = fused(body, "dy")
    assert len(found) == 1 and found[0].endswith("batch_norm_train_dxwb")
    assert [p.name for p in module.functions[f"batch_norm_{name}_dxwb"].params[:2]] == ["dy", "x"]


def test_a_masked_gradient_of_two_that_others_read_too() -> None:
    """As in a residual network, where it goes on to the layer before, and to a second norm."""
    body = f"""%t = add(%dy, %z)
      %g = relu_dx(x=None, y=%y, dy=%t)
      %d = {GRADIENT}
      {FIELDS}
      %e = batch_norm_train_dxwb(%g, %u, %w, b=None, eps=1e-05, axis=3)
      %ex = %e.0
      %ew = %e.1
      %eb = %e.2
      return (%dx, %dw, %db, %ex, %ew, %eb)"""
    found, module = fused(body, "y", "dy", "z", "u")
    assert found == ["add relu_dx batch_norm_train_dxwb", "batch_norm_train_dxwb"]
    function = module.functions["batch_norm_add_relu_dxwb"]
    assert [p.name for p in function.params[:4]] == ["dy", "z", "y", "x"]
    assert len(function.result_type.fields) == 4


def test_what_the_kernels_do_not_take() -> None:
    body = f"%a = {NORM.replace('axis=3', 'axis=1')}\n %r = relu(%a)\n return %r"
    head = f"%x: float16[4, 8, 5, 6], {STATE}"
    module = infer_type(parse(f"func @main({head}) {{\n{body}\n}}"))
    assert "made for channels on the last axis" in explain_fusion(module, device=CUDA)
    body = f"%a = {NORM}\n %c = add(%a, %s)\n return %c"
    head = f"%x: {X}, {STATE}, %s: float16[8]"
    module = infer_type(parse(f"func @main({head}) {{\n{body}\n}}"))
    assert "z is of float16[8], not of x's type" in explain_fusion(module, device=CUDA)
