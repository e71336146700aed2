"""ZeRO stage 3, a model of whose parameters a rank has parts: whole parameters in their place, for
a block.

An array of which the elements are split (`Split` without an axis) has another shape than the code
of the model expects. So such a model is not called, but in `gather_parameters`, and it is traced in
`full_shapes`, on types alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from meta.model.model import Model
from meta.runtime.array_key import array_key, key_of
from meta.runtime.buffer_replacement import replace_shard
from meta.runtime.ndarray import ndarray
from meta.runtime.placement import Placement, Split
from meta.runtime.shards import gather_shards, shard_of

REFUSED = (
    "this rank has parts of the model's parameters (zero=3), and cannot compute with them",
    "with step.gathered(): model(x), on all ranks",
)
WITHIN = "the model's parameters are whole (step.gathered())", "make steps outside of the block"


def shard_parameters(model: Model, split: Split) -> None:
    """Leave this rank its part of each parameter of a model; it is not called any more."""
    for _, array in model.named_parameters():
        placement = array.placement.then(split)
        tensor = shard_of(array.tensor.detach(), array.placement, placement)
        array.grad = None
        replace_shard(array, tensor, key_of(tensor), placement)
    for one in model.models():
        one._refused = REFUSED


def flat_split(array: ndarray) -> Split | None:
    """Return how the elements of an array are split, if they are."""
    splits = array.placement.splits
    return splits[-1] if splits and splits[-1].axis is None else None


def _without_last_split(placement: Placement) -> Placement:
    """Return the placement without its last split."""
    return Placement(placement.shape, placement.splits[:-1])


@contextmanager
def _allow_calls(model: Model) -> Iterator[list[ndarray]]:
    """Let a model be called in a block; give the arrays that are to be whole in it."""
    models = [m for m in model.models() if m._refused == REFUSED]
    arrays = [a for a in model.state().values() if flat_split(a) is not None]
    held = [(a, a.tensor, a.key, a.placement) for a in arrays]
    for one in models:
        one._refused = None
    try:
        yield arrays
    finally:
        for one in models:
            one._refused = REFUSED
        for array, tensor, key, placement in held:
            replace_shard(array, tensor, key, placement)


@contextmanager
def full_shapes(model: Model) -> Iterator[None]:
    """Let the parameters of a model have their whole shapes, and no values, for a block."""
    with _allow_calls(model) as arrays:
        for array in arrays:
            before = _without_last_split(array.placement)
            nothing = torch.empty((), dtype=array.tensor.dtype, device=array.tensor.device)
            key = array_key(before.local, array.dtype, array.device)
            replace_shard(array, nothing.expand(before.local), key, before)
        yield


@contextmanager
def gather_parameters(model: Model) -> Iterator[None]:
    """Let the parameters of a model be whole for a block, which all ranks enter; what is written to
    them stays.
    """
    with _allow_calls(model) as arrays:
        parts = [(a, a.tensor, a.placement) for a in arrays]
        for array, part, placement in parts:
            before = _without_last_split(placement)
            tensor = gather_shards(part.detach(), placement, before)
            replace_shard(array, tensor, key_of(tensor), before)
        yield
        with torch.no_grad():
            for array, part, placement in parts:
                part.copy_(shard_of(array.tensor, array.placement, placement))
