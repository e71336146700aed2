"""A model's weights on disk: safetensors files. Reading one runs no code from it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from meta.base.errors import ArgumentError, FormatError
from meta.base.files import read_file
from meta.model.model import Model
from meta.model.state import Unmatched
from meta.runtime.ndarray import as_array, ndarray
from meta.runtime.tensor_file import TensorFile, write_tensors
from meta.runtime.trace_checks import require_values

NAME = "model.safetensors"
MAX_INDEX_BYTES = 256 << 20
"""Larger indices are not ours."""
PICKLES = (".bin", ".ckpt", ".pkl", ".pt", ".pth")


def save_weights(model: Model | Mapping[str, object], path: str | os.PathLike[str]) -> None:
    """Write the model's state to a safetensors file, atomically: a reader sees the old file or the
    new one. An array under several names is written once, under the first.

    model: or arrays by name, such as a part of ``model.state_dict()``. FileError where the file
    cannot be written, ArgumentError for another object.

    >>> from tempfile import TemporaryDirectory
    >>> net = meta.model.Linear(3, 2)
    >>> with TemporaryDirectory() as folder:
    ...     meta.model.save_weights(net, f"{folder}/net.safetensors")
    ...     copy = meta.model.Linear(3, 2)
    ...     _ = meta.model.load_weights(copy, f"{folder}/net.safetensors")
    >>> meta.all(copy.weight == net.weight).item()
    True
    """
    if not isinstance(model, Model | Mapping):
        raise ArgumentError(
            "there are no weights to save",
            expected="save_weights(model, path), or arrays by name in the place of the model",
            found=type(model).__name__,
        )
    state = model.state() if isinstance(model, Model) else _unique_arrays(model)
    for array in state.values():
        require_values(array)
    write_tensors(path, {name: array.tensor for name, array in state.items()})


def _unique_arrays(state: Mapping[str, object]) -> dict[str, ndarray]:
    """Return arrays by the first name of each."""
    first: dict[int, str] = {}
    for name, value in state.items():
        first.setdefault(id(value), name)
    return {name: as_array(state[name]) for name in first.values()}


def load_weights(model: Model, path: str | os.PathLike[str], *, strict: bool = True) -> Unmatched:
    """Read a safetensors file into the model's arrays, in place; returns the names left out.

    path: a file of `save_weights`, or of any other writer under the model's names; or the index of
    a file in parts ("model.safetensors.index.json" beside them); or a folder with either under the
    name "model.safetensors", as transformers and `meta.train.fit` write. Raises FormatError for a
    file that is missing, damaged or of another format, and for names or shapes that do not fit (see
    `Model.load_state_dict`, also for ``strict``); the model is then unchanged.

    >>> from tempfile import TemporaryDirectory
    >>> net = meta.model.Linear(3, 2)
    >>> with TemporaryDirectory() as folder:
    ...     meta.model.save_weights(net, f"{folder}/net.safetensors")
    ...     meta.model.load_weights(net, f"{folder}/net.safetensors").missing
    ()
    """
    if not isinstance(model, Model):
        raise ArgumentError(
            "weights are read into a model",
            expected="load_weights(model, path)",
            found=type(model).__name__,
        )
    tensors = {name: file[name] for name, file in open_weights(path).items()}
    try:
        return model.load_state_dict(tensors, strict=strict)
    except ArgumentError as error:
        raise FormatError(
            "this file holds tensors that are no weights", found=f"{os.fspath(path)}: {error}"
        ) from error


def _file(path: Path) -> Path:
    """Return the file to read; FormatError for one of Python's pickles, which could run code."""
    if path.suffix in PICKLES:
        raise FormatError(
            "this file is a pickle, and is not read",
            expected="a .safetensors file",
            found=path,
            hint="where you trust it: model.load_state_dict(torch.load(path, weights_only=True))",
        )
    if not path.is_dir():
        return path
    for name in (NAME, f"{NAME}.index.json"):
        if (path / name).is_file():
            return path / name
    raise FormatError(
        "this folder holds no weights", expected=f"{NAME} or {NAME}.index.json", found=path
    )


def open_weights(path: str | os.PathLike[str]) -> dict[str, TensorFile]:
    """Return the file of each tensor of a path that `load_weights` takes, by the tensor's name."""
    file = _file(Path(path))
    indexed = file.name.endswith(".index.json")
    files = _indexed_files(file) if indexed else dict[Path, tuple[str, ...] | None]({file: None})
    found: dict[str, TensorFile] = {}
    for part, names in files.items():
        opened = TensorFile(part)
        lost = set(names or ()) - set(opened.names)
        if lost:
            raise FormatError(
                "a part lacks tensors that the index names",
                found=f"{file}: {', '.join(f'{n} in {part.name}' for n in sorted(lost)[:5])}",
            )
        found |= dict.fromkeys(opened.names if names is None else names, opened)
    return found


def _indexed_files(index: Path) -> dict[Path, tuple[str, ...]]:
    """Return the files that an index names, which lie beside it, and the tensors in each."""
    names: dict[str, list[str]] = {}
    try:
        for name, part in json.loads(read_file(index, MAX_INDEX_BYTES))["weight_map"].items():
            names.setdefault(part, []).append(name)
        if not all(isinstance(f, str) and Path(f).name == f for f in names):
            raise ValueError("a part is not the name of a file in the same folder")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise FormatError(
            "this index of weights cannot be read",
            expected='JSON with "weight_map": file name by tensor name',
            found=f"{index}: {type(error).__name__}: {error}",
        ) from error
    return {index.with_name(part): tuple(of) for part, of in names.items()}
