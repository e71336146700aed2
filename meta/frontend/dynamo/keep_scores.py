"""`keep_scores`: attention over short sequences that a model writes out, with what it learns to add
to the scores, becomes one operator, with one for its gradient, in a graph of Dynamo's.

``softmax(query @ key.T * scale + bias + mask) @ value``, as windows of images have it (Liu et al.,
arXiv:2103.14030), keeps the probabilities for its gradient, and the scores are written several
times. The operators keep query, key and value alone, and the logarithm of a sum for each query.
Windows whose masks differ are seen through: scores that are viewed as [images, windows, heads,
queries, keys] where the mask is added. Where no gradient is wanted the pass `fuse_attention` finds
attention, and where only a longer one's, PyTorch's products are as fast.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from meta import op
from meta.frontend.aten import aten
from meta.frontend.aten.definitions import define
from meta.frontend.dynamo.keep_attention import may_write
from meta.frontend.dynamo.keep_gelu import PRODUCTS, QUOTIENTS, erase, is_call, replace_calls

MATRIX_PRODUCTS = {operator.matmul, torch.matmul, "matmul"}
SWITCHES = {
    "_set_grad_enabled",
    "_enter_autocast",
    "_exit_autocast",
    "_enter_inference_mode",
    "_exit_inference_mode",
}
"""Functions of PyTorch that change what others do."""
SUMS = {operator.add, operator.iadd, torch.add, "add"}
VIEWS = {"view", "reshape", torch.reshape}
TRANSPOSES = {"transpose", torch.transpose, "swapaxes", torch.swapaxes}
CASTS = {"to", "float", "type_as"}
LONGEST, WIDEST, ALIGNED = 64, 64, 8
"""Queries, keys, and elements of a head for which there is one kernel; a head has a multiple."""
KEPT_ON = ("cuda",)
HALVES = (torch.float16, torch.bfloat16)


def _repeated(mask: Tensor, batch: int) -> Tensor:
    return mask if mask.shape[0] in (1, batch) else mask.repeat(batch // mask.shape[0], 1, 1, 1)


def _scores(query: Tensor, key: Tensor, mask: Tensor, scale: float) -> Tensor:
    return query.float() @ key.float().mT * scale + _repeated(mask.float(), query.shape[0])


def _heads_later(like: Tensor) -> Tensor:
    """Return an array of a shape [b, h, s, d], in whose memory the heads are behind the steps."""
    batch, heads, steps, width = like.shape
    return like.new_empty((batch, steps, heads, width)).transpose(1, 2)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The result and the logarithm of the sum of exponentials of the scores; see
    `meta.fused_attention`.
    """
    scores = _scores(query, key, mask, scale)
    y = _heads_later(query).copy_(scores.softmax(-1) @ value.float())
    return y, scores.logsumexp(-1)


def _fake_forward(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    return _heads_later(query), query.new_empty(query.shape[:3], dtype=torch.float32)


def _attention_dx(
    dy: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, y: Tensor,
    logsumexp: Tensor, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients by query, key, value and mask."""
    p = (_scores(query, key, mask, scale) - logsumexp.unsqueeze(-1)).exp()
    slope = dy.float() @ value.float().mT
    ds = p * (slope - (p * slope).sum(-1, keepdim=True))
    gradients = ds @ key.float() * scale, ds.mT @ query.float() * scale, p.mT @ dy.float()
    by_mask = ds.view(-1, mask.shape[0], *ds.shape[1:]).sum(0).sum_to_size(mask.shape)
    operands = query, key, value
    dx = [_heads_later(t).copy_(g) for t, g in zip(operands, gradients, strict=True)]
    return dx[0], dx[1], dx[2], by_mask.to(mask.dtype)


def _fake_backward(
    dy: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, y: Tensor,
    logsumexp: Tensor, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dx = [_heads_later(t) for t in (query, key, value)]
    return dx[0], dx[1], dx[2], mask.new_empty(mask.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, dy: Tensor, _: Any) -> tuple[Any, ...]:
    return *attention_dx(dy, *ctx.saved_tensors, ctx.scale), None


attention = define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor mask, float scale)"
    " -> (Tensor, Tensor)",
    _attention,
    _fake_forward,
    (_backward, _save),
)
attention_dx = define(
    "attention_dx(Tensor dy, Tensor query, Tensor key, Tensor value, Tensor mask, Tensor y,"
    " Tensor logsumexp, float scale) -> (Tensor, Tensor, Tensor, Tensor)",
    _attention_dx,
    _fake_backward,
)


@aten("meta.attention", op.fused_attention)
def _convert(query: Any, key: Any, value: Any, mask: Any, *, scale: float) -> Any:
    return op.fused_attention(query, key, value, mask, False, scale)


@aten("meta.attention_dx", op.fused_attention_dx, op.fused_attention_dmask)
def _convert_dx(
    dy: Any, query: Any, key: Any, value: Any, mask: Any, y: Any, logsumexp: Any, *, scale: float
) -> Any:
    given = (query, key, value, mask, y, logsumexp, dy, False, scale)
    return *op.fused_attention_dx(*given), op.fused_attention_dmask(*given)


def keep_scores(graph: fx.GraphModule) -> None:
    """Write one call in the place of each attention in a graph, and in graphs within."""
    if torch.is_grad_enabled():
        replace_calls(graph, MATRIX_PRODUCTS, _replaced)


def whole(
    query: Tensor, key: Tensor, value: Tensor, masks: tuple[Tensor, ...], scale: float,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Attention, to be traced: of numbers of a dtype, with the sum of masks of four axes.

    A row of the sum is lowered by its largest number, which does not change a softmax: one of
    numbers that are all large keeps what they differ in, and one of minus infinities is NaN.
    """
    total = masks[0].float()
    for mask in masks[1:]:
        total = total + mask
    total = total - total.detach().amax(-1, keepdim=True)
    y: Tensor = attention(query.to(dtype), key.to(dtype), value.to(dtype), total.to(dtype), scale)[
        0
    ]
    return y


@dataclass
class _Found:
    """Scores on the way from softmax back to the product: masks with the shapes of four axes that
    they get, and the factor.
    """

    masks: list[tuple[fx.Node, tuple[int, ...]]] = field(default_factory=list)
    scale: float = 1.0
    scaled: bool = False
    sums: set[fx.Node] = field(default_factory=set)


def _shape(node: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor, None unless all extents are numbers."""
    said = _fake_value(node)
    known = isinstance(said, Tensor) and all(isinstance(n, int) for n in said.shape)
    return tuple(said.shape) if known else None


def _fake_value(node: Any) -> Any:
    """Return what Dynamo says of a value, a tensor without numbers, say."""
    return node.meta.get("example_value") if isinstance(node, fx.Node) else None


def _replaced(root: fx.Node) -> bool:
    """Write a call of attention in the place of its last product; return whether it is one."""
    weights, value = root.args
    said = _fake_value(root)
    scores, shape = _before_softmax(weights), _shape(weights)
    product = _product(scores, shape) if scores is not None and _suits(said) else None
    if product is None or shape is None or not product[1].masks:
        return False
    node, found = product
    query, transposed = node.args
    operands = [n for n in (query, transposed, value) if isinstance(n, fx.Node)]
    ends = (*operands, *(m for m, _ in found.masks))
    shapes = [_shape(n) for n in operands]
    batch, heads, queries, keys = shape
    width = (shapes[0] or (0,))[-1]
    wanted = [(batch, heads, n, width) for n in (queries, keys, keys)]
    wanted[1] = (batch, heads, width, keys)
    short = max(queries, keys) <= LONGEST and width <= WIDEST and width % ALIGNED == 0
    if shapes != wanted or not short or not _is_of(node, said.dtype):
        return False
    if not all(_fake_value(n).device == said.device for n in ends):
        return False
    unscaled, scale = _unscaled(operands[0])
    source = _untransposed(operands[1])
    steps = {node, *_between(operands[0], unscaled), *([operands[1]] if source else [])}
    if _is_written(root, steps, found.sums):
        return False
    found.scale *= scale
    _write(root, (unscaled, *operands[1:]), found, said.dtype)
    erase(root, ends)
    return True


def _is_written(root: fx.Node, steps: set[fx.Node], sums: set[fx.Node]) -> bool:
    """Whether something between the first of some steps and the last, the computation of a mask,
    say, may write a tensor, or whether gradients are switched; ``sums``: those of the scores, which
    only write these.
    """
    missing, node = set(steps), root
    while missing:
        node = node.prev
        missing.discard(node)
        switches = getattr(node.target, "__name__", "") in SWITCHES
        opaque = isinstance(node.target, torch._ops.OpOverload)
        if node not in sums and (may_write(node) or switches or opaque):
            return True
    return False


def _is_of(node: fx.Node, dtype: torch.dtype) -> bool:
    """Whether a product is of a dtype: one of wider numbers is not to be rounded."""
    said = _fake_value(node)
    return isinstance(said, Tensor) and said.dtype == dtype


def _unscaled(query: fx.Node) -> tuple[fx.Node, float]:
    """Return what is multiplied by numbers, and their product."""
    scale = 1.0
    while is_call(query, PRODUCTS) and len(query.args) == 2:
        before, number = query.args
        if not isinstance(before, fx.Node) or not _is_float(before):
            break
        if not isinstance(number, int | float) or not number or not math.isfinite(number):
            break
        query, scale = before, scale * number
    return query, scale


def _between(last: fx.Node, first: fx.Node) -> Iterator[fx.Node]:
    """Return the products by numbers from one node back to another, without that."""
    while last is not first:
        yield last
        last = last.all_input_nodes[0]


def _suits(said: Any) -> bool:
    """Whether a result is of half precision, on a device that has the kernel."""
    return isinstance(said, Tensor) and said.dtype in HALVES and said.device.type in KEPT_ON


def _before_softmax(weights: Any) -> fx.Node | None:
    """Return the scores of which weights are the softmax, over the last axis; None if they are not,
    or if they are dropped out.
    """
    node = weights
    if isinstance(node, fx.Node) and node.target is functional.dropout:
        names = dict(zip(("input", "p", "training", "inplace"), node.args, strict=False))
        given = {"p": 0.5, "training": True, **names, **node.kwargs}
        if len(node.users) != 1 or (given["training"] is not False and given["p"] != 0.0):
            return None
        node = given["input"]
    while is_call(node, CASTS) and len(node.users) == 1 and _is_float(node):
        node = node.args[0]
    softmaxes = (functional.softmax, torch.softmax, "softmax")
    if not isinstance(node, fx.Node) or node.target not in softmaxes or len(node.users) != 1:
        return None
    shape = _shape(node)
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if shape is None or len(shape) != 4 or dim not in (-1, 3) or not node.args:
        return None
    scores = node.args[0]
    return scores if isinstance(scores, fx.Node) else None


def _is_float(node: fx.Node) -> bool:
    said = node.meta.get("example_value")
    return isinstance(said, Tensor) and said.dtype.is_floating_point


def _product(scores: fx.Node, shape: Any) -> tuple[fx.Node, _Found] | None:
    """Return the product that scores are computed of, and how; None if it is not known."""
    node, found = scores, _Found()
    while not is_call(node, MATRIX_PRODUCTS):
        after: Any = None
        if len(node.users) != 1 or not _is_float(node):
            return None
        if is_call(node, SUMS) and len(node.args) == 2:
            after = _added(node, shape, found)
            found.sums.add(node)
        elif is_call(node, VIEWS) or is_call(node, CASTS):
            after = node.args[0]
        elif is_call(node, PRODUCTS | QUOTIENTS) and isinstance(node.args[1], int | float):
            number = float(node.args[1])
            found.scale *= number if is_call(node, PRODUCTS) else 1 / number if number else 0.0
            found.scaled, after = True, node.args[0]
        if not isinstance(after, fx.Node):
            return None
        node = after
    alone = len(node.users) == 1 and _shape(node) == shape
    return (node, found) if alone and found.scale != 0 and math.isfinite(found.scale) else None


def _added(node: fx.Node, shape: tuple[int, ...], found: _Found) -> fx.Node | None:
    """Return the scores to which a mask is added, which is noted; None if it does not fit."""
    whole_shape = _shape(node)
    for scores, mask in (node.args, node.args[::-1]):
        own = _shape(mask)
        given = isinstance(scores, fx.Node) and isinstance(mask, fx.Node)
        if not given or _shape(scores) != whole_shape or own is None:
            continue
        assert isinstance(scores, fx.Node) and isinstance(mask, fx.Node)
        if not _leads_to_product(scores):
            continue
        if whole_shape is None or found.scaled or len(own) > len(whole_shape):
            return None
        full = (1,) * (len(whole_shape) - len(own)) + own
        windows = len(whole_shape) == 5 and full[0] == 1 and whole_shape[2:] == shape[1:]
        if whole_shape != shape and not (windows and math.prod(whole_shape[:2]) == shape[0]):
            return None
        placed = full[1:] if windows else full
        batches = {s[0] for _, s in found.masks if s[0] != 1} | {placed[0]} - {1}
        if len(batches) > 1:
            return None
        found.masks.append((mask, placed))
        return scores
    return None


def _leads_to_product(node: Any) -> bool:
    """Whether a value is a product of matrices, or computed of one by what scores go through."""
    while isinstance(node, fx.Node) and not is_call(node, MATRIX_PRODUCTS):
        through = VIEWS | CASTS | SUMS | PRODUCTS | QUOTIENTS
        if not is_call(node, through):
            return False
        both = [a for a in node.args if isinstance(a, fx.Node)]
        if len(both) > 1:
            return any(_leads_to_product(a) for a in both)
        node = both[0] if both else None
    return isinstance(node, fx.Node)


def _write(root: fx.Node, operands: Any, found: _Found, dtype: torch.dtype) -> None:
    graph, (query, transposed, value), scale = root.graph, operands, found.scale
    with graph.inserting_before(root):
        key = _untransposed(transposed) or graph.call_method("transpose", (transposed, -2, -1))
        masks = tuple(graph.call_method("reshape", (mask, s)) for mask, s in found.masks)
        made = graph.call_function(whole, (query, key, value, masks, scale, dtype))
    for node in (key, *masks, made):
        node.meta = node.meta or {**root.meta}
    if "example_value" in transposed.meta and key.args[:1] == (transposed,):
        key.meta["example_value"] = transposed.meta["example_value"].mT
    for node, (mask, s) in zip(masks, found.masks, strict=True):
        node.meta["example_value"] = mask.meta["example_value"].reshape(s)
    if not all(_swaps_steps(user) for user in root.users):
        # The model may ask for views of what its product has written in order.
        with graph.inserting_before(root):
            made = graph.call_method("contiguous", (made,))
        made.meta = {**root.meta}
    root.replace_all_uses_with(made)


def _swaps_steps(node: fx.Node) -> bool:
    """Whether a call swaps the axes of heads and of steps."""
    if is_call(node, TRANSPOSES):
        return set(node.args[1:]) in ({1, 2}, {-3, -2}, {1, -2}, {-3, 2})
    axes = node.args[1] if len(node.args) == 2 else node.args[1:]
    given = tuple(axes) if isinstance(axes, tuple | list) else ()
    return is_call(node, {"permute", torch.permute}) and given == (0, 2, 1, 3)


def _untransposed(node: fx.Node) -> fx.Node | None:
    """Return what is transposed here, if it is."""
    if is_call(node, TRANSPOSES) and set(node.args[1:]) in ({-2, -1}, {2, 3}):
        source = node.args[0]
        return source if isinstance(source, fx.Node) else None
    return None
