"""Tensors on disk: safetensors files. Reading one runs no code from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from meta.base.errors import FormatError
from meta.base.files import replacing, require_file, unwritable


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors by name, atomically: a reader sees the old file or the new one.

    Raises FileError where that cannot be done; then nothing of it is left.
    """
    target = Path(path)
    prepared: dict[str, torch.Tensor] = {}
    storages: set[int] = set()
    for name, given in tensors.items():
        tensor = given.detach().cpu().contiguous()
        # The format has no sharing: of what shares memory, all but the first are copied.
        place = tensor.untyped_storage().data_ptr()
        whole = tensor.untyped_storage().nbytes() == tensor.nbytes
        prepared[name] = tensor if whole and place not in storages else tensor.clone()
        storages.add(place)
    with replacing(target) as part:
        _save(prepared, part, target)


def _save(tensors: Mapping[str, torch.Tensor], path: Path, target: Path) -> None:
    try:
        safetensors.torch.save_file(
            dict(tensors), path, metadata={"format": "pt", "producer": "meta"}
        )
    except safetensors.SafetensorError as error:  # which is what it says of a full disk, too
        raise unwritable(target, error) from error


def read_tensors(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by name; FormatError if it is missing, damaged or of another
    format.
    """
    try:
        require_file(path)
        with safetensors.safe_open(os.fspath(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in list(file.keys())}
    except (OSError, safetensors.SafetensorError) as error:
        raise FormatError(
            "this file cannot be read as safetensors",
            found=f"{os.fspath(path)}: {error}",
            hint="write weights with meta.model.save_weights, or any safetensors writer",
        ) from error
