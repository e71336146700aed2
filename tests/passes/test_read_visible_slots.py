"""The pass `read_visible_slots`: masks that compare the numbers of slots with a position."""

from __future__ import annotations

import pytest
import torch

import meta
from meta import op
from meta.dialect.core.ir_calls import op_call
from meta.ir import Module, parse, verify
from meta.passes import infer_type, read_visible_slots
from meta.vm.compiler.calling_convention import module_program
from meta.vm.run.interpreter import interpret

SLOTS = "const int64[5] [0, 1, 2, 3, 4]"
READ = "%a = fused_attention(%q, %k, %v, %m{})\n%y = %a.0\nreturn %y"
MASKS = {
    # What makes the mask, and the type of the position.
    "one": (f"%m = less_equal({SLOTS}, %at)", "int64[1, 1, 1, 1]"),
    "a number": (f"%m = less_equal({SLOTS}, %at)", "int64[]"),
    "of texts": (f"%m = less_equal({SLOTS}, %at)", "int64[2, 1, 1, 1]"),
    "of tokens": (f"%m = less_equal({SLOTS.replace('64', '32')}, %at)", "int32[3, 1]"),
    "of both": (f"%m = greater_equal(%at, {SLOTS})", "int64[2, 1, 3, 1]"),
    "numbers": (
        f"%s = less_equal({SLOTS}, %at)\n%m = where(%s, const float32[] 0.0, const float32[] -inf)",
        "int64[2, 1, 3, 1]",
    ),
}
OTHERS = {
    # What makes the mask, more of the call, and what is returned.
    "less": (f"%m = less({SLOTS}, %at)", "", "%a.0"),
    "other numbers": ("%m = less_equal(const int64[5] [1, 2, 3, 4, 5], %at)", "", "%a.0"),
    "exchanged": (f"%m = less_equal(%at, {SLOTS})", "", "%a.0"),
    "one number": ("%m = less_equal(const int64[1] [0], %at)", "", "%a.0"),
    "causal": (f"%m = less_equal({SLOTS}, %at)", ", causal=True", "%a.0"),
    "window": (f"%m = less_equal({SLOTS}, %at)", ", window=(1, -1)", "%a.0"),
    "finite": (
        f"%s = less_equal({SLOTS}, %at)\n%m = where(%s, const float32[] 0.0, const float32[] -9.0)",
        "",
        "%a.0",
    ),
    "logsumexp": (f"%m = less_equal({SLOTS}, %at)", "", "%a.1"),
    "written": (
        f"%m = less_equal({SLOTS}, %at)\n%w: () = assign(%at, const int64[2, 1, 3, 1] "
        "[1, 1, 1, 1, 1, 1])",
        "",
        "%a.0",
    ),
}


def program(made: str, position: str, more: str = "", result: str = "%a.0") -> Module:
    params = "%q: float32[2, 4, 3, 8], %k: float32[2, 2, 5, 8], %v: float32[2, 2, 5, 8]"
    read = READ.format(more).replace("%a.0", result)
    return infer_type(parse(f"func @main({params}, %at: {position}) {{\n{made}\n{read}}}"))


def calls(module: Module) -> list[str]:
    found = map(op_call, (b.value for b in module.main.body.bindings))
    return [c.op.name for c in found if c is not None]


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    """Texts and tokens are at places of their own: before all slots, within, and behind."""
    made, position = MASKS[name]
    before = program(made, position)
    after = read_visible_slots(before)
    verify(after)
    assert "cached_attention" in calls(after) and "fused_attention" not in calls(after)
    type_ = before.main.params[3].type
    at = torch.tensor([2, 0, 7, -1, 4, 3])[: type_.size].view(type_.static_shape)
    given = [torch.randn(p.type.static_shape) for p in before.main.params[:3]]
    arrays = [meta.array(x) for x in given] + [meta.array(at.to(getattr(torch, type_.dtype)))]
    y, wanted = (interpret(module_program(m), *arrays).torch() for m in (after, before))
    torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_what_stays(name: str) -> None:
    made, more, result = OTHERS[name]
    before = program(made, "int64[2, 1, 3, 1]", more, result)
    assert str(read_visible_slots(before)) == str(before)


def test_a_program_reads_no_more_than_it_sees() -> None:
    @meta.model.trace
    def attend(query, keys, position):
        slots = op.arange(0, 40, 1, "int64", "cpu")
        mask = op.less_equal(slots, op.reshape(position, (1, 1, 1, 1)))
        return op.fused_attention(query, keys, keys, mask)[0]

    query, keys = torch.randn(1, 4, 1, 8), torch.full((1, 2, 40, 8), torch.nan)
    keys[:, :, :7] = torch.randn(1, 2, 7, 8)
    given = [meta.array(x) for x in (query, keys, torch.tensor([6]))]
    run = meta.vm.compile(attend, *given)
    seen = keys[:, :, :7].repeat_interleave(2, 1)
    wanted = torch.nn.functional.scaled_dot_product_attention(query, seen, seen)
    torch.testing.assert_close(run(*given).torch(), wanted, rtol=1e-5, atol=1e-5)
