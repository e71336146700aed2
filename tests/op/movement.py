"""What the operators of `meta/op/movement.py` have to do."""

import torch
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from meta.testing import B, C, F, I, OpCase, error, refusals, sample


def in_rows(x, lengths, seq_axis, batch_axis, change):
    """Apply ``change(row, length)`` to every element of a batch; rows have the sequence first."""
    rows = []
    for b, n in enumerate(lengths.tolist()):
        row = x.select(batch_axis, b)
        at = seq_axis % x.ndim - (batch_axis % x.ndim < seq_axis % x.ndim)
        row = row.movedim(at, 0)
        rows.append(change(row, max(0, min(n, len(row)))).movedim(0, at))
    return torch.stack(rows, batch_axis) if rows else x.clone()


def reverse_sequence(x, lengths, seq_axis=1, batch_axis=0):
    """Cut, flip and join."""
    return in_rows(
        x, lengths, seq_axis, batch_axis, lambda row, n: torch.cat([row[:n].flip(0), row[n:]])
    )


def sequence_mask(x, lengths, mask_value=0.0, axis=0):
    """Cut, fill and join."""
    value = mask_value if x.is_floating_point() else int(mask_value)
    return in_rows(
        x,
        lengths,
        axis,
        1 - axis % x.ndim,
        lambda row, n: torch.cat([row[:n], torch.full_like(row[n:], value)]),
    )


def diagonal_dx(dy, shape, offset=0, axis1=0, axis2=1):
    """The gradient of torch's diagonal."""
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    y = torch.diagonal(x, offset, axis1, axis2)
    return torch.autograd.grad(y, x, dy.double(), create_graph=True)[0]


def shuffled(function, x, block_size, layout="NCHW", mode="DCR"):
    """torch shuffles as CRD; DCR has the blocks' places before the channels."""
    x = x.movedim(3, 1) if layout == "NHWC" else x
    places = block_size**2
    if x.numel() == 0:  # torch's shuffles forget to change an empty shape, forward or backward
        n, c, h, w = x.shape
        if function is pixel_shuffle:
            return x.reshape(n, c // places, h * block_size, w * block_size)
        return x.reshape(n, c * places, h // block_size, w // block_size)
    if mode == "DCR" and function is pixel_shuffle:
        n, c, h, w = x.shape
        x = x.reshape(n, places, c // places, h, w).transpose(1, 2).reshape(n, c, h, w)
    y = function(x, block_size)
    if mode == "DCR" and function is pixel_unshuffle:
        n, c, h, w = y.shape
        y = y.reshape(n, c // places, places, h, w).transpose(1, 2).reshape(n, c, h, w)
    return y.movedim(1, 3) if layout == "NHWC" else y


def tile(x, reps):
    """torch's tile; it has no int."""
    return torch.tile(x, (reps,) if isinstance(reps, int) else reps)


def roll(x, shift, axis=None):
    """torch's roll; it has no empty tuples, and one shift for several axes is written out."""
    if axis == ():
        return x.clone()
    return torch.roll(
        x,
        (shift,) * len(axis) if isinstance(axis, tuple) and isinstance(shift, int) else shift,
        axis,
    )


NAN, INF = float("nan"), float("inf")
TRIANGLES = [
    sample(F(3, 4)),
    sample(F(4, 3), 1),
    sample(F(4, 3), -2),
    sample(F(2, 3, 3), k=-1),
    sample(F(3, 3), 9),
    sample(F(3, 3), -(2**40)),
    sample(F(0, 3)),
    sample(F(2, 3, 0), 1),
    sample(B(3, 3)),
    sample(I(3, 3, low=0, high=9, dtype="uint8"), 1),
    sample(C([[NAN, INF], [INF, NAN]])),
]

CASES = [
    OpCase(
        "reverse",
        samples=[
            sample(F(2, 3)),
            sample(F(2, 3), 1),
            sample(F(2, 3, 2), -2),
            sample(F(1)),
            sample(F(0, 2)),
            sample(I(5, low=-9, high=9)),
            sample(B(5)),
        ],
        oracle=lambda x, axis=0: x.flip(axis),
    ),
    OpCase(
        "flip",
        samples=[
            sample(F(2, 3), 0),
            sample(F(2, 3, 4), (2, 0)),
            sample(F(2, 3, 4), (-1, -2)),
            sample(F(2, 3), ()),
            sample(F(), ()),
            sample(F(2, 0), (0, 1)),
            sample(I(5, low=-9, high=9, dtype="int8"), -1),
        ],
        oracle=lambda x, axes: torch.flip(x, (axes,) if isinstance(axes, int) else axes),
    ),
    OpCase(
        "reverse_sequence",
        samples=[
            sample(F(3, 4), C([0, 2, 4], "int64")),
            sample(F(4, 3, 2), C([1, 3, 4], "int32"), 0, 1),
            sample(F(2, 3, 4), C([3, 1, 0, 2], "uint8"), seq_axis=1, batch_axis=-1),
            sample(F(2, 4), C([-3, 99], "int64"), -1, 0),
            sample(F(2, 0), C([0, 1], "int64")),
            sample(F(0, 4), I(0, low=0, high=4)),
            sample(I(2, 4, low=-9, high=9), C([2, 3], "int64")),
        ],
        oracle=reverse_sequence,
    ),
    OpCase(
        "sequence_mask",
        samples=[
            sample(F(4, 3), C([0, 2, 4], "int64")),
            sample(F(3, 4, 2), C([1, 3, 9], "int32"), -1.5, 1),
            sample(F(4, 3, 2), C([1, -3, 3], "int8"), axis=-3),
            sample(F(4, 2), C([1, 3], "int64"), -INF),
            sample(F(0, 2), C([1, 3], "int64")),
            sample(F(4, 0), I(0, low=0, high=4)),
            sample(I(3, 2, low=1, high=9), C([1, 2], "int64"), 7),
            sample(B(3, 2), C([1, 2], "int64"), 1),
        ],
        oracle=sequence_mask,
    ),
    OpCase(
        "roll",
        samples=[
            sample(F(5), 2),
            sample(F(2, 3), 4),
            sample(F(2, 3), -1, 1),
            sample(F(2, 3, 4), (1, -2), (0, -1)),
            sample(F(2, 5), (1, 2), (1, 1)),
            sample(F(2, 3), 1, (0, 1)),
            sample(F(2, 3), 3, 1),
            sample(F(2, 3), (), ()),
            sample(F(3), 10**12),
            sample(F(), 3),
            sample(F(0, 2), 1, 0),
            sample(I(4, low=-9, high=9), -3),
        ],
        oracle=roll,
    ),
    OpCase(
        "tile",
        samples=[
            sample(F(2, 3), (2, 1)),
            sample(F(2, 3), 2),
            sample(F(3), (2, 2, 2)),
            sample(F(2, 1, 2), (1, 3)),
            sample(F(), ()),
            sample(F(), (2, 1)),
            sample(F(2, 3), (0, 2)),
            sample(F(0, 3), (2, 2)),
            sample(I(2, low=-9, high=9), 3),
            sample(B(2), 3),
        ],
        oracle=tile,
    ),
    OpCase(
        "mesh_grid",
        samples=[
            sample((F(2), F(3))),
            sample((F(2), F(), F(1), F(3))),
            sample((F(4),)),
            sample((F(),)),
            sample((F(0), F(2))),
            sample((I(2, low=0, high=9), I(3, low=0, high=9))),
        ],
        oracle=lambda x: torch.meshgrid(*x, indexing="ij"),
    ),
    OpCase("triu", samples=TRIANGLES, oracle=lambda x, k=0: torch.triu(x, k)),
    OpCase("tril", samples=TRIANGLES, oracle=lambda x, k=0: torch.tril(x, k)),
    OpCase(
        "diagonal",
        samples=[
            sample(F(3, 4)),
            sample(F(3, 4), 1),
            sample(F(4, 3), -2),
            sample(F(2, 3, 4), 1, 2, 0),
            sample(F(2, 3, 4), -1, axis1=-1, axis2=-2),
            sample(F(3, 3), 7),
            sample(F(3, 3), -(2**40)),
            sample(F(0, 3)),
            sample(F(1, 1)),
            sample(I(3, 3, low=-9, high=9, dtype="int32")),
        ],
        oracle=lambda x, offset=0, axis1=0, axis2=1: torch.diagonal(x, offset, axis1, axis2),
    ),
    OpCase(
        "diagonal_dx",
        samples=[
            sample(F(3), (3, 4)),
            sample(F(2), (4, 3), -2),
            sample(F(3, 1), (2, 3, 4), 1, 2, 0),
            sample(F(0), (3, 3), 7),
            sample(F(2, 3), (3, 2, 3), axis1=0, axis2=2),
        ],
        oracle=diagonal_dx,
    ),
    OpCase(
        "depth_to_space",
        samples=[
            sample(F(2, 8, 2, 3), 2),
            sample(F(1, 8, 2, 1), 2, mode="CRD"),
            sample(F(1, 2, 1, 9), 3, "NHWC"),
            sample(F(1, 2, 1, 8), 2, "NHWC", "CRD"),
            sample(F(1, 2, 2, 2), 1),
            sample(F(0, 4, 2, 2), 2),
            sample(F(1, 0, 2, 2), 2),
            sample(I(1, 4, 2, 2, low=-9, high=9), 2),
        ],
        oracle=lambda *args, **kwargs: shuffled(pixel_shuffle, *args, **kwargs),
    ),
    OpCase(
        "space_to_depth",
        samples=[
            sample(F(2, 2, 4, 6), 2),
            sample(F(1, 2, 4, 2), 2, mode="CRD"),
            sample(F(1, 3, 6, 2), 3, "NHWC"),
            sample(F(1, 4, 2, 2), 2, "NHWC", "CRD"),
            sample(F(1, 2, 2, 2), 1),
            sample(F(0, 1, 2, 2), 2),
            sample(F(1, 2, 0, 2), 2),
            sample(I(1, 1, 4, 4, low=-9, high=9), 2),
        ],
        oracle=lambda *args, **kwargs: shuffled(pixel_unshuffle, *args, **kwargs),
    ),
]

_X = F(2, 3)
MATRICES = [error(F(3), match="x must hold matrices")]
BLOCKS = [
    error(F(4, 2, 2), 2, match="x must have 4 axes"),
    error(F(1, 4, 2, 2), 0, match="block_size must be positive"),
    error(F(1, 4, 2, 2), 2, layout="CHWN", match="unknown layout"),
    error(F(1, 4, 2, 2), 2, mode="CDR", match="unknown mode"),
]

CASES += refusals(
    {
        "reverse": [error(_X, 2, match="axis 2 is out of range")],
        "flip": [
            error(_X, (0, 2), match="axis 2 is out of range"),
            error(_X, (0, -2), match="an axis is named twice"),
        ],
        "reverse_sequence": [
            error(_X, I(2, low=0, high=3), 0, 0, match="the same axis"),
            error(_X, I(3, low=0, high=3), match="one entry for every element of the batch"),
            error(_X, F(2), match="indices must be integers"),
        ],
        "sequence_mask": [
            error(F(3), I(1, low=0, high=3), match="x must have an axis of positions"),
            error(F(2, 3, 4), I(2, low=0, high=3), axis=2, match="one of the first two axes"),
            error(_X, I(2, low=0, high=3), match="one entry for every element of the batch"),
        ],
        "roll": [
            error(_X, (1, 2), (0,), match="shift must be an int, or one for every axis"),
            error(_X, 1, 2, match="axis 2 is out of range"),
        ],
        "tile": [error(_X, (2, -1), match="reps is negative")],
        "mesh_grid": [
            error((), match="x is empty"),
            error((F(2), _X), match="an axis of a grid must be a vector"),
            error((F(2), I(3, low=0, high=3)), match="cast the int64 one"),
        ],
        "triu tril": MATRICES,
        "diagonal": [
            error(_X, axis1=1, axis2=-1, match="two different axes"),
            error(F(3), match="axis 1 is out of range"),
        ],
        "diagonal_dx": [
            error(F(3), (3, 2), match="dy has another shape than the diagonal"),
            error(F(0), (-2, -2), match="no negative extents"),
        ],
        "depth_to_space": [
            *BLOCKS,
            error(F(1, 3, 2, 2), 2, match="the number of channels cannot be divided by 4"),
        ],
        "space_to_depth": [*BLOCKS, error(F(1, 4, 3, 2), 2, match="the height cannot be divided")],
    }
)
