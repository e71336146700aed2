"""Products of CUTLASS with epilogues in programs: what is fused, what a kernel is given, and what
is declined. Kernels are emulated.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.base.device import Device
from meta.dialect import only, prefer
from meta.ir import parse
from meta.passes import explain_fusion, infer_type

pytestmark = pytest.mark.usefixtures("emulated")
CPU = Device("cpu")
ACTIVATIONS = {
    "silu": ("silu({})", "silu_dx({}, {})"),
    "gelu": ("gelu({})", "gelu_dx({}, None, {})"),
    "gelu_tanh": ('gelu({}, "tanh")', 'gelu_dx({}, None, {}, "tanh")'),
    "relu": ("relu({})", "relu_dx(None, {}, {})"),
    "sigmoid": ("sigmoid({})", ""),
}
FORMS = [("dense", "3, 4"), ("matmul", "12")]
PRODUCTS = {"dense": "%w: bfloat16[24, 16]", "matmul": "%w: bfloat16[16, 24]"}


def program(name: str, body: str, operands: str = "", rows: str = "12") -> str:
    """Return a program of a product %y, of (12, 24), or of (3, 4, 24) after a reshape."""
    head = f"%x: bfloat16[12, 16], {PRODUCTS[name]}{', ' * bool(operands)}{operands}"
    first = f"%y = {name}(%x, %w)"
    if rows != "12":
        first = f"%z = {name}(%x, %w)\n %y = reshape(%z, ({rows}, 24))"
    return f"func @main({head}) {{\n {first}\n {body}\n}}"


def arguments(text: str, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """Return arguments of a program."""
    generator = torch.Generator().manual_seed(0)
    types = [p.type for p in infer_type(parse(text)).main.params]
    return [torch.randn(t.static_shape, generator=generator).to(dtype) for t in types]


def flat(value: Any) -> list[torch.Tensor]:
    return [v.torch() for v in (value if isinstance(value, tuple) else (value,))]


def check(text: str, kernel: str) -> None:
    """Check that a program runs on one kernel of the dialect, and its results."""
    given = arguments(text)
    with only("cutlass", "torch"), prefer("cutlass"):
        run = meta.vm.compile(infer_type(parse(text)))
    assert run.kernels() == {f"cutlass.{kernel}": 1}
    wide = infer_type(parse(text.replace("bfloat16", "float64")))
    with only("torch"):
        expected = flat(
            meta.vm.compile(wide, opt_level=0)(*[meta.array(x.double()) for x in given])
        )
    for y, known in zip(flat(run(*[meta.array(x) for x in given])), expected, strict=True):
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(y.double(), known, rtol=8e-3, atol=2e-2)


@pytest.mark.parametrize(("name", "rows"), FORMS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(name: str, activation: str, rows: str) -> None:
    act, dx = ACTIVATIONS[activation]
    tile, bias = f"%c: bfloat16[{rows}, 24]", "%b: bfloat16[24]"
    axis = 1 if rows == "12" else 2
    if activation in ("silu", "gelu"):
        then = f"%r = {act.format('%y')}\n return %r"
        check(program(name, then, rows=rows), f"{name}_{activation}")
        both = then.replace("return %r", "return (%r, %y)")
        check(program(name, both, rows=rows), f"{name}_{activation}_kept")
        added = f"%h = bias_add(%y, %b, {axis})\n %r = {act.format('%h')}\n return %r"
        check(program(name, added, bias, rows), f"{name}_bias_{activation}")
        both = added.replace("return %r", "return (%r, %h)")
        check(program(name, both, bias, rows), f"{name}_bias_{activation}_kept")
    times = f"%a = {act.format('%c')}\n %r = multiply(%a, %y)\n return %r"
    check(program(name, times, tile, rows), f"{name}_times_{activation}")
    if not dx:
        return
    gradient = f"%r = {dx.format('%c', '%y')}\n return %r"
    check(program(name, gradient, tile, rows), f"{name}_{activation}_dx")
    before = "%s" if activation == "relu" else "%g"
    body = (
        f"%ds = multiply(%y, %c)\n %dc = multiply(%y, %s)\n %dg = {dx.format(before, '%ds')}\n"
        "return (%dc, %dg)"
    )
    tiles = ", ".join(f"%{n}: bfloat16[{rows}, 24]" for n in ("c", "s", "g"))
    if activation == "relu":
        tiles = tiles[: tiles.index(", %g")]
    check(program(name, body, tiles, rows), f"{name}_gated_{activation}_dx")


@pytest.mark.parametrize(("name", "rows"), FORMS)
def test_sums_and_factors(name: str, rows: str) -> None:
    tile, axis = f"%c: bfloat16[{rows}, 24]", 1 if rows == "12" else 2
    biased = f"%h = bias_add(%y, %b, {axis})\n "
    for operator, suffix in (("add", "add"), ("multiply", "times")):
        check(program(name, f"%r = {operator}(%c, %y)\n return %r", tile, rows), f"{name}_{suffix}")
        body = f"{biased}%r = {operator}(%h, %c)\n return %r"
        given = f"%b: bfloat16[24], {tile}"
        check(program(name, body, given, rows), f"{name}_bias_{suffix}")
    both = "%r = multiply(%c, %y)\n return (%r, %y)"
    check(program(name, both, tile, rows), f"{name}_times_saved")
    column, row = f"%v: bfloat16[{rows}, 1]", "%u: bfloat16[24]"
    scaled = "%r = multiply(%y, %v)\n return %r"
    check(program(name, scaled, column, rows), f"{name}_scaled")
    check(program(name, scaled, row.replace("%u", "%v"), rows), f"{name}_scaled")
    twice = "%p = multiply(%y, %v)\n %r = multiply(%p, %u)\n return %r"
    for first, second in ((column, row), (row, column)):
        given = f"%v{first[2:]}, %u{second[2:]}"
        check(program(name, twice, given, rows), f"{name}_scaled_twice")


GATED = """func @main(%x: bfloat16[12, 16], %w: bfloat16[48, 16]) {{
  %y = dense(%x, %w)
  {cut}
  %a = %p.{first}
  %b = %p.{second}
  {views}
  %r = multiply(%s, {other})
  return %r
}}"""
CUT = "%p = split(%y, 2, -1)"
WHOLE = "%z = reshape(%y, (3, 4, 48))\n %p = split(%z, (24,), 2)"


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("first", [0, 1])
def test_gated_layers_of_joined_weights(first: int, activation: str, emulated: Any) -> None:
    act = ACTIVATIONS[activation][0]
    suffix = "_second" if first else ""
    gate = f"%s = {act.format('%a')}"
    apart = f"%h = reshape(%a, (3, 4, 24))\n %k = reshape(%b, (3, 4, 24))\n %s = {act.format('%h')}"
    for cut, views, other in ((CUT, gate, "%b"), (CUT, apart, "%k"), (WHOLE, gate, "%b")):
        text = GATED.format(cut=cut, views=views, other=other, first=first, second=1 - first)
        check(text, f"dense_gated_{activation}{suffix}")
    assert {one.kernel.form for one in emulated} == {f"gated{suffix}"}


@pytest.mark.parametrize(
    "cut",
    [
        "%p = split(%y, 2, 0)",
        "%z = reshape(%y, (3, 4, 48))\n %p = split(%z, 2, 1)",
        "%z = reshape(%y, (24, 24))\n %p = split(%z, 2, 1)",
    ],
)
def test_products_that_are_cut_otherwise(cut: str) -> None:
    """Their halves, seen as rows of 24, are of equal shapes all the same."""
    views = "%h = reshape(%a, (12, 24))\n %k = reshape(%b, (12, 24))\n %s = silu(%h)"
    text = GATED.format(cut=cut, views=views, other="%k", first=0, second=1)
    with only("cutlass"):
        found = explain_fusion(infer_type(parse(text)), device=CPU)
    assert "the product is not cut along its columns" in found
