"""How operators are written for channels last: the rules of `channels_last`.

A rule is a function of a `Site`. To add one, decorate it with `rule`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from meta import op
from meta.base.source import Span
from meta.ir import Call, Expr, TensorType, Tuple, Type, Var, type_of
from meta.op.core import Op
from meta.passes.lifetimes import type_bytes

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
"""The axes of an array with its channels first, in the order with the channels last; and back."""
HALF = "float16", "bfloat16"
LAYOUTS = {"layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}


class Arrays(Protocol):
    """What is known of a function's arrays; `channels_last` has it."""

    def last(self, atom: Expr, span: Span | None) -> Var:
        """Return an array with the channels last."""

    def has_last(self, atom: Expr) -> bool:
        """Whether an array is there with the channels last."""

    def only_fields(self, var: Var) -> bool:
        """Whether a tuple is taken apart wherever it is used."""

    def convolves(self, kernel: Expr, *images: Expr) -> None:
        """Note a convolution."""


def is_image(type_: Type | None) -> bool:
    return isinstance(type_, TensorType) and type_.ndim == 4 and type_.is_static


@dataclass(frozen=True, slots=True)
class Site:
    """A call where it stands.

    op: the operator. args: its arguments by name. function: which knows what has the channels last.
    result: what the call is bound to. span: the user's line.
    """

    op: Op
    args: dict[str, Any]
    function: Arrays
    result: Var
    span: Span | None

    def has(self, *names: str) -> bool:
        """Whether one of these arguments is there with the channels last."""
        return any(self.function.has_last(self.args[n]) for n in names)

    def last(self, *names: str) -> dict[str, Var]:
        """Return these arguments with the channels last."""
        return {n: self.function.last(self.args[n], self.span) for n in names}

    def call(self, **changed: Any) -> Call:
        """Return the call with some arguments changed."""
        args = {**self.args, **changed}
        return Call(self.op, tuple(args[n] for n in self.op.schema.names))


Rule = Callable[[Site], Call | None]
_RULES: dict[Op, Rule] = {}


def rule(*ops: Op) -> Callable[[Rule], Rule]:
    """Attach a rule to operators; a decorator.

    The rule returns the call on arrays with the channels last, or None to leave it as it is.
    """

    def attach(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(ops, function))
        return function

    return attach


def rule_of(called: Op) -> Rule:
    """Return the rule of an operator; `elementwise` unless it has one of its own."""
    return _RULES.get(called, elementwise)


@rule(op.conv2d)
def conv2d(at: Site) -> Call | None:
    """Both operands and the result; this is where it pays to begin."""
    if not _converts(at, "x"):
        return None
    at.function.convolves(at.args["w"], *_images(at, at.args["w"], at.args["x"]))
    return at.call(**at.last("x", "w"), **LAYOUTS)


@rule(op.conv2d_dx, op.conv2d_dw)
def conv2d_gradient(at: Site) -> Call | None:
    """The shape of the result is given in its layout."""
    if not _converts(at, "dy"):
        return None
    other = at.args["x_or_w"]
    if at.op is op.conv2d_dx:
        at.function.convolves(other, *_images(at, other, at.args["dy"]))
    else:  # a sum over images even of products
        at.function.convolves(at.result, other, at.args["dy"])
    shape = tuple(at.args["shape"][i] for i in LAST)
    return at.call(**at.last("x_or_w", "dy"), y=None, shape=shape, **LAYOUTS)


def _images(at: Site, kernel: Expr, image: Expr) -> tuple[Expr, ...]:
    """Return the image that a convolution reads and its result, if the channels last help it."""
    type_ = type_of(kernel)
    assert isinstance(type_, TensorType)
    steps = at.args["stride"], at.args["padding"]
    ones = [set(v if isinstance(v, tuple) else (v,)) for v in steps] == [{1}, {0}]
    product = type_.shape[2:] == (1, 1) and ones and at.args["groups"] == 1
    return () if product else (image, at.result)


def _converts(at: Site, name: str) -> bool:
    type_ = type_of(at.args[name])
    half = isinstance(type_, TensorType) and type_.dtype in HALF
    layouts = [at.args[n] for n in LAYOUTS]
    return half and is_image(type_) and layouts == ["NCHW", "OIHW", "NCHW"]


@rule(op.batch_norm_train, op.batch_norm_infer)
def batch_norm(at: Site) -> Call | None:
    """The channels are axis 3."""
    return at.call(**at.last("x"), axis=3) if at.has("x") and at.args["axis"] == 1 else None


@rule(op.batch_norm_train_dxwb)
def batch_norm_gradient(at: Site) -> Call | None:
    """Of the results, dx has the channels last."""
    if not at.has("x", "dy") or at.args["axis"] != 1 or not at.function.only_fields(at.result):
        return None
    return at.call(**at.last("x", "dy"), axis=3)


@rule(op.max_pool2d, op.avg_pool2d, op.adaptive_max_pool2d, op.adaptive_avg_pool2d)
def pool(at: Site) -> Call | None:
    """A layout is all that changes."""
    fits = at.has("x") and at.args["layout"] == "NCHW"
    return at.call(**at.last("x"), layout="NHWC") if fits else None


@rule(op.max_pool2d_dx, op.avg_pool2d_dx, op.adaptive_max_pool2d_dx, op.adaptive_avg_pool2d_dx)
def pool_gradient(at: Site) -> Call | None:
    """A layout is all that changes."""
    fits = at.has("x", "y", "dy") and at.args["layout"] in (None, "NCHW")
    return at.call(**at.last("x", "y", "dy"), layout="NHWC") if fits else None


@rule(op.bias_add)
def bias_add(at: Site) -> Call | None:
    """The channels are axis 3."""
    return at.call(**at.last("x"), axis=3) if at.has("x") and at.args["axis"] == 1 else None


@rule(op.sum, op.mean)
def reduction(at: Site) -> Call | None:
    """Axes that are left in the same order: the channels alone, or images and channels."""
    axes = at.args["axis"]
    if not at.has("x") or at.args["keepdims"] or at.args["exclude"] or not isinstance(axes, tuple):
        return None
    gone = {axis % 4 for axis in axes} or set(range(4))
    if [i for i in LAST if i not in gone] != [i for i in range(4) if i not in gone]:
        return None
    return at.call(**at.last("x"), axis=tuple(i for i, axis in enumerate(LAST) if axis in gone))


@rule(op.concatenate)
def concatenate(at: Site) -> Call | None:
    """Along the channels, if most parts have them last."""
    parts = at.args["x"].fields if isinstance(at.args["x"], Tuple) else ()
    having = sum(at.function.has_last(p) for p in parts)
    if at.args["axis"] not in (1, -3) or 2 * having <= len(parts):
        return None
    last = tuple(at.function.last(p, at.span) for p in parts)
    return at.call(x=Tuple(last), axis=3)


@rule(op.split)
def split(at: Site) -> Call | None:
    """Along the channels."""
    if not at.has("x") or at.args["axis"] not in (1, -3) or not at.function.only_fields(at.result):
        return None
    return at.call(**at.last("x"), axis=3)


def elementwise(at: Site) -> Call | None:
    """Operators that know no axes, of arrays that are mostly there with the channels last."""
    tensors = {n: a for n, a in at.args.items() if isinstance(a, Expr) and _rank(a) != 0}
    if at.op.random or at.op.schema.written or not _knows_no_axes(at) or not tensors:
        return None
    if not all(is_image(t) for t in (at.result.type, *map(type_of, tensors.values()))):
        return None
    having = sum(type_bytes(type_of(a)) for a in tensors.values() if at.function.has_last(a))
    if 2 * having < sum(type_bytes(type_of(a)) for a in tensors.values()) or not having:
        return None
    return at.call(**at.last(*tensors))


def _rank(atom: Expr) -> int | None:
    type_ = type_of(atom)
    return type_.ndim if isinstance(type_, TensorType) else None


def _knows_no_axes(at: Site) -> bool:
    """Whether an operator is elementwise, and no attribute of the call is a number of an axis."""
    kinds = {d.fusion for d in at.op.aspects.dialect_ops if d.fusion is not None}
    attributes = (at.args[s.name] for s in at.op.schema.slots if s.kind == "attribute")
    plain = all(isinstance(v, bool | float | str | None) for v in attributes)
    return plain and bool(kinds) and kinds <= {"elemwise", "broadcast"}
