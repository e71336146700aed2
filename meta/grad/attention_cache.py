"""What is read and written of caches has no gradient."""

from meta import op
from meta.grad.core import not_differentiable

not_differentiable(op.cache_update, why="it writes in place")
not_differentiable(
    op.cached_attention,
    why="a cache does not know what its slots are computed of; fused_attention has one",
    missing=True,
)
