"""Rules of what takes tensors apart and joins them, and of `where`."""

from __future__ import annotations

from meta import op
from meta.ir import Call, Expr, If, Tuple, TupleGetItem, type_of
from meta.op.core.check import normalize_axis
from meta.op.shapes import split_bounds, split_points
from meta.passes.buffers import Definitions
from meta.passes.calls import OpCall, new_call, op_call, tensor_type
from meta.passes.rules.fills import fill_of
from meta.passes.rules.table import RULES, Site


def _fields(atom: object) -> tuple[Expr, ...]:
    return atom.fields if isinstance(atom, Tuple) else ()


@RULES.rule(op.concatenate)
def joined_again(at: Site) -> Expr | None:
    """The parts of a split, all of them in order, joined along the same axis; and a single part."""
    parts = _fields(at.args[0])
    if len(parts) == 1:
        return at.same(parts[0])
    gets = [at.known.get(p) for p in parts]
    if not gets or not all(
        isinstance(g, TupleGetItem) and g.index == i for i, g in enumerate(gets)
    ):
        return None
    owners = {g.value for g in gets}  # type: ignore[union-attr]
    split = at.made_by(owners.pop(), op.split) if len(owners) == 1 else None
    if split is None or not _same_axis(split.args[2], at.args[1], at.type.ndim):
        return None
    return at.same(split.args[0])


@RULES.rule(op.stack)
def single_stack(at: Site) -> Expr | None:
    """A stack of one tensor is a view of it."""
    parts = _fields(at.args[0])
    if len(parts) != 1 or not at.type.is_static:
        return None
    return new_call(op.reshape, parts[0], at.type.static_shape)


def field_of(value: TupleGetItem, known: Definitions) -> Expr | None:
    """Return the atom that a field of a known tuple is; None if it is not known.

    Of a split where tensors were joined, it is one of these.
    """
    owner = value.value if isinstance(value.value, Tuple) else known.get(value.value)
    if isinstance(owner, Tuple):
        return owner.fields[value.index]
    split = op_call(owner)
    if split is None or split.op is not op.split:
        return None
    joined = op_call(known.get(split.args[0]))
    if joined is None or joined.op is not op.concatenate:
        return None
    return _part(split, joined, value.index)


def whole(atom: Expr, known: Definitions) -> Expr:
    """Return the tuple whose fields, all of them in order, a tuple is made of; else the atom.

    Only that of a function's call or an `If`: its value goes on as it is.
    """
    gets = [known.get(f) for f in _fields(atom)]
    owner = gets[0].value if gets and isinstance(gets[0], TupleGetItem) else None
    if owner is None or type_of(owner) != type_of(atom):
        return atom
    value = known.get(owner)
    if not isinstance(value, Call | If) or op_call(value) is not None:
        return atom
    fields = all(
        isinstance(g, TupleGetItem) and g.value is owner and g.index == i
        for i, g in enumerate(gets)
    )
    return owner if fields else atom


def _part(split: OpCall, joined: OpCall, index: int) -> Expr | None:
    parts = _fields(joined.args[0])
    types = tuple(t for t in map(tensor_type, parts) if t is not None and t.is_static)
    whole = tensor_type(split.args[0])
    if len(types) != len(parts) or not parts or whole is None:
        return None
    if not _same_axis(split.args[2], joined.args[1], whole.ndim):
        return None
    extent = whole.shape[normalize_axis(split.args[2], whole.ndim)]
    assert isinstance(extent, int)
    ends = tuple(end for _, end in split_bounds(extent, split.args[1]))[:-1]
    return parts[index] if ends == split_points(types, joined.args[1]) else None


def _same_axis(a: int, b: int, ndim: int) -> bool:
    return normalize_axis(a, ndim) == normalize_axis(b, ndim)


@RULES.rule(op.where)
def decided(at: Site) -> Expr | None:
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
