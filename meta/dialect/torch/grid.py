"""Sampling of images on ATen."""

import torch

from meta import op
from meta.dialect.core import LIBRARY
from meta.dialect.torch import torch as dialect


# On the CPU alone: on CUDA ATen reads other elements at positions that are NaN or infinite.
@dialect.kernel(
    op.grid_sample,
    plevel=LIBRARY,
    when=lambda call: None if call.device.kind == "cpu" else "ATen differs at NaN on CUDA",
)
def grid_sample(x, grid, method, padding_mode, align_corners):
    wide = torch.promote_types(x.dtype, torch.float32)
    y = torch.nn.functional.grid_sample(
        x.to(wide), grid.to(wide), method, padding_mode, align_corners
    )
    return y.to(x.dtype)
