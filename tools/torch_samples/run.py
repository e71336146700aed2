"""Runs all samples of one entry and adds up what came of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch

from meta import dialect as dialects
from meta.base.errors import GradientError, TypeInferError
from tools.torch_samples.adapters import adapter_of
from tools.torch_samples.check import check_forward, check_gradient
from tools.torch_samples.entries import ENTRIES, differentiable, dtypes_of, samples
from tools.torch_samples.outside import Declined, IsOutside


@dataclass
class Outcome:
    """What came of the samples of one entry.

    ``ran``: samples that were compared, ``gradients``: those whose gradients were compared too.
    ``outside``: how many samples ask for what only torch has, by reason. ``declined``: how many
    others `meta` refuses, by reason; they are gaps. ``failures``: a message per sample that went
    wrong.
    """

    entry: str
    ran: int = 0
    gradients: int = 0
    outside: Counter[str] = field(default_factory=Counter)
    declined: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether samples ran, none went wrong, and those that did not run are outside."""
        return self.ran > 0 and not self.failures and not self.declined

    def record(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        counted = {"outside": dict(self.outside), "declined": dict(self.declined)}
        return vars(self) | counted | {"passed": self.passed}


def run(key: str, dtypes: tuple[torch.dtype, ...] = (), limit: int | None = None) -> Outcome:
    """Run the samples of an entry, of each dtype the first ``limit`` that are not declined."""
    outcome = Outcome(key)
    for dtype in dtypes_of(key):
        if dtypes and dtype not in dtypes:
            continue
        ran = outcome.ran
        for number, sample in enumerate(samples(key, dtype)):
            if limit is not None and outcome.ran - ran >= limit:
                break
            _run_sample(outcome, sample, dtype, f"sample {number} in {str(dtype)[6:]}")
    return outcome


def run_on(dialect: str, dtypes: tuple[torch.dtype, ...], limit: int | None, key: str) -> Outcome:
    """`run` with a preferred dialect, in a process that may be another one."""
    with dialects.prefer(dialect):
        return run(key, dtypes, limit)


def _run_sample(outcome: Outcome, sample: Any, dtype: torch.dtype, name: str) -> None:
    entry, adapter = ENTRIES[outcome.entry], adapter_of(outcome.entry)
    try:
        check_forward(entry, adapter, sample)
        if differentiable(outcome.entry, dtype):
            outcome.gradients += check_gradient(entry, adapter, sample)
    except IsOutside as reason:
        outcome.outside[reason.args[0].value] += 1
        return
    except Declined as reason:
        outcome.declined[str(reason)] += 1
        return
    except GradientError as error:
        outcome.declined[f"{error.op}: {error.what}"] += 1
        return
    except TypeInferError as error:
        outcome.declined[f"{error.op}: {error.what} ({str(dtype)[6:]})"] += 1
        return
    except Exception as error:
        # Whatever it is, it is what this entry does wrong, and the other entries go on.
        outcome.failures.append(f"{name}: {type(error).__name__}: {error}\n  {_shown(sample)}")
    outcome.ran += 1


def _shown(sample: Any) -> str:
    text = ", ".join(
        [_brief(a) for a in (sample.input, *sample.args)]
        + [f"{k}={_brief(v)}" for k, v in sample.kwargs.items()]
    )
    return f"of ({text})"


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]}{list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_brief, value))}]"
    return repr(value)
