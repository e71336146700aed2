"""`unsupported`: everything that keeps a program from being converted, before it is tried."""

from __future__ import annotations

from dataclasses import dataclass, field

from meta.frontend.core import Unconvertible
from meta.frontend.relay import ast, converters
from meta.frontend.relay.convert.program import Program
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.registry import relay

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
