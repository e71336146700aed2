"""Second derivatives of normalisations: the gradient of the operator that is their gradient.

``y = xhat * weight + bias`` with ``xhat = (x - mean) * inv``, ``inv = (mean((x - mean)²) +
eps)^(-1/2)``; a normalisation that is not centred has mean 0. With ``g = dy * weight`` and the
projection ``P(v) = v - mean(v) - xhat * mean(v * xhat)``, which is symmetric, the gradients are
``dx = inv * P(g)``, ``dweight = sum(dy * xhat)``, ``dbias = sum(dy)``.
"""

from __future__ import annotations

from typing import Any

from meta.base.registry import OPERATORS


def second_gradient(
    x: Any,
    weight: Any,
    dy: Any,
    u: Any,
    u_weight: Any,
    u_bias: Any,
    axes: tuple[int, ...],
    eps: float,
    centred: bool = True,
) -> tuple[Any, Any, Any]:
    """Return the gradients of ``sum(u dx) + sum(u_weight dweight) + sum(u_bias dbias)``.

    x, dy, u: of one shape, wide enough to compute in. weight, u_weight, u_bias: None, or arrays
    that broadcast to it. axes: those that ``mean`` is taken over.

    Results: by x, by weight before it is summed over what weight is broadcast along, and by dy;
    all of x's shape. From ``d inv = -inv² mean(xhat dx)`` and ``d xhat = inv P(dx)``: by dy it is
    ``inv P(u) weight + u_weight xhat + u_bias``, by weight ``dy inv P(u)``, and by x
    ``inv P(h) - inv² xhat mean(g P(u))``, ``h = u_weight dy - inv (u mean(g xhat) + g
    mean(u xhat))``.
    """

    def mean(v: Any) -> Any:
        return OPERATORS["mean"](v, axes, True)

    def centre(v: Any) -> Any:
        return v - mean(v) if centred else v

    def project(v: Any) -> Any:
        return centre(v) - xhat * mean(v * xhat)

    offset = centre(x)
    inv = OPERATORS["rsqrt"](mean(offset * offset) + eps)
    xhat = offset * inv
    g = dy if weight is None else dy * weight
    projected = project(u)
    by_g = inv * projected
    by_dy = by_g if weight is None else by_g * weight
    bend = -(inv * (u * mean(g * xhat) + g * mean(u * xhat)))
    if u_weight is not None:
        bend = bend + u_weight * dy
        by_dy = by_dy + u_weight * xhat
    if u_bias is not None:
        by_dy = by_dy + u_bias
    by_x = inv * project(bend) - inv * inv * xhat * mean(g * projected)
    return by_x, dy * by_g, by_dy
