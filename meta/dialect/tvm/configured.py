"""Configurations of generated kernels: which knobs the schedules have, and how they are turned.

A configuration is an attribute of the PrimFunc, and with that a part of the kernel's key, in memory
and on disk. Which there are is asked of the schedule: it is run, which takes some milliseconds, and
nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.target import Target

from meta.dialect.core import Config, Configs, OpEnv
from meta.dialect.core.knobs import Knobs
from meta.dialect.tvm.lower import SCHEDULED

CONFIG = "meta.config"
"""The attribute of a function that is to be scheduled with a configuration: numbers by name."""
_key: Any = tvm_ffi.StructuralKey  # its stub asks for the hash, which it computes
Schedule = Callable[[tirx.PrimFunc, Target, Knobs], tirx.PrimFunc]


def with_config(function: tirx.PrimFunc, config: Config) -> tirx.PrimFunc:
    """Return an unscheduled function that is to be scheduled with a configuration."""
    return function.with_attr(CONFIG, dict(config)) if config else function


def knobs_of(function: tirx.PrimFunc) -> Knobs:
    """Return the knobs of a function's configuration."""
    stated = function.attrs[CONFIG] if function.attrs and CONFIG in function.attrs else {}
    return Knobs(tuple((str(name), int(value)) for name, value in stated.items()))


def configs_of(
    function: tirx.PrimFunc,
    target: Target,
    schedule: Schedule,
    made: Callable[[tirx.PrimFunc], OpEnv],
) -> Configs | None:
    """Return the configurations of an unscheduled function, None if it is scheduled already.

    ``made`` returns the kernel of a function; see `Configs`.
    """
    if function.attrs and SCHEDULED in function.attrs:
        return None

    def scheduled(config: Config) -> tuple[Knobs, Any]:
        knobs = Knobs(config)
        return knobs, _key(schedule(function, target, knobs))

    @cache
    def listed() -> tuple[Config, ...]:
        """Return those that make another kernel of it than the default and those before them."""
        knobs, key = scheduled(())
        known, found = {key}, []
        for config in knobs.listed():
            _, key = scheduled(config)
            if key not in known:
                known.add(key)
                found.append(config)
        return tuple(found)

    def make(config: Config) -> OpEnv:
        knobs, _ = scheduled(config)
        knobs.check()
        return made(with_config(function, config))

    return Configs(listed, make)
