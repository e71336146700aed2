"""``python -m meta demo``: train a small network on images of digits, from data to
saved weights.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

import meta
from meta import distributed, op
from meta.base import config
from meta.base.device import Device, require
from meta.base.errors import FormatError
from meta.base.files import open_file
from meta.base.optional import optional_module
from meta.cli.table import section, show
from meta.model import (
    BatchNorm,
    Conv2d,
    Linear,
    Model,
    load_weights,
    save_weights,
    sync_batch_norm,
    trace,
)
from meta.optim import with_sgd
from meta.optim.schedule import cosine
from meta.train import Batches, Record, fit
from meta.train.evaluate import EXECUTORS

TEST_FRACTION = 0.2
MIN_EXTENT = 2
"""Height and width that the network's pooling needs."""
LIMIT_BYTES = 4 << 30
"""An array of a file may not be larger than this."""
EXPECTED_FORMAT = (
    "an .npz file with x, numbers of shape (n, h, w) or (n, c, h, w), and y, n labels 0, 1, 2, ..."
)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Images:
    """A data set: ``x`` float32 (n, c, h, w) of mean 0 and variance 1, ``y`` int64 (n,)."""

    x_train: Array
    y_train: Array
    x_test: Array
    y_test: Array
    classes: int
    source: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.x_train.shape[1:]
        return channels, height, width


def load(path: str | None, seed: int) -> Images:
    """Read images and split them: a fifth, drawn by ``seed``, is kept for the test.

    Raises FormatError for a file that is damaged or holds something else.
    """
    x, y, source = digits() if path is None else (*read_npz(path), path)
    order = np.random.default_rng(seed).permutation(len(y))
    count = max(1, round(len(y) * TEST_FRACTION))
    test, train = order[:count], order[count:]
    # The test images are scaled as the training images are: nothing is learnt from them.
    mean, deviation = x[train].mean(), x[train].std()
    x = (x - mean) / (deviation if deviation > 0 else 1)
    return Images(x[train], y[train], x[test], y[test], int(y.max()) + 1, source)


def digits() -> tuple[Array, Array, str]:
    """Return 1797 images of 8x8 pixels, their digits, and where they are from.

    E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.

    Raises ArgumentError if scikit-learn, which holds the images, is not installed.
    """
    found = optional_module(  # slow to import, and only needed here
        "sklearn.datasets",
        "has the demo's images",
        library="scikit-learn",
        instead=", or train on your own images with --data FILE.npz",
    ).load_digits()
    x = found.images.astype("float32")[:, None]
    return x, found.target.astype("int64"), "scikit-learn's handwritten digits"


def read_npz(path: str) -> tuple[Array, Array]:
    """Return x as float32 (n, c, h, w) and y as int64 (n,) from an .npz file.

    Nothing in the file is run, and sizes are checked before memory is taken. Raises FormatError.
    """
    try:
        with open_file(path) as source, zipfile.ZipFile(source) as archive:
            x, y = (_member(archive, path, name) for name in ("x", "y"))
    except (OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile, RuntimeError) as error:
        # RuntimeError and its NotImplementedError: encrypted, or a compression zipfile lacks.
        if isinstance(error, FormatError):
            raise
        raise _format_error(path, "this file cannot be read", str(error)) from error
    return _images(path, x, y)


def _member(archive: zipfile.ZipFile, path: str, name: str) -> Array:
    try:
        info = archive.getinfo(f"{name}.npy")
    except KeyError:
        raise _format_error(
            path, f"it has no array {name!r}", ", ".join(archive.namelist())
        ) from None
    with archive.open(info) as file:
        shape, dtype, header_bytes = _header(file)
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or size > LIMIT_BYTES or size + header_bytes != info.file_size:
            raise _format_error(
                path,
                f"its array {name!r} is damaged, too large or no array of numbers",
                f"{dtype} of shape {shape} in {info.file_size} bytes",
            )
    with archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return shape and dtype that an .npy file announces, and the bytes that it took to say so."""
    if np.lib.format.read_magic(file) == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    return shape, dtype, file.tell()


def _images(path: str, x: Array, y: Array) -> tuple[Array, Array]:
    """Check what was read and bring it into form."""
    found = f"x: {x.dtype} {x.shape}, y: {y.dtype} {y.shape}"
    if x.ndim not in (3, 4) or x.dtype.kind not in "buif" or min(x.shape[-2:]) < MIN_EXTENT:
        at_least = f"of at least {MIN_EXTENT}x{MIN_EXTENT} pixels"
        raise _format_error(path, f"x does not hold images {at_least}", found)
    if y.shape != x.shape[:1] or y.dtype.kind not in "ui":
        raise _format_error(path, "y does not hold one integer per image", found)
    if 0 in x.shape or len(y) < 2 or y.min() < 0 or y.max() == 0 or y.max() >= len(y):
        labels = f"; labels {y.min()} to {y.max()}" if len(y) else ""
        raise _format_error(path, "there are too few images for these labels", found + labels)
    with np.errstate(over="ignore"):  # what overflows is refused below
        x = x.astype("float32")
    if not np.isfinite(x).all():
        raise _format_error(path, "x holds values that are not finite as float32", found)
    return (x[:, None] if x.ndim == 3 else x), y.astype("int64")


def _format_error(path: str, what: str, found: str) -> FormatError:
    hint = "numpy.savez(path, x=images, y=labels) writes one"
    return FormatError(
        f"{os.fspath(path)}: {what}", expected=EXPECTED_FORMAT, found=found, hint=hint
    )


GRID = 4
"""Images of any size are pooled to at most GRID x GRID features per channel."""


class SmallNet(Model):
    """Two convolutions with batch normalisation, pooling and a linear layer: images to scores.

    After LeNet-5 (LeCun et al., "Gradient-based learning applied to document recognition", 1998).
    """

    def build(self, shape: tuple[int, int, int], classes: int, width: int = 16) -> None:
        """Make the layers for images of ``shape`` (c, h, w), at least 2x2."""
        channels, height, width_pixels = shape
        self.grid = (min(height // 2, GRID), min(width_pixels // 2, GRID))
        self.shrinks = (height // 2, width_pixels // 2) != self.grid
        self.conv1 = Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm1 = BatchNorm(width)
        self.conv2 = Conv2d(width, 2 * width, 3, padding=1, bias=False)
        self.norm2 = BatchNorm(2 * width)
        self.linear = Linear(2 * width * self.grid[0] * self.grid[1], classes)

    @trace
    def forward(self, x: Any) -> Any:
        """Return scores (n, classes) of images (n, c, h, w)."""
        x = op.relu(self.norm1(self.conv1(x)))
        x = op.relu(self.norm2(self.conv2(x)))
        x = op.max_pool2d(x, 2, 2)
        if self.shrinks:
            x = op.adaptive_avg_pool2d(x, self.grid)
        return self.linear(op.batch_flatten(x))


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
