"""Test records of changes and queries of shapes."""

import numpy as np
import torch

from meta.testing import B, F, I, OpCase, error, refusals, sample


def gradient(function, shape, dy):
    """Return the gradient of ``function`` at an argument of a shape, for the result's gradient."""
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(function(x), x, dy.double(), create_graph=True)[0]


TRANSPOSES = [
    sample(F(2, 3, 4)),
    sample(F(2, 3, 4), axes=(1, 2, 0)),
    sample(F(2, 3, 4), axes=(-1, 0, 1)),
    sample(F(5), axes=0),
    sample(F()),
    sample(F(0, 3)),
    sample(F(1, 4, 1, 2), axes=(2, 3, 0, 1)),
    sample(I(3, 2, low=0, high=9), axes=(1, 0)),
]

CASES = [
    OpCase(
        "reshape",
        samples=[
            sample(F(2, 6), (3, 4)),
            sample(F(2, 3, 4), (2, -1)),
            sample(F(6), -1),
            sample(F(1, 1), ()),
            sample(F(), (1, 1)),
            sample(F(0, 3), (3, 0)),
            sample(F(0, 3, 4), (-1, 2, 5)),
            sample(F(2, 3, 4), (2, 2, 3, 2)),
            sample(B(4), (2, 2)),
        ],
        oracle=lambda x, shape: x.reshape(shape),
    ),
    OpCase(
        "permute_dims",
        samples=TRANSPOSES,
        oracle=lambda x, axes=None: torch.permute(
            x, tuple(reversed(range(x.ndim))) if axes is None else axes if axes != 0 else (0,)
        ),
    ),
    OpCase(
        "permute_dims_dx",
        samples=TRANSPOSES,
        oracle=lambda x, axes=None: torch.permute(
            x,
            tuple(
                np.argsort(
                    np.arange(x.ndim)[::-1] if axes is None else np.atleast_1d(axes) % x.ndim
                )
            ),
        ),
    ),
    OpCase(
        "batch_flatten",
        samples=[
            sample(F(2, 3, 4)),
            sample(F(3)),
            sample(F(0, 2, 2)),
            sample(F(2, 0)),
            sample(F(2, 5)),
        ],
        oracle=lambda x: x.flatten(1) if x.ndim > 1 else x[:, None],
    ),
    OpCase(
        "expand_dims",
        samples=[
            sample(F(2, 3), 0),
            sample(F(2, 3), 1, 2),
            sample(F(2, 3), -1),
            sample(F(), 0),
            sample(F(), -1, 3),
            sample(F(0, 2), -3),
            sample(F(2), 0, 0),
        ],
        oracle=lambda x, axis, num_newaxis=1: x.reshape(
            x.shape[: axis % (x.ndim + 1)] + (1,) * num_newaxis + x.shape[axis % (x.ndim + 1) :]
        ),
    ),
    OpCase(
        "squeeze",
        samples=[
            sample(F(1, 3, 1)),
            sample(F(1, 3, 1), axis=0),
            sample(F(1, 3, 1), axis=-1),
            sample(F(1, 3, 1, 2), axis=(0, 2)),
            sample(F(1, 1)),
            sample(F(1, 3), axis=()),
            sample(F(1, 0)),
            sample(F()),
        ],
        oracle=lambda x, axis=None: x.squeeze() if axis is None else torch.squeeze(x, axis),
    ),
    OpCase(
        "broadcast_to",
        samples=[
            sample(F(3, 1), (2, 3, 4)),
            sample(F(), (2, 3)),
            sample(F(), ()),
            sample(F(3), 3),
            sample(F(1), (0,)),
            sample(F(1, 3), (1, 3)),
            sample(B(1), (4,)),
        ],
        oracle=lambda x, shape: torch.broadcast_to(
            x, shape if isinstance(shape, tuple) else (shape,)
        ),
    ),
    OpCase(
        "swapaxes",
        samples=[
            sample(F(2, 3, 4), 0, 2),
            sample(F(2, 3, 4), -1, 1),
            sample(F(2, 3), 1, 1),
            sample(F(0, 3), 0, 1),
        ],
        oracle=lambda x, axis1, axis2: torch.transpose(x, axis1, axis2),
    ),
]

CASES += [
    OpCase(
        "reshape_like",
        samples=[
            sample(F(2, 6), F(3, 4)),
            sample(F(6), B(2, 3)),
            sample(F(1, 1), I(low=0, high=2)),
            sample(F(), F(1)),
            sample(F(0, 3), F(3, 0)),
            sample(I(4, low=0, high=9), B(2, 2)),
        ],
        oracle=lambda x, like_type: x.reshape(like_type.shape),
    ),
    OpCase(
        "broadcast_to_like",
        samples=[
            sample(F(3, 1), F(2, 3, 4)),
            sample(F(), F(2, 3)),
            sample(F(), F()),
            sample(F(1), I(0, low=0, high=2)),
            sample(F(2, 3), B(2, 3)),
            sample(B(1), B(4)),
        ],
        oracle=lambda x, like_type: x.expand(like_type.shape),
    ),
    OpCase(
        "collapse_sum_like",
        samples=[
            sample(F(2, 3, 4), F(3, 1)),
            sample(F(2, 3, 4), F()),
            sample(F(2, 3), F(2, 3)),
            sample(F(2, 3), F(1, 3)),
            sample(F(1, 3), F(1)),
            sample(F(1, 1, 3), F(3)),
            sample(F(), F()),
            sample(F(0, 3), F(3)),
            sample(F(3, 0), F(1, 0)),
            sample(I(3, 2, low=-99, high=99, dtype="int8"), B(2)),
            sample(I(3, 2, low=-99, high=99, dtype="int32"), B(3, 2)),
            sample(B(3, 2), B(1, 2)),
        ],
        oracle=lambda x, like_type: (x if x.is_floating_point() else x.long()).sum_to_size(
            like_type.shape
        ),
    ),
]

CASES += refusals(
    {
        "reshape_like": [error(F(2, 3), F(5), match="the number of elements differs")],
        "broadcast_to_like": [
            error(F(2), F(3), match="broadcast"),
            error(F(2, 3), F(3), match="one shape does not broadcast to the other"),
        ],
        "collapse_sum_like": [
            error(F(3), F(2), match="broadcast"),
            error(F(3), F(2, 3), match="one shape does not broadcast to the other"),
        ],
    }
)


def reduce_axis(x1, x2):
    """Find by trial the axes that are summed, and whether they stay."""
    lead = x1.ndim - x2.ndim
    padded = (1,) * lead + tuple(x2.shape)
    return [i for i in range(x1.ndim) if i < lead or padded[i] != x1.shape[i]], lead


SAMPLES = [
    sample(F(2, 3)),
    sample(F()),
    sample(F(0, 4)),
    sample(F(1)),
    sample(I(2, 1, 3, low=0, high=9)),
    sample(B(4)),
]

CASES += [
    OpCase(
        "shape",
        samples=[sample(F(2, 3)), sample(F()), sample(F(0, 1))],
        oracle=lambda x: tuple(x.shape),
        dtypes=("float32",),
        grad=False,
    ),
    OpCase("numel", samples=SAMPLES, oracle=torch.numel, grad=False),
    OpCase(
        "shape_as_tensor",
        samples=SAMPLES,
        oracle=lambda x: torch.tensor(x.shape, dtype=torch.int64),
        grad=False,
    ),
    OpCase(
        "get_reduce_axis",
        samples=[
            sample(F(3, 4, 5), F(4, 1)),
            sample(F(3, 4), F(3, 4)),
            sample(F(2, 3), F()),
            sample(F(1, 3), F(1)),
        ],
        oracle=lambda x1, x2: tuple(reduce_axis(x1, x2)[0]),
        dtypes=("float32",),
        grad=False,
    ),
    OpCase(
        "get_kept_dims",
        samples=[
            sample(F(3, 4, 5), F(4, 1)),
            sample(F(3, 4), F(3, 4)),
            sample(F(2, 3), F()),
            sample(F(1, 3), F(1)),
        ],
        oracle=lambda x1, x2: tuple(
            int(a >= reduce_axis(x1, x2)[1]) for a in reduce_axis(x1, x2)[0]
        ),
        dtypes=("float32",),
        grad=False,
    ),
]

CASES += refusals(
    {
        "get_reduce_axis get_kept_dims": [
            error(F(2, 3), F(2), match="broadcast"),
            error(F(3), F(2, 3), match="x2 does not broadcast to the shape of x1"),
        ],
    }
)
