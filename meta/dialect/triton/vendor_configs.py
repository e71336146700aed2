"""What a vendor states of how a kernel is launched, for makers that `ask` for their numbers.

The first configuration in the vendor's ``tune_configs.yaml`` of an operator's name is what such a
maker is answered in place of its own defaults; its own are then among the alternatives. (Kernels
that are one launch take all configurations, and heuristics: see `single_launch.py`.)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import wraps
from inspect import unwrap

from meta.dialect.core.knobs import preset
from meta.dialect.core.openv import OpEnv, Unsupported
from meta.dialect.core.preference import Config
from meta.dialect.core.scope import LaunchSettings, launch_settings
from meta.op.core.call import CallValues
from meta.op.core.op import Op

Maker = Callable[[CallValues], OpEnv]


def with_vendor_configs(base: Op, make: Maker) -> Maker:
    """Return a maker of generic kernels that asks what the vendor in force states before."""

    @wraps(unwrap(make))
    def maker(call: CallValues) -> OpEnv:
        launch = launch_settings(base.name, call.device)
        if not launch.configs:
            return make(call)
        with _answers(launch) as used:
            env = make(call)
        if not used:  # it asks for nothing
            return env
        unknown = sorted(set(launch.configs[0]["kwargs"]) - used)
        if unknown:
            raise Unsupported(
                f"the {launch.configs_of} states at {launch.place} numbers that the kernel does "
                f"not have: {unknown}"
            )
        env.launch_scope = launch.configs_of
        configs = env.configs
        if configs is not None:

            def made(config: Config) -> OpEnv:
                with _answers(launch):
                    found = configs.made(config)
                found.launch_scope = launch.configs_of
                return found

            env.configs = replace(configs, made=made)
        return env

    return maker


def _answers(launch: LaunchSettings) -> AbstractContextManager[set[str]]:
    stated = launch.configs[0]
    numbers = {**stated["kwargs"], **{n: v for n, v in stated.items() if n != "kwargs"}}
    return preset({name: value for name, value in numbers.items() if type(value) is int})
