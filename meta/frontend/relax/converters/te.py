"""Converters of tensor expressions that TVM's ONNX importer emits; see `tensor_expressions.py`."""

from __future__ import annotations

from meta import op
from meta.frontend.relax.converters.image import padded
from meta.frontend.relax.registry import relax


def _pairs(before, after) -> list[tuple[int, int]]:
    return list(zip(before, before if after is None else after, strict=True))


@relax("te.pad", op.pad, ignore=("name", "attrs"))
def pad(x, *, pad_before, pad_after, pad_value):
    return padded(x, _pairs(pad_before, pad_after), pad_value, "constant")


@relax("te.mirror_pad", op.pad, ignore=("name",))
def mirror_pad(x, *, pad_before, pad_after, mode):
    mode = {"REFLECT": "reflect", "SYMMETRIC": "symmetric"}[mode]
    return padded(x, _pairs(pad_before, pad_after), 0, mode)


@relax("te.replicate_pad", op.pad, ignore=("name",))
def replicate_pad(x, *, pad_before, pad_after):
    return padded(x, _pairs(pad_before, pad_after), 0, "edge")


@relax("te.circular_pad", op.strided_slice, op.concatenate, ignore=("name",))
def circular_pad(x, *, pad_before, pad_after):
    return padded(x, _pairs(pad_before, pad_after), 0, "circular")


@relax("te.tile", op.tile)
def tile(x, *, reps):
    return op.tile(x, reps)


@relax("te.flip", op.flip)
def flip(x, *, axis):
    return op.flip(x, axis)


@relax("te.einsum", op.einsum)
def einsum(*operands, subscripts):
    return op.einsum(operands, subscripts)
