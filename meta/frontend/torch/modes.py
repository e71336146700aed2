"""In which mode, train or eval, a program was exported, by the operators that differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from meta.frontend.aten.registry import AtenError, bind_arguments, name_of

_MODE_ARGUMENTS = {
    "batch_norm": "training",
    "_native_batch_norm_legit": "training",
    "_native_batch_norm_legit_functional": "training",
    "native_batch_norm": "training",
    "cudnn_batch_norm": "training",
    "dropout": "train",
    "native_dropout": "train",
    "alpha_dropout": "train",
    "feature_dropout": "train",
    "feature_alpha_dropout": "train",
    "rrelu": "training",
}
"""Operators with an argument that is the mode, and its name."""
_NAMES = ("eval", "train")


def modes_of(module: fx.GraphModule) -> dict[bool, str]:
    """Return the modes (True is train mode) that operators of a program are in, with the first
    operator of each.
    """
    found: dict[bool, str] = {}
    for inner in module.modules():
        for node in inner.graph.nodes if isinstance(inner, fx.GraphModule) else ():
            mode = _mode(node)
            if mode is not None:
                found.setdefault(mode, node.format_node() or node.name)
    return found


def _mode(node: fx.Node) -> bool | None:
    overload = node.target
    if not isinstance(overload, torch._ops.OpOverload):
        return None
    name = name_of(overload).partition(".")[0]
    operands, others = bind_arguments(overload, node.args, node.kwargs)
    arguments: dict[str, Any] = dict(others)
    if name == "_native_batch_norm_legit_no_training":
        return False
    if name == "scaled_dot_product_attention":
        return True if arguments.get("dropout_p", 0.0) else None
    if name not in _MODE_ARGUMENTS or arguments.get("p") == 0.0:
        return None
    if "batch_norm" in name and len(operands) > 3 and operands[3] is None:
        return None  # no running statistics: alike in both modes
    mode = arguments.get(_MODE_ARGUMENTS[name])
    return mode if isinstance(mode, bool) else None


def require_mode(modes: Mapping[bool, str], training: bool) -> None:
    """Raise AtenError for a program that does something else in this mode."""
    if not modes or (training in modes and (training or True not in modes)):
        return
    raise AtenError(
        f"the program was exported in {_NAMES[not training]} mode, and differs in "
        f"{_NAMES[training]} mode",
        found=modes[not training],
        hint="import the torch.nn.Module, or what torch.export makes of it in "
        f"{_NAMES[training]} mode",
    )
