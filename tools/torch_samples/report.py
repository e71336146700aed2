"""What the run of many entries adds up to, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tools.torch_samples.run import Outcome


@dataclass
class Total:
    """All entries asked for, and the outcomes of those that have an adapter."""

    entries: list[str]
    outcomes: list[Outcome]

    @property
    def covered(self) -> list[Outcome]:
        """Those of which enough samples ran."""
        return [o for o in self.outcomes if o.covered]

    @property
    def failing(self) -> list[Outcome]:
        """Those in which something went wrong, covered or not."""
        return [o for o in self.outcomes if o.failures]

    @property
    def uncovered(self) -> list[str]:
        """Entries without an adapter, and those of which most samples were declined."""
        covered = {o.entry for o in self.covered}
        return [e for e in self.entries if e not in covered]

    def counts(self) -> dict[str, int]:
        """Return the figures of the summary."""
        single = sum(o.single for o in self.covered)
        return {
            "entries": len(self.entries),
            "covered": len(self.covered),
            "passing": sum(o.passed for o in self.outcomes),
            "single operator": single,
            "composition": len(self.covered) - single,
            "samples run": sum(o.ran for o in self.outcomes),
            "gradients compared": sum(o.gradients for o in self.outcomes),
            "samples declined": sum(o.declined.total() for o in self.outcomes),
        }

    def record(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        return {
            "counts": self.counts(),
            "uncovered": self.uncovered,
            "outcomes": [o.record() for o in self.outcomes],
        }


def text(total: Total, *, declined: bool = False, uncovered: bool = False) -> str:
    """Return the report: what failed, what was asked for, and the figures."""
    lines = []
    for outcome in total.failing:
        lines.append(f"{outcome.entry}: {len(outcome.failures)} of {outcome.ran} samples fail")
        lines.append(f"  {outcome.failures[0]}")
    if declined:
        for outcome in total.outcomes:
            for reason, number in outcome.declined.most_common():
                lines.append(f"{outcome.entry}: declined {number}: {reason}")
    if uncovered:
        lines += [f"not covered: {entry}" for entry in total.uncovered]
    width = max(len(str(number)) for number in total.counts().values())
    lines += [f"{number:>{width}}  {name}" for name, number in total.counts().items()]
    return "\n".join(lines)
