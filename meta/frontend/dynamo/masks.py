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
    lets each query see the keys up to its own place becomes ``is_causal``.

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
            hides_none, hides_later = known.hides(mask)
            if hides_none or (hides_later and not _argument(node, names, "is_causal", False)):
                _set_argument(node, names, name, None)
                if not hides_none:
                    _set_argument(node, names, "is_causal", True)
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

    def hides(self, mask: fx.Node) -> tuple[bool, bool]:
        """Whether a mask is known and hides no score, and whether it hides those behind a query's
        place alone, of as many keys as queries.
        """
        # AOTAutograd has graphs divided and compiled while its trace of fake tensors is on.
        with _disable_current_modes(), torch.no_grad():
            value = self._value(mask)
            if value is None:
                return False, False
            if value.dtype != torch.bool:
                return not bool(value.any()), False
            if bool(value.all()):
                return True, False
            square = value.ndim >= 2 and value.shape[-2] == value.shape[-1]
            before = torch.ones_like(value).tril() if square else None
            return False, before is not None and torch.equal(value, before)

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
