"""The table of rewrite rules by operator, what a rule is given, and applying a table to a program.

A rule is a function of a `RuleSite`, attached to the operators of its decorator. It returns the
atom that the call equals, another call that gives the same, or None. The first rule that answers
counts; rules are asked in the order in which they are written down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from meta import op
from meta.base.errors import ArgumentError
from meta.dialect.core.ir_calls import OpCall, called_op, op_call, tensor_type, view_source
from meta.ir import (
    UNKNOWN,
    Binding,
    Call,
    Constant,
    Expr,
    Function,
    If,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    Var,
    type_of,
)
from meta.op.core import Op
from meta.op.core.check import normalize_axis
from meta.op.shapes import split_bounds, split_points
from meta.passes.alias_analysis import AliasSets, Definitions, map_functions_with_aliases
from meta.passes.rewrite import rewrite_function


@dataclass(frozen=True, slots=True)
class RuleSite:
    """A call of a base operator where it stands.

    op: the operator. args: its arguments in schema order. type: that of the result. known: what
    variables were bound to.
    """

    op: Op
    args: tuple[Any, ...]
    type: TensorType
    known: Definitions

    def made_by(self, atom: object, *ops: Op) -> OpCall | None:
        """Return the call that computed ``atom`` if it is one of these operators."""
        made = op_call(self.known.get(atom))
        return made if made is not None and made.op in ops else None

    def same(self, atom: object) -> Expr | None:
        """Return the atom if it can stand for the result: if it has its type."""
        if not isinstance(atom, Expr):
            return None
        # An unknown extent equals another in the type, not in the array.
        return atom if type_of(atom) == self.type and UNKNOWN not in self.type.shape else None


Rule = Callable[[RuleSite], Expr | None]


class Rules:
    """Rules by operator."""

    def __init__(self) -> None:
        self._rules: dict[Op, list[Rule]] = {}

    def rule(self, *ops: Op) -> Callable[[Rule], Rule]:
        """Attach a rule to operators; a decorator. ArgumentError for what is no operator."""
        for one in ops:
            if not isinstance(one, Op):
                raise ArgumentError(
                    "a rule is for operators", expected="meta.op.<name>", found=repr(one)
                )

        def attach(function: Rule) -> Rule:
            for one in ops:
                self._rules.setdefault(one, []).append(function)
            return function

        return attach

    def apply(self, site: RuleSite) -> Expr | None:
        """Return what the first rule that answers makes of a call; None if none does."""
        for rule in self._rules.get(site.op, ()):
            result = rule(site)
            if result is not None:
                return result
        return None


RULES = Rules()
"""The rules of `simplify`."""


def apply(rules: Rules, module: Module) -> Module:
    """Return the module with every binding rewritten until no rule applies to it any more.

    Fields of known tuples become what they are, and a result that is put together of the fields of
    one call or `If` becomes that: the call is then in tail position. What is written or leaves the
    program stays an array of its own.
    """

    def change(function: Function, buffers: AliasSets) -> Function:
        known = Definitions(function, buffers)
        step, result = partial(_step, rules, buffers, known), partial(repacked_tuple, known=known)
        return rewrite_function(function, step, result=result)

    return map_functions_with_aliases(module, change)


def _step(rules: Rules, buffers: AliasSets, known: Definitions, binding: Binding) -> Binding | Expr:
    while True:
        result = _rewritten(rules, binding, known)
        if result is None or not _may_alias(result, binding, buffers):
            break
        if not isinstance(result, Call):
            return result
        binding = Binding(binding.var, result, binding.span)
    known.add(binding)
    return binding


def _rewritten(rules: Rules, binding: Binding, known: Definitions) -> Expr | None:
    """Return the atom or the call that a value equals, None if no rule applies."""
    value, type_ = binding.value, binding.var.type
    if isinstance(value, Var | Constant):
        return value
    if isinstance(value, TupleGetItem):
        return field_of(value, known)
    made = op_call(value)
    if made is None or not isinstance(type_, TensorType):
        return None
    return rules.apply(RuleSite(made.op, made.args, type_, known))


def _may_alias(result: Expr, binding: Binding, buffers: AliasSets) -> bool:
    """Whether a value may share the memory that it would share as ``result``."""
    shared = view_source(result) if isinstance(result, Call) else result
    if shared is None or buffers.of(shared) is buffers.of(binding.var):
        return True
    if buffers.replaceable(binding.var, shared):
        return True
    # A copy that is a result was asked for.
    return called_op(binding.value) is not op.copy and buffers.move_out(binding.var, shared)


def fields_of(atom: object) -> tuple[Expr, ...]:
    """Return the fields of a tuple that is written out; nothing for another atom."""
    return atom.fields if isinstance(atom, Tuple) else ()


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
    if joined is None or joined.op is not op.concat or joined.args[1] is None:
        return None
    return _split_field(split, joined, value.index)


def repacked_tuple(atom: Expr, known: Definitions) -> Expr:
    """Return the tuple whose fields, all of them in order, a tuple is made of; else the atom.

    Only that of a function's call or an `If`: its value goes on as it is.
    """
    owner = unpacked_tuple(fields_of(atom), known)
    if owner is None or type_of(owner) != type_of(atom):
        return atom
    value = known.get(owner)
    return owner if isinstance(value, Call | If) and op_call(value) is None else atom


def unpacked_tuple(fields: tuple[Expr, ...], known: Definitions) -> Expr | None:
    """Return the tuple whose first fields these are, in order; None if they are no such fields."""
    gets = [known.get(field) for field in fields]
    owners = {
        get.value if isinstance(get, TupleGetItem) and get.index == i else None
        for i, get in enumerate(gets)
    }
    return owners.pop() if len(owners) == 1 else None


def _split_field(split: OpCall, joined: OpCall, index: int) -> Expr | None:
    parts = fields_of(joined.args[0])
    types = tuple(t for t in map(tensor_type, parts) if t is not None and t.is_static)
    whole = tensor_type(split.args[0])
    if len(types) != len(parts) or not parts or whole is None:
        return None
    if not same_axis(split.args[2], joined.args[1], whole.ndim):
        return None
    extent = whole.shape[normalize_axis(split.args[2], whole.ndim)]
    assert isinstance(extent, int)
    ends = tuple(end for _, end in split_bounds(extent, split.args[1]))[:-1]
    return parts[index] if ends == split_points(types, joined.args[1]) else None


def same_axis(a: int, b: int, ndim: int) -> bool:
    """Whether two numbers are of one axis."""
    return normalize_axis(a, ndim) == normalize_axis(b, ndim)
