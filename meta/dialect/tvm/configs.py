"""Configurations of generated kernels: which knobs the schedules have, and how they are turned.

A configuration is an attribute of the PrimFunc, and with that a part of the kernel's key, in memory
and on disk. Which there are is asked of the schedule: it is run, which takes about ten milliseconds
that no other thread can use, and nothing is compiled. What it made is kept until it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.target import Target

from meta.base.bounded_cache import bounded_insert
from meta.dialect.core import Config, Configs, OpEnv
from meta.dialect.core.knobs import Knobs
from meta.dialect.tvm.lower import SCHEDULED

CONFIG = "meta.config"
"""The attribute of a function that is to be scheduled with a configuration: numbers by name."""
_key: Any = tvm_ffi.StructuralKey  # its stub asks for the hash, which it computes
Schedule = Callable[[tirx.PrimFunc, Target, Knobs], tirx.PrimFunc]
SCHEDULES = 512
"""Scheduled functions that are kept until they are compiled: of those that take part in one go of
measuring. Most that are listed are.
"""
_schedules: dict[tuple[Any, str], tuple[tirx.PrimFunc, Knobs]] = {}


def with_config(function: tirx.PrimFunc, config: Config) -> tirx.PrimFunc:
    """Return an unscheduled function that is to be scheduled with a configuration."""
    return function.with_attr(CONFIG, dict(config)) if config else function


def knobs_of(function: tirx.PrimFunc) -> Knobs:
    """Return the knobs of a function's configuration."""
    stated = function.attrs[CONFIG] if function.attrs and CONFIG in function.attrs else {}
    return Knobs(tuple((str(name), int(value)) for name, value in stated.items()))


def take_scheduled(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    """Return a function as it was scheduled to find its configurations, which is forgotten with
    this; None if it was not.
    """
    found = _schedules.pop((_key(function), str(target)), None)
    return None if found is None else found[0]


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

    def scheduled(config: Config) -> tuple[tirx.PrimFunc, Knobs]:
        """Return the function as it is scheduled so, and what was asked meanwhile."""
        key = _key(with_config(function, config)), str(target)
        found = _schedules.get(key)
        if found is None:
            knobs = Knobs(config)
            body = schedule(function, target, knobs)
            found = bounded_insert(_schedules, key, (body, knobs), SCHEDULES)
        return found

    @cache
    def listed() -> tuple[Config, ...]:
        """Return those that make another kernel of it than the default and those before them."""
        default, knobs = scheduled(())
        known, found = {_key(default)}, []
        for config in knobs.listed():
            key = _key(scheduled(config)[0])
            if key not in known:
                known.add(key)
                found.append(config)
        return tuple(found)

    def make(config: Config) -> OpEnv:
        _, knobs = scheduled(config)
        knobs.check()
        return made(with_config(function, config))

    return Configs(listed, make)
