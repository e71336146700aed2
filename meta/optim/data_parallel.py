"""Data parallel training steps, and ZeRO: who has which part of parameters, gradients and states,
how gradients become one, and the norm of gradients of which a rank has parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meta import op
from meta.model.gradient import shard_parameters
from meta.model.model import Model
from meta.passes.distributed.flat_shards import (
    bucket_all_gather,
    bucket_reduce_scatter,
    buckets,
    is_in_place,
    own_shard,
)
from meta.runtime.mesh import axis_size
from meta.runtime.ndarray import ndarray
from meta.runtime.placement import Placement, Split

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class DataParallel:
    """A data parallel step: ``over`` which axis of the mesh, over how many ranks, in which dtype
    gradients are averaged (None: their own), and what is split: nothing (0), the state of the
    optimizer (1), gradients, too (2), and parameters (3).
    """

    over: str
    size: int
    dtype: str | None
    zero: int

    @classmethod
    def of(cls, over: str, dtype: str | None, zero: int) -> DataParallel:
        """Return those of the mesh at hand; one rank has the whole of everything."""
        size = axis_size(over)
        return cls(over, size, dtype, zero if size > 1 else 0)

    @property
    def split(self) -> Split:
        """How what is split is split."""
        return Split(self.over, self.size)

    def start(self, model: Model) -> None:
        """Give a model the arrays that it has on rank 0, or this rank's parts of them."""
        for value in model.state().values():
            value.update(op.broadcast_from(value, self.over, self.size))
        if self.zero == 3:
            shard_parameters(model, self.split)

    def placement(self, array: ndarray) -> Placement:
        """Return which part of a parameter this rank updates."""
        whole = self.zero in (1, 2)
        return array.placement.then(self.split) if whole else array.placement

    def gradient_placement(self, array: ndarray) -> Placement:
        """Return which part of a parameter's gradient this rank has."""
        return array.placement if self.zero == 1 else self.placement(array)

    def means(self, gradients: Arrays) -> dict[str, Any]:
        """Return the means of gradients over the ranks, or this rank's parts of them."""
        wide = {
            n: g if self.dtype is None else op.astype(g, self.dtype) for n, g in gradients.items()
        }
        means: dict[str, Any] = {}
        if self.zero > 1:
            for names in buckets(wide, self.split):
                found = bucket_reduce_scatter([wide[n] for n in names], self.split, "mean")
                means |= dict(zip(names, found, strict=True))
        else:
            for name, gradient in wide.items():
                means[name] = op.all_reduce(gradient, self.over, self.size, "mean")
        if self.dtype is None:
            return {n: means[n] for n in gradients}
        return {n: op.astype(means[n], g.dtype) for n, g in gradients.items()}

    def parts(self, arrays: Arrays, params: Mapping[str, ndarray]) -> dict[str, Any]:
        """Return this rank's parts of parameters, or of what is like them, by name: as `own_shard`,
        views where they can be.
        """
        places: dict[str, Any] = {}
        for device in dict.fromkeys(str(params[n].device) for n in arrays):
            places[device] = op.axis_index(self.over, self.size, device)
        return {
            n: own_shard(x, self.split, places[str(params[n].device)]) for n, x in arrays.items()
        }

    def put(self, parts: Arrays, params: Mapping[str, ndarray]) -> None:
        """Write the parameters from the parts of all ranks, which `parts` returned."""
        in_place: dict[tuple[str, str], list[Any]] = {}
        copied: dict[str, ndarray] = {}
        for name in parts:
            param = params[name]
            if is_in_place(param, self.split):
                in_place.setdefault((param.dtype, str(param.device)), []).append(param)
            else:
                copied[name] = param
        for together in in_place.values():
            op.multi_tensor_all_gather_in_place(together, self.over, self.size)
        for names in buckets(copied, self.split):
            shapes = [params[n].shape for n in names]
            found = bucket_all_gather([parts[n] for n in names], self.split, shapes)
            for name, whole in zip(names, found, strict=True):
                op.assign(params[name], whole)


def gradient_norm(gradients: Arrays, placements: Mapping[str, Placement]) -> Any:
    """Return the Euclidean norm of all gradients together, float32[], equal on all ranks.

    A gradient of which this rank has a part counts with the parts of the others: its sum of squares
    is one over every axis of the mesh along which it is split. A whole gradient counts once.
    """
    members: dict[tuple[tuple[str, int], ...], list[Any]] = {}
    for name, gradient in gradients.items():
        axes = sorted((s.over, s.size) for s in placements[name].splits if s.size > 1)
        members.setdefault(tuple(axes), []).append(gradient)
    if set(members) == {()}:
        return op.multi_tensor_norm(members[()])
    # In float64, as the sum within `multi_tensor_norm`: the square of a float32 may be none.
    squares: dict[tuple[tuple[str, int], ...], Any] = {}
    for axes_of, arrays in members.items():
        norm = op.astype(op.multi_tensor_norm(arrays), "float64")
        squares[axes_of] = norm * norm
    while split := max(squares, key=len):
        *rest, (over, size) = split
        total = op.all_reduce(squares.pop(split), over, size)
        known = squares.get(tuple(rest))
        squares[tuple(rest)] = total if known is None else known + total
    return op.astype(op.sqrt(squares[()]), "float32")
