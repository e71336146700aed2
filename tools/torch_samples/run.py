"""One walk over the samples of an entry, and the record of what came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from tools.torch_samples.entries import dtypes_of, samples


@dataclass
class Outcome:
    """What came of the samples of an entry, or of the calls of an overload in them.

    ``ran``: samples, or calls, that were compared; ``gradients``: those whose gradients were
    compared too; ``tangents``: those whose tangents were. ``entries``: in which an overload is
    called. ``outside``: how many samples ask for what only torch has, by reason. ``declined``: how
    many others, or which calls in them, `meta` refuses, by reason; they are gaps. ``served``: calls
    in samples that `meta` computes, by overload and dialect. ``failures``: a message for each that
    went wrong.
    """

    name: str
    ran: int = 0
    gradients: int = 0
    tangents: int = 0
    entries: set[str] = field(default_factory=set)
    outside: Counter[str] = field(default_factory=Counter)
    declined: Counter[str] = field(default_factory=Counter)
    served: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether samples ran, none went wrong, and those that did not run are outside."""
        return self.ran > 0 and not self.failures and not self.declined

    def add(self, other: Outcome) -> None:
        """Add what came of further samples."""
        self.entries |= other.entries
        for name in [f.name for f in fields(self) if f.name not in ("name", "entries")]:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def fail(self, where: str, error: Exception, *args: Any, **kwargs: Any) -> None:
        """Note an error in what was called with these arguments."""
        brief = [_brief(a) for a in args] + [f"{k}={_brief(v)}" for k, v in kwargs.items()]
        text = f"{where}: {type(error).__name__}: {error}\n  of ({', '.join(brief)})"
        self.failures.append(text)

    def record(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        return vars(self) | {"entries": sorted(self.entries), "passed": self.passed}


def walk(
    key: str,
    dtypes: tuple[torch.dtype, ...],
    limit: int | None,
    check: Callable[[Any, torch.dtype, str], bool],
) -> None:
    """Call a function with the samples of an entry, of each dtype (all that it takes if none are
    chosen) until it has returned True ``limit`` times: with a sample, its dtype and its name.
    """
    for dtype in dtypes_of(key):
        if dtypes and dtype not in dtypes:
            continue
        count = 0
        for number, sample in enumerate(samples(key, dtype)):
            if limit is not None and count >= limit:
                break
            count += check(sample, dtype, f"sample {number} of {key} in {str(dtype)[6:]}")


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]}{list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_brief, value))}]"
    return repr(value)
