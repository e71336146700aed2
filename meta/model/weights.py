"""A model's weights on disk: safetensors files. Reading one runs no code from it."""

from __future__ import annotations

import os

from meta.base.errors import ArgumentError, FormatError
from meta.model.model import Model
from meta.runtime.ndarray import ndarray
from meta.runtime.tensor_file import read_tensors, write_tensors


def save_weights(model: Model, path: str | os.PathLike[str]) -> None:
    """Write the model's state to a safetensors file, atomically: a reader sees the old file or the
    new one.
    """
    write_tensors(path, {name: array.torch() for name, array in model.state().items()})


def load_weights(model: Model, path: str | os.PathLike[str], *, strict: bool = True) -> None:
    """Read a safetensors file into the model's arrays, in place.

    Raises FormatError for a file that is missing, damaged or of another format, and for names or
    shapes that do not fit (see `Model.load_state`); the model is then unchanged.
    """
    tensors = read_tensors(path)
    try:
        state = {name: ndarray(tensor) for name, tensor in tensors.items()}
    except ArgumentError as error:
        raise FormatError(
            "this file holds tensors that are no weights", found=f"{os.fspath(path)}: {error}"
        ) from error
    model.load_state(state, strict=strict)
