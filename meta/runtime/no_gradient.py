"""Where a gradient ends: in blocks that record nothing, and at an array that was computed by an
operator without a gradient, or from such an array; what that has in the place of a tape node.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NoReturn

from meta.base.errors import GradientError
from meta.base.source import Span

recording: ContextVar[bool] = ContextVar("meta_recording", default=True)
"""Whether calls are recorded for `backward` now."""


class NoGradient:
    """The operator that has no gradient, why, and the user's line that called it."""

    __slots__ = ("line", "op", "why")

    def __init__(self, op: str, why: str, line: tuple[str, int] | None) -> None:
        self.op, self.why, self.line = op, why, line

    def error(self) -> GradientError:
        """Return the error of who asks for a gradient through it."""
        return GradientError(
            f"no gradient goes through {self.op}, on which all of this array depends",
            op=self.op,
            found=self.why,
            hint="compute it by operators that have a gradient, or leave it out of what is "
            "differentiated",
            span=None if self.line is None else Span(*self.line),
        )

    def backward(self, seed: Any, create_graph: bool) -> NoReturn:
        """Raise, as nothing was recorded."""
        raise self.error()
