"""Rules of what gives elements another place (views, transpositions, broadcasts), of what takes
tensors apart and joins them, of `where`, and of products of transposed matrices.
"""

from __future__ import annotations

from meta import op
from meta.dialect.core.ir_calls import (
    PRODUCTS,
    OpCall,
    new_call,
    tensor_of,
    tensor_type,
)
from meta.ir import Expr, Tuple
from meta.op.core.axes import product_terms
from meta.op.core.check import (
    inverse_permutation,
    normalize_axes,
    normalize_axis,
    permutation,
    swap_permutation,
)
from meta.op.core.slicing import slice_ranges
from meta.op.core.window import DATA, pad_pairs, pads
from meta.op.linalg import GROUPED
from meta.passes.simplify.arithmetic import fill_of
from meta.passes.simplify.table import RULES, RuleSite, fields_of, same_axis, unpacked_tuple

VIEWS = (op.reshape, op.batch_flatten, op.expand_dims, op.squeeze, op.reshape_like)


@RULES.rule(*VIEWS, op.broadcast_to, op.broadcast_to_like, op.collapse_sum_like, op.copy)
def same_shape(at: RuleSite) -> Expr | None:
    """A reshape, a broadcast or a sum to the shape that x has. A copy is needed only of what is
    written or returned, of which nothing is replaced.
    """
    return at.same(at.args[0])


@RULES.rule(*VIEWS)
def view_of_views(at: RuleSite) -> Expr | None:
    """A view of views is one reshape, for only the last shape counts, once it is written out."""
    source = at.args[0]
    while (inner := at.made_by(source, *VIEWS)) is not None:
        source = inner.args[0]
        if at.same(source) is not None:
            return at.same(source)
    if source is at.args[0] or not at.type.is_static:
        return None
    return new_call(op.reshape, source, at.type.static_shape)


@RULES.rule(op.broadcast_to, op.broadcast_to_like)
def broadcast_of_broadcast(at: RuleSite) -> Expr | None:
    """broadcast_to(broadcast_to(x, a), b) is broadcast_to(x, b)."""
    inner = at.made_by(at.args[0], op.broadcast_to, op.broadcast_to_like)
    if inner is None or not at.type.is_static:
        return None
    return new_call(op.broadcast_to, inner.args[0], at.type.static_shape)


@RULES.rule(op.sum, op.prod, op.mean, op.max, op.min)
def reduce_no_axis(at: RuleSite) -> Expr | None:
    """A reduction over no axis, of which each element is its own result."""
    return at.same(at.args[0]) if at.args[1] == () else None


PERMUTATIONS = (op.permute_dims, op.permute_dims_dx, op.swapaxes)


def order_of(made: OpCall | RuleSite) -> tuple[int, ...]:
    """Return which axis of its argument each axis of the result of a permutation is."""
    x = tensor_of(made.args[0])
    if made.op is op.swapaxes:
        return swap_permutation(made.args[1], made.args[2], x.ndim)
    read = permutation if made.op is op.permute_dims else inverse_permutation
    return read(made.args[1], x.ndim)


@RULES.rule(*PERMUTATIONS)
def merge_permutations(at: RuleSite) -> Expr | None:
    """Two permutations are one; one that moves only axes of extent 1 is a reshape."""
    source, order = at.args[0], order_of(at)
    inner = at.made_by(source, *PERMUTATIONS)
    if inner is not None:
        first = order_of(inner)
        source, order = inner.args[0], tuple(first[a] for a in order)
    if order == tuple(range(len(order))):
        return at.same(source)
    x = tensor_of(source)
    long = [a for a in order if x.shape[a] != 1]
    if at.type.is_static and long == sorted(long):  # the elements lie in the same order
        return new_call(op.reshape, source, at.type.static_shape)
    if inner is None:
        return None
    return new_call(op.permute_dims, source, None if order == permutation(None, x.ndim) else order)


@RULES.rule(*PERMUTATIONS)
def permuted_stack(at: RuleSite) -> Expr | None:
    """A stack of permuted arrays, permuted so that they are as they were, is a stack of these."""
    made = at.made_by(at.args[0], op.stack)
    if made is None:
        return None
    order = order_of(at)
    axis = normalize_axis(made.args[1], len(order))
    rest = [a - (a > axis) for a in order if a != axis]
    sources = []
    for part in fields_of(made.args[0]):
        inner = at.made_by(part, *PERMUTATIONS)
        if inner is None or [order_of(inner)[a] for a in rest] != sorted(rest):
            return None
        sources.append(inner.args[0])
    return new_call(op.stack, Tuple(tuple(sources)), order.index(axis))


@RULES.rule(op.strided_slice, op.strided_slice_dx)
def full_slice(at: RuleSite) -> Expr | None:
    """A slice of everything, in order, or its gradient. An extent that is not known is that of x
    only where all of the axis is kept.
    """
    x = at.same(at.args[0])
    if x is None:
        return None
    ranges = slice_ranges(at.type.shape, *at.args[-4:])
    return x if all(r is None or r == range(len(r)) for r in ranges) else None


@RULES.rule(op.repeat, op.tile, op.pad)
def repeat_once(at: RuleSite) -> Expr | None:
    """What repeats nothing and adds nothing: the shape says so, unless there are no elements."""
    if not at.type.is_static or at.type.size == 0:
        return None
    return at.same(at.args[0])


@RULES.rule(op.flip)
def flip_no_axis(at: RuleSite) -> Expr | None:
    """A flip of no axis."""
    return None if normalize_axes(at.args[1], at.type.ndim) else at.same(at.args[0])


@RULES.rule(op.roll)
def roll_by_zero(at: RuleSite) -> Expr | None:
    """A shift by 0."""
    return at.same(at.args[0]) if at.args[1] in (0, (0,)) else None


@RULES.rule(op.conv1d, op.conv2d, op.conv3d)
def padded_image(at: RuleSite) -> Expr | None:
    """A convolution pads what was padded with zeros, if it then pads equally on both sides, as
    libraries do.
    """
    x, w, stride, padding, dilation, groups, layout, *layouts = at.args
    made = at.made_by(x, op.pad)
    if made is None:
        return None
    source, widths, value, mode = made.args
    count = at.type.ndim - 2
    pairs = dict(zip(layout, pad_pairs(widths, count + 2), strict=True))
    outside = any(map(any, (pairs.pop("N"), pairs.pop("C"))))
    if outside or mode != "constant" or not isinstance(value, int | float) or value != 0:
        return None
    around = pads(padding, count)
    before = [pairs[axis][0] + n for axis, n in zip(DATA[count][2:], around[:count], strict=True)]
    after = [pairs[axis][1] + n for axis, n in zip(DATA[count][2:], around[count:], strict=True)]
    if before != after:
        return None
    return new_call(at.op, source, w, stride, (*before,), dilation, groups, layout, *layouts)


_BY_EQUATION = {equation: product for product, equation in PRODUCTS.items()}
_SWAPPED = {2: (1, 0), 3: (0, 2, 1)}


@RULES.rule(*PRODUCTS)
def transposed_operand(at: RuleSite) -> Expr | None:
    """A product of a transposed matrix reads the matrix as it is stored."""
    operands = list(at.args)
    *terms, result = product_terms(PRODUCTS[at.op])
    for i, operand in enumerate(operands):
        made = at.made_by(operand, *PERMUTATIONS)
        if made is not None and order_of(made) == _SWAPPED[at.type.ndim]:
            operands[i] = made.args[0]
            terms[i] = terms[i][:-2] + terms[i][-1] + terms[i][-2]
    if tuple(operands) == tuple(at.args):
        return None
    return new_call(_BY_EQUATION[f"{terms[0]},{terms[1]}->{result}"], *operands)


@RULES.rule(*PERMUTATIONS)
def transposed_product(at: RuleSite) -> Expr | None:
    """A transposed product that nothing else reads is one of the transposed matrices, exchanged."""
    made = at.made_by(at.args[0], *PRODUCTS)
    if made is None or not at.known.is_read_once(at.args[0]):
        return None
    if order_of(at) != _SWAPPED[at.type.ndim]:
        return None
    renamed = PRODUCTS[made.op].translate(str.maketrans("ac", "ca"))
    first, second, _ = product_terms(renamed)
    _, _, result = product_terms(PRODUCTS[made.op])
    return new_call(_BY_EQUATION[f"{second},{first}->{result}"], *reversed(made.args))


_GROUPED = {stored: product for product, stored in GROUPED.items()}


@RULES.rule(*GROUPED)
def transposed_in_groups(at: RuleSite) -> Expr | None:
    """So does a product in groups, of whose operands each has axes of its own."""
    operands, stored = list(at.args[:2]), list(GROUPED[at.op])
    for i, operand in enumerate(operands):
        made = at.made_by(operand, *PERMUTATIONS)
        if made is not None and order_of(made) == _SWAPPED[tensor_of(operand).ndim]:
            operands[i], stored[i] = made.args[0], not stored[i]
    if operands == list(at.args[:2]):
        return None
    return new_call(_GROUPED[stored[0], stored[1]], *operands, at.args[2])


@RULES.rule(op.concat)
def concat_of_split(at: RuleSite) -> Expr | None:
    """The parts of a split, all of them in order, joined along the same axis; and a single part."""
    parts = fields_of(at.args[0])
    if at.args[1] is None:
        return None
    if len(parts) == 1:
        return at.same(parts[0])
    split = at.made_by(unpacked_tuple(parts, at.known), op.split)
    if split is None or not same_axis(split.args[2], at.args[1], at.type.ndim):
        return None
    return at.same(split.args[0])


@RULES.rule(op.concat)
def stack_of_views(at: RuleSite) -> Expr | None:
    """Arrays joined along an axis that each gets for it are a stack of them."""
    parts = fields_of(at.args[0])
    if at.args[1] is None or len(parts) < 2 or not at.type.is_static:
        return None
    axis = normalize_axis(at.args[1], at.type.ndim)
    views = [at.made_by(part, op.reshape) for part in parts]
    sources = [view.args[0] for view in views if view is not None]
    shape = at.type.static_shape
    alone = {(*shape[:axis], *shape[axis + 1 :])} == {tensor_of(x).shape for x in sources}
    if not alone or len(parts) != len(sources) or shape[axis] != len(parts):
        return None
    return new_call(op.stack, Tuple(tuple(sources)), axis)


@RULES.rule(op.stack)
def single_stack(at: RuleSite) -> Expr | None:
    """A stack of one tensor is a view of it."""
    parts = fields_of(at.args[0])
    if len(parts) != 1 or not at.type.is_static:
        return None
    return new_call(op.reshape, parts[0], at.type.static_shape)


@RULES.rule(op.where)
def constant_condition(at: RuleSite) -> Expr | None:
    """A choice between x and x, or by a condition that is the same everywhere."""
    condition, x, y = at.args
    if x is y:
        chosen = x
    else:
        fill = fill_of(condition, at.known)
        if fill is None:
            return None
        chosen = x if fill else y
    if tensor_type(chosen) is None or at.same(chosen) is not None or not at.type.is_static:
        return at.same(chosen)
    return new_call(op.broadcast_to, chosen, at.type.static_shape)
