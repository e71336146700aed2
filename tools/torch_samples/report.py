"""What the run of many entries adds up to, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tools.torch_samples.run import Outcome


class Total:
    """All entries asked for, those of them that are not run, with the reasons, and the outcomes."""

    def __init__(
        self, entries: list[str], outside: dict[str, str], outcomes: Iterable[Outcome]
    ) -> None:
        by_name: dict[str, Outcome] = {}
        for outcome in outcomes:
            by_name.setdefault(outcome.name, Outcome(outcome.name)).add(outcome)
        self.entries, self.outside = entries, outside
        self.outcomes = sorted(by_name.values(), key=lambda o: -len(o.entries))

    @property
    def sum(self) -> Outcome:
        """All outcomes in one."""
        total = Outcome("all")
        for outcome in self.outcomes:
            total.add(outcome)
        return total

    @property
    def failing(self) -> list[Outcome]:
        """Those in which something went wrong."""
        return [o for o in self.outcomes if o.failures]

    def counts(self) -> dict[str, int]:
        """Return the figures of the summary."""
        total = self.sum
        return {
            "entries": len(self.entries),
            "not run, as only torch has it": len(self.outside),
            "passing": sum(o.passed for o in self.outcomes),
            "failing": len(self.failing),
            "refusing": sum(not o.failures and not o.passed for o in self.outcomes),
            "run": total.ran,
            "gradients compared": total.gradients,
            "tangents compared": total.tangents,
            "samples outside": total.outside.total(),
            "served": total.served.total(),
            "refused": total.declined.total(),
            "failures": len(total.failures),
        }

    def record(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        return {
            "counts": self.counts(),
            "samples outside": self.sum.outside,
            "outside": self.outside,
            "outcomes": [o.record() for o in self.outcomes],
        }


def text(total: Total, *, declined: bool = False) -> str:
    """Return the report: what failed, what was asked for, and the figures."""
    lines = []
    for outcome in total.failing:
        lines.append(f"{outcome.name}: {len(outcome.failures)} of {outcome.ran} fail")
        lines.append(f"  {outcome.failures[0]}")
    if declined:
        for outcome in total.outcomes:
            lines += _listed(f"{outcome.name}: refused", outcome.declined)
        lines += _listed("samples outside,", total.sum.outside)
        lines += [f"not run: {entry}: {reason}" for entry, reason in total.outside.items()]
    width = max(len(str(number)) for number in total.counts().values())
    lines += [f"{number:>{width}}  {name}" for name, number in total.counts().items()]
    return "\n".join(lines)


def _listed(what: str, reasons: Counter[str]) -> list[str]:
    return [f"{what} {number}: {reason}" for reason, number in reasons.most_common()]
