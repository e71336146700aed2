"""How the kernel of a call is launched: what it is passed besides the values of the call.

To add a convention, add a field to `Launch` and its wrapper to `Launch.bind`; kernels are kept on
disk with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meta.dialect.tvm.list_launch import ListLaunch
from meta.dialect.tvm.realigned import realigned
from meta.runtime import random

Kernel = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Launch:
    """What is passed besides the values of the call.

    repeated: positions of values that are written in place; they come once more at the end, as
        outputs.
    key_after: the number of values after which a fresh random key is passed; None: none is.
    lists: how a kernel of lists of tensors is given their addresses; None: it is another kernel.
    aligned: whether the kernel may refuse addresses that are no multiples of 16; see `realigned`.
    """

    repeated: tuple[int, ...] = ()
    key_after: int | None = None
    lists: ListLaunch | None = None
    aligned: bool = False

    def bind(self, run: Kernel) -> Kernel:
        """Return a function of the values of the call."""
        if self.lists is not None:
            return self.lists.bind(run)
        if self.repeated:
            run = _repeating(run, self.repeated)
        if self.aligned:
            run = realigned(run)
        return run if self.key_after is None else _drawing(run, self.key_after)

    def record(self) -> dict[str, Any]:
        """Return what `read` reads."""
        found = {"repeated": self.repeated, "key_after": self.key_after}
        record: dict[str, Any] = {n: value for n, value in found.items() if value not in ((), None)}
        if self.lists is not None:
            record["lists"] = self.lists.record()
        if self.aligned:
            record["aligned"] = True
        return record

    @classmethod
    def read(cls, record: dict[str, Any]) -> Launch:
        """Return the launch of a record out of a file; ValueError if it is not one."""
        repeated, key_after = record.get("repeated", ()), record.get("key_after")
        known = {"repeated", "key_after", "lists", "aligned"}
        aligned = record.get("aligned", False)
        if (
            set(record) - known
            or not isinstance(repeated, list | tuple)
            or type(aligned) is not bool
        ):
            raise ValueError(f"{record!r} does not say how to launch a kernel")
        numbers = repeated if key_after is None else (*repeated, key_after)
        if not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError(f"{record!r} does not say how to launch a kernel")
        lists = ListLaunch.read(record["lists"]) if "lists" in record else None
        return cls(tuple(repeated), key_after, lists, aligned)


PLAIN = Launch()


def _repeating(run: Kernel, places: tuple[int, ...]) -> Kernel:
    def launch(*values: Any) -> None:
        run(*values, *[values[i] for i in places])

    return launch


def _drawing(run: Kernel, count: int) -> Kernel:
    def draw(*values: Any) -> None:
        run(*values[:count], random.default.key(), *values[count:])

    return draw
