"""`Batch`: what one step takes, read from what data yield, and parts of it; and `BatchSharder`: how
the batches of a run are shared out over its ranks (`data.py` has the rule).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data.distributed import DistributedSampler

from meta.base.device import Device
from meta.base.errors import ArgumentError, DistributedError, FormatError
from meta.op.core import tree
from meta.runtime.ndarray import as_array, ndarray
from meta.train.process_group import ProcessGroup


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


class BatchSharder:
    """This rank's share of ``data``.

    Parameters
    ----------
    group: the ranks. even: whether all get as many rows of each batch.

    Attributes
    ----------
    data: what this rank iterates over. own: whether these are its part already.
    """

    def __init__(self, data: Any, group: ProcessGroup, even: bool) -> None:
        self.group, self.even = group, even
        self.data, self.own = data, False
        self._checked = False
        if group.size == 1:
            return
        shard = getattr(data, "shard", None)
        # An evaluation has the rows of a batch that cannot be shared out equally, too.
        if callable(shard) and (even or not getattr(data, "shards_rows", False)):
            self.data, self.own = shard(group.rank, group.size), True
        for sampler in samplers(data):
            if isinstance(sampler, DistributedSampler):
                self.own = True
                wanted, found = (group.rank, group.size), (sampler.rank, sampler.num_replicas)
                if found != wanted:
                    raise ArgumentError(
                        "the sampler is of another rank than this one",
                        expected=f"rank {wanted[0]} of {wanted[1]}",
                        found=f"rank {found[0]} of {found[1]}",
                        hint="DistributedSampler(data, meta.distributed.size(axis), "
                        "meta.distributed.rank(axis))",
                    )

    def begin(self) -> None:
        """Say that an epoch is iterated over from its beginning."""
        self._checked = False

    def has_batch(self, batch: Batch, length: int | None) -> bool:
        """Check the first batch of an epoch against those of the other ranks, and return whether
        all have a batch; data whose length is known have as many.

        Raises DistributedError, on all ranks, if they iterate over other data, or other numbers of
        batches. Data that a rank reads by itself, and that do not say how long they are, end an
        epoch for all ranks where they end for the first one.
        """
        if self.group.alone:
            return True
        if not self._checked:
            self._checked = True
            self._compare(batch, length)
        return not self._open(length) or all(self.group.gather(True, "the end of an epoch"))

    def _compare(self, batch: Batch, length: int | None) -> None:
        place = self.group.rank if self.own else None
        given = self.group.gather((length, place, batch.digest()), "the data")
        kinds = {(its_length, its_place, digest) for its_length, its_place, digest in given}
        if (
            len(kinds) > len({its_place for _, its_place, _ in given})
            or len({its_length for its_length, _, _ in given}) > 1
        ):
            lines = (
                f"rank {i}: {'no known number of' if n is None else n} batches, the first one of "
                f"hash {digest[:8]}"
                for i, (n, _, digest) in enumerate(given)
            )
            raise DistributedError(
                "the ranks do not agree on the data",
                expected="as many batches in an epoch, and the same ones"
                + (" along the other axes of the mesh" if self.own else ""),
                found="".join(f"\n    {line}" for line in lines),
                hint=HINT,
            )

    def end(self, length: int | None) -> None:
        """Say that this rank's data have come to the end of an epoch."""
        if self._open(length):
            self.group.gather(False, "the end of an epoch")

    def _open(self, length: int | None) -> bool:
        return self.own and length is None and not self.group.alone

    def shard(self, batch: Batch) -> list[Batch]:
        """Return what this rank takes of a batch; ArgumentError if rows are left over."""
        count, place = self.group.size, self.group.rank
        if count == 1 or self.own:
            return [batch]
        size = batch.samples // count
        rest = size * count
        if self.even and (rest != batch.samples or not rest):
            raise ArgumentError(
                f"a batch is not shared out equally over {count} ranks",
                expected=f"a multiple of {count} rows",
                found=batch.samples,
                hint="leave the last, smaller batch of an epoch out: drop_last=True",
            )
        parts = [batch.rows(place * size, (place + 1) * size)] if size else []
        if rest != batch.samples:
            parts.append(batch.rows(rest, batch.samples, counts=place == 0))
        return parts

    def position(self, own: Any) -> Any:
        """Return what a checkpoint keeps of the position that data keep themselves."""
        if own is None or not self.own or self.group.size == 1:
            return own
        return {"ranks": self.group.gather(own, "the position in the data", along=True)}

    def rank_position(self, kept: Any) -> Any:
        """Return this rank's position from what a checkpoint kept."""
        if not self.own or self.group.size == 1:
            return kept
        ranks = kept.get("ranks") if isinstance(kept, dict) else None
        if not isinstance(ranks, list) or len(ranks) != self.group.size:
            raise FormatError(
                "the checkpoint has no position of each rank in its data",
                expected=f"positions of {self.group.size} ranks",
                found=len(ranks) if isinstance(ranks, list) else "one of all ranks",
                hint="go on with as many ranks, or with data that all ranks iterate over",
            )
        return ranks[self.group.rank]


HINT = (
    "on a mesh every rank iterates over the batches of all ranks, in the same order, and takes its "
    "rows; data that a rank reads by itself have a method shard(place, count)"
)


def samplers(data: Any) -> list[Any]:
    """Return what decides the order of data: themselves, and a DataLoader's samplers."""
    batches = getattr(data, "batch_sampler", None)
    found = (data, getattr(data, "sampler", None), batches, getattr(batches, "sampler", None))
    return list({id(one): one for one in found if one is not None}.values())
