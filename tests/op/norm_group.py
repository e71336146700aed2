"""Cases of the normalisation of groups of channels. Gradients come from torch's autograd."""

import torch
import torch.nn.functional as F_

from meta.testing import F, OpCase, error, refusals, sample


def group_norm(x, num_groups, scale=None, bias=None, eps=1e-5):
    """The formula: torch's own refuses groups of one value."""
    channels = x.shape[1]
    groups = x.reshape(x.shape[0], num_groups, channels // max(num_groups, 1), *x.shape[2:])
    axes = tuple(range(2, groups.ndim))
    centred = groups - groups.mean(axes, keepdim=True)
    y = centred / torch.sqrt((centred**2).mean(axes, keepdim=True) + eps)
    y, lifted = y.reshape(x.shape), (1, -1) + (1,) * (x.ndim - 2)
    y = y if scale is None else y * scale.reshape(lifted)
    return y if bias is None else y + bias.reshape(lifted)


def instance_norm(x, scale=None, bias=None, eps=1e-5):
    return F_.instance_norm(x, None, None, scale, bias, True, 0.0, eps)


def group_norm_dx(x, num_groups, scale, dy, eps=1e-5):
    x = x.clone().requires_grad_()
    if scale is None:
        return torch.autograd.grad(F_.group_norm(x, num_groups, None, None, eps), x, dy)[0]
    scale, bias = scale.clone().requires_grad_(), torch.zeros_like(scale, requires_grad=True)
    return torch.autograd.grad(F_.group_norm(x, num_groups, scale, bias, eps), (x, scale, bias), dy)


def wide(*shape):
    """Floats in float32 whatever the dtype under test, as beside half precision data."""
    spec = F(*shape, low=0.5, high=2.0)
    return type(spec)(lambda _, generator: spec.make("float32", generator), f"wide{list(shape)}")


HALVES = ("float16", "bfloat16", "float32")

CASES = [
    OpCase(
        "group_norm",
        [
            sample(F(2, 4, 3), 2),
            sample(F(2, 6, 3, 2), 3, F(6), F(6)),
            sample(F(2, 4, 5), 1, F(4), eps=1e-2),
            sample(F(2, 4, 5), 4, None, F(4)),
            sample(F(3, 6), 2, F(6), F(6)),
            sample(F(0, 4, 2), 2, F(4), F(4)),
            sample(F(1, 8, 2, 3, 4), 2, F(8), F(8)),
        ],
        group_norm,
    ),
    OpCase("group_norm", [sample(F(2, 2), 2, F(2), F(2))], group_norm, grad=False),
    OpCase("group_norm", [sample(F(2, 4, 3), 2, wide(4), wide(4))], group_norm, HALVES, grad=False),
    OpCase(
        "instance_norm",
        [
            sample(F(2, 3, 5)),
            sample(F(2, 3, 4, 2), F(3), F(3)),
            sample(F(2, 3, 7), F(3), eps=1e-2),
            sample(F(1, 1, 6), None, F(1)),
        ],
        instance_norm,
    ),
    OpCase(
        "instance_norm", [sample(F(2, 4, 3), wide(4), wide(4))], instance_norm, HALVES, grad=False
    ),
    OpCase(
        "group_norm_dx",
        [
            sample(F(2, 4, 3), 2, F(4), F(2, 4, 3)),
            sample(F(2, 4, 3), 4, None, F(2, 4, 3)),
            sample(F(2, 6, 3, 2), 3, F(6), F(2, 6, 3, 2), 1e-2),
            sample(F(3, 6), 1, F(6), F(3, 6)),
            sample(F(0, 4, 2), 2, F(4), F(0, 4, 2)),
        ],
        group_norm_dx,
        grad=False,
        why="it is the second gradient of group_norm",
        # Terms of the order of 5 that cancel, rounded to half precision at the end.
        atol={"float16": 1e-2, "bfloat16": 1e-1},
    ),
]

_X = F(2, 4, 3)

CASES += refusals(
    {
        "group_norm": [
            error(_X, 3, match="num_groups must divide the number of channels"),
            error(_X, 0, match="num_groups must divide the number of channels"),
            error(F(4), 2, match="x must have a channel axis"),
            error(_X, 2, F(3), match="scale does not fit"),
        ],
        "instance_norm": [
            error(F(4), match="x must have a channel axis"),
            error(_X, None, F(3), match="bias does not fit"),
        ],
        "group_norm_dx": [error(_X, 2, None, F(4), match="dy is not of x's type")],
    }
)
