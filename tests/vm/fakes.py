"""Dialects and a clock for tests of measuring: a kernel takes the time that a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from meta.dialect.core import Dialect, OpEnv
from meta.dialect.core.openv import Configs
from meta.dialect.core.preference import Config
from meta.op.core import CallValues, Op
from meta.vm.benchmark.interleave import Clock
from tests.registered import remove_dialects


class FakeClock(Clock):
    """A clock that goes on only where a kernel says so."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.launched: list[str] = []

    def now(self) -> float:
        return self.seconds

    def spend(self, name: str, microseconds: float) -> None:
        """A kernel runs."""
        self.launched.append(name)
        self.seconds += microseconds * 1e-6


Times = Callable[[int], float]
"""Microseconds of the n-th run of a kernel."""


class Fakes:
    """Makes dialects with one kernel each, and removes them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.made: list[Dialect] = []

    def dialect(self, name: str, **options: Any) -> Dialect:
        """Register a dialect."""
        self.made.append(Dialect(name, **{"devices": ("cpu",), **options}))
        return self.made[-1]

    def kernel(
        self,
        op: Op,
        name: str,
        plevel: int,
        times: float | Times,
        run: Callable[..., Any] = torch.Tensor.double,
        *,
        configs: Sequence[Config] = (),
        made: Callable[[Config], float | Times] | None = None,
        allocates: bool = True,
        build: float = 0.0,
        **options: Any,
    ) -> Dialect:
        """Register a dialect whose kernel of an operator takes ``times`` and computes ``run``.

        configs, made: its configurations, and what a run takes in each. build: microseconds of
        making it.
        """
        dialect = self.dialect(name, plevel=plevel, **options)

        def env(label: str, times: float | Times, **more: Any) -> OpEnv:
            count = 0

            def launch(*values: Any) -> Any:
                nonlocal count
                count += 1
                self.clock.spend(label, times(count) if callable(times) else times)
                return run(*values)

            return OpEnv(launch, allocates, **more)

        def configured(config: Config) -> OpEnv:
            assert made is not None
            return env(f"{name}@{config}", made(config))

        def make(call: CallValues) -> OpEnv:
            self.clock.seconds += build * 1e-6
            if not configs:
                return env(name, times)
            return env(name, times, configs=Configs(lambda: configs, configured))

        dialect.register(op, make, op.site)
        return dialect

    def remove(self) -> None:
        """Remove all that was made."""
        remove_dialects(*self.made)
