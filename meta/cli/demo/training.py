"""Train and evaluate the demo's network, under the VM or the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import meta
from meta import op
from meta.base.device import Device
from meta.cli.demo.data import Array, Images
from meta.cli.demo.network import SmallNet
from meta.optim import with_sgd
from meta.optim.schedule import cosine
from meta.train import Batches, Record, fit

LEARNING_RATE, MOMENTUM = 0.05, 0.9


def train(
    network: SmallNet, images: Images, steps: int, size: int, seed: int, executor: str
) -> Record:
    """Train for some steps on whole batches; what is left over waits for another epoch's order.

    The learning rate falls to zero along half a cosine.
    """
    return fit(
        network,
        lambda scores, labels: op.cross_entropy(labels, scores),
        Batches(images.x_train, images.y_train, size, seed=seed, drop_last=True),
        with_sgd(LEARNING_RATE, MOMENTUM),
        steps=steps,
        schedule=cosine(steps),
        executor=executor,
    )


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
