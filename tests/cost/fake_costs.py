"""Costs that nobody measured, kept where a test keeps its own: what choices are made by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meta.base import config
from meta.base.device import CPU
from meta.cost.record import Cost, Timing, key_of
from meta.cost.roofline import COPY, GAP, LAUNCH, PRODUCT, peak_cost, peaks_key
from meta.cost.store import save
from meta.dialect.core import DIALECTS, candidates
from meta.dialect.core.dispatch import ready
from meta.dialect.core.ir_calls import kernel_call
from meta.dialect.core.preference import Config, current, forget
from meta.ir import Call, Function, Module, bindings
from meta.op.core import CallValues, Op

Times = Mapping[str, float | None]
"""Microseconds by dialect; None: it refused."""


@contextmanager
def store(folder: Path) -> Iterator[None]:
    """Keep costs in a folder, for the block."""
    with config.override(META_CACHE_DIR=str(folder), META_CACHE=True, META_TUNE="cached"):
        forget()
        yield
    forget()


def timing(median: float, spread: float = 0.05) -> Timing:
    return Timing(median, median * (1 - spread), median * (1 + spread), 20)


def cost(dialect: str, median: float | None, config: Config = (), **more: Any) -> Cost:
    """Return what a candidate costs; ``median``: None if it was not timed."""
    return Cost(dialect, config, None if median is None else timing(median), **more)


def keep_costs(subject: CallValues | Function, times: Times) -> None:
    """Keep what running a call, or a fused function, takes on each dialect."""
    costs = [
        cost(name, time, refused="it does not take it" if time is None else "")
        for name, time in times.items()
    ]
    save(key_of(subject, CPU, "eager"), costs, anew=True)


def calls(module: Module) -> Iterator[CallValues]:
    """Yield the calls of base operators for which kernels are chosen."""
    for function in module.functions.values():
        for binding in bindings(function):
            value = binding.value
            if isinstance(value, Call) and isinstance(value.callee, Op):
                call = kernel_call(value, CPU)
                if call is not None:
                    yield call


def measure(module: Module, times: Callable[[CallValues, str], float | None]) -> None:
    """Keep the costs of all candidates of all calls of a program: ``times(call, dialect)``."""
    for call in calls(module):
        able = ready(candidates(call.op, current(), CPU), call, current())
        keep_costs(
            call, {name: times(call, name) for name in able if DIALECTS[name].refusal(CPU) is None}
        )


def keep_peaks(copy: float = 1000.0, launch: float = 1.0, product: float = 1e4) -> None:
    """Keep the peaks of the CPU: bytes and operations in a microsecond, microseconds."""
    save(
        peaks_key(CPU),
        [
            peak_cost(COPY, round(100 * copy), timing(100.0)),
            peak_cost(PRODUCT, round(100 * product), timing(100.0), "float32"),
            peak_cost(LAUNCH, 10, timing(10 * launch)),
            peak_cost(GAP, 10, timing(10 * launch)),
        ],
        anew=True,
    )
