"""Gradients of collectives, of the sum of the losses of all ranks: each is the transposed exchange.

The gradient of a maximum or minimum is divided equally among the ranks that have it, as that of
`amax` among elements.
"""

from meta import op
from meta.base.errors import GradientError
from meta.grad.core import gradient, gradients, not_differentiable


def _sum_over_ranks(dy, over, size):
    return op.all_reduce(dy, over, size)


def _reduction_dx(x, y, dy, over, size, reduction):
    """Return dx, given the sum of dy over the ranks; y is the result of the reduction."""
    if reduction in ("sum", "mean"):
        return dy if reduction == "sum" else dy * (1 / size)
    if reduction == "product":
        raise GradientError(
            "the product over ranks has no gradient here",
            hint="gather the factors (all_gather) and multiply them (prod)",
        )
    mine = op.astype(op.equal(x, y), dy.dtype)
    return dy * mine / _sum_over_ranks(mine, over, size)


@gradient(op.all_reduce)
def all_reduce(x, y, dy, over, size, reduction):
    return _reduction_dx(x, y, _sum_over_ranks(dy, over, size), over, size, reduction)


@gradient(op.reduce_to)
def reduce_to(x, dy, over, size, reduction, root):
    # Only root has the result; the others need it to see who has the maximum.
    y = x if reduction in ("sum", "mean") else op.all_reduce(x, over, size, reduction)
    return _reduction_dx(x, y, op.broadcast_from(dy, over, size, root), over, size, reduction)


@gradient(op.reduce_scatter)
def reduce_scatter(x, dy, over, size, reduction, axis):
    y = x if reduction in ("sum", "mean") else op.all_reduce(x, over, size, reduction)
    return _reduction_dx(x, y, op.all_gather(dy, over, size, axis), over, size, reduction)


gradients(
    {
        op.all_gather: lambda dy, over, size, axis: op.reduce_scatter(dy, over, size, "sum", axis),
        op.all_to_all: lambda dy, over, size, split_axis, concat_axis: op.all_to_all(
            dy, over, size, concat_axis, split_axis
        ),
        op.broadcast_from: lambda dy, over, size, root: op.reduce_to(dy, over, size, "sum", root),
        op.gather_to: lambda dy, over, size, axis, root: op.scatter_from(
            dy, over, size, axis, root
        ),
        op.scatter_from: lambda dy, over, size, axis, root: op.gather_to(
            dy, over, size, axis, root
        ),
        op.send_recv: lambda dy, over, size, sources, targets: op.send_recv(
            dy, over, size, targets, sources
        ),
        op.copy_to: lambda dy, over, size: op.all_reduce(dy, over, size),
        op.reduce_from: lambda dy: dy,
        op.gather_from: lambda dy, over, size, axis: op.scatter_to(dy, over, size, axis),
        op.scatter_to: lambda dy, over, size, axis: op.gather_from(dy, over, size, axis),
    }
)
not_differentiable(
    *(op.multi_tensor_all_reduce, op.multi_tensor_all_reduce_start, op.collective_wait),
    *(op.multi_tensor_all_gather_in_place, op.multi_tensor_all_gather_in_place_start),
    why="it writes in place; all_reduce and all_gather have a gradient",
)
not_differentiable(
    *(op.all_gather_start, op.reduce_scatter_start),
    *(op.multi_tensor_all_gather, op.multi_tensor_all_gather_start),
    *(op.multi_tensor_reduce_scatter, op.multi_tensor_reduce_scatter_start),
    why="a pass makes it; the collective itself has a gradient",
    missing=True,
)
not_differentiable(op.own_shard, why="it is there to be written to; scatter_to has a gradient")
not_differentiable(op.axis_index, why="the result does not depend on a number")
