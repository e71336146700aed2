"""Layers that change the spatial extents (n, c, ...) without weights: pooling over one to three
axes, `Upsample` and pixel shuffles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from meta import op
from meta.base.errors import ArgumentError, TypeInferError
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core import Op
from meta.op.resize import interpolate

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
    "PixelShuffle",
    "PixelUnshuffle",
    "Upsample",
]


Extents = int | tuple[int, ...]


class MaxPool(Model):
    """Base of layers that take the maximum over each window; see their ``operator``."""

    operator: ClassVar[Op]

    def build(
        self,
        kernel_size: Extents,
        stride: Extents | None = None,
        padding: Extents = 0,
        dilation: Extents = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        """Set the window. ``stride`` is ``kernel_size`` unless given."""
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation, self.ceil_mode = padding, dilation, ceil_mode
        self.return_indices = return_indices

    @trace
    def forward(self, x: Any) -> Any:
        """Pool (n, c, ...); with ``return_indices`` also return the places, for `MaxUnpool2d`."""
        window = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        return self.operator(x, *window, self.return_indices)


class MaxPool1d(MaxPool):
    """Maximum over windows of (n, c, w).

    >>> meta.model.MaxPool1d(2)(meta.arange(4.0).reshape((1, 1, 4))).tolist()
    [[[1.0, 3.0]]]
    """

    operator = op.max_pool1d


class MaxPool2d(MaxPool):
    """Maximum over windows of (n, c, h, w).

    >>> meta.model.MaxPool2d(2)(meta.arange(16.0).reshape((1, 1, 4, 4))).tolist()
    [[[[5.0, 7.0], [13.0, 15.0]]]]
    """

    operator = op.max_pool2d


class MaxPool3d(MaxPool):
    """Maximum over windows of (n, c, d, h, w).

    >>> meta.model.MaxPool3d(2)(meta.ones((1, 3, 4, 4, 4))).shape
    (1, 3, 2, 2, 2)
    """

    operator = op.max_pool3d


class MaxUnpool(Model):
    """Base of layers that put maxima back where they were; see their ``operator``."""

    operator: ClassVar[Callable[..., Any]]

    def build(
        self, kernel_size: Extents, stride: Extents | None = None, padding: Extents = 0
    ) -> None:
        """Set the window of the pooling. ``stride`` is ``kernel_size`` unless given."""
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding = padding

    @trace
    def forward(self, x: Any, indices: Any, output_size: Any = None) -> Any:
        """Return zeros with x at the places that the pooling returned."""
        window = (self.kernel_size, self.stride, self.padding)
        return type(self).operator(x, indices, *window, output_size)


class MaxUnpool1d(MaxUnpool):
    """The reverse of `MaxPool1d`.

    >>> x, i = meta.model.MaxPool1d(2, return_indices=True)(meta.arange(4.0).reshape((1, 1, 4)))
    >>> meta.model.MaxUnpool1d(2)(x, i).tolist()
    [[[0.0, 1.0, 0.0, 3.0]]]
    """

    operator = staticmethod(op.max_unpool1d)


class MaxUnpool2d(MaxUnpool):
    """The reverse of `MaxPool2d`.

    >>> x, i = meta.model.MaxPool2d(2, return_indices=True)(meta.ones((1, 1, 4, 4)))
    >>> meta.model.MaxUnpool2d(2)(x, i).shape
    (1, 1, 4, 4)
    """

    operator = staticmethod(op.max_unpool2d)


class MaxUnpool3d(MaxUnpool):
    """The reverse of `MaxPool3d`.

    >>> x = meta.array([[[[[1.0, 2.0], [3.0, 9.0]], [[0.0, 5.0], [4.0, 6.0]]]]])
    >>> y, indices = meta.model.MaxPool3d(2, return_indices=True)(x)
    >>> meta.model.MaxUnpool3d(2)(y, indices).tolist()
    [[[[[0.0, 0.0], [0.0, 9.0]], [[0.0, 0.0], [0.0, 0.0]]]]]
    """

    operator = staticmethod(op.max_unpool3d)


class AvgPool(Model):
    """Base of layers that take the mean over each window; see their ``operator``."""

    operator: ClassVar[Op]

    def build(
        self,
        kernel_size: Extents,
        stride: Extents | None = None,
        padding: Extents = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        """Set the window. ``stride`` is ``kernel_size`` unless given; ``count_include_pad``: the
        zeros of the padding count as elements.
        """
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, ceil_mode
        self.count_include_pad = count_include_pad

    @trace
    def forward(self, x: Any) -> Any:
        """Pool (n, c, ...)."""
        window = (self.kernel_size, self.stride, self.padding, self.ceil_mode)
        return self.operator(x, *window, self.count_include_pad)


class AvgPool1d(AvgPool):
    """Mean over windows of (n, c, w).

    >>> meta.model.AvgPool1d(2)(meta.arange(4.0).reshape((1, 1, 4))).tolist()
    [[[0.5, 2.5]]]
    """

    operator = op.avg_pool1d


class AvgPool2d(AvgPool):
    """Mean over windows of (n, c, h, w).

    >>> meta.model.AvgPool2d(2)(meta.ones((1, 1, 4, 4))).tolist()
    [[[[1.0, 1.0], [1.0, 1.0]]]]
    """

    operator = op.avg_pool2d


class AvgPool3d(AvgPool):
    """Mean over windows of (n, c, d, h, w).

    >>> meta.model.AvgPool3d(2)(meta.ones((1, 3, 4, 4, 4))).shape
    (1, 3, 2, 2, 2)
    """

    operator = op.avg_pool3d


class AdaptivePool(Model):
    """Base of layers that pool to ``output_size``, whatever the input's extents; see their
    ``operator``.
    """

    operator: ClassVar[Op]

    def build(self, output_size: int | tuple[int | None, ...]) -> None:
        """Set the extents of the result, or one for all axes; None keeps the input's."""
        self.output_size = output_size

    @trace
    def forward(self, x: Any) -> Any:
        """Pool (n, c, ...)."""
        return self.operator(x, self.output_size)


class AdaptiveAvgPool1d(AdaptivePool):
    """Mean over regions that cover (n, c, w) evenly.

    >>> meta.model.AdaptiveAvgPool1d(2)(meta.ones((1, 3, 7))).shape
    (1, 3, 2)
    """

    operator = op.adaptive_avg_pool1d


class AdaptiveAvgPool2d(AdaptivePool):
    """Mean over regions that cover (n, c, h, w) evenly.

    >>> meta.model.AdaptiveAvgPool2d(1)(meta.ones((2, 3, 7, 9))).shape
    (2, 3, 1, 1)
    """

    operator = op.adaptive_avg_pool2d


class AdaptiveAvgPool3d(AdaptivePool):
    """Mean over regions that cover (n, c, d, h, w) evenly.

    >>> meta.model.AdaptiveAvgPool3d(1)(meta.ones((1, 3, 4, 5, 6))).shape
    (1, 3, 1, 1, 1)
    """

    operator = op.adaptive_avg_pool3d


class AdaptiveMaxPool(AdaptivePool):
    """Base of adaptive layers that can return the places of the maxima; see their ``operator``."""

    def build(
        self, output_size: int | tuple[int | None, ...], return_indices: bool = False
    ) -> None:
        """Set the extents as of `AdaptivePool`."""
        super().build(output_size)
        self.return_indices = return_indices

    @trace
    def forward(self, x: Any) -> Any:
        """Pool (n, c, ...); with ``return_indices`` also return the places, for `max_unpool2d`."""
        return self.operator(x, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(AdaptiveMaxPool):
    """Maximum over regions that cover (n, c, w) evenly.

    >>> meta.model.AdaptiveMaxPool1d(2)(meta.arange(4.0).reshape((1, 1, 4))).tolist()
    [[[1.0, 3.0]]]
    """

    operator = op.adaptive_max_pool1d


class AdaptiveMaxPool2d(AdaptiveMaxPool):
    """Maximum over regions that cover (n, c, h, w) evenly.

    >>> meta.model.AdaptiveMaxPool2d(1)(meta.ones((2, 3, 7, 9))).shape
    (2, 3, 1, 1)
    """

    operator = op.adaptive_max_pool2d


class AdaptiveMaxPool3d(AdaptiveMaxPool):
    """Maximum over regions that cover (n, c, d, h, w) evenly.

    >>> meta.model.AdaptiveMaxPool3d(1)(meta.ones((1, 3, 4, 5, 6))).shape
    (1, 3, 1, 1, 1)
    """

    operator = op.adaptive_max_pool3d


class Upsample(Model):
    """Resizes the spatial axes of (n, c, ...) by `meta.interpolate`.

    >>> meta.model.Upsample(scale_factor=2)(meta.ones((1, 3, 4, 4))).shape
    (1, 3, 8, 8)
    """

    def build(
        self,
        size: int | tuple[int, ...] | None = None,
        scale_factor: float | tuple[float, ...] | None = None,
        mode: str = "nearest",
        align_corners: bool = False,
    ) -> None:
        """Set what `meta.interpolate` takes; ArgumentError unless one of ``size`` and
        ``scale_factor`` is given.
        """
        if (size is None) == (scale_factor is None):
            raise ArgumentError(
                "give one of size and scale_factor", found=f"{size} and {scale_factor}"
            )
        self.size, self.scale_factor = size, scale_factor
        self.mode, self.align_corners = mode, align_corners

    @trace
    def forward(self, x: Any) -> Any:
        """Resize (n, c, ...)."""
        return interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)


class PixelShuffle(Model):
    """Makes (..., c * r^2, h, w) to (..., c, h * r, w * r), r being ``upscale_factor``.

    Shi et al., arXiv:1609.05158. Element (c, h * r + i, w * r + j) of the result comes from channel
    c * r^2 + i * r + j.

    >>> meta.model.PixelShuffle(2)(meta.ones((1, 12, 4, 4))).shape
    (1, 3, 8, 8)
    """

    def build(self, upscale_factor: int) -> None:
        """Set the factor."""
        self.upscale_factor = _factor(upscale_factor)

    @trace
    def forward(self, x: Any) -> Any:
        """Rearrange an array of at least three axes; TypeInferError for others, and unless r^2
        divides the channels.
        """
        return _on_images(op.depth_to_space, x, self.upscale_factor)


class PixelUnshuffle(Model):
    """Undoes `PixelShuffle`: makes (..., c, h * r, w * r) to (..., c * r^2, h, w), r being
    ``downscale_factor``.

    >>> meta.model.PixelUnshuffle(2)(meta.ones((1, 3, 8, 8))).shape
    (1, 12, 4, 4)
    """

    def build(self, downscale_factor: int) -> None:
        """Set the factor."""
        self.downscale_factor = _factor(downscale_factor)

    @trace
    def forward(self, x: Any) -> Any:
        """Rearrange an array of at least three axes; TypeInferError for others, and unless r
        divides height and width.
        """
        return _on_images(op.space_to_depth, x, self.downscale_factor)


def _factor(value: int) -> int:
    if not isinstance(value, int) or value < 1:
        raise ArgumentError("this is no factor", expected="an int of at least 1", found=value)
    return value


def _on_images(operator: Any, x: Any, factor: int) -> Any:
    """Apply an operator on (n, c, h, w) to an array with other axes before c."""
    if x.ndim < 3:
        raise TypeInferError("this is no image", expected="(..., c, h, w)", found=x.shape)
    if x.ndim == 4:
        return operator(x, factor, "NCHW", "CRD")
    y = operator(op.reshape(x, (-1, *x.shape[-3:])), factor, "NCHW", "CRD")
    return op.reshape(y, (*x.shape[:-3], *y.shape[1:]))
