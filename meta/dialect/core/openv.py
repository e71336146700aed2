"""`OpEnv`: the winner of a dispatch, an operator bound to one backend's kernel and ready to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meta.dialect.core.dialect import DialectOp


class Unsupported(Exception):
    """Raised by a dialect operator that cannot serve a call: a limit of its capability, never a
    user's error.
    """


@dataclass(slots=True)
class OpEnv:
    """A kernel with everything but the tensors bound.

    Attributes
    ----------
    run: called with torch tensors and run-time numbers in slot order (tuples flattened, None left
    out). If ``allocates``,
        it returns the operator's own results as fresh tensors (one, a tuple, or None if there are
        none); otherwise it is given them as further arguments and fills them. In-out arguments are
        written in place.
    allocates: see ``run``.
    strided: whether inputs may be non-contiguous; if not, the caller passes compact ones.
    dialect_op: who made it.
    """

    run: Callable[..., Any]
    allocates: bool
    strided: bool = False
    dialect_op: DialectOp | None = None
