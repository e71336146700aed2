"""The plans that cuDNN's heuristic lists for a graph, by engine and knobs: configurations of the
kernels of this dialect.

The frontend names a plan "eng57_k2=4_k3=0"; that is the configuration ``engine=57,k2=4,k3=0``. What
a name means depends on the version of cuDNN, and whether a plan is there on the graph and the GPU:
one that the heuristic does not list is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from meta.dialect.core import Config
from meta.dialect.cudnn.graph import frontend

LISTED = 8
"""Plans besides the first that are worth measuring."""
COMPILED = 3
"""Of these, the ones whose kernels cuDNN has to compile, a second each."""
_NAME = re.compile(r"eng(\d+)((?:_k\d+=\d+)*)", re.ASCII)


def failures() -> tuple[type[Exception], ...]:
    """Return what the frontend raises where a plan cannot be built."""
    return frontend().cudnnGraphNotSupportedError, RuntimeError


def index_of(node: Any, config: Config) -> int | None:
    """Return the place of a configuration's plan among those of a graph; None if it has none."""
    return next((index for index, found in _plans(node) if found == config), None)


def compiles(node: Any, index: int) -> bool:
    """Whether cuDNN compiles the kernel of a plan."""
    notes = node.get_behavior_notes_for_plan_at_index(index)
    return frontend().behavior_note.RUNTIME_COMPILATION in notes


def others(node: Any) -> list[Config]:
    """Return the configurations of a graph's plans but the one that is built by default: those
    whose kernels cuDNN has, which are built to see whether they can be, then some to be compiled.
    """
    ready: list[Config] = []
    compiled: list[Config] = []
    for index, config in _plans(node):
        if config in ready or config in compiled:
            continue
        if compiles(node, index):
            compiled.append(config)
        elif len(ready) <= LISTED and _builds(node, index):
            ready.append(config)
    found, rest = (ready[1:], compiled) if ready else ([], compiled[1:])
    return [*found, *rest[: min(COMPILED, LISTED - len(found))]]


def _plans(node: Any) -> Iterator[tuple[int, Config]]:
    """Yield the places and configurations of the plans that a graph has, the best guess first."""
    for index in range(node.get_execution_plan_count()):
        config = config_of(node.get_plan_name_at_index(index))
        if config:
            yield index, config


def config_of(name: str) -> Config:
    """Return the configuration of a plan's name; () for a name of another form."""
    found = _NAME.search(name)
    if found is None or found.end() != len(name):
        return ()
    knobs = (part.split("=") for part in found[2].split("_")[1:])
    return tuple(sorted([("engine", int(found[1])), *((knob, int(n)) for knob, n in knobs)]))


def _builds(node: Any, index: int) -> bool:
    try:
        node.build_plan_at_index(index)
    except failures():
        return False
    return True
