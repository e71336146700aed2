"""Cases of the normalisation by the root mean square. Gradients come from torch's autograd."""

import torch
import torch.nn.functional as F_

from meta.testing import F, OpCase, error, refusals, sample


def rms_norm(x, scale=None, bias=None, axis=-1, eps=1e-6):
    y = F_.rms_norm(x.movedim(axis, -1), x.shape[axis : axis + 1 or None], scale, eps)
    return (y if bias is None else y + bias).movedim(-1, axis)


def rms_norm_dx(x, scale, dy, axis=-1, eps=1e-6):
    x = x.clone().requires_grad_()
    if scale is None:
        return torch.autograd.grad(rms_norm(x, None, None, axis, eps), x, dy)[0]
    scale = scale.clone().requires_grad_()
    return torch.autograd.grad(rms_norm(x, scale, None, axis, eps), (x, scale), dy)


def wide(*shape):
    """Floats in float32 whatever the dtype under test, as beside half precision data."""
    spec = F(*shape, low=0.5, high=2.0)
    return type(spec)(lambda _, generator: spec.make("float32", generator), f"wide{list(shape)}")


HALVES = ("float16", "bfloat16", "float32")

CASES = [
    OpCase(
        "rms_norm",
        [
            sample(F(4, 6)),
            sample(F(4, 6), F(6)),
            sample(F(4, 6), F(6), F(6)),
            sample(F(2, 5, 3), F(5), axis=1),
            sample(F(2, 5, 3), None, F(2), axis=-3, eps=1e-2),
            sample(F(7), F(7)),
            sample(F(0, 4), F(4)),
            sample(F(3, 1), F(1)),
            sample(F(3, 200), F(200)),
        ],
        rms_norm,
    ),
    OpCase("rms_norm", [sample(F(4, 6), wide(6), wide(6))], rms_norm, HALVES, grad=False),
    OpCase(
        "rms_norm_dx",
        [
            sample(F(4, 6), F(6), F(4, 6)),
            sample(F(4, 6), None, F(4, 6)),
            sample(F(2, 5, 3), F(5), F(2, 5, 3), 1, 1e-2),
            sample(F(7), F(7), F(7)),
            sample(F(0, 4), F(4), F(0, 4)),
        ],
        rms_norm_dx,
        grad=False,
        why="it is the second gradient of rms_norm",
        # Sums of products of the order of 5, rounded to half precision at the end.
        atol={"float16": 1e-2, "bfloat16": 1e-1},
    ),
]

CASES += refusals(
    {
        "rms_norm": [
            error(F(2, 3), F(2), match="scale does not fit"),
            error(F(2, 3), axis=2, match="axis 2 is out of range"),
            error(F(), match="at least one axis"),
        ],
        "rms_norm_dx": [error(F(2, 3), None, F(3), match="dy is not of x's type")],
    }
)
