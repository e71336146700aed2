"""Run by test_fit.py: Ctrl-C on one of two processes that train, and what is then on disk."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import meta
from meta import distributed as dist
from meta.optim import with_sgd
from meta.train import fit
from tests.distributed.forked import start
from tests.train.problem import SIZE, arrays, loss, network

SECONDS = 0.02
"""Between batches, so that ranks are at different steps when the signal comes."""


class Slow:
    """Batches that take a while."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __iter__(self) -> Iterator[Any]:
        x, y = arrays()
        for first in range(0, len(y), SIZE):
            time.sleep(self.seconds)
            yield x[first : first + SIZE], y[first : first + SIZE]


def trained(folder: Path, steps: int, seconds: float, mesh: Any = None) -> Any:
    """Train, or go on; return the record."""
    with meta.dialect.only("torch", "gloo"):
        return fit(
            network(), loss, Slow(seconds), with_sgd(0.1, 0.9), steps=steps, checkpoint=folder,
            checkpoint_every=10**6, log=folder.parent / "log.csv", executor="interpreter",
            mesh=mesh, seed=1,
        )  # fmt: skip


def rank(folder: Path) -> Any:
    """Return what each process does: it trains until somebody stops it."""

    def main(number: int) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        dist.init("cpu", timeout=20)
        with dist.Mesh(2):
            try:
                trained(folder, 10**6, SECONDS, 2)
            except KeyboardInterrupt as interrupt:
                print(f"interrupted {interrupt}")
        dist.end()

    return main


def main(folder: Path) -> None:
    """Print the codes and the last lines of the ranks, and the steps of the checkpoints."""
    kept = folder / "kept"
    ranks = start(2, rank(kept), folder / "said", agent=True)
    log = folder / "log.csv"
    while not (log.exists() and log.stat().st_size) and time.monotonic() < ranks.began + 30:
        time.sleep(0.05)
    time.sleep(1.5)
    os.kill(ranks.pids[1], signal.SIGINT)
    ended = ranks.wait(40)
    steps = sorted(int(p.name.removeprefix("step-")) for p in kept.glob("step-*"))
    print(json.dumps({"ranks": ended, "steps": steps}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
