"""Gradient of scaled dot-product attention."""

from meta import op
from meta.base.dtype import is_float
from meta.grad.core import gradient, not_differentiable


@gradient(op.scaled_dot_product_attention)
def scaled_dot_product_attention(query, key, value, mask, y, dy, causal, scale):
    """The probabilities are computed anew: they are larger than all else together.

    The gradient of a mask is an operator of its own, so that a traced program drops it if unused.
    """
    arguments = (query, key, value, mask, *y, dy[0], causal, scale)
    gradients = op.scaled_dot_product_attention_dx(*arguments)
    if mask is None or not is_float(mask.dtype):
        return *gradients, None
    return *gradients, op.scaled_dot_product_attention_dmask(*arguments)


not_differentiable(
    op.scaled_dot_product_attention_dx,
    op.scaled_dot_product_attention_dmask,
    why="second derivatives of attention need the probabilities; compose it of batch_matmul and "
    "softmax to have them",
)
