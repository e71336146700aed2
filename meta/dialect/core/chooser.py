"""What chooses among the candidates of a call, where more is known of them than their priority.

Dispatch asks the `Chooser` that the call context holds. A higher floor sets one that knows better:
`meta.cost.chooser` chooses by what was measured.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from meta.base.call_context import Default, context, set_default_chooser
from meta.dialect.core.dialect_op import DialectOp
from meta.dialect.core.preference import Config
from meta.op.core.call import CallValues


class Chosen(Protocol):
    """A candidate: the name of its dialect, and how its kernel is launched."""

    @property
    def dialect(self) -> str: ...
    @property
    def config(self) -> Config: ...


class Chooser:
    """How the kernels of a compilation, or of a block, are chosen; this one leaves every choice to
    priority.
    """

    __slots__ = ()

    def key(self) -> Hashable:
        """Return what its choices depend on, besides the call and what the user prefers."""
        return None

    def known(self, call: CallValues, *, eager: bool) -> Any:
        """Return what it knows of a call's candidates; None for nothing: then priority decides."""
        return None

    def choose(self, known: Any, order: Sequence[str], preferred: Sequence[str]) -> Chosen | None:
        """Return the candidate to run, None where that cannot be said.

        order: the dialects that may run the call, as priority has them. preferred: by the user.
        """
        return None

    def compiles(self) -> bool:
        """Whether an eager call may be run by what has to be compiled for it."""
        return False

    def configuration(self, dialect_op: DialectOp, call: CallValues, *, eager: bool) -> Config:
        """Return how the kernel of a candidate is launched that priority chose; () by default."""
        return ()

    def measure(self, call: CallValues) -> Sequence[Any]:
        """Measure the candidates of a call, and return what they cost."""
        return ()


def current_chooser() -> Chooser:
    """Return what chooses here."""
    chooser: Chooser | None = context.get().chooser
    default: Chooser = Default.chooser
    return default if chooser is None else chooser


set_default_chooser(Chooser())
