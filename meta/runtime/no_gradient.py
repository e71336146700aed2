"""Where a gradient ends: in blocks that record nothing, and at an array that was computed by an
operator without a gradient, or from such an array; what that has in the place of a tape node.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

import torch

from meta.base.call_context import context, override_context
from meta.base.errors import GradientError
from meta.base.source import Span


def is_recording() -> bool:
    """Whether calls are recorded for `backward` now: neither in a block of `no_grad`, nor where
    torch records nothing (`torch.no_grad`, `torch.inference_mode`).
    """
    return context.get().recording and torch.is_grad_enabled()


@contextmanager
def set_recording(on: bool) -> Iterator[None]:
    """Record calls in this block, or do not; torch records in it as well, or as before."""
    with override_context(recording=on), torch.enable_grad() if on else nullcontext():
        yield


@contextmanager
def no_grad() -> Iterator[None]:
    """Record nothing for `backward` in this block; what torch records is torch's.

    A torch tensor that enters in it has no history, and neither has one of `ndarray.torch`.

    >>> x = meta.ones(2)
    >>> x.requires_grad = True
    >>> with meta.no_grad():
    ...     y = x * 2.0
    >>> y.requires_grad
    False
    """
    with set_recording(False):
        yield


class ClosureConstant:
    """What an array has in the place of a tape node that is a constant of traced code, copied from
    an array, or a torch tensor, that requires a gradient. It is a leaf which cannot be given one.

    name: of what was closed over. site: where the code was traced.
    """

    __slots__ = ("name", "site")

    def __init__(self, name: str, site: Span | None) -> None:
        self.name, self.site = name, site

    def error(self) -> GradientError:
        """Return the error of who asks for its gradient."""
        return GradientError(
            "traced code closes over an array that requires a gradient, which is a constant of the "
            "program and gets none",
            found=self.name,
            hint="make it an attribute of a model, or an argument; or, if nobody trains it, close "
            "over x.detach(), or set its requires_grad = False before",
            span=self.site,
        )

    def backward(self, seed: Any, create_graph: bool) -> NoReturn:
        """Raise, as the copy is not what requires the gradient."""
        raise self.error()


class NoGradient:
    """The operator that has no gradient, why, and the user's line that called it.

    ``missing``: it is not zero but unknown, so that gradients must not pass beside it.
    """

    __slots__ = ("line", "missing", "op", "why")

    def __init__(
        self, op: str, why: str, line: tuple[str, int] | None, missing: bool = False
    ) -> None:
        self.op, self.why, self.line, self.missing = op, why, line, missing

    def error(self) -> GradientError:
        """Return the error of who asks for a gradient through it."""
        return GradientError(
            f"no gradient goes through {self.op}, on which "
            f"{'this array depends' if self.missing else 'all of this array depends'}",
            op=self.op,
            found=self.why,
            hint="compute it by operators that have a gradient, or leave it out of what is "
            "differentiated",
            span=None if self.line is None else Span(*self.line),
        )

    def backward(self, seed: Any, create_graph: bool) -> NoReturn:
        """Raise, as nothing was recorded."""
        raise self.error()
