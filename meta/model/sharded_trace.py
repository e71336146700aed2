"""Models of whose arrays each rank has a part (`ndarray.placement`; `meta.distributed`).

Such a model is traced as it is written, for one device: while its code runs, its arrays have the
shapes of the whole (`full_shapes_while_traced`). The program is then written for parts
(`shard_program`), by the pass `tensor_parallel`. A model that returns gradients or uses them up
(`Model.records` is False) is traced on parts: what the models inside of it compute is written for
parts already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from meta.base.call_context import context, override_context
from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.base.errors import DistributedError
from meta.ir import Module
from meta.model.model import Model
from meta.passes.distributed.sharding import InsertedCollective
from meta.passes.distributed.tensor_parallel import tensor_parallel
from meta.runtime.array_key import key_of
from meta.runtime.ndarray import ndarray
from meta.runtime.placement import Joined, Split


@dataclass(frozen=True, slots=True)
class ShardedTrace:
    """What holds while code is traced that is to be written for parts of arrays.

    Attributes
    ----------
    full_shapes: whether arrays have the shapes of the whole. exchanges: the list to which the
    collectives are added that are put in; None if nobody asks.
    """

    full_shapes: bool = False
    exchanges: list[InsertedCollective] | None = None


_OUTSIDE = ShardedTrace()


def _here() -> ShardedTrace:
    return context.get().sharded_trace or _OUTSIDE


def is_sharded(model: Model) -> bool:
    """Whether this model's own code is written for parts of its arrays, not yet as a piece of a
    larger model that is.
    """
    return model._sharded and not _here().full_shapes


def _axis_splits(array: ndarray) -> list[Split]:
    return [s for s in array.placement.splits if s.axis is not None]


@contextmanager
def full_shapes_while_traced(model: Model | None) -> Iterator[bool]:
    """Give a model's arrays the shapes that they have for its code, in a block that traces it;
    yield whether these are those of the whole, of a program that is then written for parts.
    """
    if model is None or (_here().full_shapes and model.records):
        yield False
        return
    # The arrays say it, not the model: they may be another model's, too.
    arrays = list(model.state().values()) if model.records else []
    whole = any(_axis_splits(a) for a in arrays)
    arrays = [a for a in arrays if a.placement.splits] if whole else []
    before = [(a, a.tensor, a.key) for a in arrays]
    try:
        for array, _, key in before:
            empty = torch.empty((), dtype=TO_TORCH[key.dtype], device=str(key.device))
            array.tensor = empty.expand(array.placement.shape)  # without values
            array.key = key_of(array.tensor)
        with override_context(sharded_trace=replace(_here(), full_shapes=whole)):
            yield whole
    finally:
        for array, tensor, key in before:
            array.tensor, array.key = tensor, key


@contextmanager
def record_exchanges() -> Iterator[list[InsertedCollective]]:
    """Yield a list of the collectives that are put into programs which are traced in the block."""
    exchanges: list[InsertedCollective] = []
    with override_context(sharded_trace=replace(_here(), exchanges=exchanges)):
        yield exchanges


def shard_program(module: Module, arrays: Sequence[ndarray], device: Device) -> Module:
    """Write a program, whose last parameters are ``arrays``, for the parts of them."""
    first = len(module.main.params) - len(arrays)
    cuts: dict[tuple[str, int], dict[int, tuple[int, Joined]]] = {}
    for number, array in enumerate(arrays):
        splits = _axis_splits(array)
        if len(splits) > 1:
            raise DistributedError(
                "an array is split along several axes of the mesh",
                expected="one, over which a model is tensor parallel",
                found=str(array.placement),
            )
        for split in splits:
            assert split.axis is not None
            at = cuts.setdefault((split.over, split.size), {})
            at[first + number] = split.axis, split.joined
    for (over, size), along in cuts.items():
        module = tensor_parallel(
            module,
            over=over,
            size=size,
            cuts=along,
            device=device,
            exchanges=_here().exchanges,
        )
    return module
