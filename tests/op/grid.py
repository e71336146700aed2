"""What the operators of `meta/op/grid.py` have to do."""

import math

import torch

from meta.testing import C, F, OpCase, error, sample


def grid_sample(x, grid, method="bilinear", padding_mode="zeros", align_corners=False):
    return torch.nn.functional.grid_sample(x, grid, method, padding_mode, align_corners)


_N, _I = math.nan, math.inf
STRANGE = [[[_N, 0.0], [0.0, _N], [_N, _N]], [[_I, 0.0], [-_I, 0.5], [0.5, _I]]]
STRANGE_3D = [[[*place, 0.25] for place in row] for row in STRANGE]
CASES = [
    OpCase(
        "grid_sample",
        [
            sample(F(2, 3, 4, 5), F(2, 3, 2, 2, low=-1.4, high=1.4)),
            *(
                sample(F(1, 2, 4, 5), F(1, 3, 2, 2, low=-1.7, high=1.7), method, padding, align)
                for method in ("bilinear", "nearest", "bicubic")
                for padding in ("zeros", "border", "reflection")
                for align in (False, True)
            ),
            *(
                sample(F(1, 2, 3, 4, 5), F(1, 2, 2, 3, 3, low=-1.4, high=1.4), method, padding)
                for method in ("bilinear", "nearest")
                for padding in ("zeros", "border", "reflection")
            ),
            sample(F(1, 1, 1, 1), F(1, 2, 2, 2), align_corners=True),
        ],
        grid_sample,
        # Half precision rounds the positions, which the oracle has in double precision.
        dtypes=("float32", "float64"),
        # torch has no double backward of bicubic sampling, nor of any in volumes.
        second=False,
        errors=[
            error(F(2, 3, 4), F(2, 3, 2), match="is no image and no volume"),
            error(F(1, 1, 2, 2, 2), F(1, 2, 2, 2, 3), "bicubic", match="bicubic is for images"),
            error(F(1, 1, 2, 2), F(2, 2, 2, 2), match="grid does not fit x"),
            error(F(1, 1, 2, 2), F(1, 2, 2, 2), "linear", match="method is not known"),
            error(F(1, 1, 0, 2), F(1, 2, 2, 2), match="nothing to sample"),
        ],
    ),
    OpCase(
        "grid_sample",
        [
            *(
                sample(F(1, 2, 3, 4), C([STRANGE]), method, padding, align)
                for method in ("bilinear", "nearest", "bicubic")
                for padding in ("zeros", "border", "reflection")
                for align in (False, True)
            ),
            *(
                sample(F(1, 2, 3, 4, 5), C([[STRANGE_3D]]), method, padding)
                for method in ("bilinear", "nearest")
                for padding in ("zeros", "border", "reflection")
            ),
        ],
        grid_sample,
        dtypes=("float32", "float64"),
        grad=False,
    ),
]
