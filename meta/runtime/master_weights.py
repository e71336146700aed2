"""Masters: float32 copies that an optimizer keeps of half precision parameters.

An optimizer updates the masters, and rounds them to the parameters. Others write to parameters,
too: ``w.update``, ``w[0] = v``, an initializer, torch. Whoever runs an update therefore follows the
parameters before, and notes their counters of writes behind it: a parameter that was written since
gives its new elements to its master. An element is new if it is not, bit for bit, its master
rounded; the others keep the digits of the master.

Writers that have more digits than the parameter (the loading of float32 weights) write the masters
themselves. A master may be of a part of its parameter only (`meta.runtime.placement`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from meta.runtime import external_memory
from meta.runtime.ndarray import ndarray
from meta.runtime.placement import shard_of


class MasterPair:
    """A parameter and one of its masters. Neither is kept alive."""

    __slots__ = ("_array", "_counts", "_master", "_others", "_tensor", "_version")

    def __init__(self, array: ndarray, master: ndarray) -> None:
        self._array, self._master = weakref.ref(array), weakref.ref(master)
        self._tensor: torch.Tensor | None = None
        self._version, self._others, self._counts = -1, -1, False

    @property
    def master(self) -> ndarray | None:
        """The master, if it is alive."""
        return self._master()

    def follow(self) -> None:
        """Give the master what others wrote to the parameter since `note`."""
        array, master = self._array(), self._master()
        if array is None or master is None:
            return
        tensor = array.tensor
        if (
            tensor is self._tensor
            and self._counts
            and self._version == tensor._version
            and self._others == external_memory.share_count
        ):
            return
        now, wide = tensor.detach(), master.tensor.detach()
        if array.placement != master.placement:
            now = shard_of(now, array.placement, master.placement)
        kind = torch.int16 if now.itemsize == 2 else torch.uint8
        as_before = now.view(kind) == wide.to(now.dtype).view(kind)
        wide.copy_(torch.where(as_before, wide, now.to(wide.dtype)))

    def note(self) -> None:
        """Note that the parameter is its master, rounded."""
        array = self._array()
        if array is None:
            return
        tensor = array.tensor
        if tensor is not self._tensor or self._others != external_memory.share_count:
            self._tensor, self._others = tensor, external_memory.share_count
            self._counts = external_memory.counts_writes(tensor)
        if self._counts:
            self._version = tensor._version


_PAIRS: dict[int, list[MasterPair]] = {}
"""By the id of a parameter that is alive."""


def add_master(array: ndarray, master: ndarray) -> None:
    """Say that an array is computed from a wider one. Neither is kept alive."""
    if id(array) not in _PAIRS:
        weakref.finalize(array, _PAIRS.pop, id(array)).atexit = False
    alive = (p for p in _PAIRS.get(id(array), ()) if p.master is not None)
    _PAIRS[id(array)] = [*alive, MasterPair(array, master)]


def masters_of(array: ndarray) -> list[ndarray]:
    """Return the masters of an array that are alive."""
    found = (pair.master for pair in _PAIRS.get(id(array), ()))
    return [master for master in found if master is not None]


def master_pairs(arrays: Iterable[ndarray]) -> list[MasterPair]:
    """Return the pairs of parameter and master both of which are among arrays."""
    given = list(arrays)
    if not _PAIRS:
        return []
    ids = set(map(id, given))
    return [p for a in given for p in _PAIRS.get(id(a), ()) if id(p.master) in ids]


@contextmanager
def synchronize_masters(pairs: Sequence[MasterPair]) -> Iterator[None]:
    """Run a block that may update masters and their parameters."""
    for pair in pairs:
        pair.follow()
    yield
    for pair in pairs:
        pair.note()
