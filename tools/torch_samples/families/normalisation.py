"""Normalisation and attention."""

from __future__ import annotations

import math
from typing import Any

import meta
from tools.torch_samples.compose import real
from tools.torch_samples.decline import decline_if
from tools.torch_samples.draws import Drawn


def flat_layer(input: Any, shape: Any, *others: Any) -> tuple[Any, ...]:
    """Return tensors with the axes that are normalised together merged into the last one."""
    extent = math.prod(shape)
    x = meta.reshape(input, (*input.shape[: input.ndim - len(shape)], extent))
    return x, *(t if t is None else meta.reshape(t, (extent,)) for t in others)


def layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Normalise over the last axes."""
    return meta.layer_norm(input, normalized_shape, weight, bias, eps)


def native_layer_norm(input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """`layer_norm` with the statistics, which torch differentiates as well."""
    x, scale, shift = flat_layer(input, normalized_shape, weight, bias)
    mean = meta.mean(x, -1, True)
    inverse = meta.rsqrt(meta.var(x, -1, True, correction=0) + eps)
    y = (x - mean) * inverse
    y = y if scale is None else y * scale
    y = y if shift is None else y + shift
    lead = input.ndim - len(normalized_shape)
    shape = (*input.shape[:lead], *(1,) * len(normalized_shape))
    return meta.reshape(y, input.shape), meta.reshape(mean, shape), meta.reshape(inverse, shape)


def rms_norm(
    input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Any:
    """Divide by the root mean square over the last axes."""
    return meta.rms_norm(input, normalized_shape, weight, eps)


def group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Normalise groups of channels."""
    return meta.group_norm(input, num_groups, weight, bias, eps)


def native_group_norm(
    input: Any, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: float
) -> Any:
    """`group_norm` with the statistics, which torch differentiates as well."""
    x = meta.reshape(input, (N, group, C // group * HxW))
    mean = meta.mean(x, -1, True)
    inverse = meta.rsqrt(meta.var(x, -1, True, correction=0) + eps)
    y = meta.reshape((x - mean) * inverse, (N, C, HxW))
    y = y if weight is None else y * meta.reshape(weight, (C, 1))
    y = y if bias is None else y + meta.reshape(bias, (C, 1))
    return (
        meta.reshape(y, input.shape),
        meta.reshape(mean, (N, group)),
        meta.reshape(inverse, (N, group)),
    )


def instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Normalise channels of examples."""
    decline_if(not use_input_stats, "statistics of earlier examples")
    return meta.instance_norm(input, weight=weight, bias=bias, eps=eps)


def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Normalise channels, by the batch's statistics or by given ones."""
    if input.ndim < 2:  # and without elements
        return meta.copy(input)
    channels = input.shape[1]
    if training:
        mean, var = (
            meta.zeros((channels,), input.dtype) if s is None else meta.copy(s)
            for s in (running_mean, running_var)
        )
        return meta.batch_norm_train(input, mean, var, weight, bias, momentum, eps)[0]
    return meta.batch_norm_infer(input, running_mean, running_var, weight, bias, momentum, eps)


def native_batch_norm(input: Any, weight: Any, bias: Any, *options: Any) -> Any:
    """Channels normalised, with the mean and 1 / deviation of each, if it is the batch's."""
    *running, training, _, eps = options
    others = tuple(i for i in range(input.ndim) if i != 1)
    row = (1, -1, *(1,) * (input.ndim - 2))
    short = input.dtype == "bfloat16"
    x = meta.astype(input, "float32") if short else input
    if training:
        mean, var = meta.mean(x, others), meta.var(x, others, correction=0)
    else:
        mean, var = running
    inverse = meta.rsqrt(var + eps)
    y = (x - meta.reshape(mean, row)) * meta.reshape(inverse, row)
    y = y if weight is None else y * meta.reshape(weight, row)
    y = y if bias is None else y + meta.reshape(bias, row)
    nothing = meta.zeros((0,), x.dtype)
    results = (y, mean, inverse) if training else (y, nothing, nothing)
    # Where weights are in float32, so are the statistics.
    other = input.dtype if weight is None else weight.dtype
    return meta.astype(y, input.dtype), *(meta.astype(t, other) for t in results[1:])


def local_response_norm(
    input: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Any:
    """Divide by the squares of neighbouring channels."""
    if input.size == 0:
        return meta.copy(input)
    return meta.lrn(real(input), size, 1, k, alpha, beta)


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Scaled dot-product attention."""
    return meta.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


ADAPTERS = {
    "_native_batch_norm_legit": native_batch_norm,
    "native_batch_norm": native_batch_norm,
    "native_group_norm": native_group_norm,
    "native_layer_norm": native_layer_norm,
    "nn.functional.batch_norm": batch_norm,
    "nn.functional.batch_norm|without_cudnn": batch_norm,
    "nn.functional.group_norm": group_norm,
    "nn.functional.instance_norm": instance_norm,
    "nn.functional.layer_norm": layer_norm,
    "nn.functional.local_response_norm": local_response_norm,
    "nn.functional.rms_norm": rms_norm,
    "nn.functional.scaled_dot_product_attention": Drawn(
        attention, lambda *args, dropout_p=0.0, **kwargs: dropout_p > 0, together=100
    ),
}
