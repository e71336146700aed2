"""The nodes of patterns: what one value of a program has to be.

A node says in how many *ways* a value can be what it describes; each way is a list of goals, nodes
that other values have to be. The search (`matches.py`) knows nothing else of them. A new kind of
node is a class with a method `ways` here, and with `among` where it need not be looked for among
all values.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from meta import op
from meta.base.errors import ArgumentError
from meta.base.methods import Overloads
from meta.dialect.core.ir_calls import base_op
from meta.ir import Call, Constant, Expr, Tuple, TupleGetItem, Var, operands, type_of
from meta.ir.constants import tensor_bytes
from meta.ir.literals import literal_text
from meta.op.core import Op

if TYPE_CHECKING:
    from meta.passes.pattern.scope import BlockScope

Goal = tuple["Node", Any]
Ways = list[tuple[Goal, ...]]
Assignment = dict["Node", Any]
"""What each node of a pattern is: an atom or a literal."""


@dataclass(eq=False, frozen=True)
class Node(Overloads, ABC):
    """What one value has to be. Nodes compare by identity: one node, one value.

    ``name``: under which the value is captured; "" captures nothing. ``inner``: the nodes
    that this one is made of. ``opens``: whether the binding of the value belongs to the match.
    """

    opens: ClassVar[bool] = False
    name: str = field(default="", kw_only=True)
    inner: tuple[Node, ...] = field(default=(), kw_only=True)

    # What these mean on arrays depends on dtypes and shapes, which a node does not have.
    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__

    @abstractmethod
    def ways(self, value: Any, scope: BlockScope, found: Assignment) -> Ways | str:
        """Return the ways in which ``value`` (an atom or a literal) can be this, or why none.

        ``found``: what other nodes are.
        """

    def may_be(self, value: Expr) -> bool:
        """Tell quickly of what a variable is bound to whether it can be this at all."""
        return True

    def among(self, scope: BlockScope) -> Set[Var] | None:
        """Return variables of a block that alone can be this, as far as the calls tell that it is
        computed of; None if it may be anything.
        """
        return None

    def __or__(self, other: Any) -> Node:
        return Alternatives(inner=(self, as_node(other)))

    def __ror__(self, other: Any) -> Node:
        return Alternatives(inner=(as_node(other), self))

    def __getitem__(self, index: Any) -> Node:
        if not isinstance(index, int) or isinstance(index, bool):
            raise ArgumentError(
                "node[i] is field i of a tuple",
                found=f"[{index!r}]",
                hint="write op.strided_slice for a slice",
            )
        return TupleField(index, inner=(self,))

    def __iter__(self) -> Iterator[Node]:
        raise ArgumentError(
            "how many fields the result of an operator has is not known in a pattern",
            hint="take them by node[i]",
        )

    def __matmul__(self, other: Any) -> Any:
        return op.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return op.matmul(other, self)


@dataclass(eq=False, frozen=True)
class Wildcard(Node):
    """Any value; with `dtype`, `ndim` or ``where``, only some. See `wildcard`."""

    dtype: str | None = None
    ndim: int | None = None
    where: Callable[[Any], bool] | None = None

    def ways(self, value: Any, scope: BlockScope, found: Assignment) -> Ways | str:
        type_ = type_of(value) if isinstance(value, Expr) else value
        if self.dtype is not None and getattr(type_, "dtype", None) != self.dtype:
            return f"{scope.shown(value)} is not of {self.dtype}"
        if self.ndim is not None and getattr(type_, "ndim", None) != self.ndim:
            return f"{scope.shown(value)} does not have {self.ndim} dimensions"
        if self.where is not None and not self.where(type_):
            return f"{scope.shown(value)} does not meet the condition on it"
        return [()]


@dataclass(eq=False, frozen=True)
class ConstantValue(Node):
    """A constant tensor or a number; with ``value``, one whose elements all are that number."""

    value: float | int | bool | None = None

    def ways(self, value: Any, scope: BlockScope, found: Assignment) -> Ways | str:
        found = scope.value_of(value)
        if isinstance(found, Constant):
            fits = self.value is None or _filled_with(found.data, self.value)
        elif isinstance(found, bool | int | float):
            fits = self.value is None or _same_number(found, self.value)
        else:
            return f"{scope.shown(value)} is no constant"
        return [()] if fits else f"{scope.shown(value)} is not {self.value}"


@dataclass(eq=False, frozen=True)
class LiteralValue(Node):
    """Exactly this literal: an attribute as the pattern gives it, or its default."""

    literal: Any

    def ways(self, value: Any, scope: BlockScope, found: Assignment) -> Ways | str:
        same = not isinstance(value, Expr) and _literal(value) == _literal(self.literal)
        return [()] if same else f"{scope.shown(value)} is not {literal_text(self.literal)}"


@dataclass(eq=False, frozen=True)
class Called(Node):
    """The result of an operator that ``accepts`` takes, of arguments that ``inner`` describes.

    Arguments that it has no node for are anything (``rest``) or have their default values.
    """

    opens = True
    accepts: Callable[[Expr], bool]
    label: str
    rest: bool = False
    op: Op | None = None  # the only operator, where it is a base operator

    def may_be(self, value: Expr) -> bool:
        return (
            isinstance(value, Call)
            and base_op(value.callee) is not None
            and self.accepts(value.callee)
        )

    def among(self, scope: BlockScope) -> Set[Var] | None:
        inner = [near for near in map(scope.among, self.inner) if near is not None]
        if self.op is not None:
            own: Iterable[Var] = scope.facts.calls(scope.block).get(self.op, ())
        elif inner:
            fewest: Set[Var] = min(inner, key=len)
            own = scope.users(fewest)
        else:
            return None
        return {v for v in own if self._may_be_of(scope.bindings[v].value, inner)}

    def _may_be_of(self, value: Expr, inner: list[Set[Var]]) -> bool:
        """Whether what a variable is bound to can be a call of something in each of some sets."""
        if not self.may_be(value):
            return False
        return not inner or not any(near.isdisjoint(operands(value)) for near in inner)

    def ways(self, value: Any, scope: BlockScope, found: Assignment) -> Ways | str:
        call = scope.value_of(value)
        if not isinstance(call, Call) or base_op(call.callee) is None:
            return f"{scope.shown(value)} is not the result of {self.label}"
        if not self.accepts(call.callee):
            return f"{scope.shown(value)} is the result of {call.callee}, not of {self.label}"
        op = base_op(call.callee)
        assert op is not None
        if len(self.inner) > len(call.args):
            return f"{op.name} has {len(call.args)} arguments only"
        slots = [*zip(op.slots, call.args, strict=True)]
        for slot, arg in slots[len(self.inner) :]:
            given = isinstance(arg, Expr) or literal_text(arg) != literal_text(slot.default)
            if given and not self.rest:
                return f"the argument {slot.name!r} of {op.name} is given"
        ways = [tuple(zip(self.inner, call.args, strict=False))]
        if op.commutative and len(self.inner) > 1:
            first, second, *others = call.args
            ways.append(tuple(zip(self.inner, (second, first, *others), strict=False)))
        return ways


@dataclass(eq=False, frozen=True)
class TupleField(Node):
    """Field ``index`` of a tuple."""

    opens = True
    index: int

    def among(self, scope: BlockScope) -> Set[Var] | None:
        near = scope.among(self.inner[0])
        if near is None:
            return None
        return {v for v in scope.users(near) if isinstance(scope.get(v), TupleGetItem)}

    def ways(self, value: Any, scope: BlockScope, found: Assignment) -> Ways | str:
        found = scope.value_of(value)
        if not isinstance(found, TupleGetItem) or found.index != self.index:
            return f"{scope.shown(value)} is not field {self.index} of a tuple"
        return [((self.inner[0], found.value),)]


@dataclass(eq=False, frozen=True)
class Fields(Node):
    """A tuple of so many values."""

    opens = True

    def ways(self, value: Any, scope: BlockScope, found: Assignment) -> Ways | str:
        found = scope.value_of(value)
        if not isinstance(found, Tuple) or len(found.fields) != len(self.inner):
            return f"{scope.shown(value)} is not a tuple of {len(self.inner)}"
        return [tuple(zip(self.inner, found.fields, strict=True))]


@dataclass(eq=False, frozen=True)
class Alternatives(Node):
    """One of several; the first that fits."""

    def may_be(self, value: Expr) -> bool:
        return any(option.may_be(value) for option in self.inner)

    def among(self, scope: BlockScope) -> Set[Var] | None:
        near = [scope.among(option) for option in self.inner]
        return None if None in near else {v for found in near for v in found or ()}

    def ways(self, value: Any, scope: BlockScope, found: Assignment) -> Ways | str:
        return [((option, value),) for option in self.inner]


@dataclass(eq=False, frozen=True)
class Chain(Node):
    """What ``inner`` describes, after any number of calls that ``accepts`` takes: each of the
    result of the one before, as its first argument.
    """

    accepts: Callable[[Call], bool]

    def may_be(self, value: Expr) -> bool:
        return self._continues(value) or self.inner[0].may_be(value)

    def among(self, scope: BlockScope) -> Set[Var] | None:
        near = scope.among(self.inner[0])
        return None if near is None else near | scope.reached(near, self._continues)

    def _continues(self, value: Any) -> bool:
        return isinstance(value, Call) and base_op(value.callee) is not None and self.accepts(value)

    def ways(self, value: Any, scope: BlockScope, found: Assignment) -> Ways | str:
        ways: Ways = [((self.inner[0], value),)]
        call = scope.value_of(value)
        if self._continues(call):
            ways.insert(0, ((Step(), value), (replace(self, name=""), call.args[0])))
        return ways


@dataclass(eq=False, frozen=True)
class Step(Node):
    """A call on the way to what a node describes."""

    opens = True

    def ways(self, value: Any, scope: BlockScope, found: Assignment) -> Ways | str:
        return [()]


def chain(node: Any, *ops: Op, where: Callable[[Call], bool] | None = None) -> Node:
    """Return a node that is another one, or made of it by any number of calls of some operators.

    where: tells of a call whether it is taken.
    """

    def accepts(call: Call) -> bool:
        return base_op(call.callee) in ops and (where is None or where(call))

    return Chain(accepts, inner=(as_node(node),))


def wildcard(
    name: str = "",
    *,
    dtype: str | None = None,
    ndim: int | None = None,
    where: Callable[[Any], bool] | None = None,
) -> Node:
    """Return a node that any value is: a tensor, or in the place of an attribute a literal.

    Parameters
    ----------
    name: under which the value is captured. A parameter of a pattern function needs none.
    dtype, ndim: of the tensors that are taken.
    where: tells of a value's type (of a literal itself) whether it is taken.
    """
    return Wildcard(dtype, ndim, where, name=name)


def constant(value: float | int | bool | None = None, name: str = "") -> Node:
    """Return a node that is a constant tensor or a plain number, of any or of one value.

    The value is compared exactly: -0.0 is not 0.0, and nan is nan.
    """
    return ConstantValue(value, name=name)


def named(name: str, node: Node) -> Node:
    """Return a node that also captures its value."""
    return replace(node, name=name)


def as_node(value: Any) -> Node:
    """Return what stands in a pattern as a node: a number is a constant of that value."""
    if isinstance(value, Node):
        return value
    if isinstance(value, bool | int | float):
        return ConstantValue(value)
    if isinstance(value, tuple | list):
        return Fields(inner=tuple(map(as_node, value)))
    raise ArgumentError(
        f"a {type(value).__name__} cannot stand in a pattern",
        expected="a parameter of the pattern, the result of an operator or a number",
    )


def called(op: Expr) -> Callable[[Expr], bool]:
    """Return the test for one operator. A base operator is also what a dialect makes of it."""
    if isinstance(op, Op):
        return lambda callee: base_op(callee) is op
    return lambda callee: callee is op


def _literal(value: Any) -> str:
    """Return the text of a literal; of 0 and 0.0 one."""
    whole = isinstance(value, float) and value.is_integer() and str(value) != "-0.0"
    return literal_text(int(value) if whole else value)


def _same_number(a: float | int | bool, b: float | int | bool) -> bool:
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)


def _filled_with(data: torch.Tensor, value: float | int | bool) -> bool:
    if data.numel() == 0 or isinstance(value, bool) != (data.dtype == torch.bool):
        return False
    if data.dtype.is_floating_point:  # as the tensor's dtype rounds it
        value = torch.tensor(float(value), dtype=torch.float64).to(data.dtype).item()
    first = data.reshape(-1)[:1]
    if not _same_number(first.item(), value):
        return False
    return bytes(tensor_bytes(data)) == bytes(tensor_bytes(first)) * data.numel()


def walk_nodes(*roots: Node) -> Iterator[Node]:
    """Yield every node of some nodes once, themselves included, in the order of the pattern."""
    seen: set[Node] = set()
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack.extend(reversed(node.inner))


def depth(node: Node) -> int:
    """Return how many steps a node is computed in, at most."""
    return max((1 + depth(one) for one in node.inner), default=0)


def of_type(value: Any) -> Any:
    """Return what a check sees of a captured value: the type of an atom, a literal itself."""
    return type_of(value) if isinstance(value, Expr) else value
