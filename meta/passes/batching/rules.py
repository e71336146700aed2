"""What operators make of batched tensors: the batch is one axis more in front, or it joins an axis
along which the operator does the same to each row.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.registry import OPERATORS
from meta.dialect.core.ir_calls import PRODUCTS, product_terms
from meta.ir.dims import product
from meta.op.core import Op
from meta.op.core.check import inverse_permutation, normalize_axis, permutation, swap_permutation
from meta.op.core.reduction import reduction
from meta.op.core.window import pad_pairs
from meta.passes.batching.site import RULES, Operand, Rule, Site, rule


def rule_of(operator: Op) -> Rule | None:
    """Return what an operator makes of batched tensors; None if examples go one by one."""
    return RULES.get(operator) or (elementwise if operator.elementwise else None)


def elementwise(at: Site) -> Any:
    """Operands are broadcast as before, behind the batch; those of one shape have one still."""
    operands = {n: a for n, a in at.args.items() if isinstance(a, Operand)}
    same = len({a.shape for a in operands.values()}) == 1
    if same and not operands.keys() <= set(at.op.promotes):  # perhaps none is broadcast
        return at.run()
    ndim = len(at.shape)
    return at.call(
        {n: at.aligned(a, ndim) if isinstance(a, Operand) else a for n, a in at.args.items()}
    )


@rule(op.sum, op.mean, op.max, op.min, op.prod, op.all, op.any, op.logsumexp, op.var, op.std)
def reduce(at: Site) -> Any:
    """All axes of an example are named."""
    x, keepdims = at["x"], at["keepdims"]
    axes = at["axis"]
    if axes is None:
        axes = tuple(range(x.ndim))
    if not x.ndim:  # an example is one element
        return at.run(axis=(), keepdims=False)
    named = (axes,) if isinstance(axes, int) else tuple(axes)
    return at.run(axis=tuple(1 + normalize_axis(a, x.ndim) for a in named), keepdims=keepdims)


@rule(op.sum_dx, op.prod_dx)
def reduce_dx(at: Site) -> Any:
    """As the reduction."""
    x = at["x"]
    axes = reduction(x.ndim, at["axis"], at["keepdims"]).axes
    if isinstance(at["keepdims"], tuple) or not x.ndim:
        return None
    return at.run(axis=tuple(1 + a for a in axes))


@rule(op.mean_dx)
def mean_dx(at: Site) -> Any:
    """As the mean."""
    shape = (at["shape"],) if isinstance(at["shape"], int) else tuple(at["shape"])
    if not shape:
        return None
    axes = reduction(len(shape), at["axis"], at["keepdims"]).axes
    return at.run(shape=(at.size, *shape), axis=tuple(1 + a for a in axes))


@rule(
    *(op.softmax, op.log_softmax, op.softmax_dx, op.log_softmax_dx, op.glu),
    *(op.cumsum, op.cumprod, op.linear_scan, op.sort, op.argsort, op.topk),
    *(op.scatter, op.scatter_add, op.scatter_reduce),
    *(op.take_along_axis, op.take_along_axis_dx, op.repeat, op.split),
)
def along_axis(at: Site) -> Any:
    """Along the same axis of each example."""
    x = next(a for a in at.args.values() if isinstance(a, Operand))
    if at["axis"] is None or not x.ndim:
        return None
    return at.run(axis=at.axis(x))


@rule(op.flip, op.roll, op.argmax, op.argmin)
def along_axes(at: Site) -> Any:
    """Along the same axes of each example."""
    axes, x = at["axis"], at["x"]
    if axes is None:
        return None
    named = (axes,) if isinstance(axes, int) else tuple(axes)
    found = tuple(1 + normalize_axis(a, x.ndim) for a in named)
    return at.run(axis=found[0] if isinstance(axes, int) else found)


@rule(op.concat)
def concat(at: Site) -> Any:
    """Along the same axis of each example."""
    if at["axis"] is None:
        return None
    return at.run(axis=at.axis(at["arrays"][0]))


@rule(op.stack)
def stack(at: Site) -> Any:
    """The new axis is one of each example."""
    return at.run(axis=1 + normalize_axis(at["axis"], at["arrays"][0].ndim + 1))


@rule(op.reshape, op.expand_dims, op.squeeze, op.batch_flatten, op.reshape_like)
def view(at: Site) -> Any:
    """Each example in its new shape."""
    x = at["x"]
    return op.reshape(at.batched(x), (at.size, *at.shape))


@rule(op.broadcast_to)
def broadcast_to(at: Site) -> Any:
    """Each example is repeated."""
    return op.broadcast_to(at.aligned(at["x"], len(at.shape)), (at.size, *at.shape))


@rule(op.permute_dims, op.permute_dims_dx, op.swapaxes)
def permute(at: Site) -> Any:
    """The batch stays in front."""
    x = at["x"]
    if at.op is op.swapaxes:
        order = swap_permutation(at["axis1"], at["axis2"], x.ndim)
    else:
        read = permutation if at.op is op.permute_dims else inverse_permutation
        order = read(at["axes"], x.ndim)
    return op.permute_dims(x.value, (0, *(1 + a for a in order)))


@rule(op.strided_slice, op.strided_slice_dx, op.strided_set)
def strided_slice(at: Site) -> Any:
    """All examples, and the slice of each."""

    def listed(name: str) -> tuple[Any, ...]:
        value = at[name]
        return (value,) if isinstance(value, int) else tuple(value or ())

    begin, end, strides = map(listed, ("begin", "end", "strides"))
    last = -1 if at.args.get("slice_mode") == "size" else at.size
    changed = {"begin": (0, *begin), "end": (last, *end)}
    if strides:
        changed["strides"] = (1, *strides) if len(strides) > 1 else (1, *strides * len(begin))
    if at.op is op.strided_slice_dx:
        changed["shape"] = (at.size, *listed("shape"))
    return at.run(**changed)


@rule(op.tril, op.triu)
def triangle(at: Site) -> Any:
    """Matrices may have axes in front."""
    return at.run()


@rule(
    *(OPERATORS[n] for n in OPERATORS if n.startswith("linalg_") and n != "linalg_lu_solve"),
)
def matrices(at: Site) -> Any:
    """Matrices may have axes in front; a vector beside a matrix is none."""
    operands = {n: a for n, a in at.args.items() if isinstance(a, Operand)}
    ndim = max(a.ndim for a in operands.values())
    if any(a.ndim < 2 for a in operands.values()):
        return None
    return at.call({**at.args, **{n: at.aligned(a, ndim) for n, a in operands.items()}})


@rule(op.diagonal)
def diagonal(at: Site) -> Any:
    """Of the same two axes of each example."""
    x = at["x"]
    return at.run(axis1=at.axis(x, "axis1"), axis2=at.axis(x, "axis2"))


@rule(op.diagonal_dx)
def diagonal_dx(at: Site) -> Any:
    """As the diagonal."""
    shape = tuple(at["shape"])
    axes = {n: 1 + normalize_axis(at[n], len(shape)) for n in ("axis1", "axis2")}
    return at.run(shape=(at.size, *shape), **axes)


@rule(op.pad, op.pad_dx)
def pad(at: Site) -> Any:
    """Nothing is added in front of, or behind, the examples."""
    ndim = (at["x"] if "x" in at.args else at["dy"]).ndim
    pairs = pad_pairs(at["pad_width"], ndim)
    return at.run(pad_width=(0, 0, *(n for pair in pairs for n in pair)))


@rule(op.one_hot)
def one_hot(at: Site) -> Any:
    """The new axis is one of each example."""
    if at.is_batched("on_value", "off_value"):
        return None
    values = {n: v.value for n in ("on_value", "off_value") if isinstance(v := at[n], Operand)}
    return at.run(axis=1 + normalize_axis(at["axis"], at["indices"].ndim + 1), **values)


@rule(*PRODUCTS)
def products(at: Site) -> Any:
    """One matrix more in each row of the batch. Rows of all examples are multiplied by a matrix
    that they share as one.
    """
    first, second, _ = product_terms(PRODUCTS[at.op])
    x, y = at["x1"], at["x2"]
    if first[0] == "n":  # a batch of its own
        return at.folded(("x1", "x2")) if x.shape[0] == y.shape[0] else None
    if x.batched and not y.batched and first == "ab":
        return at.folded(("x1",))
    if not x.batched:
        # (x y)^T has the columns of y, which may be many, as its rows: no sum is cut.
        left = x.value if first == "ab" else op.permute_dims(x.value, (1, 0))
        right = y.value if second == "bc" else op.swapaxes(y.value, 1, 2)
        columns = product((at.size, at.shape[1]))
        wide = op.reshape(op.permute_dims(right, (1, 0, 2)), (right.shape[1], columns))
        found = op.reshape(op.matmul(left, wide), (at.shape[0], at.size, at.shape[1]))
        return op.permute_dims(found, (1, 0, 2))
    names = {"ab": "n", "ba": "t"}[first] + {"bc": "n", "cb": "t"}[second]
    run = {
        "nn": op.batch_matmul,
        "nt": op.batch_matmul_nt,
        "tn": op.batch_matmul_tn,
        "tt": op.batch_matmul_tt,
    }[names]
    return run(at.batched(x), at.batched(y))


@rule(op.einsum)
def einsum(at: Site) -> Any:
    """One letter more, in the operands that are batched and in the result."""
    equation, operands = at["equation"].replace(" ", ""), at["operands"]
    terms, arrow, result = equation.partition("->")
    free = next((c for c in "zyxwvutsrqponmlkjihgfedcba" if c not in equation), None)
    if "." in equation or not arrow or free is None:
        return None
    given = zip(terms.split(","), operands, strict=True)
    batched = ",".join(free + t if o.batched else t for t, o in given)
    return op.einsum(f"{batched}->{free}{result}", tuple(o.value for o in operands))


@rule(op.bias_add)
def bias_add(at: Site) -> Any:
    """Along the same axis of each example."""
    x, bias, axis = at["x"], at["bias"], at.axis(at["x"])
    if not bias.batched:
        return at.run(bias=bias.value, axis=axis)
    shape = [at.size, *[1] * x.ndim]
    shape[axis] = bias.shape[0]
    return op.add(at.batched(x), op.reshape(bias.value, tuple(shape)))


_POOLS = ("avg_pool", "max_pool", "adaptive_avg_pool", "adaptive_max_pool", "resize")
_FOLDED = [OPERATORS[f"{name}{n}d{dx}"] for name in _POOLS for n in (1, 2, 3) for dx in ("", "_dx")]


@rule(*_FOLDED, op.lrn, op.lrn_dx, op.space_to_depth, op.depth_to_space, op.upsampling)
def images(at: Site) -> Any:
    """Images have nothing to do with one another."""
    return at.folded(("x", "y", "dy"))


@rule(op.batch_norm_infer, op.group_norm, op.instance_norm)
def norm_of_images(at: Site) -> Any:
    """Images have nothing to do with one another, where the statistics are given."""
    if at.op is op.batch_norm_infer and normalize_axis(at["axis"], at["x"].ndim) == 0:
        return None
    return at.folded(("x",))


@rule(op.conv1d, op.conv2d, op.conv3d)
def convolution(at: Site) -> Any:
    """More images; with a kernel for each example, more groups of channels."""
    x, w = at["x"], at["w"]
    if not w.batched:
        return at.folded(("x",))
    if not _is_plain(at):
        return None
    channels = _channels(at, x)
    found = at.call(
        {
            **at.args,
            "x": channels,
            "w": at.fold(w.value, w.shape),
            "groups": product((at.size, at["groups"])),
        }
    )
    return _examples(at, found, at.shape)


@rule(op.conv1d_dw, op.conv2d_dw, op.conv3d_dw)
def convolution_dw(at: Site) -> Any:
    """A gradient for each example, in groups of channels."""
    if not _is_plain(at):
        return None
    shape = tuple(at["shape"])
    found = at.call(
        {
            **at.args,
            "x_or_w": _channels(at, at["x_or_w"]),
            "y": None,
            "dy": _channels(at, at["dy"]),
            "shape": (product((at.size, shape[0])), *shape[1:]),
            "groups": product((at.size, at["groups"])),
        }
    )
    return op.reshape(found, (at.size, *shape))


@rule(op.conv1d_dx, op.conv2d_dx, op.conv3d_dx)
def convolution_dx(at: Site) -> Any:
    """More images; with a kernel for each example, more groups of channels."""
    w, dy, shape = at["x_or_w"], at["dy"], tuple(at["shape"])
    if not w.batched:
        return at.folded(("y", "dy"), shape=(product((at.size, shape[0])), *shape[1:]))
    if not _is_plain(at):
        return None
    found = at.call(
        {
            **at.args,
            "x_or_w": at.fold(w.value, w.shape),
            "y": None,
            "dy": _channels(at, dy),
            "shape": (shape[0], product((at.size, shape[1])), *shape[2:]),
            "groups": product((at.size, at["groups"])),
        }
    )
    return _examples(at, found, at.shape)


def _is_plain(at: Site) -> bool:
    """Whether channels are the second axis of images and the first of kernels."""
    return (
        at["layout"].startswith("NC")
        and at["kernel_layout"].startswith("OI")
        and at["out_layout"] in ("", at["layout"])
    )


def _channels(at: Site, images: Operand) -> Any:
    """Return images whose channels are those of all examples, one behind the other."""
    n, c, *rest = images.shape
    swapped = op.swapaxes(at.batched(images), 0, 1)
    return op.reshape(swapped, (n, product((at.size, c)), *rest))


def _examples(at: Site, images: Any, shape: tuple[Any, ...]) -> Any:
    """Undo `_channels`."""
    n, c, *rest = shape
    return op.swapaxes(op.reshape(images, (n, at.size, c, *rest)), 0, 1)
