"""What the run of many entries adds up to, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from tools.torch_samples.outside import ONLY_TORCH
from tools.torch_samples.run import Outcome


@dataclass
class Total:
    """All entries asked for, and the outcomes of those that were run."""

    entries: list[str]
    outcomes: list[Outcome]

    @property
    def failing(self) -> list[Outcome]:
        """Those in which something went wrong."""
        return [o for o in self.outcomes if o.failures]

    @property
    def refusing(self) -> list[Outcome]:
        """Those of which nothing is wrong, but of which `meta` refuses some samples, or all."""
        return [o for o in self.outcomes if not o.failures and not o.passed]

    @property
    def outside(self) -> dict[str, str]:
        """The entries that are not run, and why."""
        return {e: ONLY_TORCH[e] for e in self.entries if e in ONLY_TORCH}

    @property
    def reasons(self) -> Counter[str]:
        """How many samples are outside, by reason."""
        return sum((o.outside for o in self.outcomes), Counter())

    def counts(self) -> dict[str, int]:
        """Return the figures of the summary."""
        return {
            "entries": len(self.entries),
            "not run, as only torch has it": len(self.outside),
            "passing": sum(o.passed for o in self.outcomes),
            "failing": len(self.failing),
            "refusing samples": len(self.refusing),
            "samples run": sum(o.ran for o in self.outcomes),
            "gradients compared": sum(o.gradients for o in self.outcomes),
            "samples outside": self.reasons.total(),
            "samples refused": sum(o.declined.total() for o in self.outcomes),
        }

    def record(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        return {
            "counts": self.counts(),
            "samples outside": dict(self.reasons),
            "outside": self.outside,
            "outcomes": [o.record() for o in self.outcomes],
        }


def text(total: Total, *, declined: bool = False) -> str:
    """Return the report: what failed, what was asked for, and the figures."""
    lines = []
    for outcome in total.failing:
        lines.append(f"{outcome.entry}: {len(outcome.failures)} of {outcome.ran} samples fail")
        lines.append(f"  {outcome.failures[0]}")
    if declined:
        for outcome in total.outcomes:
            for reason, number in outcome.declined.most_common():
                lines.append(f"{outcome.entry}: refused {number}: {reason}")
        for reason, number in total.reasons.most_common():
            lines.append(f"samples outside, {number}: {reason}")
        lines += [f"not run: {entry}: {reason}" for entry, reason in total.outside.items()]
    width = max(len(str(number)) for number in total.counts().values())
    lines += [f"{number:>{width}}  {name}" for name, number in total.counts().items()]
    return "\n".join(lines)
