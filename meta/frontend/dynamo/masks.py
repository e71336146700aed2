"""Masks of attention that programs make of constants: those that hide nothing are left out, and
those that hide what follows become a flag.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import _disable_current_modes

from meta.frontend.dynamo.fx_nodes import arguments_of, set_arguments
from meta.passes.attention.masks import own_masks_of

LARGEST = 1 << 22
"""Elements of tensors that are computed to look at a mask."""


def drop_masks(module: fx.GraphModule) -> None:
    """Leave out masks that are known whatever a graph is given: true, or zeros to add. One that
    lets each query see the keys up to its own place becomes ``is_causal``, or, of our own operator,
    a window of those that are near.

    A kernel for attention without a mask reads less and, if it is causal, computes half. Some
    libraries make numbers of a mask of truth values before each call. Calls with dropout, which may
    run in PyTorch, keep theirs.
    """
    value_of, changed = _constants(module), False
    for node in module.graph.nodes:
        for name in _masks_of(node.target):
            given = arguments_of(node)
            mask = given[name]
            if not isinstance(mask, fx.Node) or given.get("dropout_p"):
                continue
            causal, window = _own_masks(value_of, mask) or (False, ())
            ours = "window" in given
            if window == () or (window is not None and not ours):
                continue
            queries, keys = mask.meta["val"].shape[-2:]
            if causal and not ours and queries != keys:  # whose end is aligned is the kernel's
                continue
            hides = causal or window is not None
            if hides and given["is_causal"]:
                continue
            given[name] = None
            given["is_causal"] |= causal
            if window is not None:
                given["window"] = list(window)
            set_arguments(node, given)
            changed = True
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()


@cache
def _masks_of(target: Any) -> list[str]:
    """Return the names of masks of attention among the arguments of what a node calls."""
    if not isinstance(target, torch._ops.OpOverload):
        return []
    names = [a.name for a in target._schema.arguments]
    return [n for n in names if n in ("attn_mask", "attn_bias") and "is_causal" in names]


_Values = Callable[[fx.Node], Tensor | None]


def _own_masks(value_of: _Values, mask: fx.Node) -> tuple[bool, Any] | None:
    """Return what says the same as a mask, if it is known: `own_masks_of`."""
    # AOTAutograd has graphs divided and compiled while its trace of fake tensors is on.
    with _disable_current_modes(), torch.no_grad():
        value = value_of(mask)
        if value is None:
            return None
        hides = ~value if value.dtype == torch.bool else value != 0
        return own_masks_of(value) if bool(hides.any()) else (False, None)


def _constants(module: fx.GraphModule) -> _Values:
    """Return what returns the value of a node that depends on no input of a graph, None of others,
    and of large ones.
    """

    @cache
    def value_of(node: fx.Node) -> Tensor | None:
        found = None
        if node.op == "get_attr":
            found = getattr(module, str(node.target), None)
        elif _is_small_constant(node):
            values = {n: value_of(n) for n in node.all_input_nodes}
            if all(value is not None for value in values.values()):
                args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
                found = cast(Any, node.target)(*args, **kwargs)
        return found if isinstance(found, Tensor) else None

    return value_of


def _is_small_constant(node: fx.Node) -> bool:
    """Whether a call gives a small tensor, the same each time, and writes nothing."""
    said, target = node.meta.get("val"), node.target
    if not isinstance(said, Tensor) or not isinstance(target, torch._ops.OpOverload):
        return False
    small = all(isinstance(n, int) for n in said.shape) and prod(said.shape) <= LARGEST
    varies = torch.Tag.nondeterministic_seeded in target.tags or target._schema.is_mutable
    return small and not varies
