"""Collectives along an axis of one rank: nothing is exchanged. See `meta.dialect.collective`."""

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.shapes import fresh


def alone(call):
    """Return why a call is declined, or None."""
    size = call.args.size
    return None if size == 1 else f"{size} ranks take part: dialects nccl and gloo reach them"


for _base in (
    *(op.all_reduce, op.all_gather, op.reduce_scatter, op.all_to_all, op.broadcast_from),
    *(
        op.all_gather_start,
        op.reduce_scatter_start,
        op.reduce_to,
        op.gather_to,
        op.scatter_from,
        op.reduce_from,
    ),
    *(op.gather_from, op.scatter_to),
):

    @dialect.kernel(_base, when=alone)
    def itself(x, out):
        out.copy_(x)


for _base in (
    *(op.multi_tensor_all_gather, op.multi_tensor_all_gather_start),
    *(op.multi_tensor_reduce_scatter, op.multi_tensor_reduce_scatter_start),
):

    @dialect.kernel(_base, when=alone)
    def themselves(x, out):
        for one, copy in zip(x, out, strict=True):
            copy.copy_(one)


for _base in (
    *(op.multi_tensor_all_reduce, op.multi_tensor_all_reduce_start, op.collective_wait),
    *(op.multi_tensor_all_gather_in_place, op.multi_tensor_all_gather_in_place_start),
):

    @dialect.kernel(_base, when=alone)
    def nothing(x):
        """What one rank has is the sum, and all parts."""


@dialect.kernel(op.copy_to)
def copy_to(x):
    return fresh(x)


@dialect.kernel(op.own_shard, when=alone)
def own_shard(x):
    return fresh(x).view(-1)


@dialect.kernel(op.send_recv, when=alone)
def send_recv(x, sources, out):
    out.copy_(x) if sources in (0, (0,)) else out.zero_()


@dialect.kernel(op.axis_index, when=alone)
def axis_index(out):
    out.zero_()
