"""Masks of attention that programs make of constants: those that hide nothing are left out, and
those that hide what follows become a flag.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import _disable_current_modes

import meta.frontend.dynamo.attention_operators  # noqa: F401  (registers operators)
from meta.passes.attention.masks import own_masks_of

LARGEST = 1 << 22
"""Elements of tensors that are computed to look at a mask."""
_NAMES = "attn_mask", "attn_bias"
_ATEN = torch.ops.aten
_WITH_MASK = tuple(
    overload.default
    for overload in (
        _ATEN.scaled_dot_product_attention,
        _ATEN._scaled_dot_product_efficient_attention,
        _ATEN._scaled_dot_product_efficient_attention_backward,
        _ATEN._scaled_dot_product_flash_attention_for_cpu,
        _ATEN._scaled_dot_product_flash_attention_for_cpu_backward,
        _ATEN._scaled_dot_product_cudnn_attention,
        _ATEN._scaled_dot_product_cudnn_attention_backward,
        torch.ops.meta.fused_attention,
        torch.ops.meta.fused_attention_dx,
    )
)


def drop_masks(module: fx.GraphModule) -> None:
    """Leave out masks that are known whatever a graph is given: true, or zeros to add. One that
    lets each query see the keys up to its own place becomes ``is_causal``, or, of our own operator,
    a window of those that are near.

    A kernel for attention without a mask reads less and, if it is causal, computes half. Some
    libraries make numbers of a mask of truth values before each call. Calls with dropout, which may
    run in PyTorch, keep theirs.
    """
    known = _Constants(module)
    changed = False
    for target in _WITH_MASK:
        names = [a.name for a in target._schema.arguments]
        for node in module.graph.find_nodes(op="call_function", target=target):
            name = next(n for n in _NAMES if n in names)
            mask = _argument(node, names, name, None)
            if not isinstance(mask, fx.Node) or _argument(node, names, "dropout_p", 0.0) != 0.0:
                continue
            causal, window = known.own_masks(mask) or (False, ())
            ours = "window" in names
            if window == () or (window is not None and not ours):
                continue
            queries, keys = mask.meta["val"].shape[-2:]
            if causal and not ours and queries != keys:  # whose end is aligned is the kernel's
                continue
            if not causal and window is None:
                _set_argument(node, names, name, None)
            elif not _argument(node, names, "is_causal", False):
                _set_argument(node, names, name, None)
                _set_argument(node, names, "is_causal", causal)
                if window is not None:
                    _set_argument(node, names, "window", list(window))
            else:
                continue
            changed = True
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()


def _argument(node: fx.Node, names: list[str], name: str, default: Any) -> Any:
    """Return an argument of a call, given by its place or its name."""
    at = names.index(name) if name in names else len(node.args)
    return node.args[at] if at < len(node.args) else node.kwargs.get(name, default)


def _set_argument(node: fx.Node, names: list[str], name: str, value: Any) -> None:
    """Set an argument of a call."""
    at = names.index(name)
    if at < len(node.args):
        node.update_arg(at, value)
    else:
        node.update_kwarg(name, value)


class _Constants:
    """The tensors of a graph that depend on none of its inputs."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._found: dict[fx.Node, Tensor | None] = {}

    def own_masks(self, mask: fx.Node) -> tuple[bool, Any] | None:
        """Return what says the same as a mask, if it is known: `own_masks_of`."""
        # AOTAutograd has graphs divided and compiled while its trace of fake tensors is on.
        with _disable_current_modes(), torch.no_grad():
            value = self._value(mask)
            if value is None:
                return None
            hides = ~value if value.dtype == torch.bool else value != 0
            return own_masks_of(value) if bool(hides.any()) else (False, None)

    def _value(self, node: fx.Node) -> Tensor | None:
        """Return the value of a node, None if it is not known."""
        if node not in self._found:
            self._found[node] = self._computed(node)
        return self._found[node]

    def _computed(self, node: fx.Node) -> Tensor | None:
        if node.op == "get_attr":
            found = getattr(self._module, str(node.target), None)
            return found if isinstance(found, Tensor) else None
        said = node.meta.get("val")
        if node.op != "call_function" or not _is_small(said) or not _is_deterministic(node.target):
            return None
        values = {n: self._value(n) for n in node.all_input_nodes}
        if any(value is None for value in values.values()):
            return None
        args: Any = fx.map_arg(node.args, values.__getitem__)
        kwargs: Any = fx.map_arg(node.kwargs, values.__getitem__)
        target: Any = node.target
        found = target(*args, **kwargs)
        return found if isinstance(found, Tensor) else None


def _is_small(said: Any) -> bool:
    if not isinstance(said, Tensor):
        return False
    return all(isinstance(n, int) for n in said.shape) and prod(said.shape) <= LARGEST


def _is_deterministic(target: Any) -> bool:
    """Whether an operator gives the same each time, and writes nothing."""
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    return torch.Tag.nondeterministic_seeded not in target.tags
