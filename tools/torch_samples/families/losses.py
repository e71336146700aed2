"""Loss functions."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.nn import PairwiseDistance

import meta
from tools.torch_samples.compose import of_reals
from tools.torch_samples.decline import Outside, decline_if, outside_if


def pair(function: Any) -> Any:
    """Return torch's form of a loss of elements: both arguments are broadcast."""

    def loss(
        input: Any, target: Any, *, size_average: Any = None, reduce: Any = None, **options: Any
    ) -> Any:
        shape = np.broadcast_shapes(input.shape, target.shape)
        both = (t if t.shape == shape else meta.broadcast_to(t, shape) for t in (input, target))
        return function(*both, **options)

    return loss


def linear_cross_entropy(
    input: Any,
    linear_weight: Any,
    target: Any,
    *,
    linear_bias: Any = None,
    options: Any = None,
    **kwargs: Any,
) -> Any:
    """`linear_cross_entropy`, which splits it itself, but for several places of a row."""
    classes, *places, features = linear_weight.shape
    if not places:
        if kwargs.get("ignore_index", 0) is None:
            del kwargs["ignore_index"]
        return meta.linear_cross_entropy(
            input, linear_weight, target, linear_bias=linear_bias, **kwargs
        )
    flat = meta.reshape(linear_weight, (-1, features))
    bias = None if linear_bias is None else meta.reshape(linear_bias, (-1,))
    y = meta.linear(input, flat, bias)
    y = meta.reshape(y, (*input.shape[:-1], classes, *places)) if places else y
    return meta.cross_entropy(y, target, **kwargs)


def poisson_nll(input: Any, target: Any, **options: Any) -> Any:
    """`poisson_nll_loss`. Where a target is 0, torch's gradient of the terms of ``full`` is NaN."""
    zero = options.get("full", False) and bool(meta.any(target == 0))
    outside_if(zero and input.dtype == "bfloat16", Outside.WRONG)
    return of_reals(pair(meta.poisson_nll_loss))(input, target, **options)


def gaussian_nll(input: Any, target: Any, var: Any, **options: Any) -> Any:
    """`gaussian_nll_loss`, whose first two arguments are broadcast."""
    return pair(lambda x, y: meta.gaussian_nll_loss(x, y, var, **options))(input, target)


def triplet_with_distance(
    anchor: Any, positive: Any, negative: Any, *, distance_function: Any = None, **options: Any
) -> Any:
    """`triplet_margin_with_distance_loss` of the Euclidean distance, torch's or none."""
    known = distance_function is None or isinstance(distance_function, PairwiseDistance)
    decline_if(not known, "a distance of torch")
    return meta.triplet_margin_with_distance_loss(anchor, positive, negative, **options)


ADAPTERS = {
    "nn.functional.binary_cross_entropy": pair(meta.binary_cross_entropy),
    "nn.functional.binary_cross_entropy_with_logits": pair(meta.binary_cross_entropy_with_logits),
    "nn.functional.cosine_embedding_loss": of_reals(meta.cosine_embedding_loss),
    "nn.functional.cross_entropy": meta.cross_entropy,
    "nn.functional.gaussian_nll_loss": gaussian_nll,
    "nn.functional.hinge_embedding_loss": pair(meta.hinge_embedding_loss),
    "nn.functional.huber_loss": pair(meta.huber_loss),
    "nn.functional.kl_div": pair(meta.kl_div),
    "nn.functional.l1_loss": pair(meta.l1_loss),
    "nn.functional.linear_cross_entropy": linear_cross_entropy,
    "nn.functional.linear_cross_entropy|chunked": linear_cross_entropy,
    "nn.functional.linear_cross_entropy|chunked_none": linear_cross_entropy,
    "nn.functional.margin_ranking_loss": of_reals(meta.margin_ranking_loss),
    "nn.functional.mse_loss": pair(meta.mse_loss),
    "nn.functional.multi_margin_loss": meta.multi_margin_loss,
    "nn.functional.multilabel_margin_loss": meta.multilabel_margin_loss,
    "nn.functional.multilabel_soft_margin_loss": pair(meta.multilabel_soft_margin_loss),
    "nn.functional.nll_loss": meta.nll_loss,
    "nn.functional.poisson_nll_loss": poisson_nll,
    "nn.functional.smooth_l1_loss": pair(meta.smooth_l1_loss),
    "nn.functional.soft_margin_loss": pair(meta.soft_margin_loss),
    "nn.functional.triplet_margin_loss": of_reals(meta.triplet_margin_loss),
    "nn.functional.triplet_margin_with_distance_loss": of_reals(triplet_with_distance),
}
