"""Attention of the parts of one array's rows: what is fused, how parts lie, and where they are read
and written.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from meta.base.device import Device
from meta.dialect.core import only
from meta.dialect.cudnn import cudnn
from meta.dialect.cudnn import plans as execution_plans
from meta.dialect.cudnn.attention import sdpa_backward
from meta.ir import TensorType, parse
from meta.passes import dead_code, explain_fusion, fuse_dialect, infer_type
from tests.dialect.cudnn.test_graph import frontend

__all__ = ["frontend"]
CUDA = Device("cuda:0")
B, S, H, D = 2, 6, 3, 8
HEADS = f"float16[{B}, {S}, {H}, {D}]"
ROWS = {
    "flat": (f"float16[{B}, {S}, {3 * H * D}]", f"({H * D}, {2 * H * D})"),
    "five": (f"float16[{B}, {S}, 3, {H}, {D}]", "(1, 2)"),
}


def program(rows: str, result: str, axis: int = 2, mask: str = "None", layout: str = "BSHD",
            order: tuple[int, int, int] = (0, 1, 2)) -> Any:  # fmt: skip
    kind, cuts = ROWS[rows]
    parts = "\n".join(
        f"%p{i} = %s.{n}\n%q{i}: {HEADS} = reshape(%p{i}, {(B, S, H, D)})"
        for i, n in enumerate(order)
    )
    body = f"%s = split(%r, {cuts}, {axis})\n{parts}\n"
    if result == "gradient":
        views = "\n".join(f"%f{i} = reshape(%d{i}, {(B, S, H * D)})" for i in range(3))
        fields = "\n".join(f"%d{i} = %g.{i}" for i in range(3))
        given = f"%q0, %q1, %q2, {mask}, %y, %l, %d, True, 0.5"
        body += f"""%g = fused_attention_dx({given}, "{layout}")
        {fields}
        {views if rows == "flat" else ""}
        %j = {"concat((%f0, %f1, %f2), 2)" if rows == "flat" else "stack((%d0, %d1, %d2), 2)"}
        return %j"""
    else:
        body += f"""%a = fused_attention(%q0, %q1, %q2, {mask}, True, 0.5, "{layout}")
        %o = %a.0
        {"%u = %a.1" if result == "saved" else ""}
        return {"(%o, %u)" if result == "saved" else "%o"}"""
    head = f"%r: {kind}, %m: bool[{S}, {S}], %y: {HEADS}, %l: float32[{B}, {H}, {S}], %d: {HEADS}"
    return infer_type(parse(f"func @main({head}) {{\n{body}\n}}"))


@pytest.fixture(autouse=True)
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Described attentions, and plans that compute them with torch in float64."""
    made: list[Any] = []
    monkeypatch.setitem(cudnn.__dict__, "unavailable", None)

    def planned(wanted: Any) -> Any:
        describe, (attention,) = wanted.describe, wanted.details
        made.append((describe, attention))

        def run(*tensors: torch.Tensor) -> None:
            leaves = [heads(t).double().requires_grad_() for t in tensors[:3]]
            y = F.scaled_dot_product_attention(*leaves, is_causal=True, scale=0.5)
            if describe is sdpa_backward:
                dy = tensors[5].transpose(1, 2).double()
                found = torch.autograd.grad(y, leaves, dy)
                for out, gradient in zip(tensors[6:], found, strict=True):
                    out.copy_(gradient.transpose(1, 2).flatten(2))
            else:
                tensors[3].copy_(y.transpose(1, 2))

        run.workspace = 0  # type: ignore[attr-defined]
        return run

    monkeypatch.setattr(execution_plans, "_run", planned)
    return made


def heads(part: torch.Tensor) -> torch.Tensor:
    return part.unflatten(-1, (H, D)).transpose(1, 2)


KERNELS = {
    "alone": "attention_of_rows",
    "saved": "attention_of_rows_saved",
    "gradient": "attention_of_rows_dx",
}


@pytest.mark.parametrize("rows", ROWS)
def test_attention_and_its_gradient_share_the_rows(rows: str) -> None:
    """In a whole step of training both read the parts of one split, which then nothing reads."""
    saved, gradient = (str(program(rows, result)) for result in ("saved", "gradient"))
    forward = saved[saved.index("{") + 1 : saved.index("return")]
    backward = gradient[gradient.index("%g") : gradient.rindex("}")]
    backward = backward.replace("%y", "%o").replace("%l", "%u")
    step = parse(gradient[: gradient.index("{") + 1] + forward + backward + "}")
    with only("cudnn"):
        found = dead_code(fuse_dialect(step, device=CUDA))
    kernels = [f.attrs["kernel"] for f in found.functions.values() if f.attrs]
    assert sorted(kernels) == ["attention_of_rows_dx", "attention_of_rows_saved"]
    assert "split(" not in str(found.main)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("result", KERNELS)
def test_parts_are_read_and_written_in_rows(rows: str, result: str, plans: list[Any]) -> None:
    with only("cudnn"):
        found = fuse_dialect(program(rows, result), device=CUDA)
    (made,) = [f for f in found.functions.values() if f.attrs]
    assert made.attrs["kernel"] == KERNELS[result] and len(found.main.body.bindings) <= 3
    literals = dict(made.attrs["literals"])
    captures: dict[str, Any] = {**literals, "y": None}
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(B, S, 3 * H * D, generator=generator).half()
    kind = infer_type(parse(f"func @main(%r: {ROWS[rows][0]}) {{\nreturn %r\n}}")).main
    captures["rows"] = kind.params[0].type
    one = TensorType((B, S, H, D), "float16")
    results = {"alone": one, "saved": (one, TensorType((B, H, S), "float32"))}
    captures["y"] = one
    env = cudnn.patterns[KERNELS[result]].prepare(
        captures, results.get(result, captures["rows"]), CUDA
    )
    _, described = plans[-1]
    for part in (described.query, described.key, described.value):
        seen = torch.as_strided(whole, part.dims, part.strides)
        assert torch.equal(seen, heads(whole[:, :, : H * D]))
    given = whole.view(captures["rows"].static_shape)
    leaves = [heads(whole[:, :, n * H * D : (n + 1) * H * D]).double() for n in range(3)]
    leaves = [t.requires_grad_() for t in leaves]
    y = F.scaled_dot_product_attention(*leaves, is_causal=True, scale=0.5)
    if result == "gradient":
        dy = torch.randn(B, S, H, D, generator=generator).half()
        out = torch.full_like(given, float("nan"))
        env.run(given, y.transpose(1, 2).half(), torch.zeros(B, H, S), dy, out)
        gradients = torch.autograd.grad(y, leaves, dy.transpose(1, 2).double())
        expected = torch.cat([g.transpose(1, 2).flatten(2) for g in gradients], -1)
        torch.testing.assert_close(out.view(whole.shape).double(), expected, rtol=5e-3, atol=5e-3)
    else:
        out = torch.full((B, S, H, D), float("nan"), dtype=torch.float16)
        env.run(given, out, torch.empty(B, H, S))
        torch.testing.assert_close(out.double(), y.transpose(1, 2), rtol=5e-3, atol=5e-3)


def test_parts_in_another_order_are_copied() -> None:
    with only("cudnn"):
        found = fuse_dialect(program("flat", "alone", order=(2, 0, 1)), device=CUDA)
    assert not any(f.attrs for f in found.functions.values())


@pytest.mark.parametrize(
    ("changed", "reason"),
    [({"mask": "%m"}, "without a mask"), ({"layout": "BHSD"}, "heads behind the steps")],
)
def test_refusals_say_why(changed: dict[str, Any], reason: str) -> None:
    if "layout" in changed:  # of as many heads as steps both layouts have the same types
        types = {"rows": TensorType((2, 8, 3, 8, 8), "float16"), "sections": 3, "at": 2}
        types |= {"mask": None, "causal": True, "scale": None, **changed}
        with pytest.raises(Exception, match=reason):
            result = TensorType((2, 8, 8, 8), "float16")
            cudnn.patterns["attention_of_rows"].prepare(types, result, CUDA)
        return
    with only("cudnn"):
        assert reason in explain_fusion(program("five", "alone", **changed), device=CUDA)


@pytest.mark.parametrize(
    ("rows", "sections", "at", "reason"),
    [
        ((2, 6, 72), (24, 40), 2, "not thirds"),
        ((2, 6, 72), 2, 2, "not thirds"),
        ((3, 6, 24), 3, 0, "not what is split"),
        ((2, 6, 3, 6, 4), 3, 2, "no multiple of 8"),
        ((2, 5, 72), 3, 2, "no attention of thirds"),
    ],
)
def test_parts_that_are_no_thirds_of_rows(
    rows: tuple[int, ...], sections: Any, at: int, reason: str
) -> None:
    captures = {"rows": TensorType(rows, "float16"), "sections": sections, "at": at}
    captures |= {"mask": None, "causal": True, "scale": None, "layout": "BSHD"}
    width = rows[-1] if len(rows) == 5 else D
    result = TensorType((2, 6, 72 // 3 // width, width), "float16")
    with pytest.raises(Exception, match=reason):
        cudnn.patterns["attention_of_rows"].prepare(captures, result, CUDA)
