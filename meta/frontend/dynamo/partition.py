"""Graphs of AOTAutograd's are rewritten; a joint one becomes that of the result, and that of the
gradient.

PyTorch's partitioner decides what the first saves for the second, and what the second computes
again. It knows some overloads of views as such, which cost nothing to compute again; others it
saves, as copies beside what they are views of. So views are written as those that it knows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch import fx
from torch._functorch import config as functorch
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx.experimental.symbolic_shapes import has_free_symbols, statically_known_true

from meta.frontend.dynamo.conversion import correct_fake_results
from meta.frontend.dynamo.custom_operators import reduce_saved_tensors
from meta.frontend.dynamo.fuse_losses import pad_scores
from meta.frontend.dynamo.fx_nodes import fake_value, insert_call, replace_call, storage_of
from meta.frontend.dynamo.images import lay_out_images
from meta.frontend.dynamo.masks import drop_masks

_ATEN = torch.ops.aten
_EMPTY = {_ATEN.empty.memory_format, _ATEN.empty_strided.default}
_DIFFERENT = {
    torch.Tag.nondeterministic_seeded,
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
}
"""What is said of operators whose results are others at each call."""


def rewrite(whole: fx.GraphModule) -> None:
    """Write what is whole in a graph, joint or for inference, as programs do best."""
    correct_fake_results(whole)  # its types become those of what one graph saves for the other
    plain_views(whole)
    drop_masks(whole)


def partition(joint: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    """Return the graphs of the result and of the gradient."""
    rewrite(joint)
    reduce_saved_tensors(joint)
    pad_scores(joint)
    lay_out_images(joint)
    drop_clones(joint.graph)
    merge_equal_calls(joint.graph)
    with functorch.patch(recompute_views=True, cse=False):  # torch's imports Inductor's lowering
        forward, backward = min_cut_rematerialization_partition(joint, *args, **kwargs)
    save_before_casts(forward, backward, kwargs["num_fwd_outputs"])
    return forward, backward


def save_before_casts(forward: fx.GraphModule, backward: fx.GraphModule, returned: int) -> None:
    """Let a forward graph save what was cast to a wider dtype, and not the cast, behind its first
    ``returned`` outputs: its gradient's graph casts again, which its kernels do as they read.
    """
    (last,) = forward.graph.find_nodes(op="output")
    outputs: Any = last.args[0]
    given = forward.graph.find_nodes(op="placeholder")
    others = {storage_of(n) for n in (*given, *outputs[:returned]) if isinstance(n, fx.Node)}
    places = {n.name: n for n in backward.graph.find_nodes(op="placeholder")}
    first = next(n for n in backward.graph.nodes if n.op != "placeholder")
    saved = list(outputs[returned:])
    for node in outputs[returned:]:
        source = _narrow_source(node)
        if source is None or storage_of(source) in others:
            continue
        if source not in saved and any(n.name == source.name for n in backward.graph.nodes):
            continue  # it is computed again
        place = places.pop(node.name)
        if source in saved:
            saved.remove(node)
            narrow = places[source.name]
        else:
            saved[saved.index(node)] = source
            with backward.graph.inserting_before(place):
                narrow = places[source.name] = backward.graph.placeholder(source.name)
            narrow.meta = dict(source.meta)
        with backward.graph.inserting_before(first):
            wide = backward.graph.call_function(node.target, (narrow,), dict(node.kwargs))
        wide.meta = dict(place.meta)
        place.replace_all_uses_with(wide)
        backward.graph.erase_node(place)
    last.args = ((*outputs[:returned], *saved),)
    for module in (forward, backward):
        module.graph.eliminate_dead_code()
        module.recompile()


def _narrow_source(node: Any) -> fx.Node | None:
    """Return what a tensor is of more bytes of; None if it is no such cast, or of other sizes in
    each call.
    """
    if not isinstance(node, fx.Node) or node.target is not _ATEN._to_copy.default:
        return None
    (source,), said = node.args, node.meta["val"]
    assert isinstance(source, fx.Node)
    before = source.meta["val"]
    if has_free_symbols(said) or (before.stride(), before.device) != (said.stride(), said.device):
        return None
    halves = before.is_floating_point() and before.itemsize < said.itemsize
    return source if halves and said.is_floating_point() else None


def drop_clones(graph: fx.Graph) -> None:
    """Let what reads a copy read what it is of, so that not both are saved, such as the copy that
    dropout with a probability of 0 is. Copies stay where the memory of one of the two is an
    input's, is written, or is returned, and where the copy lies in another order.
    """
    schemas = ((n, getattr(n.target, "_schema", None)) for n in graph.nodes)
    readers = [n for n, s in schemas if n.op == "output" or (s is not None and s.is_mutable)]
    seen = {*graph.find_nodes(op="placeholder"), *(a for n in readers for a in n.all_input_nodes)}
    stays = {None, *map(storage_of, seen)}
    for node in graph.find_nodes(op="call_function", target=_ATEN.clone.default):
        source = node.args[0]
        strides = (fake_value(n).stride() for n in (node, source))
        same = all(statically_known_true(a == b) for a, b in zip(*strides, strict=True))
        if same and not {storage_of(node), storage_of(source)} & stays:
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def merge_equal_calls(graph: fx.Graph) -> None:
    """Let calls of the same with the same arguments be one, unless memory is written in between.

    What is returned stays apart, and whatever shares memory with it.
    """
    (output,) = graph.find_nodes(op="output")
    returned = {storage_of(node) for node in output.all_input_nodes} - {None}
    known: dict[Any, fx.Node] = {}
    for node in graph.nodes:
        target = node.target
        if isinstance(target, torch._ops.OpOverload):
            if target._schema.is_mutable:
                known.clear()
            if target._schema.is_mutable or target in _EMPTY or _DIFFERENT & set(target.tags):
                continue
        elif node.op != "call_function" or target.__module__ != "_operator":
            continue
        if node.is_impure() or storage_of(node) in returned:
            continue
        first = known.setdefault((target, str(node.args), str(node.kwargs)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def plain_views(module: fx.GraphModule) -> None:
    """Write views as overloads that the partitioner knows as such."""
    graph = module.graph
    for target, rewrite in _REWRITES.items():
        for node in graph.find_nodes(op="call_function", target=target):
            with graph.inserting_before(node):
                rewrite(node)


def _drop_identity(node: fx.Node) -> None:
    """A node that gives what it is given."""
    source: Any = node.args[0]
    node.replace_all_uses_with(source)
    node.graph.erase_node(node)


def _permute(node: fx.Node) -> None:
    args: Any = node.args
    source, *axes = args
    order = list(range(source.meta["val"].ndim))
    if order:
        a, b = axes
        order[a], order[b] = order[b], order[a]
    replace_call(node, _ATEN.permute.default, source, order)


def _in_sizes(node: fx.Node) -> None:
    args: Any = node.args
    if not _of_rows(node):
        replace_call(node, _ATEN.split.sizes, *args)


def _of_rows(node: fx.Node) -> bool:
    """Let the parts of a permuted array, as of heads whose queries, keys and values lie side by
    side, be parts of what is permuted, and all that are unbound parts of a split: programs find
    them in its rows then. Return whether that is done.
    """
    args: Any = node.args
    unbinds = node.target is _ATEN.unbind.int
    source, axis = args[0], (*args[1 if unbinds else 2 :], 0)[0]
    fields, parts = list(node.users), node.meta["val"]
    order = list(range(source.meta["val"].ndim))
    permuted = source.target is _ATEN.permute.default
    served = unbinds or (permuted and all(isinstance(n, int) for n in parts[0].shape))
    if not served or any(user.target is not operator.getitem for user in fields):
        return False
    axis %= len(order)
    if permuted:
        order = [a % len(order) for a in source.args[1]]
        source = source.args[0]
    at = order[axis]
    if unbinds:
        order = [a - (a > at) for a in order if a != at]
        whole = insert_call(node, _ATEN.split.Tensor, source, 1, at)
    else:
        ends = list(accumulate(part.shape[axis] for part in parts))
    for user in fields:
        number: Any = user.args[1]
        if unbinds:
            part = insert_call(node, operator.getitem, whole, number)
            part = insert_call(node, _ATEN.squeeze.dim, part, at)
        else:
            begin = ends[number] - parts[number].shape[axis]
            part = insert_call(node, _ATEN.slice.Tensor, source, at, begin, ends[number])
        if order != sorted(order):
            part = insert_call(node, _ATEN.permute.default, part, order)
        user.replace_all_uses_with(part)
        node.graph.erase_node(user)
    node.graph.erase_node(node)
    return True


_REWRITES: dict[Any, Callable[[fx.Node], object]] = {
    _ATEN.detach.default: _drop_identity,
    _ATEN.alias.default: _drop_identity,
    _ATEN.transpose.int: _permute,
    _ATEN.split_with_sizes.default: _in_sizes,
    _ATEN.split.Tensor: _of_rows,
    _ATEN.unbind.int: _of_rows,
}
