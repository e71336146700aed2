"""Running statistics of batch normalisation, which an exported program computes and writes at its
end, written by the normalisation itself: it has the statistics of the batch at hand.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import fx

from meta import op
from meta.base.dtype import FROM_TORCH
from meta.frontend.aten.converters.norm import batch_norm_updating
from meta.op.norm import statistics_dtype

FUNCTIONAL = torch.ops.aten._native_batch_norm_legit_functional.default
_MEAN, _VAR = 3, 4
"""Where the running statistics are among the arguments, and the new ones among the results."""


def updating_norms(
    graph: fx.Graph, buffers: Mapping[fx.Node, str], written: Collection[tuple[fx.Node, str]]
) -> set[fx.Node]:
    """Return the normalisations in train mode that can write their running statistics in place.

    buffers: the names of arrays by placeholder, of those that have no other name. written: what is
    written at the end, and to which buffer. Nobody else may read the statistics before or, but for
    another such call, after; nor what is saved for a gradient.
    """
    names: dict[Any, str] = dict(buffers)
    found: set[fx.Node] = set()
    for node in graph.find_nodes(op="call_function", target=FUNCTIONAL, sort=True):
        args: Any = node.args
        results = {u.args[1]: u for u in node.users if u.target is operator.getitem}
        if not _is_training_call(node, results):
            continue
        new = {i: results[i] for i in (_MEAN, _VAR) if i in results}
        own = {i: names.get(args[i]) for i in (_MEAN, _VAR)}
        if None in own.values() or new.keys() != own.keys():
            continue
        alone = all(list(args[i].users) == [node] for i in new)
        if alone and all(_may_follow(new[i], own[i], written) for i in new):
            found.add(node)
            names |= {new[i]: names[args[i]] for i in new}
    return found


def _is_training_call(node: fx.Node, results: Mapping[Any, fx.Node]) -> bool:
    """Whether a call is in train mode, with statistics of the dtype in which they are computed."""
    args: Any = node.args
    if len(args) < 6 or args[5] is not True or None in args[_MEAN : _VAR + 1]:
        return False
    if len(results) != len(node.users) or any(results[i].users for i in (1, 2) if i in results):
        return False
    dtypes = {FROM_TORCH.get(args[i].meta["val"].dtype) for i in (_MEAN, _VAR)}
    return dtypes == {statistics_dtype(FROM_TORCH[args[0].meta["val"].dtype])}


def _may_follow(value: fx.Node, name: str | None, written: Collection[tuple[fx.Node, str]]) -> bool:
    """Whether a new statistic is read once: by a call, or to be written where it is already."""
    users = list(value.users)
    return len(users) == 1 and (users[0].op != "output" or (value, name) in written)


def update(node: fx.Node, args: Any) -> tuple[Any, ...]:
    """Normalise and write the statistics, which are the new ones from then on."""
    x, weight, bias, mean, var, _, momentum, eps = args
    normalise: Callable[..., Any] = batch_norm_updating
    y = normalise(x, weight, bias, mean, var, momentum=momentum, eps=eps)
    dtype = FROM_TORCH[node.meta["val"][0].dtype]
    return y if y.dtype == dtype else op.astype(y, dtype), None, None, mean, var
