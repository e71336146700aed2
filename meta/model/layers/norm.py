"""Normalisation layers."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from meta import op
from meta.base.dtype import TO_TORCH
from meta.base.errors import ArgumentError, TypeInferError
from meta.model.layers.basic import parameter
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core import Op
from meta.runtime.ndarray import ndarray

__all__ = [
    "BatchNorm", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "LayerNorm",
    "RMSNorm",
]  # fmt: skip


class BatchNorm(Model):
    """Batch normalisation over all axes but 1, of (n, c, ...).

    In train mode it normalises with the batch's statistics and updates ``running_mean`` and
    ``running_var`` in place (``momentum`` is the weight of the new value); in infer mode it uses
    those. ``weight``, ``bias``: (c,) or None.
    """

    not_kept = ("num_batches_tracked",)

    def build(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True
    ) -> None:
        """Make weight = 1, bias = 0, running_mean = 0, running_var = 1."""
        self.eps, self.momentum = eps, momentum
        self.weight = _filled((num_features,), 1.0) if affine else None
        self.bias = _filled((num_features,), 0.0) if affine else None
        self.running_mean = ndarray(torch.zeros(num_features))
        self.running_var = ndarray(torch.ones(num_features))

    @trace
    def forward(self, x: Any) -> Any:
        """Normalise with the batch's statistics and update the running ones."""
        y, _, _ = op.batch_norm_train(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.momentum, self.eps
        )
        return y

    @trace
    def forward_infer(self, x: Any) -> Any:
        """Normalise with the running statistics."""
        return op.batch_norm_infer(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.momentum, self.eps
        )


class LayerNorm(Model):
    """Layer normalisation over the last axes, those of ``normalized_shape``, with affine parameters
    ``weight`` and ``bias`` of that shape, or None.
    """

    def build(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        """Make weight = 1, bias = 0."""
        self.eps, self.normalized_shape = eps, _shape(normalized_shape)
        self.weight = _filled(self.normalized_shape, 1.0) if elementwise_affine else None
        self.bias = _filled(self.normalized_shape, 0.0) if elementwise_affine and bias else None

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the layer to (..., *normalized_shape)."""
        return _over_last(
            op.layer_norm.plain, x, self.normalized_shape, self.weight, self.bias, self.eps
        )


class RMSNorm(Model):
    """Division by the root mean square over the last axes, those of ``normalized_shape``, and
    multiplication by ``weight`` of that shape, or None (Zhang and Sennrich, arXiv:1910.07467).
    """

    def build(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float | None = None,
        elementwise_affine: bool = True,
    ) -> None:
        """Make weight = 1. Without ``eps`` it is the machine epsilon of what is normalised."""
        self.eps, self.normalized_shape = eps, _shape(normalized_shape)
        self.weight = _filled(self.normalized_shape, 1.0) if elementwise_affine else None

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the layer to (..., *normalized_shape)."""
        eps = torch.finfo(TO_TORCH[x.dtype]).eps if self.eps is None else self.eps
        return _over_last(op.rms_norm.plain, x, self.normalized_shape, self.weight, None, eps)


class GroupNorm(Model):
    """Normalisation of groups of channels of each example of (n, c, ...), with affine parameters
    ``weight`` and ``bias``, (c,) or None (Wu and He, arXiv:1803.08494).
    """

    def build(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True
    ) -> None:
        """Make weight = 1, bias = 0."""
        self.num_groups, self.eps = num_groups, eps
        self.weight = _filled((num_channels,), 1.0) if affine else None
        self.bias = _filled((num_channels,), 0.0) if affine else None

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the layer."""
        return op.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class InstanceNorm(Model):
    """Base of normalisations of each channel of each example over ``axes`` spatial axes, with
    affine parameters ``weight`` and ``bias``, (c,) or None (Ulyanov et al., arXiv:1607.08022).
    """

    axes: ClassVar[int]

    def build(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
    ) -> None:
        """Make weight = 1, bias = 0, if ``affine``.

        momentum: takes its place for torch's order of arguments, and has no meaning, as there are
        no running statistics: ArgumentError for ``track_running_stats``.
        """
        if track_running_stats:
            raise ArgumentError(
                "InstanceNorm has no running statistics",
                expected="track_running_stats=False",
                found=track_running_stats,
                hint="BatchNorm has them",
            )
        self.num_features, self.eps = num_features, eps
        self.weight = _filled((num_features,), 1.0) if affine else None
        self.bias = _filled((num_features,), 0.0) if affine else None

    @trace
    def forward(self, x: Any) -> Any:
        """Normalise (n, c, ...); TypeInferError for other axes, channels or less than two values
        per channel.
        """
        if x.ndim != self.axes + 2 or x.shape[1] != self.num_features:
            raise TypeInferError(
                "the input does not fit",
                expected=f"{self.axes + 2} axes, the second of {self.num_features}",
                found=f"shape {tuple(x.shape)}",
            )
        if all(extent == 1 for extent in x.shape[2:]):
            raise TypeInferError(
                "a channel has one value, whose variance is 0",
                expected="a spatial extent above 1",
                found=f"shape {tuple(x.shape)}",
            )
        return op.instance_norm(x, weight=self.weight, bias=self.bias, eps=self.eps)


class InstanceNorm1d(InstanceNorm):
    """Instance normalisation of (n, c, w)."""

    axes = 1


class InstanceNorm2d(InstanceNorm):
    """Instance normalisation of (n, c, h, w)."""

    axes = 2


class InstanceNorm3d(InstanceNorm):
    """Instance normalisation of (n, c, d, h, w)."""

    axes = 3


def _shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _filled(shape: tuple[int, ...], value: float) -> ndarray:
    return parameter(ndarray(torch.full(shape, value)))


def _over_last(
    operator: Op, x: Any, shape: tuple[int, ...], weight: Any, bias: Any, eps: float
) -> Any:
    """Apply a normalisation of one axis to several: they are merged for it."""
    given = tuple(x.shape[-len(shape) :])
    if given != shape:
        raise TypeInferError(
            "the last axes are not those that the layer normalises", expected=shape, found=x.shape
        )
    if len(shape) == 1:
        return operator(x, weight, bias, -1, eps)
    weight, bias = (p if p is None else op.reshape(p, (-1,)) for p in (weight, bias))
    rows = op.reshape(x, (*x.shape[: -len(shape)], -1))
    return op.reshape(operator(rows, weight, bias, -1, eps), x.shape)
