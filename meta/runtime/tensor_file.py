"""Tensors on disk: safetensors files. Reading one runs no code from it.

The format has no complex128: such a tensor is written as pairs of float64, and the metadata name
it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


class TensorFile:
    """The tensors of a file, each read when it is asked for.

    Raises FormatError for a file that is missing, damaged or of another format, here and later.

    Attributes
    ----------
    names: of the tensors.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        with self._readable():
            require_file(path)
            opened: Callable[..., Any] = safetensors.safe_open
            file = opened(os.fspath(path), framework="pt")
            self.names = list(file.keys())
            said = file.metadata() or {}
        self._file = file
        self._pairs = {key.removeprefix(_PAIRS) for key in said if key.startswith(_PAIRS)}
        for name in self._pairs - set(self.names):
            raise self._no_pair(name)

    def __getitem__(self, name: str) -> torch.Tensor:
        with self._readable():
            tensor: torch.Tensor = self._file.get_tensor(name)
        if name not in self._pairs:
            return tensor
        if tensor.dtype is not torch.float64 or tensor.shape[-1:] != (2,):
            raise self._no_pair(name)
        return torch.view_as_complex(tensor.contiguous())

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, safetensors.SafetensorError) as error:
            raise FormatError(
                "this file cannot be read as safetensors",
                found=f"{os.fspath(self._path)}: {error}",
                hint="write weights with meta.model.save_weights, or any safetensors writer",
            ) from error

    def _no_pair(self, name: str) -> FormatError:
        return FormatError(
            "the file says of a tensor that it is complex, which it is not",
            expected="pairs of float64",
            found=f"{name!r} of {os.fspath(self._path)}",
        )


def read_tensors(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by name; FormatError if it is missing, damaged or of another
    format.
    """
    file = TensorFile(path)
    return {name: file[name] for name in file.names}
