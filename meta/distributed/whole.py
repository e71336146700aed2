"""Whole arrays from the parts that ranks hold, and models in whose place whole arrays are."""

from __future__ import annotations

from meta.base.errors import ArgumentError
from meta.model.model import Model
from meta.runtime.ndarray import ndarray
from meta.runtime.parts import joined
from meta.runtime.placement import Placement


def whole(x: ndarray | Model) -> ndarray | dict[str, ndarray]:
    """Return an array of which this rank holds a part (`ndarray.placement`), gathered from all
    ranks; of a model all arrays by name, as `Model.state_dict` returns them.

    All ranks call it at the same time, for the same arrays in the same order. An array that is
    whole is returned as it is, and an array under several names is gathered once. What is gathered
    is a copy: it does not follow the model. ArgumentError for anything else.

    >>> import meta
    >>> x = meta.ones((2, 3))
    >>> whole(x) is x
    True
    """
    if isinstance(x, Model):
        gathered: dict[int, ndarray] = {}
        state = x.state_dict()
        for array in state.values():
            if id(array) not in gathered:
                gathered[id(array)] = _whole(array)
        return {name: gathered[id(array)] for name, array in state.items()}
    if not isinstance(x, ndarray):
        found = type(x).__name__
        raise ArgumentError("this has no parts", expected="an array or a model", found=found)
    return _whole(x)


def _whole(x: ndarray) -> ndarray:
    if not x.placement.splits:
        return x
    tensor = joined(x.tensor.detach(), x.placement, Placement(x.placement.shape))
    return ndarray(tensor, name=x.name)
