"""Weights on disk: safetensors files. Reading one runs no code from it."""

from __future__ import annotations

import os
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from meta.base.errors import ArgumentError, FormatError
from meta.model.model import Model
from meta.runtime.ndarray import ndarray


def save_weights(model: Model, path: str | os.PathLike[str]) -> None:
    """Write the model's state to a safetensors file, atomically: a reader sees the old file or the
    new one.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    tensors: dict[str, torch.Tensor] = {}
    storages: set[int] = set()
    for name, array in model.state().items():
        tensor = array.torch().detach().cpu().contiguous()
        # The format has no sharing: of what shares memory, all but the first are copied.
        place = tensor.untyped_storage().data_ptr()
        whole = tensor.untyped_storage().nbytes() == tensor.nbytes
        tensors[name] = tensor if whole and place not in storages else tensor.clone()
        storages.add(place)
    part.touch()  # says at once, and as other writers do, that the place cannot be written to
    mode = part.stat().st_mode
    try:
        safetensors.torch.save_file(tensors, part, metadata={"format": "pt", "producer": "meta"})
        part.chmod(mode)  # what a new file has here; safetensors makes files private
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def load_weights(model: Model, path: str | os.PathLike[str], *, strict: bool = True) -> None:
    """Read a safetensors file into the model's arrays, in place.

    Raises FormatError for a file that is missing, damaged or of another format, and for names or
    shapes that do not fit (see `Model.load_state`); the model is then unchanged.
    """
    try:
        with safetensors.safe_open(os.fspath(path), framework="pt") as file:
            names = list(file.keys())  # the file is no mapping
            state = {name: ndarray(file.get_tensor(name)) for name in names}
    except (OSError, safetensors.SafetensorError, ArgumentError) as error:
        raise FormatError(
            "this file cannot be read as safetensors",
            found=f"{os.fspath(path)}: {error}",
            hint="write weights with meta.model.save_weights, or any safetensors writer",
        ) from error
    model.load_state(state, strict=strict)
