"""The state of all random numbers that a run may draw: taken, put back, and held for a block.

`meta.random` supplies initial weights and dropout; data are shuffled with torch's, numpy's or
Python's generator. Those of one's own (`numpy.random.default_rng`) belong to who made them: such
data have ``state_dict`` and ``load_state_dict`` (see `data.py`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from meta.base.errors import FormatError
from meta.runtime.random import default
from meta.train.process_group import ProcessGroup


def seed_all(seed: int) -> None:
    """Seed the generators of meta, torch, numpy and Python."""
    default.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(seed & (2**32 - 1))
    random.seed(seed)


def capture(generators: Sequence[torch.Generator] = ()) -> dict[str, Any]:
    """Return the state of all generators, and of further ones of torch."""
    return {
        "meta": default.state(),
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(legacy=False),
        "python": random.getstate(),
        "generators": [g.get_state() for g in generators],
    }


def restore(state: dict[str, Any], generators: Sequence[torch.Generator] = ()) -> None:
    """Put a state back. FormatError for one that is damaged or of other ``generators``."""
    try:
        own = list(zip(generators, state["generators"], strict=True))
        default.load_state(state["meta"])
        torch.set_rng_state(state["torch"])
        np.random.set_state(state["numpy"])
        random.setstate(state["python"])
        for generator, its in own:
            generator.set_state(its)
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise FormatError(
            "this state of the random generators does not fit", found=error
        ) from error


def broadcast(group: ProcessGroup, generators: Sequence[torch.Generator] = ()) -> None:
    """Give all ranks the state that the first one has."""
    state = group.broadcast(capture(generators) if group.is_rank_zero else None, "the random state")
    restore(state, generators)
    group.broadcast(None, "the random state")  # nothing is drawn before all have it


@contextmanager
def fork_rng(generators: Sequence[torch.Generator] = ()) -> Iterator[None]:
    """Leave all generators, and further ones of torch, as they were when the block ends: what is
    drawn in it does not change what comes behind it.
    """
    before = capture(generators)
    try:
        yield
    finally:
        restore(before, generators)
