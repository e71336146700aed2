"""Canonical forms: one spelling for one thing, so that later passes look for one.

Which of several ways to write one thing is written is a rule of `CANONICAL_RULES`.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.registry import OPERATORS
from meta.dialect.core.ir_calls import PRODUCTS, new_call, tensor_type
from meta.ir import UNKNOWN, Constant, Expr, Module, TensorType, Tuple, type_of
from meta.op.core.axes import product_terms
from meta.op.core.check import normalize_axes, normalize_axis, permutation
from meta.op.core.subscripts import equation_of, subscripts
from meta.passes.simplify.arithmetic import fill_of
from meta.passes.simplify.shapes import VIEWS, order_of
from meta.passes.simplify.table import Rules, RuleSite, apply


def canonicalize(module: Module) -> Module:
    """Write what can be written in several ways in one.

    - Numbers and constants are the second operand where operands may be exchanged; ``0 < x`` is
      ``x > 0``. A constant whose elements are equal is a number.
    - An axis is the operator's default where it means the same, else not negative; reduced axes are
      a sorted tuple, all axes None.
    - Permutations are `permute_dims`, views are `reshape` to a written shape; `broadcast_to_like`
      and `cast_like` are `broadcast_to` and `astype`.
    - ``x1 @ x2.T`` is `dense`; an `einsum` that is a matrix product is that product.
    - A sum with a vector along one axis is `bias_add`. A tensor full of 0 or 1 is `zeros` or
      `ones`.

    >>> from meta.ir import parse
    >>> print(meta.passes.canonicalize(parse('''
    ... func @main(%x: float32[2, 3], %b: float32[3]) -> float32[2] {
    ...   %a: float32[2, 3] = multiply(const float32[] 2.0, %x)
    ...   %c: float32[2, 3] = add(%b, %a)
    ...   %d: float32[2, 3] = softmax(%c, axis=1)
    ...   %e: float32[2] = sum(%d, axis=-1)
    ...   return %e
    ... }''')))
    func @main(%x: float32[2, 3], %b: float32[3]) -> float32[2] {
      %a: float32[2, 3] = multiply(%x, x2=2.0)
      %c: float32[2, 3] = bias_add(%a, %b)
      %d: float32[2, 3] = softmax(%c)
      %e: float32[2] = sum(%d, axis=(1,))
      return %e
    }
    """
    return apply(CANONICAL_RULES, module)


CANONICAL_RULES = Rules()
"""The rules of `canonicalize`."""


# Arguments in their places.

_MIRRORED = {
    op.less: op.greater,
    op.less_equal: op.greater_equal,
    op.greater: op.less,
    op.greater_equal: op.less_equal,
    **{one: one for one in OPERATORS.values() if one.commutative},
}


@CANONICAL_RULES.rule(*_MIRRORED)
def constant_second(at: RuleSite) -> Expr | None:
    """A number or a constant is the second operand where the two may be exchanged."""
    x1, x2, *others = at.args
    first, second = (isinstance(x, Constant | bool | int | float) for x in (x1, x2))
    return new_call(_MIRRORED[at.op], x2, x1, *others) if first and not second else None


_WITH_NUMBERS = [
    one for one in OPERATORS.values() if any(slot.kind == "scalar or tensor" for slot in one.slots)
]


@CANONICAL_RULES.rule(*_WITH_NUMBERS)
def numbers_for_constants(at: RuleSite) -> Expr | None:
    """A constant of equal elements is a number, where the type of the result does not need it.

    A kernel takes a number at run time, and a fused one has it built in: nothing is loaded.
    """
    args, changed = list(at.args), False
    for i, slot in enumerate(at.op.slots):
        if slot.kind != "scalar or tensor" or not isinstance(args[i], Constant):
            continue
        number = fill_of(args[i], at.known) if args[i].type.dtype != "uint64" else None
        others = [a for j, a in enumerate(args) if j != i and isinstance(a, Expr)]
        if number is None or not others or not _same_type(at, (*args[:i], number, *args[i + 1 :])):
            continue
        args[i], changed = number, True
    return new_call(at.op, *args) if changed else None


def _same_type(at: RuleSite, args: tuple[Any, ...]) -> bool:
    """Whether the operator gives the type that the result has of these arguments, too."""
    types = tuple(type_of(a) if isinstance(a, Expr) else a for a in args)
    tensors = [t for t in types if isinstance(t, TensorType)]
    # Numbers alone would be computed at once; and a number takes the dtype of tensors.
    if not tensors or any(t.dtype != tensors[0].dtype for t in tensors):
        return False
    return bool(at.op.infer(types) == at.type)


# Axes: the operator's default where that means the same, else not negative.


@CANONICAL_RULES.rule(
    *(op.softmax, op.log_softmax, op.softmax_dx, op.log_softmax_dx),
    *(op.bias_add, op.layer_norm, op.rms_norm, op.concat, op.stack),
    *(op.cumsum, op.cumprod, op.sort, op.argsort),
)
def canonical_axis(at: RuleSite) -> Expr | None:
    """-1 is the number of the last axis, unless it is the default."""
    place, ndim = at.op.schema.index["axis"], at.type.ndim
    slot, given = at.op.slots[place], at.args[place]
    if given is None:  # of `concat`, which flattens
        return None
    wanted = normalize_axis(given, ndim)
    if slot.has_default and -ndim <= slot.default < ndim:
        wanted = slot.default if normalize_axis(slot.default, ndim) == wanted else wanted
    if given == wanted and type(given) is type(wanted):
        return None
    return new_call(at.op, *at.args[:place], wanted, *at.args[place + 1 :])


@CANONICAL_RULES.rule(op.sum, op.mean, op.max, op.min, op.prod, op.all, op.any, op.logsumexp)
def reduced_axes(at: RuleSite) -> Expr | None:
    """The axes of a reduction are a sorted tuple, None all of them; one flag to keep them."""
    x, axis, keepdims = at.args
    source = tensor_type(x)
    if source is None or isinstance(keepdims, tuple):
        return None
    axes = normalize_axes(axis, source.ndim)
    spelled = None if axes == tuple(range(source.ndim)) else axes
    kept = True if keepdims else at.op.slots[2].default
    if spelled == axis and type(kept) is type(keepdims):
        return None
    return new_call(at.op, x, spelled, kept)


@CANONICAL_RULES.rule(op.flip)
def flipped_axes(at: RuleSite) -> Expr | None:
    """The axes of a flip are a sorted tuple, None all of them."""
    axes = normalize_axes(at.args[1], at.type.ndim)
    spelled = None if len(axes) == at.type.ndim else axes
    return None if spelled == at.args[1] else new_call(op.flip, at.args[0], spelled)


@CANONICAL_RULES.rule(op.permute_dims, op.permute_dims_dx, op.swapaxes)
def canonical_permutation(at: RuleSite) -> Expr | None:
    """Permutations are `permute_dims`; without axes where these are reversed."""
    order = order_of(at)
    axes = None if order == permutation(None, len(order)) else order
    if at.op is op.permute_dims and at.args[1] == axes:
        return None
    return new_call(op.permute_dims, at.args[0], axes)


# One operator of several.


@CANONICAL_RULES.rule(*VIEWS, op.broadcast_to_like, op.cast_like)
def explicit_view(at: RuleSite) -> Expr | None:
    """Views are `reshape` to a shape that is written out. Of another tensor only the shape or the
    dtype counts; it need not be kept for it.
    """
    if at.op is op.cast_like:
        return new_call(op.astype, at.args[0], at.type.dtype)
    if not at.type.is_static:
        return None
    made = op.broadcast_to if at.op is op.broadcast_to_like else op.reshape
    call = new_call(made, at.args[0], at.type.static_shape)
    return None if at.op is made and at.args == call.args else call


@CANONICAL_RULES.rule(op.matmul_nt)
def dense_product(at: RuleSite) -> Expr | None:
    """x1 @ x2.T is `dense`, as layers call it."""
    return new_call(op.dense, *at.args)


_NUMBERS = {
    (op.full, "0.0"): op.zeros,
    (op.full, "1.0"): op.ones,
    (op.full_like, "0.0"): op.zeros_like,
    (op.full_like, "1.0"): op.ones_like,
}


@CANONICAL_RULES.rule(op.full, op.full_like)
def zeros_and_ones(at: RuleSite) -> Expr | None:
    """A tensor full of 0 or 1 is called so."""
    first, number, dtype, *rest = at.args
    made = _NUMBERS.get((at.op, str(float(number))))
    # Without a dtype that of the number counts, which is gone.
    dtype = at.type.dtype if at.op is op.full else dtype
    return None if made is None else new_call(made, first, dtype, *rest)


@CANONICAL_RULES.rule(op.add)
def bias_along_an_axis(at: RuleSite) -> Expr | None:
    """x + b, where b has more than one element along one axis only, is `bias_add`.

    The bias itself, not a view of it, is then the operand, whichever axis it is for.
    """
    x, b, *others = at.args
    for data, bias in ((x, b), (b, x)):
        wide, narrow = tensor_type(data), tensor_type(bias)
        if wide != at.type or narrow is None or any(a is not None for a in others):
            continue
        if UNKNOWN in narrow.shape:
            continue  # it may be 1
        long = [i - narrow.ndim for i, d in enumerate(narrow.shape) if d != 1]
        if len(long) != 1 or wide.ndim < 2 or narrow.shape[long[0]] != wide.shape[long[0]]:
            continue
        vector = _as_vector(at, bias, narrow)
        if vector is not None:
            return new_call(op.bias_add, data, vector, wide.ndim + long[0])
    return None


def _as_vector(at: RuleSite, bias: Any, type_: TensorType) -> Expr | None:
    if type_.ndim == 1:
        return bias  # type: ignore[no-any-return]
    made = at.made_by(bias, op.reshape, op.expand_dims)
    source = None if made is None else tensor_type(made.args[0])
    return made.args[0] if made is not None and source is not None and source.ndim == 1 else None


# With labels in order of their first use; `dense` goes before `matmul_nt`.
_BY_EQUATION = {
    equation_of((tuple(first), tuple(second)), tuple(result)): product
    for product, equation in PRODUCTS.items()
    for first, second, result in [product_terms(equation)]
}


@CANONICAL_RULES.rule(op.einsum)
def matrix_product(at: RuleSite) -> Expr | None:
    """An `einsum` that is a matrix product, or a batch of them, is called so."""
    equation, operands = at.args
    fields = operands.fields if isinstance(operands, Tuple) else ()
    types = [t for t in map(tensor_type, fields) if t is not None and t.is_static]
    if len(types) != 2 or len(fields) != 2:
        return None
    read = subscripts(equation, [t.static_shape for t in types])
    for labels, type_ in zip(read.operands, types, strict=True):
        if any(read.extents[s] != d for s, d in zip(labels, type_.shape, strict=True)):
            return None  # an axis of extent 1 is broadcast
    product = _BY_EQUATION.get(equation_of(read.operands, read.result))
    return None if product is None else new_call(product, *fields)
