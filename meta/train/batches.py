"""`Batches`: arrays in memory, as batches in an order that a seed decides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from meta.base.errors import ArgumentError
from meta.op.core import tree
from meta.runtime.ndarray import as_array
from meta.runtime.random import Generator
from meta.train.data import arguments


class Batches:
    """Batches of arrays (numpy, torch or meta) along their first axis: data for `fit`.

    The order of an epoch is a function of the seed and the epoch's number alone, so that a run that
    is resumed, on any machine, sees the same batches.

    Parameters
    ----------
    inputs, targets: an array each, or tuples, lists or dicts of arrays, all of one length; targets
    may be None.
    size: samples in a batch. shuffle: whether every epoch has an order of its own. seed: of the
    order. drop_last: leave out the last batch of an epoch if it is smaller; what is left out
    differs from epoch to epoch.

    Raises ArgumentError for arrays of different lengths, or fewer samples than make a batch.
    """

    def __init__(
        self,
        inputs: Any,
        targets: Any,
        size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        arguments(inputs, "inputs")
        arguments(targets, "targets")
        leaves, self._structure = tree.flatten((inputs, targets))
        self._tensors = [as_array(leaf).torch() for leaf in leaves]
        self.size, self.shuffle, self.seed, self.drop_last = size, shuffle, seed, drop_last
        self._epoch = 0
        lengths = {t.shape[0] if t.ndim else None for t in self._tensors}
        if len(lengths) != 1 or None in lengths:
            raise ArgumentError(
                "inputs and targets are batched along their first axis",
                expected="arrays of one length",
                found=", ".join(str(tuple(t.shape)) for t in self._tensors) or "no array",
            )
        self.samples = self._tensors[0].shape[0]
        if not isinstance(size, int) or size < 1 or self.samples < (size if drop_last else 1):
            raise ArgumentError(
                "there is no batch of this size",
                expected=f"an int from 1 to {self.samples}, the number of samples",
                found=repr(size),
            )

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return self.samples // self.size if self.drop_last else -(-self.samples // self.size)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is; otherwise each is the one after the last."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        # To a device once: each batch then takes its part without waiting for the device.
        devices = {t.device for t in self._tensors} if self.shuffle else ()
        orders = {d: _permutation(self.samples, self.seed, epoch).to(d) for d in devices}
        for start in range(0, len(self) * self.size, self.size):
            rows = slice(start, start + self.size)
            leaves = [
                t.index_select(0, orders[t.device][rows]) if orders else t[rows]
                for t in self._tensors
            ]
            yield tree.unflatten(self._structure, leaves)


def _permutation(count: int, seed: int, epoch: int) -> torch.Tensor:
    keys = Generator(seed)
    keys.load_state((keys.state()[0], epoch))
    return torch.randperm(count, generator=torch.Generator().manual_seed(keys.key()))
