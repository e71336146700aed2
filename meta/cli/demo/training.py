"""Train, evaluate and time the demo's network, under the VM or the interpreter."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import meta
from meta.base.device import Device
from meta.base.progress import bar
from meta.cli.demo.data import Array, Images
from meta.cli.demo.network import Loss, SmallNet
from meta.model import Model
from meta.optim import TrainingStep, with_sgd

MOMENTUM = 0.9
WARM_UP = 3


def training_step(network: Model, learning_rate: float) -> TrainingStep:
    """Return forward, backward and update as one model, called as ``(dy, x, y)``."""
    return with_sgd(learning_rate=learning_rate, momentum=MOMENTUM)(Loss(network))


def batches(images: Images, size: int, order: Array) -> Iterator[tuple[Array, Array]]:
    """Yield whole batches; what is left over waits for another epoch's order."""
    for start in range(0, len(order) - size + 1, size):
        chosen = order[start : start + size]
        yield images.x_train[chosen], images.y_train[chosen]


def train(
    step: TrainingStep, run: Callable[..., Any], images: Images, epochs: int, size: int, seed: int,
    device: Device,
) -> float:  # fmt: skip
    """Train for some epochs and return the mean loss of the last one.

    ``run`` is the step as it is to be executed. The learning rate falls to zero along half a
    cosine (Loshchilov and Hutter, "SGDR", 2017, without restarts); it is an array that the step
    reads, so nothing is compiled anew.
    """
    generator = np.random.default_rng(seed)
    dy = meta.array(1.0, device=device)
    per_epoch = len(images.y_train) // size
    total, top = epochs * per_epoch, step.learning_rate.item()
    losses: list[Any] = []
    with bar(total, "training") as progress:
        for epoch in range(epochs):
            losses = []
            order = generator.permutation(len(images.y_train))
            for i, (x, y) in enumerate(batches(images, size, order)):
                done = (epoch * per_epoch + i) / total
                step.learning_rate.update(top * (1 + math.cos(math.pi * done)) / 2)
                losses.append(run(dy, meta.array(x, device=device), meta.array(y, device=device)))
                progress.update()
            progress.set_postfix(epoch=epoch + 1, loss=f"{losses[-1].item():.4f}", refresh=False)
    return statistics.fmean(loss.item() for loss in losses)


def scores(network: SmallNet, x: Array, size: int, device: Device, compiled: bool) -> Array:
    """Return the scores of images in infer mode; the last batch is padded, so shapes are static."""
    network.infer_mode()
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
    network.train_mode()
    return np.concatenate(found)


def accuracy(found: Array, y: Array) -> float:
    """Return the share of images whose largest score is at their label."""
    return float((found.argmax(axis=1) == y).mean())


def step_times(run: Callable[..., Any], arguments: tuple[Any, ...], count: int) -> float:
    """Return the median time of a step in seconds, after some that do not count."""
    times = []
    for i in range(WARM_UP + count):
        start = time.perf_counter()
        run(*arguments)
        synchronize(arguments[0].device)
        if i >= WARM_UP:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def synchronize(device: Device) -> None:
    """Wait for a device to finish."""
    if device.kind == "cuda":
        torch.cuda.synchronize(str(device))
