"""Tensors on disk: safetensors files. Reading one runs no code from it.

The format has no complex128: such a tensor is written as pairs of float64, and the metadata name
it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from meta.base.errors import FormatError
from meta.base.files import replacing, require_file, unwritable

_PAIRS = "complex128 "
"""What the metadata has before the name of each complex tensor."""


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors by name, atomically: a reader sees the old file or the new one.

    Raises FileError where that cannot be done; then nothing of it is left.
    """
    target = Path(path)
    prepared: dict[str, torch.Tensor] = {}
    storages: set[int] = set()
    pairs: list[str] = []
    for name, given in tensors.items():
        tensor = given.detach().cpu().resolve_conj().resolve_neg().contiguous()
        if tensor.dtype is torch.complex128:
            tensor = torch.view_as_real(tensor)
            pairs.append(name)
        # The format has no sharing: of what shares memory, all but the first are copied.
        place = tensor.untyped_storage().data_ptr()
        whole = tensor.untyped_storage().nbytes() == tensor.nbytes
        prepared[name] = tensor if whole and place not in storages else tensor.clone()
        storages.add(place)
    metadata = {"format": "pt", "producer": "meta"} | {f"{_PAIRS}{name}": "" for name in pairs}
    with replacing(target) as part:
        _save(prepared, metadata, part, target)


def _save(
    tensors: dict[str, torch.Tensor], metadata: dict[str, str], path: Path, target: Path
) -> None:
    try:
        safetensors.torch.save_file(tensors, path, metadata=metadata)
    except safetensors.SafetensorError as error:  # which is what it says of a full disk, too
        raise unwritable(target, error) from error


def read_tensors(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by name; FormatError if it is missing, damaged or of another
    format.
    """
    try:
        require_file(path)
        with safetensors.safe_open(os.fspath(path), framework="pt") as file:
            found = {name: file.get_tensor(name) for name in list(file.keys())}
            said = [key for key in file.metadata() or {} if key.startswith(_PAIRS)]
    except (OSError, safetensors.SafetensorError) as error:
        raise FormatError(
            "this file cannot be read as safetensors",
            found=f"{os.fspath(path)}: {error}",
            hint="write weights with meta.model.save_weights, or any safetensors writer",
        ) from error
    for name in (key.removeprefix(_PAIRS) for key in said):
        pair = found.get(name)
        if pair is None or pair.dtype is not torch.float64 or pair.shape[-1:] != (2,):
            raise FormatError(
                "the file says of a tensor that it is complex, which it is not",
                expected="pairs of float64",
                found=f"{name!r} of {os.fspath(path)}",
            )
        found[name] = torch.view_as_complex(pair.contiguous())
    return found
