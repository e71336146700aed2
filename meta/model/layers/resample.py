"""Layers that change the spatial extents without weights: `Upsample` and pixel shuffles."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.errors import ArgumentError, TypeInferError
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.resize import interpolate

__all__ = ["PixelShuffle", "PixelUnshuffle", "Upsample"]


class Upsample(Model):
    """Resizes the spatial axes of (n, c, ...) by `meta.interpolate`."""

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
