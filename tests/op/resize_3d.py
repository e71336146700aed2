"""Test records of resizing volumes; the oracles are those of images."""

from meta.testing import F, OpCase, error, refusals, sample
from tests.op.resize import resize, resize_dx, result

# (shape, size, further arguments)
_CALLS = [
    ((1, 2, 3, 2, 4), (4, 3, 6), "NCDHW"),
    ((1, 1, 2, 3, 3), 5, "NCDHW", "linear", "align_corners"),
    ((1, 2, 3, 2, 3), (3, 4, 5), "NDHWC", "nearest_neighbor", "asymmetric"),
    ((1, 1, 3, 2, 4), (2, 4, 3), "NCDHW", "cubic", "half_pixel", "", -0.75, 1),
]

CASES = [
    OpCase("resize3d", [sample(F(*shape), *rest) for shape, *rest in _CALLS], resize),
    OpCase(
        "resize3d_dx",
        [sample(F(*shape), F(*result(shape, *rest)), *rest) for shape, *rest in _CALLS],
        resize_dx,
    ),
]
CASES += refusals(
    {
        "resize3d": [
            error(F(1, 2, 4, 4), 2, match="x must have 5 axes"),
            error(F(1, 1, 2, 2, 2), 0, match="there must be one sample at least"),
            error(F(1, 1, 2, 2, 2), 2, method="area", match="method is not known"),
        ],
        "resize3d_dx": [error(F(1, 1, 2, 2, 2), F(*[1] * 5), 2, match="dy does not fit")],
    }
)
