"""What autocast tells about a program: which casts it has put in, for whom, and by which rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from meta.base.source import Span
from meta.ir import TensorType


@dataclass(frozen=True, slots=True)
class Why:
    """Who needs a value in another dtype, and why.

    Attributes
    ----------
    consumer: an operator and its argument ("dense.x2"), or another place ("result of @main").
    reason: what decided, in words. rule: where the operator's cast rule is stated, if it was one.
    span: the user's line of the consumer.
    """

    consumer: str
    reason: str
    rule: Span | None = None
    span: Span | None = None


@dataclass(slots=True)
class Cast:
    """A cast that was put in.

    Attributes
    ----------
    function: of the program, in which it stands. value: the name of what is cast. source: its type.
    dtype: the new one. needs: who needs it, in the order of the program; the first one's line is
    that of the cast.
    """

    function: str
    value: str
    source: TensorType
    dtype: str
    needs: list[Why] = field(default_factory=list)

    def as_data(self) -> dict[str, Any]:
        """Return the same as plain values, which JSON has."""
        return {
            "function": self.function,
            "value": self.value,
            "shape": [d if isinstance(d, int) else str(d) for d in self.source.shape],
            "from": self.source.dtype,
            "to": self.dtype,
            "needs": [
                {
                    "consumer": w.consumer,
                    "reason": w.reason,
                    "rule": None if w.rule is None else str(w.rule),
                    "line": None if w.span is None else str(w.span),
                }
                for w in self.needs
            ],
        }

    def __str__(self) -> str:
        lines = [f"{self.source} -> {self.dtype}  %{self.value or '?'} in @{self.function}"]
        for why in self.needs:
            place = "" if why.span is None else f"  at {why.span}"
            rule = "" if why.rule is None else f" ({why.rule})"
            lines.append(f"  for {why.consumer}{place}\n      {why.reason}{rule}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class CastReport:
    """The casts of a program in mixed precision, in the order of the program; ``str`` shows them.

    Attributes
    ----------
    dtype: the half dtype. casts: those that were put in; the program's own are not among them.
    operators: how many calls there are, by what their floating point results are computed in.
    """

    dtype: str
    casts: tuple[Cast, ...]
    operators: dict[str, int]

    def __len__(self) -> int:
        return len(self.casts)

    def __iter__(self) -> Iterator[Cast]:
        return iter(self.casts)

    def as_data(self) -> dict[str, Any]:
        """Return the same as plain values, which JSON has."""
        casts = [cast.as_data() for cast in self.casts]
        return {"dtype": self.dtype, "operators": dict(self.operators), "casts": casts}

    def __str__(self) -> str:
        kinds = Counter(f"{c.source.dtype} -> {c.dtype}" for c in self.casts)
        shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        calls = ", ".join(f"{count} in {dtype}" for dtype, count in sorted(self.operators.items()))
        head = f"{len(self.casts)} casts" + (f": {shown}" if shown else "")
        return "\n".join([head, f"calls: {calls or 'none'}", *map(str, self.casts)])
