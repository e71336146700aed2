"""What one call costs: floating point operations, and bytes read and written.

A multiplication and an addition are an operation each; so is any function of one element, an
exponential too. Products, convolutions and attention are counted exactly (Dao et al.,
arXiv:2205.14135, appendix B, for the five products of attention's gradient). An operator that only
moves elements has none. A normalisation counts the passes of its textbook formula. Whatever is not
listed here counts one per element of its largest argument or result: right for elementwise
operators and reductions. To count an operator exactly, add its name to a table below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from meta.base.device import CPU
from meta.ir import Call, TensorType
from meta.op.core import CallValues, View
from meta.op.core.subscripts import subscripts
from meta.passes.call_of import base_op, typed_args
from meta.passes.lifetimes import type_bytes

FLOPS_PER_BYTE = 8
"""Operations in the time of one byte to or from memory: between a core with vector instructions
(about 6) and a GPU without tensor cores (about 20). It weighs products against the rest."""

MOVING = frozenset(
    [
        "transform",
        "movement",
        "memory",
        "like",
        "sizes",
        "gathering",
        "strided",
        "padding",
        "indexing",
        "init",
    ]
)
"""Families of operators that move elements or make constants."""

PER_ELEMENT = {
    "softmax": 5,  # maximum, difference, exponential, sum, quotient
    "log_softmax": 5,
    "softmax_dx": 4,  # product, sum, difference, product
    "log_softmax_dx": 4,
    "layer_norm": 8,  # mean, variance (3), normalised (2), scale, bias
    "layer_norm_train": 8,
    "layer_norm_dx": 14,
    "layer_norm_train_dx": 11,
    "batch_norm_train": 8,
    "batch_norm_train_dxwb": 11,
    "batch_norm_infer": 4,
    "group_norm": 8,
    "group_norm_dx": 14,
    "instance_norm": 8,
    "rms_norm": 4,
    "rms_norm_dx": 8,
    "sgd": 4,
    "cross_entropy": 4,
    "cross_entropy_dpred": 5,
    "gelu": 8,  # of the cube's polynomial or erf, its function, two products
    "gelu_dx": 12,
}
"""Operations per element of the largest argument."""


@dataclass(frozen=True, slots=True)
class Cost:
    """``flops``: operations. ``bytes``: read and written if nothing stays in a cache."""

    flops: int
    bytes: int

    @property
    def time(self) -> float:
        """An estimate, in units of the time that a byte takes (the roofline of Williams et al.,
        "Roofline: an insightful visual performance model", 2009).
        """
        return max(self.flops / FLOPS_PER_BYTE, self.bytes)

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)


NOTHING = Cost(0, 0)


def cost_of(call: Call) -> Cost:
    """Return what a typed call of an operator costs; nothing for a view or a call of a function.

    An extent that is not known counts as one.
    """
    op = base_op(call.callee)
    if op is None:
        return NOTHING
    values = op.call_values(typed_args(op, call), CPU)
    if values.callee is None or isinstance(values.out, View):
        return NOTHING
    moved = sum(map(type_bytes, (*values.tensors(), *values.outputs)))
    return Cost(_flops(values), moved)


def _flops(call: CallValues) -> int:
    name = call.op.name
    if name in EXACT:
        return EXACT[name](call.args, call.outputs)
    if call.op.type_function.__module__.rpartition(".")[2] in MOVING:
        return 0
    largest = max((_size(t) for t in (*call.tensors(), *call.outputs)), default=0)
    return PER_ELEMENT.get(name, 1) * largest


def _size(type_: TensorType) -> int:
    return prod(d for d in type_.shape if isinstance(d, int))


def _extent(type_: TensorType, axis: int) -> int:
    extent = type_.shape[axis]
    return extent if isinstance(extent, int) else 1


def _product(axis: int) -> Callable[[Any, tuple[TensorType, ...]], int]:
    """Count a matrix product whose first operand is summed along ``axis``."""
    return lambda args, outs: 2 * _size(outs[0]) * _extent(args.x1, axis)


def _taps(kernel: TensorType, layout: str, outer: str) -> int:
    """Return how many products a kernel has for one element of what it is applied to or makes."""
    return _size(kernel) // max(_extent(kernel, layout.index(outer)), 1)


def _convolution(args: Any, outs: tuple[TensorType, ...]) -> int:
    return 2 * _size(outs[0]) * _taps(args.w, args.kernel_layout, "O")


def _convolution_dx(args: Any, outs: tuple[TensorType, ...]) -> int:
    return 2 * _size(args.dy) * _taps(args.x_or_w, args.kernel_layout, "O")


def _convolution_dw(args: Any, outs: tuple[TensorType, ...]) -> int:
    return 2 * _size(args.dy) * _taps(outs[0], args.kernel_layout, "O")


def _transposed(args: Any, outs: tuple[TensorType, ...]) -> int:
    return 2 * _size(args.x) * _taps(args.w, args.kernel_layout, "I")


def _transposed_dx(args: Any, outs: tuple[TensorType, ...]) -> int:
    return 2 * _size(outs[0]) * _taps(args.x_or_w, args.kernel_layout, "I")


def _transposed_dw(args: Any, outs: tuple[TensorType, ...]) -> int:
    return 2 * _size(args.x_or_w) * _taps(outs[0], args.kernel_layout, "I")


def _attention(keys: int, values: int, per_score: int) -> Callable[[Any, Any], int]:
    """Count attention that has this many products over the width of keys and of values."""

    def count(args: Any, outs: Any) -> int:
        keys_of = _extent(args.key, args.layout.index("S"))
        scores = _size(args.query) // max(_extent(args.query, 3), 1) * keys_of
        width = keys * _extent(args.query, 3) + values * _extent(args.value, 3)
        return scores * (2 * width + per_score)

    return count


def _einsum(args: Any, outs: Any) -> int:
    extents = subscripts(args.equation, [x.shape for x in args.inputs]).extents.values()
    return len(args.inputs) * prod(e for e in extents if isinstance(e, int))


EXACT: dict[str, Callable[[Any, tuple[TensorType, ...]], int]] = {
    **{name: _product(-1) for name in ("matmul", "matmul_nt", "dense", "scaled_matmul")},
    **{name: _product(-1) for name in ("batch_matmul", "batch_matmul_nt")},
    **{name: _product(-2) for name in ("matmul_tn", "matmul_tt")},
    **{name: _product(-2) for name in ("batch_matmul_tn", "batch_matmul_tt")},
    **{f"conv{n}d": _convolution for n in (1, 2, 3)},
    **{f"conv{n}d_dx": _convolution_dx for n in (1, 2, 3)},
    **{f"conv{n}d_dw": _convolution_dw for n in (1, 2, 3)},
    **{f"conv{n}d_transpose": _transposed for n in (1, 2, 3)},
    **{f"conv{n}d_transpose_dx": _transposed_dx for n in (1, 2, 3)},
    **{f"conv{n}d_transpose_dw": _transposed_dw for n in (1, 2, 3)},
    "scaled_dot_product_attention": _attention(1, 1, PER_ELEMENT["softmax"]),
    "scaled_dot_product_attention_dx": _attention(3, 2, 6),
    "scaled_dot_product_attention_dmask": _attention(1, 1, 6),
    "einsum": _einsum,
}
"""Operations of the operators that are made of products."""
