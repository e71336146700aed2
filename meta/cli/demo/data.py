"""Images for the demo: scikit-learn's handwritten digits, or an .npz file of one's own."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from meta.base.errors import ArgumentError, FormatError
from meta.base.files import open_file

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
    try:
        from sklearn.datasets import load_digits  # slow to import, and only needed here
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise
        raise ArgumentError(
            "the demo's images are part of scikit-learn, which is not installed",
            hint="pip install scikit-learn, or train on your own images with --data FILE.npz",
        ) from error
    found = load_digits()
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
