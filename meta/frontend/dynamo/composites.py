"""Activations and normalisations that a model writes out, in graphs of Dynamo's.

They are searched before AOTAutograd derives gradients, so that the gradient is one operator, too,
and no step is kept for it: by the patterns of the pass `fuse_composites`, in the graph seen as a
program. What the pass writes in a program is written here in the graph, by functions of PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, fx
from torch.nn import functional

from meta import op
from meta.base.dtype import TO_TORCH
from meta.dialect.core.ir_calls import tensor_of
from meta.frontend.dynamo.graph_program import GraphProgram, TorchCalls, target_name
from meta.frontend.dynamo.norm_operators import RMS_NORM
from meta.ir import Binding
from meta.op.core.check import normalize_axes
from meta.passes.composites import COMPOSITES
from meta.passes.composites import layer_norm as layer_norm_pattern
from meta.passes.pattern import Match, Pattern, match
from meta.passes.pattern.formula import ARITHMETIC
from meta.passes.pattern.replacement import Replacement, traced
from meta.passes.pattern.scope import Facts


def rms_norm(x: Tensor, scale: Tensor | None, _bias: None, axis: int, eps: float) -> Tensor:
    """The arguments are those of the operator `rms_norm`."""
    y: Tensor = RMS_NORM(x, scale, axis, eps)
    return y.to(x.dtype)


def layer_norm(
    x: Tensor, scale: Tensor | None, bias: Tensor | None, _axis: int, eps: float
) -> Tensor:
    """Along the last axis; the arguments are those of the operator `layer_norm`."""
    scale, bias = (None if v is None else v.to(x.dtype) for v in (scale, bias))
    with torch.autocast(x.device.type, enabled=False):
        return functional.layer_norm(x, x.shape[-1:], scale, bias, eps)


TORCH_CALLS: TorchCalls = MappingProxyType(
    {
        op.astype: lambda x, dtype: x.to(TO_TORCH[dtype]),
        op.gelu: lambda x, approximate: functional.gelu(x, approximate=approximate),
        op.layer_norm: layer_norm,
        op.reshape: lambda x, shape, *_: x.reshape(shape),
        op.rms_norm: rms_norm,
    }
)


def fuse_composites(graph: fx.GraphModule) -> None:
    """Write calls for activations and normalisations in a graph, and in graphs within."""
    for part in graph.modules():
        if isinstance(part, fx.GraphModule):
            names = {target_name(node) for node in part.graph.nodes}
            rows = {p: r for p, r in COMPOSITES.items() if _names(p) <= names}
            if rows and _fused(part, rows):
                part.recompile()


def _names(what: Pattern) -> set[str]:
    """Return what has to be called for a pattern, beside arithmetic, under names of PyTorch's."""
    return {o.name for o in what.operators if o not in ARITHMETIC}


def _fused(graph: fx.GraphModule, rows: Mapping[Pattern, Replacement]) -> bool:
    """Write calls for patterns in one graph; return whether there are any."""
    program, taken = GraphProgram(graph), set[Binding]()
    facts = Facts(program.function, None)
    for what, replacement in rows.items():
        for found in match(what, program.function, facts=facts):
            if (
                taken.isdisjoint(found.members)
                and _is_served(found)
                and program.write(found.root, traced(found, replacement), TORCH_CALLS)
            ):
                taken.update(found.members)
    program.erase_replaced()
    return bool(taken)


def _is_served(found: Match) -> bool:
    """Whether there is a function of PyTorch's, or an operator of ours, for a match."""
    if found.pattern is not layer_norm_pattern:
        return True
    last = tensor_of(found.root.var).ndim - 1  # PyTorch's normalises no other axis alone
    return normalize_axes(found.captures["axis"], last + 1) == (last,)
