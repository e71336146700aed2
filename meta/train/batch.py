"""`Batch`: what one step takes, read from what data yield, and parts of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import torch

from meta.base.device import Device
from meta.base.errors import ArgumentError
from meta.op.core import tree
from meta.runtime.ndarray import as_array, ndarray


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step takes: arrays.

    Attributes
    ----------
    inputs: positional arguments of the model (a tuple), or its named ones (a dict).
    targets: the same for the loss, behind the model's result.
    samples: the extent of the first array's first axis; 1 for an array without axes.
    counts: whether an evaluation counts it on this rank.
    """

    inputs: tuple[Any, ...] | dict[str, Any]
    targets: tuple[Any, ...] | dict[str, Any]
    samples: int
    counts: bool = True

    def on(self, device: Device) -> Batch:
        """Return the batch on a device."""
        arrays, structure = tree.flatten((self.inputs, self.targets))
        inputs, targets = tree.unflatten(structure, [_on(device, a) for a in arrays])
        return replace(self, inputs=inputs, targets=targets)

    def rows(self, start: int, end: int, counts: bool = True) -> Batch:
        """Return some rows of all arrays; ArgumentError if these differ in the number of rows."""
        arrays, structure = tree.flatten((self.inputs, self.targets))
        if any(a.shape[:1] != (self.samples,) for a in arrays):
            raise ArgumentError(
                "the rows of a batch are shared out over the ranks, and not all arrays have them",
                expected=f"{self.samples} along the first axis of each",
                found=", ".join(str(a.shape) for a in arrays),
                hint="data with a method shard(place, count) are shared out by themselves",
            )
        parts = [ndarray(a.tensor[start:end]) for a in arrays]
        inputs, targets = tree.unflatten(structure, parts)
        return Batch(inputs, targets, end - start, counts)

    def digest(self) -> str:
        """Return a hash of the values, shapes and dtypes; this waits for the device."""
        found = hashlib.blake2b(digest_size=16)
        for array in tree.flatten((self.inputs, self.targets))[0]:
            found.update(f"{array.dtype}{array.shape}".encode())
            tensor = array.tensor.detach().cpu().contiguous().reshape(-1)
            found.update(tensor.view(torch.uint8).numpy().tobytes())
        return found.hexdigest()


def read_batch(item: Any) -> Batch:
    """Return a pair (inputs, targets) as a `Batch`; ArgumentError for what is none.

    Either is an array (numpy, torch or meta), a tuple or list of arrays, or a dict of them by the
    name of an argument; targets may be None where the model's result says it all.
    """
    if not isinstance(item, tuple | list) or len(item) != 2:
        kinds = [type(v).__name__ for v in item] if isinstance(item, tuple | list) else ""
        raise ArgumentError(
            "a batch is a pair (inputs, targets)",
            found=f"{type(item).__name__} {', '.join(kinds)}".strip(),
            hint="several inputs are a tuple: yield ((x1, x2), y); arrays in memory are batched by "
            "meta.train.Batches(x, y, batch_size)",
        )
    inputs, targets = arguments(item[0], "inputs"), arguments(item[1], "targets")
    if not tree.flatten(inputs)[0]:
        raise ArgumentError("the inputs of a batch hold no array", found=repr(item[0]))
    arrays, structure = tree.flatten((inputs, targets))
    read = [as_array(a) for a in arrays]
    inputs, targets = tree.unflatten(structure, read)
    return Batch(inputs, targets, read[0].shape[0] if read[0].shape else 1)


def arguments(value: Any, what: str) -> tuple[Any, ...] | dict[str, Any]:
    """Return the ``what`` ("inputs", "targets") of a batch as positional or named arguments.

    Raises ArgumentError for what is no array, and no tuple, list or dict of arrays.
    """
    if value is None and what == "targets":
        return ()
    if tree.is_array(value):
        return (value,)
    if not isinstance(value, tuple | list | dict):
        raise ArgumentError(
            f"the {what} of a batch hold what is no array",
            expected="an array, or a tuple, list or dict of arrays",
            found=f"{type(value).__name__}: {value!r:.60}",
            hint="numpy.asarray makes an array of numbers",
        )
    for inner in value.values() if isinstance(value, dict) else value:
        if not tree.is_array(inner):
            arguments(inner, what)
    return value if isinstance(value, dict) else tuple(value)


def _on(device: Device, array: ndarray) -> ndarray:
    if array.device == device:
        return array
    # Pinned memory, as a DataLoader may use, is copied while the host goes on.
    return ndarray(array.tensor.to(str(device), non_blocking=True))
