"""`whole`: arrays from the parts that ranks hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import overload

from meta.base.errors import ArgumentError
from meta.runtime.ndarray import ndarray
from meta.runtime.placement import Placement
from meta.runtime.shards import gather_shards


@overload
def whole(x: ndarray) -> ndarray: ...
@overload
def whole(x: Mapping[str, ndarray]) -> dict[str, ndarray]: ...


def whole(x: ndarray | Mapping[str, ndarray]) -> ndarray | dict[str, ndarray]:
    """Return an array of which this rank holds a part (`ndarray.placement`), gathered from all
    ranks; of arrays by name, such as ``model.state_dict()``, all of them.

    All ranks call it at the same time, for the same arrays in the same order. An array that is
    whole is returned as it is, and one under several names is gathered once. What is gathered is a
    copy. ArgumentError for anything else.

    >>> import meta
    >>> x = meta.ones((2, 3))
    >>> whole(x) is x
    True
    """
    if isinstance(x, ndarray):
        return _unshard(x)
    if not isinstance(x, Mapping) or not all(isinstance(a, ndarray) for a in x.values()):
        raise ArgumentError(
            "these have no parts",
            expected="an array, or arrays by name",
            found=type(x).__name__,
            hint="whole(model.state_dict()) for a model",
        )
    gathered: dict[int, ndarray] = {}
    for array in x.values():
        if id(array) not in gathered:
            gathered[id(array)] = _unshard(array)
    return {name: gathered[id(array)] for name, array in x.items()}


def _unshard(x: ndarray) -> ndarray:
    if not x.placement.splits:
        return x
    tensor = gather_shards(x.tensor.detach(), x.placement, Placement(x.placement.shape))
    return ndarray(tensor, name=x.name)
