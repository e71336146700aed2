"""`checkpoint`: less memory in training, for time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from meta.base.errors import ArgumentError
from meta.model.model import Model
from meta.model.recompute import POLICIES, call_checkpointed

Block = TypeVar("Block", bound=Callable[..., Any])


def checkpoint(block: Block, policy: str = "nothing") -> Block:
    """Let a block be called again in the backward pass, instead of keeping what it computes.

    Of a call only the arguments are kept until then (activation checkpointing: Chen et al.,
    arXiv:1604.06174). Results and gradients are the same: the second call draws the same random
    numbers, and what it writes in place (running statistics) is written once. It holds on the tape,
    in the interpreter and in compiled programs, and for blocks in blocks and in loops.

    block: a model, which is marked and returned (its names stay), or a function of arrays, of which
    another one is returned. It takes and returns nested tuples, lists and dicts of arrays, and must
    compute the same whenever it is called with the same arguments. A model that is compiled as a
    whole is not called, so mark what is inside of it.

    policy: what is kept beside the arguments:

    - "nothing";
    - "products": results of matrix products, convolutions and attention, which take longest to
      compute again; but for those in loops and branches, and within a block of mixed precision;
    - "everything", as if the block were not marked;
    - "offload": everything, in the memory of the host. On the CPU that is where it is; for another
      device it is an error, as values are not moved yet.

    >>> import meta
    >>> x = meta.array(2.0)
    >>> x.requires_grad = True
    >>> cube = meta.model.checkpoint(lambda x: x * x * x)
    >>> cube(x).backward()
    >>> x.grad.item()
    12.0
    """
    if policy not in POLICIES:
        raise ArgumentError(
            "unknown policy of a checkpoint",
            expected=" or ".join(map(repr, POLICIES)),
            found=repr(policy),
        )
    if isinstance(block, Model):
        block._checkpointed = policy
        return block
    if not callable(block):
        raise ArgumentError(
            "only what is called can be checkpointed",
            expected="a model or a function",
            found=type(block).__name__,
        )

    @functools.wraps(block)
    def call(*args: Any, **kwargs: Any) -> Any:
        name = getattr(block, "__name__", "checkpoint")
        return call_checkpointed(block, args, kwargs, (), name, policy)

    return call  # type: ignore[return-value]  # it is called as `block` is
