"""What `report` says: how often each enabled overload was called, and who ran it.

Counts are of all threads, since `reset_report` or the start of the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class Tally:
    """How many calls of an overload one dialect ran; or PyTorch, for a reason."""

    __slots__ = ("count", "dialect", "name", "why")

    def __init__(self, name: str, dialect: str, why: str | None) -> None:
        self.name, self.dialect, self.why = name, dialect, why
        self.count = 0


_tallies: dict[tuple[str, str, str | None], Tally] = {}


def tally_of(name: str, *, dialect: str = "", why: str | None = None) -> Tally:
    """Return the one tally of an overload with this dialect, or this reason."""
    key = (name, dialect, why)
    return _tallies.setdefault(key, Tally(*key))


@dataclass(frozen=True)
class EnableReport:
    """What became of the calls of enabled overloads; ``print`` it.

    Attributes
    ----------
    served: how many calls the kernels of a dialect ran, by overload and dialect ("tvm"; "tvm,
    torch" for a call that became several kernels). Those of "torch" alone went to PyTorch's own
    kernel at once, as that is what dispatch chose.
    refused: how many calls PyTorch ran because they are not served, by overload and reason.

    >>> import meta.interop.torch
    >>> print(meta.interop.torch.EnableReport({("relu", "tvm"): 3}, {("sort", "no kernel"): 1}))
    3 calls served, 1 refused
      tvm: relu x 3
      refused sort x 1: no kernel
    """

    served: Mapping[tuple[str, str], int]
    refused: Mapping[tuple[str, str], int]

    def __str__(self) -> str:
        calls, refusals = sum(self.served.values()), sum(self.refused.values())
        lines = [f"{calls} calls served, {refusals} refused"]
        by_dialect: dict[str, list[str]] = {}
        for (name, dialect), count in sorted(self.served.items()):
            by_dialect.setdefault(dialect, []).append(f"{name} x {count}")
        lines += [f"  {dialect}: {', '.join(names)}" for dialect, names in by_dialect.items()]
        for (name, why), count in sorted(self.refused.items(), key=lambda r: (-r[1], r[0])):
            lines.append(f"  refused {name} x {count}: {why}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON has it: lists of overload, dialect or reason, and count."""
        return {
            "served": [[*key, count] for key, count in sorted(self.served.items())],
            "refused": [[*key, count] for key, count in sorted(self.refused.items())],
        }


def report() -> EnableReport:
    """Return what became of calls of enabled overloads, of all threads, since `reset_report`.

    >>> import torch, meta.interop.torch
    >>> meta.interop.torch.reset_report()
    >>> with meta.interop.torch.enable(["relu"], device="cpu"), meta.dialect.only("torch"):
    ...     y = torch.relu(torch.zeros(2))
    >>> dict(meta.interop.torch.report().served)
    {('relu', 'torch'): 1}
    """
    served: Counter[tuple[str, str]] = Counter()
    refused: Counter[tuple[str, str]] = Counter()
    for tally in list(_tallies.values()):
        if tally.count and tally.why is None:
            served[tally.name, tally.dialect] += tally.count
        elif tally.count and tally.why is not None:
            refused[tally.name, tally.why] += tally.count
    return EnableReport(dict(served), dict(refused))


def reset_report() -> None:
    """Count from 0 on.

    >>> import meta.interop.torch
    >>> meta.interop.torch.reset_report()
    >>> dict(meta.interop.torch.report().served)
    {}
    """
    for tally in list(_tallies.values()):
        tally.count = 0
