"""The pass `simplify_attention`: masks that are known, and heads that are repeated."""

from __future__ import annotations

import pytest
import torch

import meta
from meta.dialect.core.ir_calls import op_call
from meta.ir import Module, parse, verify
from meta.passes import autodiff, infer_type, simplify_attention
from meta.vm.compiler.calling_convention import module_program
from meta.vm.run.interpreter import interpret

TRUE = '%t = full(shape=(6, 6), fill_value=True, dtype="bool")'
FALSE = '%t = full(shape=(6, 6), fill_value=False, dtype="bool")'
LOWER = f"{TRUE}\n%m = tril(%t)"
NUMBERS = f'{LOWER}\n%n = where(%m, 0.0, {{}})\n%b = astype(%n, dtype="float32")'
BEFORE = """
    %i = arange(start=0, stop=6, dtype="int64")
    %q0 = expand_dims(%i, axis=1)
    %k0 = expand_dims(%i, axis=0)
    %m0 = less_equal(%k0, %q0)
    %m1 = expand_dims(%m0, axis=0)
    %m = broadcast_to(%m1, shape=(2, 1, 6, 6))"""
MASKS: dict[str, tuple[str, str, tuple[bool, bool]]] = {
    # What makes it, its name, and whether the mask is left and the call is causal.
    "true": (TRUE, "%t", (False, False)),
    "zeros": ("%z = zeros(shape=(6,))", "%z", (False, False)),
    "lower": (LOWER, "%m", (False, True)),
    "of places": (BEFORE, "%m", (False, True)),
    "infinite": (NUMBERS.format("-inf"), "%b", (False, True)),
    "lowest": (NUMBERS.format("-3.4028234663852886e+38"), "%b", (False, True)),
    "numbers": (NUMBERS.format("-7.0"), "%b", (True, False)),
    "nothing": (FALSE, "%t", (True, False)),
    "window": (f"{TRUE}\n%m = tril(%t, k=1)", "%m", (False, False)),
    "band": (f"{TRUE}\n%l = tril(%t)\n%m = triu(%l, k=-2)", "%m", (False, True)),
    "two": (f"{TRUE}\n%m = tril(%t, k=-1)", "%m", (True, False)),  # a query sees nothing
    "of an input": ("%m = less_equal(%x, 0.5)", "%m", (True, False)),
}


def program(body: str) -> Module:
    params = "%q: float32[2, 4, 6, 8], %k: float32[2, 2, 6, 8], %v: float32[2, 2, 6, 8]"
    text = f"func @main({params}, %x: float32[6, 6]) {{\n{body}\nreturn %y}}"
    return infer_type(parse(text))


def attention(key: str, value: str, more: str = "") -> str:
    return f"%a = fused_attention(%q, {key}, {value}{more})\n%y = %a.0"


def repeated(name: str, count: int = 2, last: str = "") -> str:
    return f"""
    %{name}0 = expand_dims(%{name}, axis=2)
    %{name}1 = broadcast_to(%{name}0, shape=(2, 2, {count}, 6, 8))
    %{name}2 = copy(%{name}1)
    %{name}3 = reshape(%{name}2, shape=(2, {2 * count}, 6, 8))"""


def call_of(module: Module) -> tuple[object, ...]:
    calls = [op_call(b.value) for b in module.main.body.bindings]
    (found,) = [c.args for c in calls if c is not None and c.op is meta.op.fused_attention]
    return tuple(found)


def same(before: Module, after: Module, wrt: tuple[int, ...] = (0, 1, 2)) -> None:
    """Compare results and gradients."""
    torch.manual_seed(0)
    verify(after)
    given = [meta.array(torch.randn(p.type.static_shape)) for p in before.main.params]
    dy = meta.array(torch.randn(2, 4, 6, 8))
    for one, other in (
        (interpret(module_program(m), *given) for m in (before, after)),
        (
            interpret(module_program(autodiff(m, wrt=list(wrt))), dy, *given)
            for m in (before, after)
        ),
    ):
        a, b = ([t.torch() for t in meta.op.core.tree.flatten(v)[0]] for v in (one, other))
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    made, mask, (stays, causal) = MASKS[name]
    before = program(f"{made}\n{attention('%k', '%v', f', {mask}')}")
    after = simplify_attention(before)
    _, _, _, left, is_causal = call_of(after)[:5]
    assert (left is not None, is_causal) == (stays, causal)
    window = call_of(after)[7]
    assert window == {"window": (-1, 1), "band": (2, -1)}.get(name)
    assert (str(after) == str(before)) == stays
    same(before, after)


def test_a_causal_call_keeps_another_mask() -> None:
    text = f"{LOWER}\n{attention('%k', '%v', ', %m, causal=True')}"
    assert call_of(simplify_attention(program(text)))[3] is not None


def test_positions_count_from_the_first_query_and_key() -> None:
    text = """func @main(%q: float32[2, 4, 5, 8], %k: float32[2, 4, 6, 8]) {
      %t = full(shape=(5, 6), fill_value=True, dtype="bool")
      %m = tril(%t)
      %a = fused_attention(%q, %k, %k, %m)
      %y = %a.0
      return %y}"""
    before = infer_type(parse(text))
    after = simplify_attention(before)
    assert call_of(after)[3:5] == (None, True)
    q, k = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 6, 8)
    found = [interpret(module_program(m), meta.array(q), meta.array(k)) for m in (before, after)]
    torch.testing.assert_close(*(y.torch() for y in found))


@pytest.mark.parametrize(
    ("mask", "stays", "causal"),
    [("%t", False, False), ("%l", False, True), ("%u", False, False)],
)
def test_a_mask_for_any_number_of_rows(mask: str, stays: bool, causal: bool) -> None:
    """Along an axis of any extent, what it repeats is looked at once."""
    text = f"""func @main(%q: float32[n, 4, 6, 8], %k: float32[n, 4, 6, 8]) {{
      %t = full(shape=(1, 1, 6, 6), fill_value=True, dtype="bool")
      %l = tril(%t)
      %u = triu(%t)
      %m = broadcast_to({mask}, shape=(dim n, 1, 6, 6))
      %a = fused_attention(%q, %k, %k, %m)
      %y = %a.0
      return %y}}"""
    after = simplify_attention(infer_type(parse(text)))
    left, is_causal = call_of(after)[3:5]
    assert (left is not None, is_causal) == (stays, causal)
    q, k = torch.randn(3, 4, 6, 8), torch.randn(3, 4, 6, 8)
    types = [p.type for p in after.main.params]
    found = meta.vm.compile(after, *types)(meta.array(q), meta.array(k)).torch()
    seen = {"%t": torch.ones(6, 6), "%l": torch.ones(6, 6).tril(), "%u": torch.ones(6, 6).triu()}
    sdpa = torch.nn.functional.scaled_dot_product_attention
    expected = sdpa(q.double(), k.double(), k.double(), attn_mask=seen[mask].bool())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("own", [False, True], ids=["apart", "one"])
def test_repeated_heads_are_read_once(own: bool, cast: bool) -> None:
    """Also where they are cast on the way, and where keys are the values."""
    body = repeated("k") + ("" if own else repeated("v"))
    names = ["k3", "k3" if own else "v3"]
    if cast:
        for name in dict.fromkeys(names):
            body += f'\n%{name}h = astype(%{name}, dtype="float64")'
            body += f'\n%{name}c = astype(%{name}h, dtype="float32")'
        names = [f"{name}c" for name in names]
    before = program(f"{body}\n{attention(*(f'%{n}' for n in names))}")
    after = simplify_attention(before)
    _, key, value = call_of(after)[:3]
    assert [v.type.shape for v in (key, value)] == [(2, 2, 6, 8)] * 2  # type: ignore[attr-defined]
    assert (key is value) == own
    same(before, after, (0, 1) if own else (0, 1, 2))


@pytest.mark.parametrize(
    "body",
    [
        # Keys alone are repeated.
        repeated("k") + attention("%k3", "%k2v").replace("%k2v", "%w") + "",
        # Heads follow one another as a whole.
        """%k0 = expand_dims(%k, axis=1)
        %k1 = broadcast_to(%k0, shape=(2, 2, 2, 6, 8))
        %k3 = reshape(%k1, shape=(2, 4, 6, 8))
        """
        + attention("%k3", "%k3"),
        # Another layout.
        repeated("k") + attention("%k3", "%k3", ', layout="BSHD"'),
    ],
    ids=["one of them", "tiled", "heads later"],
)
def test_what_is_left(body: str) -> None:
    if "%w" in body:
        body = "%w = concat((%v, %v), axis=1)\n" + body
    before = program(body)
    assert str(simplify_attention(before)) == str(before)


def test_it_runs_before_differentiation() -> None:
    """So that gradients are of the heads that there are, and of no mask."""

    class Net(meta.Model):
        def build(self) -> None:
            self.w = meta.model.parameter(torch.randn(2, 2, 6, 8))

        @meta.model.trace
        def forward(self, q: meta.ndarray) -> meta.ndarray:
            heads = meta.broadcast_to(meta.expand_dims(self.w, 2), (2, 2, 2, 6, 8))
            heads = meta.reshape(heads, (2, 4, 6, 8))
            mask = meta.tril(meta.ones((6, 6), dtype="bool"))
            return meta.scaled_dot_product_attention(q, heads, heads, mask)

    model, q = Net(), meta.array(torch.randn(2, 4, 6, 8))
    text = str(meta.model.value_and_grad(model).program(q * 0 + 1.0, q).module)
    line = next(line for line in text.splitlines() if "fused_attention_dx(" in line)
    assert "float32[2, 2, 6, 8], float32[2, 2, 6, 8])" in line and "causal=True" in line
