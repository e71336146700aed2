"""`Feed`: the batches of a run, epoch after epoch, from where a checkpoint left off.

Data are any iterable of pairs (inputs, targets). An *epoch* is one pass over it. What it may offer,
besides ``__iter__``:

- ``__len__``: the number of batches in an epoch, for the progress bar;
- ``set_epoch(epoch)`` (or its ``sampler`` or ``batch_sampler`` has it): called before each epoch;
- ``state_dict()`` and ``load_state_dict(state)``: its position is then restored by itself. What
  ``__iter__`` returns next goes on in the epoch of the state, and ends at once if all of its
  batches were given. Other data are iterated anew from the state that the random generators had
  when the epoch began, and what was used is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from meta.base.device import Device
from meta.base.errors import ArgumentError, FormatError
from meta.base.fitting import checked
from meta.op.core import tree
from meta.runtime.ndarray import as_array, ndarray
from meta.runtime.random import Generator
from meta.train import random_state


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step takes: arrays on the model's device.

    Attributes
    ----------
    inputs: positional arguments of the model (a tuple), or its named ones (a dict).
    targets: the same for the loss, behind the model's result.
    samples: the extent of the first array's first axis; 1 for an array without axes.
    """

    inputs: tuple[Any, ...] | dict[str, Any]
    targets: tuple[Any, ...] | dict[str, Any]
    samples: int


def read_batch(item: Any, device: Device) -> Batch:
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
    arrays, structure = tree.flatten((inputs, targets))
    moved = [_on(device, as_array(a)) for a in arrays]
    if not tree.flatten(inputs)[0]:
        raise ArgumentError("the inputs of a batch hold no array", found=repr(item[0]))
    first = moved[0].shape
    inputs, targets = tree.unflatten(structure, moved)
    return Batch(inputs, targets, first[0] if first else 1)


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
    return ndarray(array.torch().to(str(device), non_blocking=True))


class Feed:
    """The batches of ``data`` on a device.

    Attributes
    ----------
    epoch: the number of the epoch, from 0. batch: how many of its batches were taken.
    one_shot: whether the data are an iterator, which can be passed over only once.
    generators: those of their own that the data draw from, besides the global ones.
    """

    def __init__(self, data: Iterable[Any], device: Device) -> None:
        if not hasattr(data, "__iter__") and not hasattr(data, "__getitem__"):
            raise ArgumentError(
                "data must be iterable",
                expected="an iterable of pairs (inputs, targets), or a torch DataLoader",
                found=type(data).__name__,
            )
        self.data, self.device = data, device
        self.epoch = self.batch = 0
        self.one_shot = isinstance(data, Iterator)
        self._iterator: Iterator[Any] | None = None
        owned = (getattr(owner, "generator", None) for owner in _samplers(data))
        found = {id(g): g for g in owned if isinstance(g, torch.Generator)}
        self.generators = list(found.values())
        self._start: dict[str, Any] | None = None

    def length(self) -> int | None:
        """Return the number of batches in an epoch, None if the data do not say."""
        try:
            return len(self.data)  # type: ignore[arg-type]
        except TypeError:
            return None

    def take(self) -> Batch | None:
        """Return the next batch; None at the end of an epoch, which begins the next one.

        What the data raise is raised, with a note that says where.
        """
        try:
            item = next(self._begun())
        except StopIteration:
            self._end_epoch()
            return None
        except Exception as error:
            self._note(error)
            raise
        try:
            batch = read_batch(item, self.device)
        except ArgumentError as error:
            self._note(error)
            raise
        self.batch += 1
        return batch

    def state(self) -> dict[str, Any]:
        """Return the position, for a checkpoint."""
        data: Any = self.data
        own = data.state_dict() if _keeps_its_position(data) else None
        begun = self.batch > 0 and own is None
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "start": self._start if begun else None,
            "data": own,
            "random": random_state.capture(self.generators),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go to a position, and put the random generators into the state that they had there."""
        self.epoch, self.batch = state["epoch"], state["batch"]
        data: Any = self.data
        if _keeps_its_position(data) and state["data"] is not None:
            data.load_state_dict(state["data"])
            self._iterator = iter(data) if self.batch else None
        elif self.batch:
            random_state.restore(state["start"], self.generators)
            self._skip(self.batch)
        random_state.restore(state["random"], self.generators)

    def _skip(self, count: int) -> None:
        iterator = self._begun()
        for i in range(count):
            try:
                next(iterator)
            except StopIteration:
                raise FormatError(
                    "these are not the data that the checkpoint was made with",
                    expected=f"at least {count} batches in epoch {self.epoch}",
                    found=i,
                ) from None

    def _begun(self) -> Iterator[Any]:
        if self._iterator is None:
            if self.one_shot and self.epoch > 0:
                raise ArgumentError(
                    "the data have come to their end, and an iterator gives its batches once",
                    hint="pass an iterable that can be passed over again (a list, a DataLoader, an "
                    "object with __iter__), or fewer steps",
                )
            for owner in _samplers(self.data):
                set_epoch = getattr(owner, "set_epoch", None)
                if callable(set_epoch):
                    set_epoch(self.epoch)
            self._start = random_state.capture(self.generators)
            self._iterator = iter(self.data)
        return self._iterator

    def _end_epoch(self) -> None:
        if self.batch == 0:
            raise ArgumentError(
                f"the data have no batch in epoch {self.epoch}",
                hint="an iterator gives its batches once; a DataLoader with drop_last=True drops a "
                "data set that is smaller than one batch",
            )
        self._iterator = None
        self.epoch, self.batch = self.epoch + 1, 0

    def _note(self, error: BaseException) -> None:
        text = f"while batch {self.batch} of epoch {self.epoch} was read"
        if hasattr(error, "note"):
            error.note(text)
        elif hasattr(error, "add_note"):  # from Python 3.11 on
            error.add_note(text)


def _keeps_its_position(data: Any) -> bool:
    return callable(getattr(data, "state_dict", None)) and callable(
        getattr(data, "load_state_dict", None)
    )


def _samplers(data: Any) -> list[Any]:
    """Return what decides the order of the data: themselves, and a DataLoader's samplers."""
    batches = getattr(data, "batch_sampler", None)
    found = (data, getattr(data, "sampler", None), batches, getattr(batches, "sampler", None))
    return list({id(one): one for one in found if one is not None}.values())


class Batches:
    """Batches of arrays (numpy, torch or meta) along their first axis: data for `fit`.

    The order of an epoch is a function of the seed and the epoch's number alone, so that a run that
    is resumed, on any machine, sees the same batches.

    Parameters
    ----------
    inputs, targets: an array each, or tuples, lists or dicts of arrays, all of one length; targets
    may be None.
    batch_size: samples in a batch. shuffle: whether every epoch has an order of its own. seed: of
    the order. drop_last: leave out the last batch of an epoch if it is smaller; what is left out
    differs from epoch to epoch.

    Raises ArgumentError for arrays of different lengths, or fewer samples than make a batch.
    """

    @checked
    def __init__(
        self,
        inputs: Any,
        targets: Any,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        arguments(inputs, "inputs")
        arguments(targets, "targets")
        leaves, self._structure = tree.flatten((inputs, targets))
        self._tensors = [as_array(leaf).torch() for leaf in leaves]
        self.batch_size, self.shuffle, self.seed, self.drop_last = (
            batch_size,
            shuffle,
            seed,
            drop_last,
        )
        self._epoch = 0
        lengths = {t.shape[0] if t.ndim else None for t in self._tensors}
        if len(lengths) != 1 or None in lengths:
            raise ArgumentError(
                "inputs and targets are batched along their first axis",
                expected="arrays of one length",
                found=", ".join(str(tuple(t.shape)) for t in self._tensors) or "no array",
            )
        self.samples = self._tensors[0].shape[0]
        if (
            not isinstance(batch_size, int)
            or not (batch_size if drop_last else 1) <= self.samples
            or batch_size < 1
        ):
            raise ArgumentError(
                "there is no batch of this size",
                expected=f"an int from 1 to {self.samples}, the number of samples",
                found=repr(batch_size),
            )

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return (
            self.samples // self.batch_size
            if self.drop_last
            else -(-self.samples // self.batch_size)
        )

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is; otherwise each is the one after the last."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        # To a device once: each batch then takes its part without waiting for the device.
        devices = {t.device for t in self._tensors} if self.shuffle else ()
        orders = {d: _permutation(self.samples, self.seed, epoch).to(d) for d in devices}
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            rows = slice(start, start + self.batch_size)
            leaves = [
                ndarray(t.index_select(0, orders[t.device][rows]) if orders else t[rows])
                for t in self._tensors
            ]
            yield tree.unflatten(self._structure, leaves)


def _permutation(count: int, seed: int, epoch: int) -> torch.Tensor:
    keys = Generator(seed)
    keys.load_state((keys.state()[0], epoch))
    return torch.randperm(count, generator=torch.Generator().manual_seed(keys.key()))
