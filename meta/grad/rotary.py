"""Gradients of the rotary position embedding: a rotation is undone by the opposite angle."""

from meta import op
from meta.grad.core import gradient


@gradient(op.rotary_embedding)
def rotary_embedding(x, cos, sin, dy, interleaved):
    """The tables' gradients are an operator of their own: a traced program drops it if unused."""
    dx = op.rotary_embedding(dy, cos, op.negative(sin), interleaved)
    return dx, *op.rotary_embedding_dtable(x, dy, cos, interleaved)


@gradient(op.rotary_embedding_dtable)
def rotary_embedding_dtable(x, dy, cos, dy_, interleaved):
    """Linear in x and in dy: each is the other, turned by the gradients of the tables."""
    dcos, dsin = dy_
    return (
        op.rotary_embedding(dy, dcos, op.negative(dsin), interleaved),
        op.rotary_embedding(x, dcos, dsin, interleaved),
        op.zeros_like(cos),
    )
