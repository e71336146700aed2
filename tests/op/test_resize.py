"""Resizing beside torch's interpolate, in the modes that both have."""

import pytest
import torch
from torch.nn.functional import grid_sample, interpolate

import meta
from meta import op
from meta.base.errors import TypeInferError
from meta.testing import check, numeric_gradient

SHARED = [
    (("nearest_neighbor", "asymmetric", "floor"), {"mode": "nearest"}),
    (("nearest_neighbor", "tf_half_pixel_for_nn", "floor"), {"mode": "nearest-exact"}),
    (("linear", "half_pixel"), {"mode": "bilinear", "align_corners": False}),
    (("linear", "align_corners"), {"mode": "bilinear", "align_corners": True}),
    (("cubic", "half_pixel", "", -0.75), {"mode": "bicubic", "align_corners": False}),
    (("cubic", "align_corners", "", -0.75), {"mode": "bicubic", "align_corners": True}),
]


@pytest.mark.product
@pytest.mark.parametrize("size", [(16, 20), (3, 5)])
@pytest.mark.parametrize("dialect", ["tvm", "torch"])
@pytest.mark.parametrize(("ours", "theirs"), SHARED)
def test_result_and_gradient_are_those_of_interpolate(ours, theirs, dialect, size) -> None:
    torch.manual_seed(0)
    image = torch.randn(2, 3, 8, 10, dtype=torch.float64, requires_grad=True)
    expected = interpolate(image, size=size, **theirs)
    dy = torch.randn_like(expected)
    expected.backward(dy)
    x = meta.array(image.detach().numpy())
    x.requires_grad = True
    with meta.dialect.only(dialect):
        y = op.resize2d(x, size, "NCHW", *ours)
        check(y, expected, 1e-10, 1e-10)
        dx = op.resize2d_dx(x, meta.array(dy.numpy()), size, "NCHW", *ours)
    check(dx, image.grad, 1e-10, 1e-10)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((4, "NCHW", "lanczos"), "method is not known"),
        ((4, "NCHW", "linear", "half"), "coordinate_transformation_mode is not known"),
        ((4, "NCHW", "linear", "half_pixel", "up"), "rounding_method is not known"),
        ((0,), "one sample at least"),
        ((4, "NCWX"), "layout is not supported"),
    ],
)
def test_what_is_wrong_is_said(arguments, what) -> None:
    with pytest.raises(TypeInferError, match=what):
        op.resize2d(meta.array(torch.zeros(1, 1, 2, 2).numpy()), *arguments)


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_second_gradients_of_sampling(axes: int, mode: str, padding: str) -> None:
    """By numeric differences of torch's first gradients, in float64."""
    if axes == 3 and mode == "bicubic":
        return  # which is for images
    generator = torch.Generator().manual_seed(axes)
    shapes = (1, 2, *(3, 4, 2)[:axes]), (1, *(2, 1, 2)[:axes], axes), (1, 2, *(2, 1, 2)[:axes])
    draw = {"generator": generator, "dtype": torch.float64}
    x, grid, dy = (torch.rand(s, **draw) * 2.4 - 1.2 for s in shapes)
    weights = [torch.rand(s, **draw) for s in shapes[:2]]

    def first(*arrays: torch.Tensor) -> torch.Tensor:
        leaves = [a.detach().requires_grad_() for a in arrays[:2]]
        y = grid_sample(*leaves, mode, padding, align_corners=False)
        found = torch.autograd.grad(y, leaves, arrays[2])
        return sum((g * w).sum() for g, w in zip(found, weights, strict=True))

    expected = numeric_gradient(first, [x, grid, dy], torch.ones((), dtype=torch.float64))
    leaves = [meta.array(t) for t in (x, grid, dy)]
    for leaf in leaves:
        leaf.requires_grad = True
    y = meta.grid_sample(*leaves[:2], mode, padding)
    found = meta.grad.grad(y, leaves[:2], leaves[2], create_graph=True)
    total = sum((g * meta.array(w)).sum() for g, w in zip(found, weights, strict=True))
    for a, b in zip(meta.grad.grad(total, leaves), expected, strict=True):
        check(a, b, 1e-5, 1e-5)
