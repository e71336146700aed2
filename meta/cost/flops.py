"""What one call does: floating point operations, and bytes read and written.

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
from typing import Any, Generic, Protocol, TypeVar

from meta import op
from meta.base.device import CPU
from meta.dialect.core.ir_calls import PRODUCTS, kernel_call
from meta.ir import Binding, Block, Call, Function, GlobalVar, If, Module, TensorType, type_bytes
from meta.op.attention_cache import slots_of
from meta.op.core import CallValues, Op
from meta.op.core.axes import product_terms
from meta.op.core.subscripts import subscripts
from meta.op.linalg import GROUPED

FLOPS_PER_BYTE = 8
"""Operations in the time of one byte to or from memory: between a core with vector instructions
(about 6) and a GPU without tensor cores (about 20). It weighs products against the rest."""

_FAMILIES = op.creation, op.gathering, op.memory, op.movement, op.shapes
MOVING = frozenset(family.__name__ for family in _FAMILIES)
"""Families of operators that move elements or make constants, as the names of their modules."""

PER_ELEMENT = {
    op.cache_update: 0,
    op.softmax: 5,  # maximum, difference, exponential, sum, quotient
    op.log_softmax: 5,
    op.softmax_dx: 4,  # product, sum, difference, product
    op.log_softmax_dx: 4,
    op.layer_norm: 8,  # mean, variance (3), normalised (2), scale, bias
    op.layer_norm_train: 8,
    op.layer_norm_dx: 14,
    op.layer_norm_train_dx: 11,
    op.batch_norm_train: 8,
    op.batch_norm_train_dxwb: 11,
    op.batch_norm_infer: 4,
    op.group_norm: 8,
    op.group_norm_dx: 14,
    op.instance_norm: 8,
    op.rms_norm: 4,
    op.rms_norm_dx: 8,
    op.sgd: 4,
    op.cross_entropy: 4,
    op.cross_entropy_dpred: 5,
    op.cross_entropy_train: 4,
    op.cross_entropy_train_dpred: 3,
    op.gelu: 8,  # of the cube's polynomial or erf, its function, two products
    op.gelu_dx: 12,
    # Exceptions from what their families do.
    **dict.fromkeys((op.astype, op.cast_like, op.group_cast), 0),
    **dict.fromkeys((op.adv_index, op.adv_index_dx), 1),
}
"""Operations per element of the largest argument."""


@dataclass(frozen=True, slots=True)
class Work:
    """``flops``: operations. ``bytes``: read and written if nothing stays in a cache."""

    flops: int
    bytes: int

    @property
    def time(self) -> float:
        """An estimate, in units of the time that a byte takes (the roofline of Williams et al.,
        "Roofline: an insightful visual performance model", 2009).
        """
        return max(self.flops / FLOPS_PER_BYTE, self.bytes)

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)


NOTHING = Work(0, 0)


def work_of(call: Call) -> Work:
    """Return what a typed call of an operator does; nothing for a view or a call of a function.

    An extent that is not known counts as one.
    """
    values = kernel_call(call, CPU)
    if values is None:
        return NOTHING
    moved = sum(map(type_bytes, (*values.tensors(), *values.outputs)))
    return Work(_flops(values), moved)


def function_work(function: Function) -> Work:
    """Return what the kernel of a fused function does: it reads its arguments and writes its
    results; what is between the two costs no bytes.
    """
    calls = (b.value for b in function.body.bindings if isinstance(b.value, Call))
    types = (*(p.type for p in function.params), function.result_type)
    return Work(sum(work_of(call).flops for call in calls), sum(map(type_bytes, types)))


class Total(Protocol):
    """What can be added up."""

    def __add__(self, other: Any) -> Any: ...


T = TypeVar("T", bound=Total)


class ProgramTotal(Generic[T]):
    """Adds up what the bindings of a typed program count, at any stage of compilation: an `If` as
    its block with more, a call of a function as what the function does, once. A function that calls
    itself is counted once, since nobody knows how often it will.

    of: what a binding counts that runs a kernel, None for any other. nothing: the sum of none.
    size: by which the larger of two is told.
    """

    def __init__(
        self,
        module: Module,
        of: Callable[[Binding], T | None],
        nothing: T,
        size: Callable[[T], float],
    ) -> None:
        self.module = module
        self._of, self._nothing, self._size = of, nothing, size
        # By function; while one is being counted, a call of it counts nothing.
        self._known: dict[str, T] = {}

    def block(self, block: Block) -> T:
        """Return the sum of all bindings of a block."""
        total = self._nothing
        for binding in block.bindings:
            total += self.binding(binding)
        return total

    def binding(self, binding: Binding) -> T:
        """Return what a binding counts."""
        value = binding.value
        if isinstance(value, If):
            return max(map(self.block, (value.then_block, value.else_block)), key=self._size)
        own = self._of(binding)
        if own is None and isinstance(value, Call) and isinstance(value.callee, GlobalVar):
            return self._function(value.callee.name)
        return self._nothing if own is None else own

    def _function(self, name: str) -> T:
        if name not in self._known:
            self._known[name] = self._nothing
            self._known[name] = self.block(self.module.functions[name].body)
        return self._known[name]


def _flops(call: CallValues) -> int:
    if call.op in EXACT:
        return EXACT[call.op](call.args, call.outputs)
    if call.op not in PER_ELEMENT and call.op.type_function.__module__ in MOVING:
        return 0
    largest = max((_size(t) for t in (*call.tensors(), *call.outputs)), default=0)
    return PER_ELEMENT.get(call.op, 1) * largest


def _size(type_: TensorType) -> int:
    return prod(d for d in type_.shape if isinstance(d, int))


def _extent(type_: TensorType, axis: int) -> int:
    extent = type_.shape[axis]
    return extent if isinstance(extent, int) else 1


Count = Callable[[Any, tuple[TensorType, ...]], int]
"""From the arguments and the results of a call to its operations."""


def _product(axis: int) -> Count:
    """Count a matrix product whose first operand is summed along ``axis``."""
    return lambda args, outs: 2 * _size(outs[0]) * _extent(args.x1, axis)


def _taps(kernel: TensorType, layout: str, outer: str) -> int:
    """Return how many products a kernel has for one element of what it is applied to or makes."""
    return _size(kernel) // max(_extent(kernel, layout.index(outer)), 1)


def _convolution(counted: str, kernel: str, outer: str) -> Count:
    """Count the products of the kernel for each element of ``counted``; "out" is the result."""

    def count(args: Any, outs: tuple[TensorType, ...]) -> int:
        elements, weights = (outs[0] if n == "out" else getattr(args, n) for n in (counted, kernel))
        return 2 * _size(elements) * _taps(weights, args.kernel_layout, outer)

    return count


def _attention(keys: int, values: int, per_score: int) -> Count:
    """Count attention that has this many products over the width of keys and of values."""

    def count(args: Any, outs: Any) -> int:
        keys_of = _extent(args.key, args.layout.index("S"))
        scores = _size(args.query) // max(_extent(args.query, 3), 1) * keys_of
        width = keys * _extent(args.query, 3) + values * _extent(args.value, 3)
        return scores * (2 * width + per_score)

    return count


def _cached_attention(args: Any, outs: Any) -> int:
    """Count attention as if the cache were full, or the window."""
    slots = slots_of(args.keys, args.block_table)
    seen = min(args.window or slots, slots) if isinstance(slots, int) else 1
    tokens = _size(args.query) // max(_extent(args.query, 3), 1)
    width = _extent(args.query, 3) + _extent(args.values, 3)
    return tokens * seen * (2 * width + PER_ELEMENT[op.softmax])


def _grouped(args: Any, outs: Any) -> int:
    """Count products in groups as if none of what is divided were outside of all groups."""
    if args.x1.ndim == 3:
        return 2 * _size(args.x2) * _extent(outs[0], 0)
    return 2 * _size(args.x1) * _extent(outs[0], outs[0].ndim - 1)


def _linear_loss(products: int, per_score: int) -> Count:
    """Count a loss that makes so many products of its scores, which it has once."""

    def count(args: Any, outs: Any) -> int:
        classes, features = _extent(args.linear_weight, 0), _extent(args.linear_weight, 1)
        return _extent(args.x, 0) * classes * (2 * features * products + per_score)

    return count


def _einsum(args: Any, outs: Any) -> int:
    extents = subscripts(args.equation, [x.shape for x in args.operands]).extents.values()
    return len(args.operands) * prod(e for e in extents if isinstance(e, int))


EXACT: dict[Op, Count] = {
    **{one: _product(product_terms(e)[0].index("b")) for one, e in PRODUCTS.items()},
    op.scaled_matmul: _product(1),
    op.quantized_matmul: lambda args, outs: 2 * _size(outs[0]) * _extent(args.x, args.x.ndim - 1),
    **dict.fromkeys(GROUPED, _grouped),
    op.linear_cross_entropies: _linear_loss(1, PER_ELEMENT[op.cross_entropy]),
    op.linear_cross_entropies_dxwb: _linear_loss(3, PER_ELEMENT[op.cross_entropy_train_dpred]),
    **dict.fromkeys((op.conv1d, op.conv2d, op.conv3d), _convolution("out", "w", "O")),
    **dict.fromkeys((op.conv1d_dx, op.conv2d_dx, op.conv3d_dx), _convolution("dy", "x_or_w", "O")),
    **dict.fromkeys((op.conv1d_dw, op.conv2d_dw, op.conv3d_dw), _convolution("dy", "out", "O")),
    **dict.fromkeys(
        (op.conv_transpose1d, op.conv_transpose2d, op.conv_transpose3d), _convolution("x", "w", "I")
    ),
    **dict.fromkeys(
        (op.conv_transpose1d_dx, op.conv_transpose2d_dx, op.conv_transpose3d_dx),
        _convolution("out", "x_or_w", "I"),
    ),
    **dict.fromkeys(
        (op.conv_transpose1d_dw, op.conv_transpose2d_dw, op.conv_transpose3d_dw),
        _convolution("x_or_w", "out", "I"),
    ),
    op.fused_attention: _attention(1, 1, PER_ELEMENT[op.softmax]),
    op.fused_attention_dx: _attention(3, 2, 6),
    op.fused_attention_dmask: _attention(1, 1, 6),
    op.fused_attention_dslopes: _attention(1, 1, 8),
    op.cached_attention: _cached_attention,
    op.einsum: _einsum,
}
"""Operations of the operators that are made of products."""


def is_product(called: object) -> bool:
    """Whether an operator is one of them: products of matrices, convolutions, attention."""
    return called in EXACT


def is_of_products(subject: object) -> bool:
    """Whether this is a call of one of them. How long it takes is hard to tell unless measured: it
    depends on the library. Whatever else there is moves its bytes.
    """
    return isinstance(subject, CallValues) and is_product(subject.op)
