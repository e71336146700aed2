"""What operators make of parts: elementwise ones, products, reductions, and what moves elements."""

from __future__ import annotations

from math import prod
from typing import Any

from meta import op
from meta.dialect.core.ir_calls import PRODUCTS, product_terms
from meta.ir.dims import product
from meta.ir.types import UnknownDim
from meta.op.core import Op
from meta.op.core.check import inverse_permutation, normalize_axis, permutation, swap_permutation
from meta.op.core.reduction import reduction
from meta.op.core.slicing import quotient, slice_ranges
from meta.op.shapes import split_bounds
from meta.passes.distributed.sharding import (
    RULES,
    Rule,
    ShardAxis,
    ShardedValue,
    Site,
    leaves,
    rule,
)


def rule_of(op: Op) -> Rule | None:
    """Return what an operator makes of parts, None if it needs whole tensors."""
    return RULES.get(op) or (elementwise if op.elementwise else None)


def elementwise(at: Site) -> Any:
    """Operands, broadcast, are cut as the largest of them that is."""
    ndim = len(at.type.shape)
    given = {n: a for n, a in at.args.items() if isinstance(a, ShardedValue)}
    cut = common_axis(list(given.values()), ndim)
    if not cut.fits(at.type.shape, at.ranks.size):
        return None
    return at.run(cut, **{n: at.aligned(a, cut, ndim) for n, a in given.items()})


def common_axis(parts: list[ShardedValue], ndim: int) -> ShardAxis:
    """Return how the largest value that is cut is, seen from a result of ``ndim`` axes."""

    def known(part: ShardedValue) -> int:
        return prod(d for d in part.shape if isinstance(d, int))

    first = max((p for p in parts if p.cut is not None), key=known)
    assert first.cut is not None
    return ShardAxis(first.cut.axis + ndim - first.ndim, first.cut.joined)


@rule(*PRODUCTS)
def products(at: Site) -> Any:
    """Cut along an axis of the result, or along the one that is summed over, for a term of it."""
    first, second, result = product_terms(PRODUCTS[at.op])
    x, y = at["x1"], at["x2"]

    def letter(part: ShardedValue, terms: str) -> str:
        return "" if part.cut is None else terms[part.cut.axis]

    of_x, of_y = letter(x, first), letter(y, second)
    if of_x and of_y and (of_x, x.cut.joined) != (of_y, y.cut.joined):
        x, of_x = at.ranks.whole(x, at.why), ""
    along, joined = of_y or of_x, (y.cut or x.cut).joined
    if not of_y and along in second and along not in result:
        return None  # terms that only x has parts of: the weight is whole, and so is the product

    def part(value: ShardedValue, terms: str) -> Any:
        axis = terms.find(along)
        if axis < 0 or value.shape[axis] == 1:
            return at.ranks.copied(at.ranks.whole(value, at.why))
        return at.ranks.cut(value, ShardAxis(axis, joined), at.why)

    made = {"x1": part(x, first), "x2": part(y, second)}
    if along in result:
        return at.run(ShardAxis(result.index(along), joined), **made)
    return at.summed(at.made(**made))


@rule(op.bias_add)
def bias_add(at: Site) -> Any:
    """The bias is cut as its axis is."""
    x = at["x"]
    if x.cut is None:
        return None
    cut = x.cut
    if normalize_axis(at["axis"], x.ndim) != cut.axis:
        return at.run(cut, bias=at.ranks.copied(at.ranks.whole(at["bias"], at.why)))
    return at.run(cut, bias=at.ranks.cut(at["bias"], ShardAxis(0, cut.joined), at.why))


def through_reshape(
    shape: tuple[Any, ...], cut: ShardAxis, into: tuple[Any, ...], size: int
) -> ShardAxis | None:
    """Return how what is cut is, in row-major order in another shape; None if it is not to be said
    by one axis.

    Before the ranks are ``outer`` elements in a row: all positions of the axes before, times the
    pieces along the axis itself. An axis of the other shape serves that begins there, or has as
    many pieces that do.
    """
    if any(isinstance(d, UnknownDim) or (isinstance(d, int) and d == 0) for d in (*shape, *into)):
        return None
    outer = product((*shape[: cut.axis], cut.joined))
    assert not isinstance(outer, UnknownDim)
    found: list[ShardAxis] = []
    for axis in range(len(into)):
        before = product(into[:axis])
        assert not isinstance(before, UnknownDim)
        pieces = quotient(outer, before)
        if isinstance(pieces, int) and ShardAxis(axis, pieces).fits(into, size):
            found.append(ShardAxis(axis, pieces))
    return min(found, key=lambda c: c.joined, default=None)


@rule(op.reshape)
def reshape(at: Site) -> Any:
    """What begins where ranks do stays cut."""
    x, wanted = at["x"], at["shape"]
    cut = None if at["kept"] else through_reshape(x.shape, x.cut, at.type.shape, at.ranks.size)
    if cut is None:
        return None
    extents = [wanted] if isinstance(wanted, int) else list(wanted)
    if extents[cut.axis] != -1:
        extents[cut.axis] //= at.ranks.size
    return at.run(cut, shape=tuple(extents))


@rule(op.batch_flatten, op.expand_dims, op.squeeze)
def view(at: Site) -> Any:
    """A reshape whose shape follows from that of the argument."""
    x = at["x"]
    cut = through_reshape(x.shape, x.cut, at.type.shape, at.ranks.size)
    if cut is None or (at.op is op.batch_flatten and cut.axis == 0):
        return None
    if at.op is op.squeeze and at["axis"] is None:  # a part may be of extent 1
        return at.run(cut, axis=tuple(i for i, d in enumerate(x.shape) if d == 1))
    return at.run(cut)


@rule(op.permute_dims, op.permute_dims_dx, op.swapaxes)
def permute(at: Site) -> Any:
    """The axis that is cut goes where it goes."""
    x = at["x"]
    if at.op is op.swapaxes:
        order = swap_permutation(at["axis1"], at["axis2"], x.ndim)
    else:
        read = permutation if at.op is op.permute_dims else inverse_permutation
        order = read(at["axes"], x.ndim)
    return at.run(ShardAxis(order.index(x.cut.axis), x.cut.joined))


@rule(op.broadcast_to)
def broadcast_to(at: Site) -> Any:
    """What is repeated is cut as before."""
    x, shape = at["x"], at.type.shape
    cut = ShardAxis(x.cut.axis + len(shape) - x.ndim, x.cut.joined)
    if x.shape[x.cut.axis] != shape[cut.axis]:
        return None
    return at.run(cut, shape=at.local(cut))


@rule(op.strided_slice)
def strided_slice(at: Site) -> Any:
    """Along another axis, or of whole pieces of the axis that is cut."""
    x, cut, size = at["x"], at["x"].cut, at.ranks.size
    begin, end, mode = at["begin"], at["end"], at["slice_mode"]
    picked = slice_ranges(x.shape, begin, end, at["strides"], mode)
    if cut.axis >= len(picked):
        return at.run(cut)
    along, extent = picked[cut.axis], x.shape[cut.axis]
    each = extent // cut.joined
    if along is None or along.step != 1 or not len(along):
        return None
    if along.start % each or len(along) % each:
        return None
    begins, ends = ([v] if isinstance(v, int) else list(v) for v in (begin, end))
    begins[cut.axis] = along.start // size
    ends[cut.axis] = (len(along) if mode == "size" else along.stop) // size
    new = ShardAxis(cut.axis, len(along) // each)
    return at.run(new, begin=tuple(begins), end=tuple(ends))


@rule(op.split)
def split(at: Site) -> Any:
    """Along another axis, or between whole pieces of the axis that is cut."""
    x, cut, where = at["x"], at["x"].cut, at["indices_or_sections"]
    if normalize_axis(at["axis"], x.ndim) != cut.axis:
        return at.run(cut)
    bounds = split_bounds(x.shape[cut.axis], where)
    each = x.shape[cut.axis] // cut.joined
    if any(begin % each or end % each or begin == end for begin, end in bounds):
        return None
    if isinstance(where, tuple):
        where = tuple(i // at.ranks.size for i in where)
    cuts = tuple(ShardAxis(cut.axis, (end - begin) // each) for begin, end in bounds)
    return at.run(cuts, indices_or_sections=where)


@rule(op.concat)
def concat(at: Site) -> Any:
    """Along another axis, or of pieces of one length along the axis that is cut."""
    arrays = list(leaves(at["arrays"]))
    if at["axis"] is None:
        return None
    axis, ndim = normalize_axis(at["axis"], arrays[0].ndim), arrays[0].ndim
    cut = common_axis(arrays, ndim)
    if cut.axis != axis:
        made = [at.ranks.cut(a, cut, at.why) for a in arrays]
        return at.run(cut, arrays=tuple(made))
    if any(a.cut is None or a.cut.axis != axis for a in arrays):
        return None
    if len({a.shape[axis] // a.cut.joined for a in arrays if a.cut is not None}) != 1:
        return None
    return at.run(ShardAxis(axis, sum(a.cut.joined for a in arrays if a.cut is not None)))


@rule(op.stack)
def stack(at: Site) -> Any:
    """The new axis is whole."""
    arrays = list(leaves(at["arrays"]))
    cut = common_axis(arrays, arrays[0].ndim)
    behind = normalize_axis(at["axis"], arrays[0].ndim + 1) <= cut.axis
    made = tuple(at.ranks.cut(a, cut, at.why) for a in arrays)
    return at.run(ShardAxis(cut.axis + behind, cut.joined), arrays=made)


@rule(op.repeat)
def repeat(at: Site) -> Any:
    """Along another axis than the one that is cut."""
    x = at["x"]
    if at["axis"] is None or normalize_axis(at["axis"], x.ndim) == x.cut.axis:
        return None
    return at.run(x.cut)


@rule(op.sum, op.mean, op.max, op.min, op.prod, op.all, op.any, op.argmax, op.argmin, op.logsumexp)
def reduce(at: Site) -> Any:
    """Over other axes, or a sum or a mean over the axis that is cut, of which each rank has a term;
    the largest and smallest element where no gradient goes through them.
    """
    x = at["x"]
    found = reduction(x.ndim, at["axis"], at["keepdims"])
    axis = x.cut.axis
    if axis not in found.axes:
        gone = [a for a in found.axes if a not in found.kept and a < axis]
        return at.run(ShardAxis(axis - len(gone), x.cut.joined))
    if at.op is op.sum:
        return at.summed(at.made())
    if at.op is op.mean:
        return at.summed(op.multiply(at.made(), 1 / at.ranks.size))
    if at.op is op.max and not x.grad and x.type.dtype != "bool":
        return at.result(at.ranks.largest(at.made(), at.why), None)
    return None


@rule(op.var, op.std)
def deviation(at: Site) -> Any:
    """Over other axes."""
    x = at["x"]
    found = reduction(x.ndim, at["axis"], at["keepdims"])
    if x.cut.axis in found.axes:
        return None
    gone = [a for a in found.axes if a not in found.kept and a < x.cut.axis]
    return at.run(ShardAxis(x.cut.axis - len(gone), x.cut.joined))
