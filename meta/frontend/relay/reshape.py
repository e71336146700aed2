"""The shape codes of Relay's reshape, as a shape that the base operator takes.

0 copies an extent, -1 infers one, -2 copies all that are left, -3 merges the next two, and -4
splits the next one into the two that follow, one of which may be -1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from meta.frontend.core import Unconvertible
from meta.ir.dims import Dim, UnknownDim, product


def resolved_shape(
    shape: Sequence[Dim], codes: Sequence[int], *, allowzero: bool = False, reverse: bool = False
) -> tuple[Any, ...]:
    """Return the extents that ``codes`` stand for; -1 is one to be inferred, as is one that is
    unknown.

    Parameters
    ----------
    shape: of the data; anything that multiplies and divides will do. allowzero: a 0 is an extent.
    reverse: codes are matched from the last axis.

    Raises Unconvertible for codes that do not fit the shape.
    """
    if reverse:
        return resolved_shape(tuple(shape)[::-1], tuple(codes)[::-1], allowzero=allowzero)[::-1]
    reader = _Codes(shape, codes, allowzero)
    return tuple(reader.read())


class _Codes:
    """Reads codes from left to right beside the axes that they use up."""

    def __init__(self, shape: Sequence[Dim], codes: Sequence[int], allowzero: bool) -> None:
        self.left = deque(shape)
        self.codes = deque(codes)
        self.what = f"reshape of {list(shape)} by {list(codes)}"
        self.allowzero = allowzero

    def read(self) -> list[Dim]:
        """Return the extents."""
        result: list[Dim] = []
        while self.codes:
            code = self.codes.popleft()
            if code == 0 and not self.allowzero:
                result.append(self.axis())
            elif code == -2:
                result += self.left
                self.left.clear()
            elif code == -3:
                result.append(product((self.axis(), self.axis())))
            elif code == -4:
                result += self.halves()
            elif code < -4:
                raise Unconvertible(f"{self.what}: {code} is no code")
            else:
                result.append(code)
                if self.left:
                    self.left.popleft()
        return [-1 if isinstance(d, UnknownDim) else d for d in result]

    def axis(self) -> Dim:
        """Return the extent of the next axis of the data."""
        if not self.left:
            raise Unconvertible(f"{self.what}: there is no axis left to copy")
        return self.left.popleft()

    def halves(self) -> tuple[Dim, Dim]:
        """Return the two extents that the next axis is split into."""
        whole = self.axis()
        if len(self.codes) < 2:
            raise Unconvertible(f"{self.what}: two extents have to follow -4")
        first, second = self.codes.popleft(), self.codes.popleft()
        if first == -1 == second or min(first, second) < -1 or 0 in (first, second):
            raise Unconvertible(f"{self.what}: -4 cannot split into {first} and {second}")
        if isinstance(whole, UnknownDim):
            return first, second
        if first == -1:
            return whole // second, second
        return first, whole // first if second == -1 else second
