"""Optimizer steps as TE computes: the new values of the written arguments, in slot order."""

from tvm import te

from meta import op
from meta.dialect.tvm.compute import INJECTIVE, compute


@compute(op.sgd, INJECTIVE)
def sgd(x, dx, v, learning_rate, mu):
    dtype = str(x.dtype)
    wide = "float64" if dtype == "float64" else "float32"
    rate, momentum = number(learning_rate, wide), number(mu, wide)

    def velocity(*i):
        return (momentum * v(*i).astype(wide) + dx(*i).astype(wide)).astype(dtype)

    v_new = te.compute(v.shape, velocity, name="v_new")

    # Reads v_new, not v: that buffer may hold the new velocity already.
    def parameter(*i):
        return (x(*i).astype(wide) - rate * v_new(*i).astype(wide)).astype(dtype)

    return [te.compute(x.shape, parameter, name="x_new"), v_new]


def number(value, dtype):
    """Return a run-time number, or the only element of a tensor, in a dtype."""
    if isinstance(value, te.Tensor):
        value = value(*[0] * len(value.shape))
    return value.astype(dtype)
