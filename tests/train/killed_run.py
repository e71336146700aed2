"""Kills training runs, resumes them, and compares with a run that nobody disturbed.

``python -m tests.train.killed_run FOLDER DATA KILLS EVERY`` prints a report as JSON: runs with each
kind of DATA (names of `problem.DATA`, with commas) killed at KILLS random moments, and one killed
before every EVERYth file operation. It is a process of its own because it forks: a child is a
training process that has imported everything already.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from meta.optim import DynamicLossScale, with_adamw
from meta.optim.schedule import cosine
from meta.train import Checkpoint, fit, read_checkpoint
from meta.train.checkpoint import CheckpointFolder
from tests.train.problem import DATA, held_out, kernels, loss, network

STEPS, EVERY = 36, 2
# tqdm's own lock is shared by forked processes: a child that is killed while it holds the lock
# would stop all later ones.
tqdm.set_lock(threading.RLock())


def train(folder: Path, data: str, steps: int = STEPS) -> None:
    """Train, or go on training, with checkpoints in ``folder``."""
    with kernels():
        fit(
            network(),
            loss,
            DATA[data](),
            with_adamw(1e-2, ema=0.9, loss_scale=DynamicLossScale(2.0**8, growth_interval=5)),
            steps=steps,
            eval_data=held_out(),
            eval_every=7,
            checkpoint=folder,
            checkpoint_every=EVERY,
            schedule=cosine(STEPS),
            log=folder / "log.csv",
            executor="interpreter",
            seed=11,
        )


def killed(action: Callable[[], None], wait: Callable[[], None] | None = None) -> bool:
    """Run in a child; kill it when ``wait`` returns (None: let it end). Return whether it was
    killed.
    """
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if wait is not None:
        wait()
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) == signal.SIGKILL
    assert os.WEXITSTATUS(status) == 0, "the training process failed"
    return False


def same(a: Checkpoint, b: Checkpoint) -> bool:
    """Whether two checkpoints hold the same bits, random state and position included."""
    pairs = ((a.model, b.model), (a.training, b.training))
    equal = all(
        x.keys() == y.keys()
        and all(torch.equal(x[n].view(torch.uint8), y[n].view(torch.uint8)) for n in x if x[n].ndim)
        and all(torch.equal(x[n], y[n]) for n in x)
        for x, y in pairs
    )
    return equal and a.step == b.step and repr(a.more) == repr(b.more)


def last(folder: Path, steps: int = STEPS) -> Checkpoint:
    """Return the checkpoint at the end of a run."""
    return read_checkpoint(CheckpointFolder(folder, 2).path(steps))


def logged_steps(folder: Path) -> list[str]:
    """Return the step numbers in the log's rows of training steps."""
    rows = [line.split(",") for line in (folder / "log.csv").read_text().splitlines()[1:]]
    return [row[0] for row in rows if row[3]]


def at_random(folder: Path, data: str, kills: int) -> dict[str, Any]:
    """Kill a run at random moments: a while after it wrote some checkpoints, none perhaps."""
    # In this process: its children then find everything imported.
    train(folder / "undisturbed", data)
    where, moments = folder / "killed", random.Random(data)
    done, resumed = 0, []

    def newest() -> int:
        steps = CheckpointFolder(where, 2).steps()
        return steps[-1] if steps else 0

    def wait() -> None:
        aim = newest() + EVERY * (1, 0, 2, 1, 0)[done % 5]
        deadline = time.perf_counter() + 60
        while newest() < min(aim, STEPS) and time.perf_counter() < deadline:
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.02))

    while done < kills:
        if not killed(lambda: train(where, data), wait):  # it was quicker than the signal
            shutil.rmtree(where)
            continue
        done += 1
        resumed.append(newest())
    killed(lambda: train(where, data))
    return {
        "data": data,
        "kills": done,
        "resumed at": resumed,
        "identical": same(last(folder / "undisturbed"), last(where)),
        "log": logged_steps(where) == [str(i + 1) for i in range(STEPS)],
    }


def dying(action: Callable[[], None], number: int) -> Callable[[], None]:
    """Return an action that dies before its file operation of this number."""

    def run() -> None:
        count = 0

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                count += 1
                return function(*args, **kwargs)

            return call

        for owner, name in ((os, "fsync"), (os, "rename"), (os, "replace"), (os, "unlink"),
                            (os, "mkdir"), (os, "rmdir")):  # fmt: skip
            setattr(owner, name, counted(getattr(owner, name)))
        action()

    return run


def while_writing(folder: Path, every: int) -> dict[str, Any]:
    """Kill a run before each of its file operations, or each ``every``th."""
    steps = 4 * EVERY  # so that old checkpoints are removed
    train(folder / "undisturbed", "batches", steps)
    wrong, done, number = [], 0, 0
    while True:
        where = folder / f"operation{number}"
        if not killed(dying(partial(train, where, "batches", steps), number)):
            break
        if where.exists():
            newest = CheckpointFolder(where, 2).newest()
            assert newest is None or newest.read()  # it is readable
        killed(partial(train, where, "batches", steps))
        if not same(last(folder / "undisturbed", steps), last(where, steps)):
            wrong.append(number)
        shutil.rmtree(where)
        number, done = number + every, done + 1
    return {"operations": done, "wrong": wrong}


def main(folder: Path, data: str, kills: int, every: int) -> None:
    """Print the report."""
    torch.set_num_threads(1)
    at = [at_random(folder / str(i), name, kills) for i, name in enumerate(data.split(","))]
    print(json.dumps({"random": at, "writing": while_writing(folder / "writing", every)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
