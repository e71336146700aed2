"""Matrix products on tensor cores whose rows do not begin at multiples of 16 bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from meta import op
from meta.base import config
from meta.base.device import Device
from meta.ir import Binding, Block, Call, Expr, If, Module, TensorType, Var
from meta.passes.calls import called_op, has_effect, new_call, tensor_type
from meta.passes.rewrite import each_function, with_inner_blocks

LANES = 8
"""Elements of 16 bytes in half precision, which tensor cores are fed with; of 32 in float32."""
LEAST_WORK = 1 << 30
"""Multiplications of a product that is worth it: those of a few microseconds."""
LEAST_EXTENT = 64
"""Of an axis that grows by at most an eighth."""

HALF = "float16", "bfloat16"
# By operator: the axes of x1, of x2, and of the result.
_AXES = {
    op.matmul: ("MK", "KN", "MN"),
    op.dense: ("MK", "NK", "MN"),
    op.matmul_nt: ("MK", "NK", "MN"),
    op.matmul_tn: ("KM", "KN", "MN"),
    op.matmul_tt: ("KM", "NK", "MN"),
    op.batch_matmul: ("BMK", "BKN", "BMN"),
    op.batch_matmul_nt: ("BMK", "BNK", "BMN"),
    op.batch_matmul_tn: ("BKM", "BKN", "BMN"),
    op.batch_matmul_tt: ("BKM", "BNK", "BMN"),
}

_Padded = dict[tuple[Any, tuple[int, ...]], Var]
"""What was padded, by operand and widths."""


def align_products(
    module: Module,
    *,
    device: Device,
    devices: tuple[str, ...] = ("cuda",),
    least_work: int = LEAST_WORK,
) -> Module:
    """Pad the operands of large products of tensor cores on ``devices`` to multiples of 16 bytes.

    Those are products in half precision and, with META_TF32, in float32. Where the rows of an
    operand or of the result do not begin at such multiples, libraries fall back to kernels of a
    third of the speed. That is a language model's last layer, whose vocabulary is 30,522 or 50,257
    words. Zeros are added, and cut off the result; both fuse with the casts and elementwise
    operators around, and what the forward and the backward pass read is padded once. The result is
    the same but for the order in which a library adds.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> print(align_products(parse('''
    ... func @main(%x: float16[64, 768], %w: float16[30522, 768]) -> float16[64, 30522] {
    ...   %y: float16[64, 30522] = dense(%x, %w)
    ...   return %y
    ... }'''), device=CPU, devices=("cpu",)))
    func @main(%x: float16[64, 768], %w: float16[30522, 768]) -> float16[64, 30522] {
      %padded: float16[30528, 768] = pad(%w, pad_width=(0, 6, 0, 0))
      %y: float16[64, 30528] = dense(%x, %padded)
      %y_1: float16[64, 30522] = strided_slice(%y, begin=(0, 0), end=(64, 30522))
      return %y_1
    }
    """
    if device.kind not in devices:
        return module
    return each_function(module, lambda f: replace(f, body=_block(f.body, least_work)))


def _block(block: Block, least_work: int) -> Block:
    made: list[Binding] = []
    padded: _Padded = {}
    for binding in block.bindings:
        if isinstance(binding.value, If) or has_effect(binding):
            padded.clear()  # what is written since is padded anew
        binding = with_inner_blocks(binding, lambda inner: _block(inner, least_work))
        made += _aligned(binding, least_work, padded)
    return Block(tuple(made), block.result)


def _aligned(binding: Binding, least_work: int, known: _Padded) -> Iterator[Binding]:
    """Yield a binding, or what it becomes: padded operands that are not ``known`` yet, the product,
    and its part.
    """
    call = binding.value
    letters_of = _AXES.get(called_op(call))
    types = [_on_tensor_cores(atom) for atom in call.args] if letters_of else []
    if letters_of is None or None in types:
        yield binding
        return
    *axes, result = letters_of
    operands: list[Expr] = []
    larger = _larger(axes, types, result, least_work)
    for atom, letters, type_ in zip(call.args, axes, types, strict=True):
        widths = tuple(w for a in letters for w in (0, larger.get(a, 0)))
        if any(widths) and (atom, widths) not in known:
            padded = known[atom, widths] = Var("padded", _grown(type_, letters, larger))
            yield Binding(padded, new_call(op.pad, atom, widths), binding.span)
        atom = known.get((atom, widths), atom)
        operands.append(atom)
    type_ = binding.var.type
    assert isinstance(type_, TensorType)
    grown = _grown(type_, result, larger)
    product = binding.var if grown == type_ else Var(binding.var.name, grown)
    yield Binding(product, Call(call.callee, tuple(operands)), binding.span)
    if product is not binding.var:
        origin = (0,) * type_.ndim
        part = new_call(op.strided_slice, product, origin, type_.static_shape)
        yield Binding(binding.var, part, binding.span)


def _on_tensor_cores(atom: object) -> TensorType | None:
    """Return the type of a matrix that tensor cores multiply, None for others."""
    type_ = tensor_type(atom)
    if type_ is None or not type_.is_static:
        return None
    rounded = type_.dtype == "float32" and config.get("META_TF32")
    return type_ if rounded or type_.dtype in HALF else None


def _grown(type_: TensorType, letters: str, larger: dict[str, int]) -> TensorType:
    pairs = zip(letters, type_.static_shape, strict=True)
    return type_.with_shape(tuple(d + larger.get(a, 0) for a, d in pairs))


def _larger(
    axes: Sequence[str], types: Sequence[TensorType], result: str, least_work: int
) -> dict[str, int]:
    """Return by axis how many elements it lacks; nothing if the product stays as it is."""
    extents = {
        a: d
        for letters, t in zip(axes, types, strict=True)
        for a, d in zip(letters, t.static_shape, strict=True)
    }
    if prod(extents.values()) < least_work:
        return {}
    rows = {letters[-1] for letters in (*axes, result)}
    return {
        a: -d % LANES for a, d in extents.items() if a in rows and d % LANES and d >= LEAST_EXTENT
    }
