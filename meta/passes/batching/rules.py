"""What operators make of batched tensors. Of most it follows from how their axes belong together,
as they say (`meta.op.core.axes`): the batch is one axis more in front, or a part of an axis along
which the operator does the same at each position. What else there is, is here and in `layers`:
operators of shapes and of products.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from string import ascii_letters
from typing import Any

from meta import op
from meta.base.registry import OPERATORS
from meta.dialect.core.ir_calls import PRODUCTS
from meta.ir.dims import product
from meta.op.core.axes import Axes, product_terms
from meta.op.core.check import extents_of
from meta.op.core.subscripts import ELLIPSIS, subscripts
from meta.op.core.window import pad_pairs
from meta.passes.batching.site import RULES, Operand, Site, of_none, on_tensors, rule


def batched_call(at: Site) -> Any:
    """Return what an operator makes of batched tensors; None if examples go one by one."""
    if at.size == 0:
        return of_none(at)
    if at.op in RULES and (found := RULES[at.op](at)) is not None:
        return found
    ways = (way(at, axes) for axes in at.axes for way in (_in_front, _within))
    return next((found for found in ways if found is not None), None)


def _in_front(at: Site, axes: Axes) -> Any:
    """Return the results where the batch is one axis more in front; None if it must not be."""
    if not axes.in_front or at.is_batched(*(n for n in at.args if n not in axes.in_front)):
        return None
    ndim = max(o.ndim for n in axes.in_front for o in at.operands(n))
    align = partial(at.aligned, ndim=ndim)
    changed = {
        n: on_tensors(align if n in axes.broadcasts else at.batched, at[n]) for n in axes.in_front
    }
    numbered = max(map(len, (*axes.tensors.values(), *axes.results)))
    changed |= {n: _behind(at[n], numbered) for n in axes.numbers}
    changed |= {n: (at.size, *extents_of(at[n])) for n in axes.shapes}
    return at.plain(**changed)


def _behind(number: Any, ndim: int) -> Any:
    """Return the numbers of axes behind another one; those from the end are the same."""
    if isinstance(number, tuple):
        return tuple(_behind(a, ndim) for a in number)
    return tuple(range(1, 1 + ndim)) if number is None else number + (number >= 0)


def _within(at: Site, axes: Axes) -> Any:
    """Return the results where the batch is a part of an axis that is free; None if none is."""
    names = [n for n in at.args if at.operands(n)]
    for label in axes.free():
        places = {n: axis for n, axis in axes.places(label).items() if n in names}
        counted = [n for n, of in axes.counts.items() if of == label]
        extents = {o.shape[axis] for n, axis in places.items() for o in at.operands(n)}
        others = (n for n in names if n not in places)
        alike = len(extents) == 1 or label in axes.grouped
        if not (alike or counted) or at.is_batched(*others):
            continue
        changed = {n: on_tensors(partial(at.fold, axis=axis), at[n]) for n, axis in places.items()}
        for name, labels in axes.shapes.items():
            known = zip(extents_of(at[name]), labels, strict=True)
            changed[name] = tuple(product((at.size, d)) if s == label else d for d, s in known)
        changed |= {n: product((at.size, at[n])) for n in counted}
        found, results = at.plain(**changed), axes.of_results(len(at.types))
        several = isinstance(found, tuple)
        parts = zip(found if several else (found,), at.types, results, strict=True)
        rows = [at.unfold(y, t.shape, labels.index(label)) for y, t, labels in parts]
        return tuple(rows) if several else rows[0]
    return None


@rule(op.reshape, op.expand_dims, op.squeeze, op.batch_flatten, op.reshape_like)
def view(at: Site) -> Any:
    """Each example in its new shape."""
    x = at["x"]
    return op.reshape(at.batched(x), (at.size, *at.shape))


@rule(op.broadcast_to, op.broadcast_to_like)
def broadcast_to(at: Site) -> Any:
    """Each example is repeated."""
    return op.broadcast_to(at.aligned(at["x"], len(at.shape)), (at.size, *at.shape))


@rule(op.permute_dims, op.permute_dims_dx, op.swapaxes)
def permute(at: Site) -> Any:
    """The batch stays in front."""
    (axes,) = at.axes
    order = (1 + axes.tensors["x"].index(label) for label in axes.results[0])
    return op.permute_dims(at["x"].value, (0, *order))


@rule(op.strided_slice, op.strided_slice_dx, op.strided_set)
def strided_slice(at: Site) -> Any:
    """All examples, and the slice of each."""

    def listed(name: str) -> tuple[Any, ...]:
        value = at[name]
        return (value,) if isinstance(value, int) else tuple(value or ())

    begin, end, strides = map(listed, ("begin", "end", "strides"))
    last = -1 if at.args.get("slice_mode") == "size" else at.size
    changed = {"begin": (0, *begin), "end": (last, *end)}
    if strides:
        changed["strides"] = (1, *strides) if len(strides) > 1 else (1, *strides * len(begin))
    if at.op is op.strided_slice_dx:
        changed["shape"] = (at.size, *listed("shape"))
    return at.run(**changed)


@rule(op.pad, op.pad_dx)
def pad(at: Site) -> Any:
    """Nothing is added in front of, or behind, the examples."""
    ndim = (at["x"] if "x" in at.args else at["dy"]).ndim
    pairs = pad_pairs(at["pad_width"], ndim)
    return at.run(pad_width=(0, 0, *(n for pair in pairs for n in pair)))


@rule(*PRODUCTS)
def products(at: Site) -> Any:
    """One matrix more in each row of the batch, where each example has both."""
    first, second, _ = product_terms(PRODUCTS[at.op])
    x, y = at["x1"], at["x2"]
    if first[0] == "n":
        if x.shape[0] == y.shape[0]:
            return None
        rows = [
            op.broadcast_to(at.batched(o), (at.size, *at.shape[:1], *o.shape[1:])) for o in (x, y)
        ]
        return at.unfold(at.op(*(at.fold(Operand(row, True)) for row in rows)), at.shape)
    if not (x.batched and y.batched):
        return None
    forms = {("ab", "bc"): "", ("ab", "cb"): "_nt", ("ba", "bc"): "_tn", ("ba", "cb"): "_tt"}
    return OPERATORS[f"batch_matmul{forms[first, second]}"](x.value, y.value)


@rule(op.linalg_solve)
def solve(at: Site) -> Any:
    """A vector is a column."""
    x1, x2 = at["x1"], at["x2"]
    if x2.ndim != 1:
        return None
    column = at.aligned(Operand(op.expand_dims(x2.value, -1), x2.batched), x1.ndim)
    return op.squeeze(op.linalg_solve(x1.value, column), -1)


@rule(op.einsum)
def einsum(at: Site) -> Any:
    """One letter more, in the operands that are batched and in the result."""
    equation, operands = at["equation"].replace(" ", ""), at["operands"]
    terms = equation.partition("->")[0].split(",")
    labels = subscripts(equation, [o.shape for o in operands]).result
    rest = "".join(s for s in labels if s in ascii_letters)
    result = ELLIPSIS * any(s.startswith(ELLIPSIS) for s in labels) + rest
    free = next((c for c in reversed(ascii_letters) if c not in equation), None)
    if free is None or (ELLIPSIS in equation and not equation.endswith(result)):
        return None
    batched = ",".join(free + t if o.batched else t for t, o in zip(terms, operands, strict=True))
    return op.einsum(f"{batched}->{free}{result}", tuple(o.value for o in operands))


@rule(op.repeat, op.repeat_dx, op.roll, op.concat)
def along_elements(at: Site) -> Any:
    """Along all elements of each example."""

    def flat(o: Operand) -> Operand:
        start = (at.size,) if o.batched else ()
        return Operand(op.reshape(o.value, (*start, product(o.shape))), o.batched)

    if at["axis"] is not None:
        return None
    args = {n: on_tensors(flat, a) for n, a in at.args.items()}
    found = batched_call(replace(at, args={**args, "axis": 0}))
    return op.reshape(found, (at.size, *at.shape))


@rule(op.tile)
def tile(at: Site) -> Any:
    """Each example is repeated."""
    x = at["x"]
    reps = extents_of(at["reps"])
    reps = (*[1] * (x.ndim - len(reps)), *reps)
    return at.call({**at.args, "x": at.aligned(x, len(reps)), "reps": (1, *reps)})


@rule(op.cast_like)
def cast_like(at: Site) -> Any:
    """Only the dtype counts."""
    return op.astype(at.batched(at["x"]), at.types[0].dtype)


@rule(op.l2norm)
def l2norm(at: Site) -> Any:
    """Along all axes of each example."""
    x = op.reshape(at.batched(at["x"]), (at.size, product(at["x"].shape)))
    return op.sqrt(op.sum(op.square(x), 1)) if x.dtype in ("float32", "float64") else None


@rule(op.optimization_barrier)
def optimization_barrier(at: Site) -> Any:
    """Batched values are known, too."""
    return at.plain(x=at.batched(at["x"]))
