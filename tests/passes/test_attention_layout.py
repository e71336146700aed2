"""The pass `attention_layout`: attention reads heads where projections leave them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.base.device import CPU, Device
from meta.ir import Module, parse, verify
from meta.passes import attention_layout, dead_code, infer_type, simplify
from meta.vm.compiler.calling_convention import module_program
from meta.vm.run.interpreter import interpret

LATER, FIRST = (2, 5, 3, 4), (2, 3, 5, 4)
SWAP = "axes=(0, 2, 1, 3)"


def text(shape: tuple[int, ...]) -> str:
    return f"float32[{', '.join(map(str, shape))}]"


def forward(transposed: str, results: str = "%y, %1") -> Module:
    """Return attention of q, k and v, of which those in ``transposed`` come as [b, s, h, d]."""
    params = ", ".join(f"%{n}: {text(LATER if n in transposed else FIRST)}" for n in "qkv")
    moved = "\n".join(f"%{n}t = permute_dims(%{n}, {SWAP})" for n in transposed)
    q, k, v = (f"%{n}t" if n in transposed else f"%{n}" for n in "qkv")
    body = f"{moved}\n%a = fused_attention({q}, {k}, {v}, causal=True)\n%0 = %a.0\n%1 = %a.1"
    return infer_type(
        parse(
            f"func @main({params}) {{\n{body}\n%y = permute_dims(%0, {SWAP})\nreturn ({results})}}"
        )
    )


def backward() -> Module:
    params = ", ".join(f"%{n}: {text(LATER)}" for n in ("q", "k", "v", "y", "g"))
    moved = "\n".join(f"%{n}t = permute_dims(%{n}, {SWAP})" for n in "qkvyg")
    given = "%qt, %kt, %vt, None, %yt, %l, %gt"
    fields = "\n".join(f"%{i} = %a.{i}\n%r{i} = permute_dims(%{i}, {SWAP})" for i in range(3))
    return infer_type(
        parse(
            f"func @main({params}, %l: {text((2, 3, 5))}) {{\n{moved}\n"
            f"%a = fused_attention_dx({given})\n{fields}\nreturn (%r0, %r1, %r2)}}"
        )
    )


def arrays(module: Module) -> list[meta.ndarray]:
    torch.manual_seed(0)
    return [meta.array(torch.randn(p.type.static_shape)) for p in module.main.params]


def run(module: Module, given: list[meta.ndarray]) -> Any:
    return interpret(module_program(module), *given)


def same_results(before: Module, after: Module) -> None:
    verify(after, typed=True)
    given = arrays(before)
    for found, wanted in zip(run(after, given), run(before, given), strict=True):
        torch.testing.assert_close(found.torch(), wanted.torch())


@pytest.mark.parametrize("transposed", ["qkv", "qk", "qv", "kv"])
def test_most_operands_are_transposes(transposed: str) -> None:
    before = forward(transposed)
    after = dead_code(simplify(attention_layout(before, device=CPU)))
    assert 'layout="BSHD"' in str(after)
    assert str(after).count("permute_dims") == 3 - len(transposed)
    same_results(before, after)


def test_the_gradient_too() -> None:
    before = backward()
    after = dead_code(simplify(attention_layout(before, device=CPU)))
    assert 'layout="BSHD"' in str(after)
    assert "permute_dims" not in str(after)
    same_results(before, after)


@pytest.mark.parametrize("transposed", ["", "q", "v"])
def test_few_operands_are_transposes(transposed: str) -> None:
    before = forward(transposed)
    assert str(attention_layout(before, device=CPU)) == str(before)


@pytest.mark.parametrize(("kept", "later"), [("%y", True), ("%qs", True), ("%r", False)])
def test_what_kernels_write_anywhere(kept: str, later: bool) -> None:
    before = infer_type(
        parse(
            f"func @main(%q: {text(LATER)}, %k: {text(LATER)}, %v: {text(LATER)}) {{\n"
            f"%a = permute_dims(%q, {SWAP})\n%qr = add(%a, %a)\n%b = permute_dims(%k, {SWAP})\n"
            f"%kr = multiply(%b, %b)\n%c = permute_dims(%v, {SWAP})\n"
            f"%qs = permute_dims(%qr, {SWAP})\n%r = exp(%qr)\n"
            "%all = fused_attention(%qr, %kr, %c)\n%0 = %all.0\n"
            f"%y = permute_dims(%0, {SWAP})\nreturn (%y, {kept})}}"
        )
    )
    before = dead_code(before)
    after = dead_code(simplify(attention_layout(before, device=CPU)))
    assert ('layout="BSHD"' in str(after)) == later
    same_results(before, after)


def projected(order: tuple[int, ...], at: int, extra: str = "%y") -> Module:
    """Return attention of the parts of a joint projection, which is transposed before the split."""
    rows = {"b": 2, "s": 5, "n": 3, "h": 4, "d": 6}
    given = tuple(rows.values())
    turned = [given[axis] for axis in order]
    part = text(tuple(n for axis, n in enumerate(turned) if axis != at))
    views = "\n".join(
        f"%f{i} = %t.{i}\n%{n}: {part} = reshape(%f{i}, shape={part[7:].replace('[', '(')[:-1]}))"
        for i, n in enumerate("qkv")
    )
    return infer_type(
        parse(
            f"func @main(%rows: {text(given)}) {{\n%p = permute_dims(%rows, axes={order})\n"
            f"%t = split(%p, indices_or_sections=(1, 2), axis={at})\n{views}\n"
            f"%a = fused_attention(%q, %k, %v)\n%0 = %a.0\n%y = permute_dims(%0, {SWAP})\n"
            f"return (%y, {extra})}}"
        )
    )


@pytest.mark.parametrize(
    ("order", "at", "extra", "split"),
    [
        ((2, 0, 3, 1, 4), 0, "%y", True),
        ((0, 2, 3, 1, 4), 1, "%y", True),
        ((0, 3, 1, 4, 2), -1, "%y", True),
        ((2, 0, 3, 1, 4), 0, "%q", False),  # a part is read elsewhere, too
        ((2, 0, 3, 1, 4), 0, "%f1", False),
    ],
)
def test_a_projection_is_split_before_it_is_transposed(
    order: tuple[int, ...], at: int, extra: str, split: bool
) -> None:
    before = projected(order, at % 5, extra)
    after = dead_code(simplify(attention_layout(before, device=CPU)))
    assert ("split(%rows" in str(after)) == split
    assert (str(after).count("permute_dims") == 0) == split
    same_results(before, after)


def test_a_tuple_that_is_returned_whole_stays() -> None:
    before = forward("qkv", "%a")
    assert str(attention_layout(before, device=CPU)) == str(before)


def test_other_devices_stay() -> None:
    before = forward("qkv")
    assert attention_layout(before, device=Device("cuda:0"), devices=("cpu",)) is before


@pytest.mark.parametrize("program", [forward("qkv"), backward()])
def test_compiled(program: Module) -> None:
    given = arrays(program)
    found = meta.vm.compile(module_program(program), *given)(*given)
    for one, wanted in zip(found, run(program, given), strict=True):
        torch.testing.assert_close(one.torch(), wanted.torch(), rtol=1e-5, atol=1e-5)
