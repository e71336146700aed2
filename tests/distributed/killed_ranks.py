"""Kills ranks of training runs, resumes them, and compares with a run that nobody disturbed.

``python -m tests.distributed.killed_ranks FOLDER COUNT KILLS EVERY`` prints a report as JSON: runs
of COUNT processes of which one is killed at a random moment, KILLS times; runs of two processes of
which one is killed before every EVERYth of its file operations (0: none); and a run that goes on
with two, one and four processes. Processes are forks of this one, which has imported everything.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

import meta
from meta import distributed as dist
from meta.model import sync_batch_norm
from meta.optim import DynamicLossScale, with_adamw, with_sgd
from meta.runtime.mesh import current_mesh
from meta.train import Batches, Checkpoint, fit, read_checkpoint
from meta.train.checkpoint import CheckpointFolder
from tests.distributed.forked import Ranks, start
from tests.train.killed_run import dying, last, same
from tests.train.problem import SIZE, arrays, loss, network

STEPS, EVERY, LIMIT = 16, 2, 10.0


def train(folder: Path, count: int, steps: int = STEPS, rank: int = 0, dtype: str = "") -> None:
    """Train, or go on training, on a rank of so many; with checkpoints in ``folder``."""
    if count > 1:
        dist.init("cpu", timeout=LIMIT)
    on_mesh = dist.Mesh(count) if count > 1 else nullcontext()
    with meta.dialect.only("torch", "gloo"), on_mesh:
        net = network()
        if dtype:
            net.to(dtype=dtype)
            net[3].p = 0.0  # each rank has masks of its own
        if count > 1:
            sync_batch_norm(net)
        scale = DynamicLossScale(2.0**8, growth_interval=5)
        x, labels = arrays()
        x = x.astype(dtype or "float32")
        record = fit(
            net,
            loss,
            Batches(x, labels, SIZE, seed=2),
            optimizer(count) if dtype else with_adamw(1e-2, ema=0.9, loss_scale=scale),
            steps=steps,
            eval_data=Batches(x, labels, SIZE, shuffle=False),
            eval_every=7,
            checkpoint=folder,
            checkpoint_every=EVERY,
            executor="interpreter",
            seed=11,
            mesh=count if count > 1 else None,
        )
        of_all = bits(record.training_step)
        assert len(set(current_mesh().gather(of_all, "the bits of the arrays").values())) == 1
    if count > 1:
        dist.end()


def bits(step: meta.Model) -> bytes:
    """Return a hash of all arrays of a training step, as wholes."""
    found = hashlib.sha256()
    for name, array in dist.unshard(step.state()).items():
        found.update(name.encode() + array.numpy().tobytes())
    return found.digest()


def optimizer(count: int) -> Any:
    """Return one whose state several ranks share out."""
    parts: dict[str, Any] = {"zero": 2, "over": "dp"} if count > 1 else {}
    return with_sgd(0.05, momentum=0.9, ema=0.9, **parts)


def started(folder: Path, count: int, steps: int = STEPS, dtype: str = "") -> Ranks:
    """Start a run of so many processes."""
    main = partial(train, folder, count, steps, dtype=dtype)
    return start(count, lambda rank: main(rank=rank), folder.with_name(f"{folder.name} said"))


def completed(ranks: Ranks) -> None:
    """Wait for a run, which nobody disturbs."""
    for ended in ranks.wait(120):
        assert ended["code"] == 0, ended["said"]


def newest(folder: Path) -> int:
    """Return the step of the newest checkpoint, 0 without any."""
    steps = CheckpointFolder(folder, 2).steps()
    return steps[-1] if steps else 0


def unsaid(ended: list[dict[str, Any]], victim: int) -> str:
    """Return what is wrong with how ranks ended, of which one was killed; empty if nothing is."""
    for rank, its in enumerate(ended):
        if rank == victim and its["code"] != -signal.SIGKILL:
            return f"rank {rank} ended with {its['code']}"
        # The others say so, unless all was done but for their leaving.
        told = any(text in its["said"] for text in ("DistributedError", "do not go on together"))
        said_so = its["code"] == 0 or (its["code"] == 1 and told)
        if rank != victim and not said_so:
            return f"rank {rank} ended with {its['code']}: {its['said']}"
    return ""


def at_random(folder: Path, count: int, kills: int) -> dict[str, Any]:
    """Kill ranks at random moments; whenever a run has come to its end, compare it, and begin
    another one.
    """
    completed(started(folder / "undisturbed", count))
    wanted = last(folder / "undisturbed", STEPS)
    where, moments = folder / "killed", random.Random(count)
    done, resumed, wrong, runs, slowest = 0, [], [], 0, 0.0
    while done < kills or runs == 0 or where.exists():
        begun = newest(where)
        ranks = started(where, count)
        victim = moments.randrange(count)
        if done < kills:
            aim = begun + EVERY * (1, 0, 2, 1, 0)[done % 5]
            while newest(where) < min(aim, STEPS) and time.monotonic() < ranks.began + 60:
                time.sleep(0.001)
            time.sleep(moments.uniform(0, 0.3))
            os.kill(ranks.pids[victim], signal.SIGKILL)
            killed = time.monotonic()
            ended = ranks.wait()
            if ended[victim]["code"] == -signal.SIGKILL:
                slowest = max(slowest, time.monotonic() - killed)
                done += 1
                resumed.append(begun)
                problem = unsaid(ended, victim)
                if problem or newest(where) < begun:
                    wrong.append(problem or f"step {begun} was lost")
        else:
            completed(ranks)
        if newest(where) == STEPS:
            runs += 1
            if not same(wanted, last(where, STEPS)):
                wrong.append(f"run {runs} ended otherwise, after {done} kills")
            shutil.rmtree(where)
    return {"kills": done, "runs": runs, "resumed at": resumed, "wrong": wrong, "s": slowest}


def while_writing(folder: Path, every: int) -> dict[str, Any]:
    """Kill each of two ranks before each of its file operations, or each ``every``th."""
    steps = 4 * EVERY  # so that old checkpoints are removed
    completed(started(folder / "undisturbed", 2, steps))
    wanted = last(folder / "undisturbed", steps)
    wrong, operations = [], 0
    for victim in range(2):
        number = 0
        while True:
            where = folder / f"operation {number} of {victim}"

            def main(rank: int, where: Path = where, at: int = number, dies: int = victim) -> None:
                action = partial(train, where, 2, steps)
                (dying(action, at) if rank == dies else action)()

            ended = start(2, main, folder / "said").wait()
            if ended[victim]["code"] == 0:
                shutil.rmtree(where)
                break
            problem = unsaid(ended, victim)
            found = CheckpointFolder(where, 2).newest()
            if found is not None:
                found.read()  # it is readable
            completed(started(where, 2, steps))
            if problem or not same(wanted, last(where, steps)):
                wrong.append(f"operation {number} of rank {victim}: {problem}")
            shutil.rmtree(where)
            number, operations = number + every, operations + 1
    return {"operations": operations, "wrong": wrong}


def in_other_numbers(folder: Path) -> dict[str, Any]:
    """Go on with two, one and four processes; return how far that is from one process."""
    train(folder / "alone", 1, 12, dtype="float64")
    alone = read_checkpoint(CheckpointFolder(folder / "alone", 2).path(12))
    where = folder / "kept"
    files = []
    for count, steps in ((2, 4), (1, 8), (4, 12)):
        completed(started(where, count, steps, "float64"))
        files.append(sorted(p.name for p in CheckpointFolder(where, 2).path(steps).iterdir()))
    found = read_checkpoint(CheckpointFolder(where, 2).path(12))
    return {"apart": apart(found, alone), "files": files}


def apart(a: Checkpoint, b: Checkpoint) -> float:
    """Return the largest difference of two checkpoints' arrays, relative to 1 or more."""
    assert a.model.keys() == b.model.keys() and a.training.keys() == b.training.keys()
    pairs = [(a.model[n], b.model[n]) for n in a.model]
    pairs += [(a.training[n], b.training[n]) for n in a.training]
    gaps = ((x - y).abs() / y.abs().clamp(min=1.0) for x, y in pairs if x.is_floating_point())
    return max(float(gap.max()) for gap in gaps if gap.numel())


def main(folder: Path, count: int, kills: int, every: int) -> None:
    """Print the report."""
    torch.set_num_threads(1)
    train(folder / "warm", 1, 2)  # what it finds out once, its forks know
    report = {"random": at_random(folder / "random", count, kills)} if kills else {}
    if every:
        report["writing"] = while_writing(folder / "writing", every)
    report["other numbers"] = in_other_numbers(folder / "numbers")
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
