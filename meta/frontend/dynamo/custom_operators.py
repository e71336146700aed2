"""Custom operators in graphs of AOTAutograd, in the place of those of PyTorch that need more.

A joint graph gets them before it is divided (`reduce_saved_tensors`), so that less is saved: not
the statistics of batch normalisation, nor the places of a maximum over windows, which take longer
to write than to find again, nor what an activation behind a normalisation was of, nor what a gate
was multiplied by, where the product is saved. The running statistics that a forward graph computes
and then copies to its inputs are written there at once (`update_in_place`).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.autograd.graph import increment_version

from meta import op
from meta.frontend.aten import aten
from meta.frontend.aten.converters import norm
from meta.frontend.aten.converters.pool import max_pool_gradient
from meta.frontend.aten.definitions import define
from meta.frontend.dynamo.fx_nodes import erase, insert_call, replace_call

_ATEN = torch.ops.aten
_GRADIENT_OF_NORM = _ATEN.native_batch_norm_backward.default
_NORM = _ATEN._native_batch_norm_legit_functional.default
_GATES = _ATEN.sigmoid_backward.default, _ATEN.hardsigmoid_backward.default
AGAIN_ON = {"cuda"}
"""Devices on which a normalisation is done again for the gradient of an activation."""
_POOLS = {
    _ATEN.max_pool2d_with_indices_backward.default: _ATEN.max_pool2d_with_indices.default,
    _ATEN.max_pool3d_with_indices_backward.default: _ATEN.max_pool3d_with_indices.default,
}


def _batch_norm_dxwb(
    dy: Tensor, x: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a normalisation by statistics of the batch by x, weight and bias."""
    _, mean, inverse = _ATEN.native_batch_norm(x, weight, None, None, None, True, 0.0, eps)
    given = (dy, x, weight, None, None, mean, inverse, True, eps, [True] * 3)
    dx, dw, db = _GRADIENT_OF_NORM(*given)
    return dx, dw, db


BATCH_NORM_DXWB = define(
    "batch_norm_dxwb(Tensor dy, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)",
    _batch_norm_dxwb,
)
aten("meta.batch_norm_dxwb", op.batch_norm_train_dxwb)(norm.batch_norm_gradients)


def _batch_norm_again(dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """A normalisation by statistics of the batch, for what follows ``dy``, which is not read."""
    result: Tensor = _ATEN.native_batch_norm(x, weight, bias, None, None, True, 0.0, eps)[0]
    return result


BATCH_NORM_AGAIN = define(
    "batch_norm_again(Tensor dy, Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor",
    _batch_norm_again,
)
aten("meta.batch_norm_again", op.batch_norm_infer, op.mean, op.var)(norm.batch_norm_again)


def _batch_norm_update(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
) -> Tensor:
    """A normalisation by statistics of the batch, which updates the running ones."""
    result: Tensor = _ATEN.native_batch_norm(x, weight, bias, mean, var, True, momentum, eps)[0]
    increment_version((mean, var))  # which its schema does not say
    return result


BATCH_NORM_UPDATE = define(
    "batch_norm_update(Tensor x, Tensor? weight, Tensor? bias, Tensor(a!) mean, Tensor(b!) var, "
    "float momentum, float eps) -> Tensor",
    _batch_norm_update,
)
aten("meta.batch_norm_update", op.batch_norm_train)(norm.batch_norm_updating)


def _max_pool_dx(
    dy: Tensor,
    x: Tensor,
    y: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Tensor:
    """The gradient of the maxima y of windows of x, over as many axes as the window has."""
    gradient = list(_POOLS)[len(kernel_size) - 2]
    window = (kernel_size, stride, padding, dilation, ceil_mode)
    result: Tensor = gradient(dy, x, *window, _POOLS[gradient](x, *window)[1])
    return result


MAX_POOL_DX = define(
    "max_pool_dx(Tensor dy, Tensor x, Tensor y, SymInt[] kernel_size, SymInt[] stride, "
    "SymInt[] padding, SymInt[] dilation, bool ceil_mode) -> Tensor",
    _max_pool_dx,
)
aten("meta.max_pool_dx", op.max_pool2d_dx, op.max_pool3d_dx)(max_pool_gradient)


def reduce_saved_tensors(joint: fx.GraphModule) -> None:
    """Let the gradients in a joint graph read less of what its forward part computes."""
    graph = joint.graph
    for node in graph.find_nodes(op="call_function", target=_GRADIENT_OF_NORM):
        args: Any = node.args
        dy, x, weight, *_, train, eps, _ = args
        if train and weight is not None:
            _normalise_again(dy, x, weight, eps)
            made = replace_call(node, BATCH_NORM_DXWB, dy, x, weight, eps)
            dx, dw, db = node.meta["val"]
            vectors = (weight.meta["val"] if t is None else t for t in (dw, db))
            made.meta["val"] = (x.meta["val"] if dx is None else dx, *vectors)
    for gradient, pool in _POOLS.items():
        for node in graph.find_nodes(op="call_function", target=gradient):
            y = _maxima(node, pool)
            if y is not None:
                args = node.args
                dy, x, *window, _ = args
                replace_call(node, MAX_POOL_DX, dy, x, y, *_window_arguments(window, x))
    for gradient in _GATES:
        for node in graph.find_nodes(op="call_function", target=gradient):
            _read_product(node)


def _read_product(gradient: fx.Node) -> None:
    """Let the gradient of a gate s, of which the product p = y s is saved for a convolution, read p
    and not y: ``sum(dp y)`` is ``sum(dp p) / s`` where s is the same along the sum; where it is 0,
    so is its own gradient.
    """
    args: Any = gradient.args
    total, of = args
    summed = _before_cast(total)
    if summed.target is not _ATEN.sum.dim_IntList or len(summed.users) > 1:
        return
    product: Any = summed.args[0]
    s = of
    if gradient.target is not _GATES[0]:
        s = next((n for n in of.users if n.target is _ATEN.hardsigmoid.default), None)
    if s is None or s.meta["val"].shape != total.meta["val"].shape or len(product.users) > 1:
        return
    for y in product.all_input_nodes if product.target is _ATEN.mul.Tensor else ():
        made = (n for n in y.users if n.target is product.target and {*n.args} == {y, s})
        p = next((n for n in made if _is_saved(n) and not _is_saved(y)), None)
        if p is not None and p.meta["val"].dtype == product.meta["val"].dtype:
            product.replace_input_with(y, p)
            _divide(gradient, total, s)
            return


def _before_cast(node: fx.Node) -> fx.Node:
    """Return what a value that is read once was cast from: autocast on CUDA sums into float32."""
    is_cast = node.target is _ATEN._to_copy.default and node.kwargs.keys() == {"dtype"}
    return node.all_input_nodes[0] if is_cast and len(node.users) == 1 else node


def _is_saved(node: fx.Node, *but: fx.Node) -> bool:
    """Whether gradients read a value, others than these."""
    return any("backward" in str(user.target) for user in node.users if user not in but)


def _divide(gradient: fx.Node, total: fx.Node, s: fx.Node) -> None:
    """Let the gradient of a gate take a sum that is too large by the factor s."""
    with gradient.graph.inserting_before(gradient):
        if gradient.target is _GATES[0]:  # s (1 - s) / s
            replace_call(gradient, _ATEN.mul.Tensor, total, insert_call(s, _ATEN.rsub.Scalar, s, 1))
            return
        least = torch.finfo(s.meta["val"].dtype).tiny
        above = insert_call(s, _ATEN.clamp_min.default, s, least)
        quotient = insert_call(total, _ATEN.div.Tensor, total, above)
    gradient.replace_input_with(total, quotient)


def _normalise_again(gradient: fx.Node, x: fx.Node, weight: fx.Node, eps: float) -> None:
    """Let an activation's gradient read a normalisation that is done behind the gradient of its
    result. On CUDA one kernel does both; elsewhere the first result is saved.
    """
    schema = getattr(gradient.target, "_schema", _GRADIENT_OF_NORM._schema)
    names = [a.name for a in schema.arguments[:2]]
    if names != ["grad_output", "self"] or x.meta["val"].device.type not in AGAIN_ON:
        return
    args: Any = gradient.args
    dy, saved = args[:2]
    through = {_ATEN.clone.default}  # of what is written over
    is_relu = gradient.target is _ATEN.threshold_backward.default  # which reads a result
    if is_relu and x.meta["val"].itemsize == 2 and not _is_saved(saved, gradient):
        through.add(_ATEN.relu.default)
    y = saved.args[0] if saved.target in through else saved
    made: Any = y.args[0] if y.target is operator.getitem and not y.args[1] else y
    if made.target is _NORM and made.args[:2] == (x, weight) and made.args[2] is not None:
        graph, given = gradient.graph, (dy, x, weight, made.args[2], eps)
        with graph.inserting_before(gradient):
            again = graph.call_function(BATCH_NORM_AGAIN, given)
        again.meta = dict(gradient.meta)
        gradient.replace_input_with(saved, again)


def _maxima(node: fx.Node, pool: Any) -> fx.Node | None:
    """Return the maxima, the places of which a gradient reads, if it may look for them again."""
    args: Any = node.args
    _, x, *window, places = args
    made = places.args[0] if places.target is operator.getitem else None
    if made is None or made.target is not pool or made.args[0] is not x:
        return None
    sizes = (n for part in window[:-1] for n in part)
    if not x.meta["val"].dtype.is_floating_point or not all(isinstance(n, int) for n in sizes):
        return None
    fields: list[fx.Node] = list(made.users)
    return next((n for n in fields if n.target is operator.getitem and n.args[1] == 0), None)


def _window_arguments(window: Sequence[Any], x: fx.Node) -> tuple[Any, ...]:
    """Return kernel, stride, padding and dilation with a number for each axis, and ceil_mode."""
    *lists, ceil_mode = window
    kernel = lists[0]
    count = 2 if len(kernel) < 3 and x.meta["val"].ndim < 5 else 3
    full = [[*part] * count if len(part) == 1 else [*part] for part in lists]
    full[1] = full[1] or full[0]
    return *full, ceil_mode


def update_in_place(module: fx.GraphModule) -> None:
    """Write running statistics where they are, which a graph copies there at its end."""
    changed = False
    for node in module.graph.find_nodes(op="call_function", target=_NORM):
        args: Any = node.args
        x, weight, bias, mean, var, training, momentum, eps = args
        fields: dict[Any, fx.Node] = {
            user.args[1]: user for user in node.users if user.target is operator.getitem
        }
        if not training or mean is var or not len(fields) == len(node.users) == 3:
            continue
        copies = [_copy_to(old, fields.get(n), node) for old, n in ((mean, 3), (var, 4))]
        if 0 in fields and None not in copies:
            replace_call(fields[0], BATCH_NORM_UPDATE, x, weight, bias, mean, var, momentum, eps)
            erase(*filter(None, copies))
            changed = True
    if changed:
        module.recompile()


def _copy_to(old: fx.Node, new: fx.Node | None, norm: fx.Node) -> fx.Node | None:
    """Return the call that copies a running statistic to the input that it was, if nobody else
    reads either.
    """
    copies = [] if new is None else list(new.users)
    if len(copies) != 1 or copies[0].target is not _ATEN.copy_.default or copies[0].users:
        return None
    alone = old.op == "placeholder" and copies[0].args[0] is old and {*old.users} == {norm, *copies}
    return copies[0] if alone else None
