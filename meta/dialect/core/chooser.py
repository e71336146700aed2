"""What chooses among the candidates of a call, where more is known of them than their priority.

Dispatch asks the `Chooser` that the call context holds. By default that is `Priority`, until a
higher floor sets another one: `meta.cost.chooser` chooses by what was measured.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from meta.base.call_context import context, set_default_chooser
from meta.dialect.core.dialect_op import DialectOp
from meta.dialect.core.preference import Config
from meta.op.core.call import CallValues


class Chosen(Protocol):
    """A candidate: the name of its dialect, and how its kernel is launched."""

    @property
    def dialect(self) -> str: ...
    @property
    def config(self) -> Config: ...


class Chooser(Protocol):
    """How the kernels of a compilation, or of a block, are chosen."""

    def key(self) -> Hashable:
        """Return what its choices depend on, besides the call and what the user prefers."""

    def known(self, call: CallValues, *, eager: bool) -> Any:
        """Return what it knows of a call's candidates; None for nothing: then priority decides."""

    def choose(self, known: Any, order: Sequence[str], preferred: Sequence[str]) -> Chosen | None:
        """Return the candidate to run, None where that cannot be said.

        order: the dialects that may run the call, as priority has them. preferred: by the user.
        """

    def compiles(self) -> bool:
        """Whether an eager call may be run by what has to be compiled for it."""

    def configuration(self, dialect_op: DialectOp, call: CallValues, *, eager: bool) -> Config:
        """Return how the kernel of a candidate is launched that priority chose; () by default."""

    def measure(self, call: CallValues) -> Sequence[Any]:
        """Measure the candidates of a call, and return what they cost."""


class Priority:
    """Leaves every choice to priority."""

    def key(self) -> Hashable:
        return None

    def known(self, call: CallValues, *, eager: bool) -> Any:
        return None

    def choose(self, known: Any, order: Sequence[str], preferred: Sequence[str]) -> Chosen | None:
        return None

    def compiles(self) -> bool:
        return False

    def configuration(self, dialect_op: DialectOp, call: CallValues, *, eager: bool) -> Config:
        return ()

    def measure(self, call: CallValues) -> Sequence[Any]:
        return ()


def current_chooser() -> Chooser:
    """Return what chooses here."""
    chooser: Chooser = context.get().chooser
    return chooser


set_default_chooser(Priority())
