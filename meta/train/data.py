"""`Feed`: the batches of a run, epoch after epoch, from where a checkpoint left off.

Data are any iterable of pairs (inputs, targets). An *epoch* is one pass over it. What it may offer,
besides ``__iter__``:

- ``__len__``: the number of batches in an epoch, for the progress bar;
- ``set_epoch(epoch)`` (or its ``sampler`` or ``batch_sampler`` has it): called before each epoch;
- ``state_dict()`` and ``load_state_dict(state)``: its position is then restored by itself. What
  ``__iter__`` returns next goes on in the epoch of the state, and ends at once if all of its
  batches were given. Other data are iterated anew from the state that the random generators had
  when the epoch began, and what was used is skipped.

On a mesh a batch is that of all ranks together: each takes its own rows, so a run is the same on
any number of ranks, and so is the position in a checkpoint. Every rank iterates over all data, in
the same order, unless these are shared out before they are read:

- ``shard(place, count)`` returns what one of ``count`` ranks iterates over. `Batches` has it;
- a DataLoader with torch's DistributedSampler reads its rank's part.

To train, a batch must have as many rows for each rank, since gradients of equal parts are averaged:
another batch is an ArgumentError, before anything is lost. An evaluation counts each row once: what
cannot be shared out equally is evaluated by all ranks, and counted by the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import Any

import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from meta import op
from meta.base.device import Device
from meta.base.errors import ArgumentError, FormatError
from meta.base.signature_check import check_signature
from meta.op.core import tree
from meta.runtime.ndarray import as_array, ndarray
from meta.runtime.random import Generator
from meta.runtime.torch_leaf import refuse_detach
from meta.train import random_state
from meta.train.batch import Batch, BatchSharder, arguments, read_batch, samplers
from meta.train.process_group import SINGLE_PROCESS, ProcessGroup


class Feed:
    """The batches of ``data`` on a device.

    Parameters
    ----------
    group: the ranks among which the rows of batches are shared out. even: whether equally, or so
    that each row is counted once (see above).

    Attributes
    ----------
    epoch: the number of the epoch, from 0. batch: how many of its batches were taken.
    one_shot: whether the data are an iterator, which can be passed over only once.
    generators: those of their own that the data draw from, besides the global ones.
    """

    def __init__(
        self,
        data: Iterable[Any],
        device: Device,
        group: ProcessGroup = SINGLE_PROCESS,
        even: bool = True,
    ) -> None:
        if not hasattr(data, "__iter__") and not hasattr(data, "__getitem__"):
            raise ArgumentError(
                "data must be iterable",
                expected="an iterable of pairs (inputs, targets), or a torch DataLoader",
                found=type(data).__name__,
            )
        self._sharder = BatchSharder(data, group, even)
        self.data, self.device = self._sharder.data, device
        self.epoch = self.batch = 0
        self.one_shot = isinstance(data, Iterator)
        self._iterator: Iterator[Any] | None = None
        self._rest: list[Batch] = []
        owned = (getattr(owner, "generator", None) for owner in samplers(self.data))
        found = {id(g): g for g in owned if isinstance(g, torch.Generator)}
        self.generators = list(found.values())
        self._start: dict[str, Any] | None = None

    def length(self) -> int | None:
        """Return the number of batches in an epoch, None if the data do not say."""
        try:
            return len(self.data)
        except TypeError:
            return None

    def take(self) -> Batch | None:
        """Return the next batch; None at the end of an epoch, which begins the next one.

        What the data raise is raised, with a note that says where.
        """
        if self._rest:
            return self._rest.pop(0)
        try:
            item = next(self._begun())
        except StopIteration:
            self._sharder.end(self.length())
            self._end_epoch()
            return None
        except Exception as error:
            self._note(error)
            raise
        try:
            whole = read_batch(item)
            if not self._sharder.has_batch(whole, self.length()):
                self._end_epoch()
                return None
            first, *self._rest = [b.on(self.device) for b in self._sharder.shard(whole)]
        except ArgumentError as error:
            self._note(error)
            raise
        self.batch += 1
        return first

    def state(self) -> dict[str, Any]:
        """Return the position, for a checkpoint; all ranks call it."""
        data: Any = self.data
        own = data.state_dict() if _has_own_state(data) else None
        begun = self.batch > 0 and own is None
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "start": self._start if begun else None,
            "data": self._sharder.position(own),
            "random": random_state.capture(self.generators),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go to a position, and put the random generators into the state that they had there."""
        self.epoch, self.batch = state["epoch"], state["batch"]
        data: Any = self.data
        if _has_own_state(data) and state["data"] is not None:
            data.load_state_dict(self._sharder.rank_position(state["data"]))
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
            for owner in samplers(self.data):
                set_epoch = getattr(owner, "set_epoch", None)
                if callable(set_epoch):
                    set_epoch(self.epoch)
            self._sharder.begin()
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


def _has_own_state(data: Any) -> bool:
    return callable(getattr(data, "state_dict", None)) and callable(
        getattr(data, "load_state_dict", None)
    )


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

    >>> import numpy as np
    >>> batches = meta.train.Batches(np.ones((3, 5)), np.array([0, 1, 0]), 2, shuffle=False)
    >>> [(x.shape, y.tolist()) for x, y in batches]
    [((2, 5), [0, 1]), ((1, 5), [0])]
    """

    shards_rows = True

    @check_signature
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
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                refuse_detach(leaf, "Batches", "t.detach()")
        self._tensors = [as_array(leaf).tensor for leaf in leaves]
        self.batch_size, self.shuffle, self.seed, self.drop_last = (
            batch_size,
            shuffle,
            seed,
            drop_last,
        )
        self._epoch = 0
        self._place, self._count = 0, 1
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

    def shard(self, place: int, count: int) -> Batches:
        """Return the batches of one of ``count`` ranks: its rows of each of these batches.

        Raises ArgumentError if a batch does not have as many rows for each rank.
        """
        last = self.samples % self.batch_size
        if self.batch_size % count or (last % count and not self.drop_last):
            raise ArgumentError(
                f"the batches are not shared out equally over {count} ranks",
                expected=f"a batch_size that {count} divides, and no other last batch",
                found=f"batches of {self.batch_size}" + (f", the last one of {last}" * bool(last)),
                hint="batch_size counts the rows of all ranks; drop_last=True leaves the last, "
                "smaller batch of an epoch out",
            )
        part = copy(self)
        part._place, part._count = place, count
        return part

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is; otherwise each is the one after the last."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        # To a device once: each batch then takes its part without waiting for the device.
        devices = {t.device for t in self._tensors} if self.shuffle else ()
        orders = {d: _permutation(self.samples, self.seed, epoch).to(d) for d in devices}
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            size = min(self.batch_size, self.samples - start) // self._count
            rows = slice(start + self._place * size, start + (self._place + 1) * size)
            leaves = [
                ndarray(t.index_select(0, orders[t.device][rows]) if orders else t[rows])
                for t in self._tensors
            ]
            yield tree.unflatten(self._structure, leaves)


def _permutation(count: int, seed: int, epoch: int) -> torch.Tensor:
    keys = Generator(seed)
    keys.load_state((keys.state()[0], epoch))
    return torch.randperm(count, generator=torch.Generator().manual_seed(keys.key()))


def collate_arrays(batch: Sequence[ndarray], *, collate_fn_map: object = None) -> Any:
    """Return arrays of one shape and dtype as one, along a new first axis: torch's `DataLoader`
    makes batches of them so. Worker processes give it by its values.
    """
    return op.stack(tuple(batch))


default_collate_fn_map[ndarray] = collate_arrays
