"""What the operators of `meta/op/transform.py` have to do."""

from math import prod

import numpy as np
import torch

from meta.testing import B, C, F, I, OpCase, sample


def gradient(function, shape, dy):
    """Return the gradient of ``function`` at an argument of a shape, for the result's gradient."""
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(function(x), x, dy.double(), create_graph=True)[0]


def in_range(indices, extent, mode):
    """Return indices moved into the extent as `take` does."""
    if mode == "clip":
        return indices.long().clamp(0, max(extent - 1, 0))
    return indices.long() % max(extent, 1)


def take(x, indices, axis=None, mode="raise"):
    """Advanced indexing does what `take` does."""
    if axis is None:
        x, axis = x.reshape(-1), 0
    at = axis % x.ndim
    return x[(slice(None),) * at + (in_range(indices, x.shape[at], mode),)]


def sliced(x, begin, end, strides=None, slice_mode="end"):
    """Pick by index lists, made by Python's own slices."""
    begins, ends = ([v] if isinstance(v, int) else v for v in (begin, end))
    steps = [1] * len(begins) if strides is None else strides
    steps = [steps] * len(begins) if isinstance(steps, int) else steps
    for axis, (b, e, s) in enumerate(zip(begins, ends, steps, strict=True)):
        everything = range(x.shape[axis])
        picked = everything[b:e:s]
        if slice_mode == "size":
            picked = everything[b:] if e < 0 else everything[b:][:e]
        x = x.index_select(axis, torch.tensor(list(picked), dtype=torch.int64))
    return x


def reshaped(x, shape):
    """A 0 next to a -1 copies the extent there."""
    if isinstance(shape, tuple) and 0 in shape and -1 in shape:
        shape = tuple(x.shape[i] if s == 0 else s for i, s in enumerate(shape))
        rest = prod(d for i, d in enumerate(x.shape) if shape[i : i + 1] != (d,))
        shape = tuple(rest if s == -1 else s for s in shape)
    return x.reshape(shape)


def repeat(x, repeats, axis=None):
    """repeat_interleave, whose default flattens as well."""
    return torch.repeat_interleave(x, repeats, dim=axis)


def split(x, indices_or_sections=None, axis=0):
    """numpy's cutting rule on torch tensors."""
    parts = x.shape[axis] if indices_or_sections is None else indices_or_sections
    return torch.tensor_split(x, parts, axis)


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
            sample(F(2, 3, 4), (0, -1)),
            sample(F(6), -1),
            sample(F(1, 1), ()),
            sample(F(), (1, 1)),
            sample(F(0, 3), (3, 0)),
            sample(F(0, 3, 4), (0, -1)),
            sample(F(2, 3, 4), (2, 2, 3, 2)),
            sample(B(4), (2, 2)),
        ],
        oracle=reshaped,
    ),
    OpCase(
        "transpose",
        samples=TRANSPOSES,
        oracle=lambda x, axes=None: torch.permute(
            x, tuple(reversed(range(x.ndim))) if axes is None else axes if axes != 0 else (0,)
        ),
    ),
    OpCase(
        "transpose_dx",
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
        "concatenate",
        samples=[
            sample((F(2, 3), F(4, 3))),
            sample((F(2, 3), F(2, 1), F(2, 2)), axis=-1),
            sample((F(2, 3),), axis=1),
            sample((F(2, 0), F(2, 3), F(2, 0)), axis=1),
            sample((F(0), F(0))),
            sample((I(2, low=0, high=9), I(3, low=0, high=9))),
        ],
        oracle=lambda x, axis=0: torch.cat(tuple(x), axis),
    ),
    OpCase(
        "concatenate_dx",
        samples=[
            sample((F(2, 3), F(4, 3))),
            sample((F(2, 3), F(2, 1), F(2, 2)), axis=-1),
            sample((F(2, 3),), axis=1),
        ],
        oracle=lambda x, axis=0: tuple(np.cumsum([t.shape[axis] for t in x])[:-1].tolist()),
        dtypes=("float32",),
        grad=False,
    ),
    OpCase(
        "split",
        samples=[
            sample(F(6, 2), 3),
            sample(F(2, 7), (2, 5), axis=1),
            sample(F(2, 7), (2, 2, 7), axis=-1),
            sample(F(3, 2)),
            sample(F(3, 2), ()),
            sample(F(0, 2), 2, axis=0),
            sample(F(4), 1),
        ],
        oracle=lambda x, indices_or_sections=None, axis=0: split(x, indices_or_sections, axis),
    ),
    OpCase(
        "stack",
        samples=[
            sample((F(2, 3), F(2, 3))),
            sample((F(2, 3), F(2, 3), F(2, 3)), axis=-1),
            sample((F(2), F(2)), axis=1),
            sample((F(), F())),
            sample((F(3),)),
            sample((F(0), F(0)), axis=0),
        ],
        oracle=lambda x, axis=0: torch.stack(tuple(x), axis),
    ),
    OpCase(
        "strided_slice",
        samples=[
            sample(F(5, 4), (1, 0), (4, 3)),
            sample(F(5, 4), 1, 4),
            sample(F(5, 4), (0, 3), (5, 0), (2, -2)),
            sample(F(5), -1, -6, -1),
            sample(F(5), -3, 100),
            sample(F(5), 4, 1),
            sample(F(5, 4), (4, 3), (-100, -100), -1),
            sample(F(5, 4), (1, 1), (2, -1), None, "size"),
            sample(F(5), -2, 100, slice_mode="size"),
            sample(F(2, 3), (), ()),
            sample(F(0, 3), (0, 1), (9, 2)),
            sample(I(6, low=0, high=9), 5, 0, -2),
        ],
        oracle=sliced,
    ),
    OpCase(
        "strided_slice_dx",
        samples=[
            sample(F(3, 3), (5, 4), (1, 0), (4, 3)),
            sample(F(3), 5, 1, 4),
            sample(F(3, 2), (5, 4), (0, 3), (5, 0), (2, -2)),
            sample(F(5), 5, -1, -6, -1),
            sample(F(3), 6, 5, 0, -2),
            sample(F(0), 5, 4, 1),
            sample(F(1, 3), (5, 4), (1, 1), (1, -1), None, "size"),
            sample(F(2, 3), (2, 3), (), ()),
        ],
        oracle=lambda dy, shape, *where: gradient(lambda x: sliced(x, *where), shape, dy),
    ),
    OpCase(
        "take",
        samples=[
            sample(F(5, 3), C([-5, 4, 0, -1], "int64"), axis=0),
            sample(F(5, 3), I(2, 2, low=-3, high=3), axis=-1),
            sample(F(5, 3), I(2, 2, low=-15, high=15)),
            sample(F(5, 3), I(4, low=-9, high=9), axis=0, mode="clip"),
            sample(F(5, 3), I(2, 2, low=-40, high=40), mode="clip"),
            sample(F(5, 3), I(4, low=-9, high=9, dtype="int32"), axis=0, mode="wrap"),
            sample(F(5, 3), I(4, low=0, high=5, dtype="uint8"), axis=0, mode="fast"),
            sample(F(2, 5, 3), I(low=0, high=5), axis=1),
            sample(F(), I(3, low=-1, high=1)),
            sample(F(5, 3), I(0, low=0, high=1), axis=0),
            sample(F(0, 3), I(0, low=0, high=1), axis=0),
            sample(F(0, 3), I(2, low=0, high=1), axis=1),
            sample(B(5), I(3, low=0, high=5), axis=0),
        ],
        oracle=take,
    ),
    OpCase(
        "take_dx",
        samples=[
            sample(F(5, 3), F(8, 3), I(8, low=-5, high=5), axis=0),
            sample(F(5, 3), F(5, 4, 2), I(4, 2, low=-9, high=9), axis=-1, mode="clip"),
            sample(F(5, 3), F(2, 2), I(2, 2, low=-15, high=15)),
            sample(F(5, 3), F(7, 3), I(7, low=-9, high=9, dtype="int32"), axis=0, mode="wrap"),
            sample(F(2, 5, 3), F(2, 3), I(low=0, high=5), axis=1),
            sample(F(), F(3), I(3, low=-1, high=1)),
            sample(F(5, 3), F(0, 3), I(0, low=0, high=1), axis=0),
        ],
        oracle=lambda x, dy, indices, axis=None, mode="raise": (
            0 * x + gradient(lambda z: take(z, indices, axis, mode), x.shape, dy)
        ),
    ),
    OpCase(
        "embedding",
        samples=[
            sample(F(6, 3), C([0, 5, 5, 1], "int64")),
            sample(F(6, 3), I(2, 3, low=0, high=6, dtype="int32")),
            sample(F(6, 2, 2), I(low=0, high=6)),
            sample(F(6, 3), I(0, low=0, high=6)),
        ],
        oracle=lambda x, indices: x[indices.long()],
    ),
    OpCase(
        "embedding",
        samples=[sample(F(6, 3), I(2, 4, low=0, high=6), 1)],
        oracle=lambda x, indices, padding_idx: x[indices],
        grad=False,  # that of the padding is 0, whatever the result: see test_transform.py
    ),
    OpCase(
        "embedding_dx",
        samples=[
            sample(F(7, 3), I(7, low=0, high=6), 6),
            sample(F(2, 4, 3), I(2, 4, low=0, high=6, dtype="int32"), (6, 3)),
            sample(F(2), I(low=0, high=6), 6),
            sample(F(0, 3), I(0, low=0, high=6), 6),
        ],
        oracle=lambda dy, indices, num_weight: gradient(
            lambda x: x[indices.long()],
            (num_weight, *dy.shape[indices.ndim :]) if isinstance(num_weight, int) else num_weight,
            dy,
        ),
    ),
    OpCase(
        "cast",
        samples=[sample(F(2, 3), d) for d in ("float16", "bfloat16", "float32", "float64")]
        + [sample(F(), "float64"), sample(F(0, 2), "float32")],
        oracle=lambda data, dtype: data,
        # The target may be coarser than the dtype under test.
        rtol=dict.fromkeys(("float16", "float32", "float64"), 1e-2),
        atol=dict.fromkeys(("float16", "float32", "float64"), 1e-3),
        grad=False,
        why="rounding has no numeric derivative; checked in test_transform.py",
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
        "repeat",
        samples=[
            sample(F(2, 3), 2),
            sample(F(2, 3), 3, axis=0),
            sample(F(2, 3), 2, axis=-1),
            sample(F(), 3),
            sample(F(2), 0, axis=0),
            sample(F(0, 2), 2, axis=1),
            sample(F(2), 1),
        ],
        oracle=repeat,
    ),
    OpCase(
        "repeat_dx",
        samples=[
            sample(F(2, 3), F(12), 2),
            sample(F(2, 3), F(6, 3), 3, axis=0),
            sample(F(2, 3), F(2, 6), 2, axis=-1),
            sample(F(), F(3), 3),
            sample(F(2), F(0), 0, axis=0),
        ],
        oracle=lambda x, dy, repeats, axis=None: (
            0 * x + gradient(lambda z: repeat(z, repeats, axis), x.shape, dy)
        ),
    ),
    OpCase(
        "swap_axis",
        samples=[
            sample(F(2, 3, 4), 0, 2),
            sample(F(2, 3, 4), -1, 1),
            sample(F(2, 3), 1, 1),
            sample(F(0, 3), 0, 1),
        ],
        oracle=lambda x, axis1, axis2: torch.transpose(x, axis1, axis2),
    ),
]
