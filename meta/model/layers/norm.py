"""Normalisation layers."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

import torch

from meta import op
from meta.base.device import default_device
from meta.base.dtype import TO_TORCH
from meta.base.errors import ArgumentError, TypeInferError
from meta.model.init import parameter
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core import Op
from meta.op.norm import statistics_dtype
from meta.runtime.mesh import axis_size
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

    On a mesh the batch is that of the rank; with ``over``, that of all ranks along an axis of the
    mesh (`sync_batch_norm`).

    >>> norm = meta.model.BatchNorm(3)
    >>> norm(meta.random.normal((8, 3, 4, 4))).shape, sorted(norm.state())
    ((8, 3, 4, 4), ['bias', 'running_mean', 'running_var', 'weight'])
    """

    not_kept = ("num_batches_tracked",)

    def build(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        over: str | None = None,
    ) -> None:
        """Make weight = 1, bias = 0, running_mean = 0, running_var = 1."""
        self.eps, self.momentum, self.over = eps, momentum, over
        self.weight = _full_parameter((num_features,), 1.0) if affine else None
        self.bias = _full_parameter((num_features,), 0.0) if affine else None
        self.running_mean = ndarray(torch.zeros(num_features, device=default_device()))
        self.running_var = ndarray(torch.ones(num_features, device=default_device()))

    @trace
    def forward(self, x: Any) -> Any:
        """Normalise with the batch's statistics and update the running ones."""
        if self.over is not None and axis_size(self.over) > 1:
            return self._synchronised(x, self.over, axis_size(self.over))
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

    def _synchronised(self, x: Any, over: str, size: int) -> Any:
        """Normalise with the statistics of all ranks, which may have different numbers of rows.

        The ranks exchange their means, variances and numbers of values, of which those of all
        values follow exactly: the variance is the mean of the variances and the variance of the
        means (Chan et al., "Updating formulae and a pairwise algorithm for computing sample
        variances", 1979).
        """
        if x.ndim < 2 or not all(isinstance(extent, int) for extent in x.shape):
            raise TypeInferError(
                "batch normalisation over ranks takes batches of known shapes",
                expected="(n, c, ...), all known",
                found=f"shape {tuple(x.shape)}",
            )
        others, channels = (0, *range(2, x.ndim)), x.shape[1]
        wide = op.astype(x, statistics_dtype(x.dtype))
        own = op.mean(wide, others)
        count = op.full_like(own, prod(x.shape) / channels)
        parts = op.all_gather(op.stack([own, op.var(wide, others), count]), over, size)
        parts = op.reshape(parts, (size, 3, channels))
        means, variances, counts = (parts[:, i] for i in range(3))
        total = op.sum(counts, 0)
        mean = op.sum(means * counts, 0) / total
        distance = means - mean
        var = op.sum((variances + distance * distance) * counts, 0) / total
        unbiased = var * (total / (total - 1.0))
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            new = op.astype(new, running.dtype)
            op.multi_tensor_axpby([new], [running], self.momentum, 1.0 - self.momentum)
        return op.batch_norm_infer(x, mean, var, self.weight, self.bias, self.momentum, self.eps)


def sync_batch_norm(model: Model, over: str = "dp") -> Model:
    """Let every `BatchNorm` in a model take the statistics of all ranks along an axis of the mesh,
    and return the model; as torch.nn.SyncBatchNorm.convert_sync_batchnorm.

    In train mode the layers then need a mesh with this axis. Values, running statistics and
    gradients are those of one rank with the batches of all, which may differ in their rows.

    ArgumentError for a model without such a layer, as of other systems: their programs call
    `meta.op.batch_norm_train`, whose statistics are of one rank.

    >>> net = meta.model.Sequential(meta.model.BatchNorm(3))
    >>> meta.model.sync_batch_norm(net, "dp")[0].over
    'dp'
    """
    layers = [layer for layer in model.models() if isinstance(layer, BatchNorm)]
    if not layers:
        raise ArgumentError(
            "there is no BatchNorm in the model", expected="meta.model.BatchNorm", found=str(model)
        )
    for layer in layers:
        layer.over = over
    return model


class LayerNorm(Model):
    """Layer normalisation over the last axes, those of ``normalized_shape``, with affine parameters
    ``weight`` and ``bias`` of that shape, or None.

    >>> meta.model.LayerNorm(3)(meta.array([[1.0, 1.0, 1.0]])).tolist()
    [[0.0, 0.0, 0.0]]
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
        self.weight = _full_parameter(self.normalized_shape, 1.0) if elementwise_affine else None
        self.bias = (
            _full_parameter(self.normalized_shape, 0.0) if elementwise_affine and bias else None
        )

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the layer to (..., *normalized_shape)."""
        return _over_last_axes(
            op.layer_norm.plain, x, self.normalized_shape, self.weight, self.bias, self.eps
        )


class RMSNorm(Model):
    """Division by the root mean square over the last axes, those of ``normalized_shape``, and
    multiplication by ``weight`` of that shape, or None (Zhang and Sennrich, arXiv:1910.07467).

    >>> meta.model.RMSNorm(4)(meta.ones((2, 4))).shape
    (2, 4)
    """

    def build(
        self,
        normalized_shape: int | tuple[int, ...],
        eps: float | None = None,
        elementwise_affine: bool = True,
    ) -> None:
        """Make weight = 1. Without ``eps`` it is the machine epsilon of what is normalised."""
        self.eps, self.normalized_shape = eps, _shape(normalized_shape)
        self.weight = _full_parameter(self.normalized_shape, 1.0) if elementwise_affine else None

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the layer to (..., *normalized_shape)."""
        eps = torch.finfo(TO_TORCH[x.dtype]).eps if self.eps is None else self.eps
        return _over_last_axes(op.rms_norm.plain, x, self.normalized_shape, self.weight, None, eps)


class GroupNorm(Model):
    """Normalisation of groups of channels of each example of (n, c, ...), with affine parameters
    ``weight`` and ``bias``, (c,) or None (Wu and He, arXiv:1803.08494).

    >>> meta.model.GroupNorm(2, 6)(meta.ones((4, 6, 5))).shape
    (4, 6, 5)
    """

    def build(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True
    ) -> None:
        """Make weight = 1, bias = 0."""
        self.num_groups, self.eps = num_groups, eps
        self.weight = _full_parameter((num_channels,), 1.0) if affine else None
        self.bias = _full_parameter((num_channels,), 0.0) if affine else None

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
        self.weight = _full_parameter((num_features,), 1.0) if affine else None
        self.bias = _full_parameter((num_features,), 0.0) if affine else None

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
    """Instance normalisation of (n, c, w).

    >>> meta.model.InstanceNorm1d(3)(meta.ones((2, 3, 5))).shape
    (2, 3, 5)
    """

    axes = 1


class InstanceNorm2d(InstanceNorm):
    """Instance normalisation of (n, c, h, w).

    >>> meta.model.InstanceNorm2d(3)(meta.ones((2, 3, 5, 5))).shape
    (2, 3, 5, 5)
    """

    axes = 2


class InstanceNorm3d(InstanceNorm):
    """Instance normalisation of (n, c, d, h, w).

    >>> meta.model.InstanceNorm3d(3)(meta.ones((2, 3, 4, 4, 4))).shape
    (2, 3, 4, 4, 4)
    """

    axes = 3


def _shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _full_parameter(shape: tuple[int, ...], value: float) -> ndarray:
    return parameter(ndarray(torch.full(shape, value, device=default_device())))


def _over_last_axes(
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
