"""Test records of resizing signals; the oracles are those of images."""

from meta.testing import F, OpCase, error, refusals, sample
from tests.op.resize import resize, resize_dx, result

# (shape, size, further arguments)
_CALLS = [
    ((2, 3, 5), 8, "NCW"),
    ((1, 2, 4), (9,), "NCW", "linear", "align_corners"),
    ((1, 5, 2), 3, "NWC", "nearest_neighbor", "asymmetric"),
    ((1, 1, 7), 4, "NCW", "cubic", "pytorch_half_pixel", "", -0.75),
]

CASES = [
    OpCase("resize1d", [sample(F(*shape), *rest) for shape, *rest in _CALLS], resize),
    OpCase(
        "resize1d_dx",
        [sample(F(*shape), F(*result(shape, *rest)), *rest) for shape, *rest in _CALLS],
        resize_dx,
    ),
]
CASES += refusals(
    {
        "resize1d": [
            error(F(1, 2, 4, 4), 2, match="x must have 3 axes"),
            error(F(1, 2, 4), 0, match="there must be one sample at least"),
            error(F(1, 2, 4), 2, method="area", match="method is not known"),
        ],
        "resize1d_dx": [error(F(1, 2, 4), F(*[1] * 3), 2, match="dy does not fit")],
    }
)
