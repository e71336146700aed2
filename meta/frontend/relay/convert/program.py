"""`Program`, a Relay module with what is found out about it once, for all conversions; and
`unsupported`, everything that keeps a program from being converted, before it is tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from meta.base.errors import ArgumentError
from meta.base.registry import nearest
from meta.frontend.core import Unconvertible
from meta.frontend.relay import ast, converters
from meta.frontend.relay.convert.order import Order, Scope
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.registry import relay
from meta.runtime.ndarray import ndarray

HINTS = frozenset({"Inline", "Primitive", "Composite", "Compiler"})
"""Attributes of functions that partition a program for a compiler. Such a function is inlined where
it calls no other: `meta` fuses by itself.
"""


class Program:
    """A Relay module, and the order of evaluation of its functions.

    Copies of a model share it: nothing here changes after it was computed.
    """

    def __init__(self, module: ast.Module) -> None:
        self.module = module
        self._orders: dict[str, Order] = {}
        self._constants: dict[ast.Constant, ndarray] = {}
        self._uses: Counter[str] | None = None

    def __deepcopy__(self, _: object) -> Program:
        return self

    @property
    def main(self) -> ast.Function:
        """The entry point; RelayError if there is none."""
        return self.function("main")

    def function(self, name: str) -> ast.Function:
        """Return a global function; RelayError if there is none."""
        found = self.module.functions.get(name)
        if found is None:
            raise RelayError(
                f"the program has no function @{name}", hint=nearest(name, self.module.functions)
            )
        return found

    def order(self, name: str) -> Order:
        """Return the order of evaluation of a global function."""
        if name not in self._orders:
            self._orders[name] = Order(self.function(name))
        return self._orders[name]

    def inlines(self, name: str) -> bool:
        """Whether calls of a global function are replaced by its body: it is a compiler's hint, or
        used in one place.
        """
        if is_hint(self.function(name).attrs, self.order(name).root):
            return True
        if self._uses is None:
            self._uses = Counter(["main"])
            for other in self.reached:
                for node, count in self.order(other).uses.items():
                    if isinstance(node, ast.GlobalVar):
                        self._uses[node.name] += count
        return self._uses[name] == 1 and not self._calls_itself(name)

    @cached_property
    def reached(self) -> tuple[str, ...]:
        """The global functions that main may call, itself included, in the module's order. A file
        may hold others, such as a prelude's; they have no part in what main computes.
        """
        found: set[str] = set()
        stack = ["main"]
        while stack:
            name = stack.pop()
            if name not in found and name in self.module.functions:
                found.add(name)
                stack += [n.name for n in self.order(name).uses if isinstance(n, ast.GlobalVar)]
        return tuple(name for name in self.module.functions if name in found)

    def _calls_itself(self, name: str) -> bool:
        return any(isinstance(n, ast.GlobalVar) and n.name == name for n in self.order(name).uses)

    def calls(self) -> Iterator[ast.Call]:
        """Yield the calls of operators in what main may call, function by function."""
        for name in self.reached:
            for node in self.order(name).nodes:
                if isinstance(node, ast.Call) and isinstance(node.op, ast.Op):
                    yield node

    def constant(self, node: ast.Constant) -> ndarray:
        """Return a constant's array; RelayError if the file does not hold it."""
        found = self._constants.get(node)
        if found is None:
            place = None if node.place is None else str(node.place)
            if node.value is None:
                raise RelayError(
                    f"the file does not hold the value of {node.missing or 'a constant'}",
                    place=place,
                    hint="print the module with its metadata (mod.astext()), or save it as JSON",
                )
            try:
                found = self._constants[node] = ndarray(node.value.contiguous())
            except ArgumentError as error:
                raise RelayError(f"a constant cannot be used: {error.what}", place=place) from error
        return found


def is_hint(attrs: Mapping[str, Any], scope: Scope) -> bool:
    """Whether a function only says what a compiler should take together: it has such an attribute,
    and calls nothing but operators.
    """
    if HINTS.isdisjoint(attrs) or scope.inner:
        return False
    calls = [step for step in scope.steps if isinstance(step, ast.Call)]
    return all(isinstance(call.op, ast.Op) for call in calls)


__all__ = ["Unsupported", "converters", "require_supported", "unsupported"]

_MAX_PLACES = 3


@dataclass
class Unsupported:
    """An operator, or constant, that cannot be converted, for one reason.

    ``places``: the first few. ``hint``: what to try, such as the nearest operator that can be.
    """

    name: str
    why: str
    hint: str | None = None
    count: int = 0
    places: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count} times"
        where = f", at {', '.join(self.places)}" if self.places else ""
        more = ", ..." if self.count > len(self.places) > 0 else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.name}: {self.why}{hint}; {times}{where}{more}"


def unsupported(program: Program) -> list[Unsupported]:
    """Return what cannot be converted of main and what it may call, the most frequent first.

    What depends on the arguments of a call is found only when the program is traced.
    """
    found: dict[tuple[str, str], Unsupported] = {}

    def add(name: str, why: str, hint: str | None, node: ast.Expr) -> None:
        entry = found.setdefault((name, why), Unsupported(name, why, hint))
        entry.count += 1
        if node.place is not None and len(entry.places) < _MAX_PLACES:
            entry.places.append(str(node.place).removeprefix(program.module.source).lstrip(":, "))

    for call in program.calls():
        assert isinstance(call.op, ast.Op)
        try:
            relay.require(call.op.name, {} if call.attrs is None else call.attrs.fields)
        except Unconvertible as error:
            add(call.op.name, error.why, error.hint, call)
    for name in program.reached:
        for leaf in program.order(name).uses:
            if isinstance(leaf, ast.Constant):
                try:
                    program.constant(leaf)
                except RelayError as error:
                    add("a constant", error.what, error.hint, leaf)
    return sorted(found.values(), key=lambda u: -u.count)


def require_supported(program: Program) -> None:
    """Raise one RelayError that lists all of `unsupported`, if there is any."""
    found = unsupported(program)
    if not found:
        return
    what = found[0].name if len(found) == 1 else f"{len(found)} things of the program"
    error = RelayError(f"{what} cannot be converted", place=program.module.source)
    for entry in found:
        error.note(f"  {entry}")
    raise error
