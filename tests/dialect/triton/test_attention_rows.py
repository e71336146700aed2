"""Attention with dropout of parts of rows, in Triton: what is fused, and that parts are read and
written where they are, by the interpreter.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.base.device import CPU, Device
from meta.dialect.core import only
from meta.ir import TensorType, parse
from meta.passes import fuse_dialect, infer_type
from tests.op.attention import attention as oracle
from tests.op.attention import attention_dx as oracle_dx

pytest.importorskip("triton")

from meta.dialect.triton import attention, interpreted, triton_dialect

CUDA = Device("cuda:0")
B, S, H, D = 2, 6, 3, 8
HEADS = f"float32[{B}, {S}, {H}, {D}]"
ROWS = {
    "flat": (f"float32[{B}, {S}, {3 * H * D}]", f"({H * D}, {2 * H * D})"),
    "five": (f"float32[{B}, {S}, 3, {H}, {D}]", "(1, 2)"),
}
KERNELS = {
    "alone": "attention_of_rows",
    "saved": "attention_of_rows_saved",
    "gradient": "attention_of_rows_dx",
}


def program(rows: str, result: str, mask: str) -> Any:
    """Return a program of attention with dropout, of parts of rows."""
    kind, cuts = ROWS[rows]
    parts = "\n".join(
        f"%p{i} = %s.{i}\n%q{i}: {HEADS} = reshape(%p{i}, {(B, S, H, D)})" for i in range(3)
    )
    body = f"%s = split(%r, {cuts}, 2)\n{parts}\n"
    options = 'True, 0.5, "BSHD", None, None, %k, 0.3'
    if result == "gradient":
        views = "\n".join(f"%f{i} = reshape(%d{i}, {(B, S, H * D)})" for i in range(3))
        fields = "\n".join(f"%d{i} = %g.{i}" for i in range(3))
        body += f"""%g = fused_attention_dx(%q0, %q1, %q2, {mask}, %y, %l, %d, {options})
        {fields}
        {views if rows == "flat" else ""}
        %j = {"concat((%f0, %f1, %f2), 2)" if rows == "flat" else "stack((%d0, %d1, %d2), 2)"}
        return %j"""
    else:
        body += f"""%a = fused_attention(%q0, %q1, %q2, {mask}, {options})
        %o = %a.0
        {"%u = %a.1" if result == "saved" else ""}
        return {"(%o, %u)" if result == "saved" else "%o"}"""
    head = f"%r: {kind}, %m: bool[{S}, {S}], %y: {HEADS}, %l: float32[{B}, {H}, {S}], %d: {HEADS}"
    return infer_type(parse(f"func @main({head}, %k: int64[1]) {{\n{body}\n}}"))


@pytest.mark.product
@pytest.mark.parametrize("mask", ["None", "%m"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("result", KERNELS)
def test_parts_are_read_and_written_in_rows(rows: str, result: str, mask: str) -> None:
    with only("triton"), interpreted():
        found = fuse_dialect(program(rows, result, mask), device=CPU)
    (made,) = [f for f in found.functions.values() if f.attrs]
    assert made.attrs["kernel"] == KERNELS[result] and len(found.main.body.bindings) <= 3
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(B, S, 3, H, D, generator=generator)
    seen = torch.rand(S, S, generator=generator) > 0.3
    key = torch.tensor([2**33 + 5])
    kind = infer_type(parse(f"func @main(%r: {ROWS[rows][0]}) {{\nreturn %r\n}}"))
    type_, one = kind.main.params[0].type, TensorType((B, S, H, D), "float32")
    sums = TensorType((B, H, S), "float32")
    captures = {
        **dict(made.attrs["literals"]), "rows": type_, "y": one, "logsumexp": sums, "dy": one,
        "mask": None if mask == "None" else TensorType((S, S), "bool"),
        "dropout_key": TensorType((1,), "int64"),
    }  # fmt: skip
    results = {"alone": one, "saved": (one, sums), "gradient": type_}
    with interpreted():
        env = triton_dialect.patterns[KERNELS[result]].prepare(captures, results[result], CPU)
    given = whole.view(type_.static_shape)
    masks = [] if mask == "None" else [seen]
    how = {"layout": "BSHD", "dropout_key": key, "dropout_p": 0.3}
    parts = [whole[:, :, i].double() for i in range(3)]
    options = (None if mask == "None" else seen, True, 0.5)
    y, logsumexp = oracle(*parts, *options, **how)
    if result == "gradient":
        dy = torch.randn(B, S, H, D, generator=generator)
        out = torch.full_like(given, float("nan"))
        values = (given, *masks, y.float().contiguous(), logsumexp.float(), dy, key, out)
        env.run(*values)
        backward = (*parts, options[0], y, logsumexp, dy.double(), *options[1:])
        expected = torch.stack(oracle_dx(*backward, **how), 2)
        torch.testing.assert_close(out.view(whole.shape).double(), expected, rtol=1e-4, atol=1e-4)
        return
    out = torch.full((B, S, H, D), float("nan"))
    lse = torch.full((B, H, S), float("nan"))
    env.run(given, *masks, key, out, *([lse] if result == "saved" else []))
    torch.testing.assert_close(out.double(), y, rtol=1e-4, atol=1e-5)
    if result == "saved":
        torch.testing.assert_close(lse.double(), logsumexp, rtol=1e-4, atol=1e-5)


def test_without_dropout_it_is_left_to_others() -> None:
    text = str(program("flat", "alone", "None")).replace(", dropout_key=%k, dropout_p=0.3", "")
    with only("triton"), interpreted():
        found = fuse_dialect(parse(text), device=CPU)
    assert not any(f.attrs for f in found.functions.values())
    assert meta.dialect.triton.triton_dialect.patterns.keys() >= set(KERNELS.values())
    assert attention.LEVEL < 15  # libraries first
