"""Masters: float32 copies that an optimizer keeps of half precision parameters, and updates in
their place. Whoever loads weights into a parameter writes its masters, too: otherwise the next
update would bring the old weights back.
"""

from __future__ import annotations

import weakref

from meta.runtime.ndarray import ndarray

_MASTERS: dict[int, list[weakref.ref[ndarray]]] = {}
"""By the id of a parameter that is alive."""


def add_master(array: ndarray, master: ndarray) -> None:
    """Say that an array is computed from a wider one. Neither is kept alive."""
    if id(array) not in _MASTERS:
        weakref.finalize(array, _MASTERS.pop, id(array)).atexit = False
    _MASTERS[id(array)] = [*map(weakref.ref, masters_of(array)), weakref.ref(master)]


def masters_of(array: ndarray) -> list[ndarray]:
    """Return the masters of an array that are alive."""
    found = (ref() for ref in _MASTERS.get(id(array), ()))
    return [master for master in found if master is not None]
