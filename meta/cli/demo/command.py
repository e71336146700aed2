"""The command ``demo``: its arguments, its order of events, training and its report."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import meta
from meta import distributed, op
from meta.base import config
from meta.base.device import Device, require
from meta.cli.demo.data import Array, Images, load
from meta.cli.demo.network import SmallNet
from meta.cli.table import section, show
from meta.model import load_weights, save_weights, sync_batch_norm
from meta.optim import with_sgd
from meta.optim.schedule import cosine
from meta.train import Batches, Record, fit
from meta.train.runner import EXECUTORS

TIMED_STEPS = 30
AXIS = "dp"
"""The axis of the mesh, where there are several processes."""


def run(options: argparse.Namespace) -> int:
    """Train, evaluate, save, load, compare, time, report; the last of these on the first rank."""
    start = time.perf_counter()
    with (
        _mesh(options.device) as ranks,
        tempfile.TemporaryDirectory(prefix="meta-demo-") as folder,
        _threads(options.threads),
    ):
        first = ranks is None or distributed.rank(AXIS) == 0
        kept = options.out if first else None
        path = Path(kept) if kept else Path(folder, "digits.safetensors")
        if not path.parent.is_dir():  # before the work, not after it
            raise FileNotFoundError(f"there is no folder {path.parent} to save the weights in")
        report = demonstrate(options, path, ranks)
    report["weights"] = kept
    report["seconds"]["total"] = time.perf_counter() - start
    if first:
        show(options, report, text)
    return 0 if report["reloaded"]["identical"] else 1


@contextmanager
def _mesh(device: str) -> Iterator[int | None]:
    """Yield the number of processes that a launcher, as torchrun, started; None for one alone."""
    count = int(config.launch().get("WORLD_SIZE", 1))
    if count == 1:
        yield None
        return
    distributed.init(Device(device).kind)
    with distributed.Mesh({AXIS: count}):
        yield count
    distributed.end()


def demonstrate(
    options: argparse.Namespace, path: Path, ranks: int | None = None
) -> dict[str, Any]:
    """Run the demo, with the weights saved at ``path``, and return the report.

    ranks: how many of them there are, on a mesh with one axis. A batch is that of all of them.
    """
    device = require(options.device)
    compiled = options.executor == "vm"
    images = load(options.data, options.seed)
    size = min(options.batch_size, len(images.y_train))
    if ranks is not None:
        size = max(ranks, size // ranks * ranks)
    meta.random.seed(options.seed)

    def network() -> SmallNet:
        made = SmallNet(images.shape, images.classes)
        made.to(device=device)
        if ranks is not None:
            sync_batch_norm(made, AXIS)
        return made

    def trained(model: SmallNet, steps: int, executor: str) -> Record:
        return train(model, images, steps, size, options.seed, executor, ranks)

    model = network()
    per_epoch = len(images.y_train) // size
    run = trained(model, options.epochs * per_epoch, options.executor)
    found = scores(model, images.x_test, size, device, compiled)
    save_weights(model, path)
    other = network()
    load_weights(other, path)
    again = scores(other, images.x_test, size, device, compiled)

    # On networks of their own: timing a step trains it.
    timed = {executor: trained(network(), 1 + TIMED_STEPS, executor) for executor in EXECUTORS}
    return {
        "data": {
            "source": images.source,
            "image": list(images.shape),
            "train": len(images.y_train),
            "test": len(images.y_test),
            "classes": images.classes,
        },
        "settings": {
            "epochs": options.epochs, "batch_size": size, "device": str(device),
            "executor": options.executor, "seed": options.seed, "threads": options.threads,
            "processes": ranks or 1,
        },
        "parameters": sum(p.size for p in model.parameters()),
        "loss": statistics.fmean(run.losses[-per_epoch:]),
        "accuracy": accuracy(found, images.y_test),
        "reloaded": {
            "accuracy": accuracy(again, images.y_test),
            "identical": bool(np.array_equal(found, again)),
        },
        "seconds": {
            "compile": run.compile_seconds,
            "train": run.seconds,
            **{f"step_{name}": 1 / timed[name].steps_per_second for name in timed},
        },
        "kernels": timed["vm"].executables[0].kernels(),
    }  # fmt: skip


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Let PyTorch's CPU kernels use ``count`` threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def text(report: dict[str, Any]) -> str:
    """Return the report for a terminal."""
    data, settings, seconds = report["data"], report["settings"], report["seconds"]
    image = "x".join(map(str, data["image"]))
    on = settings["device"]
    if settings["processes"] > 1:
        on = f"{settings['processes']} processes ({on})"
    same = "exactly the same scores" if report["reloaded"]["identical"] else "OTHER SCORES"
    vm, interpreter = seconds["step_vm"] * 1e3, seconds["step_interpreter"] * 1e3
    results = [
        ["data", f"{data['source']}: {data['train']} images of {image} to train, {data['test']} to "
         f"test, {data['classes']} classes"],
        ["network", f"{report['parameters']} parameters"],
        ["training", f"{settings['epochs']} epochs of batches of {settings['batch_size']} on "
         f"{on} by the {settings['executor']}: {seconds['train']:.1f} s, and "
         f"{seconds['compile']:.1f} s to compile; loss {report['loss']:.4f}"],
        ["test accuracy", f"{report['accuracy']:.2%}"],
        ["saved, loaded", f"{report['reloaded']['accuracy']:.2%}, {same}"],
        ["weights", report["weights"] or "not kept; --out FILE keeps them"],
        ["time per step", f"interpreter {interpreter:.2f} ms, VM {vm:.2f} ms"],
        ["whole demo", f"{seconds['total']:.1f} s"],
    ]  # fmt: skip
    lines = section("result", results)[1:]
    rows = [[*name.split(".", 1)[::-1], times] for name, times in report["kernels"].items()]
    lines += section("kernels of one step", [["operator", "run by", "times"], *sorted(rows)])
    return "\n".join(lines)


LEARNING_RATE, MOMENTUM = 0.05, 0.9


def train(
    network: SmallNet,
    images: Images,
    steps: int,
    size: int,
    seed: int,
    executor: str,
    ranks: int | None = None,
) -> Record:
    """Train for some steps on whole batches; what is left over waits for another epoch's order.

    The learning rate falls to zero along half a cosine.
    """
    return fit(
        network,
        op.cross_entropy,
        Batches(images.x_train, images.y_train, size, seed=seed, drop_last=True),
        with_sgd(LEARNING_RATE, MOMENTUM),
        steps=steps,
        schedule=cosine(steps),
        executor=executor,
        mesh=ranks,
        over=AXIS,
    )


def scores(network: SmallNet, x: Array, size: int, device: Device, compiled: bool) -> Array:
    """Return the scores of images in infer mode; the last batch is padded, so shapes are static."""
    network.eval()
    run: Callable[..., Any] = network
    found = []
    for start in range(0, len(x), size):
        part = x[start : start + size]
        padded = np.zeros((size, *x.shape[1:]), "float32")
        padded[: len(part)] = part
        batch = meta.array(padded, device=device)
        if compiled and start == 0:
            run = meta.vm.compile(network, batch)
        found.append(run(batch).numpy()[: len(part)])
    network.train()
    return np.concatenate(found)


def accuracy(found: Array, y: Array) -> float:
    """Return the share of images whose largest score is at their label."""
    return float((found.argmax(axis=1) == y).mean())
