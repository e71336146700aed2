"""Test records of operators that join, split, slice, pad and rearrange."""

import numpy as np
import torch
from torch.nn.functional import pad as torch_pad
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from meta.testing import B, C, F, I, OpCase, error, refusals, sample
from tests.op.shapes import gradient


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
    *[sample(I(3, 3, low=2**b - 9, high=2**b, dtype=f"uint{b}")) for b in (16, 32)],
    sample(C([[NAN, INF], [INF, NAN]])),
]


def flip(x, axis=None):
    axes = tuple(range(x.ndim)) if axis is None else axis
    return torch.flip(x, (axes,) if isinstance(axes, int) else axes)


CASES = [
    OpCase(
        "flip",
        samples=[
            sample(F(2, 3), 0),
            sample(F(2, 3, 4), (2, 0)),
            sample(F(2, 3, 4), (-1, -2)),
            sample(F(2, 3), ()),
            sample(F(), ()),
            sample(F(2, 0), (0, 1)),
            sample(F(2, 3)),
            sample(F()),
            sample(F(2, 3, 2), -2),
            sample(F(0, 2), 0),
            sample(I(5, low=-9, high=9, dtype="int8"), -1),
            sample(I(5, low=-9, high=9), 0),
            sample(B(5)),
        ],
        oracle=flip,
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
        "flip": [
            error(_X, 2, match="axis 2 is out of range"),
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


def pairs(pad_width, ndim):
    """The widths as one pair for every axis."""
    flat = [pad_width] * (2 * ndim) if isinstance(pad_width, int) else list(pad_width)
    return [flat[2 * i : 2 * i + 2] for i in range(ndim)]


def pad(x, pad_width, pad_value=0.0, pad_mode="constant"):
    """Constants as torch pads; else slices, flipped and repeated, joined axis by axis."""
    around = pairs(pad_width, x.ndim)
    if pad_mode == "constant":
        value = pad_value if x.is_floating_point() else int(pad_value)
        return torch_pad(x, [w for pair in around[::-1] for w in pair], value=value)
    for axis, (before, after) in enumerate(around):
        n = x.shape[axis]
        if pad_mode == "edge":
            front = [x.narrow(axis, 0, 1)] * before if before else []
            back = [x.narrow(axis, n - 1, 1)] * after if after else []
        elif pad_mode == "wrap":
            front, back = [x.narrow(axis, n - before, before)], [x.narrow(axis, 0, after)]
        else:
            skip = int(pad_mode == "reflect")
            front = [x.narrow(axis, skip, before).flip(axis)] if before else []
            back = [x.narrow(axis, n - skip - after, after).flip(axis)] if after else []
        x = torch.cat([*front, x, *back], axis)
    return x


def pad_dx(dy, pad_width, pad_mode="constant"):
    """The gradient of the oracle above."""
    around = pairs(pad_width, dy.ndim)
    shape = [d - a - b for d, (a, b) in zip(dy.shape, around, strict=True)]
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    y = pad(x, pad_width, 0.0, pad_mode)
    return torch.autograd.grad(y, x, dy.double(), create_graph=True)[0]


CASES += [
    OpCase(
        "pad",
        samples=[
            sample(F(2, 3), (1, 2, 0, 3)),
            sample(F(2, 3), 1, 1.5),
            sample(F(3), (0, 2), -2),
            sample(C([1.0, -2.0]), (1, 1), float("inf")),
            sample(C([1.0, -2.0]), (1, 1), float("nan")),
            sample(F(), ()),
            sample(F(), 2),
            sample(F(2, 2), 0),
            sample(F(0, 2), (1, 1, 0, 1), 3.0),
            sample(F(0, 2), (0, 0, 1, 1)),
            sample(I(3, low=-5, high=5), (1, 2), 2.0),
            sample(I(3, low=0, high=5, dtype="uint8"), (1, 2), 3),
            sample(I(3, low=0, high=5, dtype="uint16"), (1, 2), 65535),
            sample(I(3, low=0, high=5, dtype="uint32"), (1, 2), 2**32 - 1),
            sample(B(3), (1, 2), 1),
            sample(B(3), (1, 2)),
            sample(F(3, 4), (2, 1, 3, 5), pad_mode="edge"),
            sample(F(1, 2), (4, 0, 0, 3), pad_mode="edge"),
            sample(F(0, 2), (0, 0, 1, 1), pad_mode="edge"),
            sample(I(3, low=-5, high=5, dtype="int8"), 2, pad_mode="edge"),
            sample(F(3, 4), (2, 1, 3, 2), pad_mode="reflect"),
            sample(F(2, 1, 4), (0, 0, 0, 0, 1, 3), pad_mode="reflect"),
            sample(F(1), 0, pad_mode="reflect"),
            sample(B(3), (2, 2), pad_mode="reflect"),
            sample(F(3, 4), (3, 1, 2, 4), pad_mode="symmetric"),
            sample(F(1), (1, 1), pad_mode="symmetric"),
            sample(F(3, 4), (3, 1, 2, 4), pad_mode="wrap"),
            sample(F(2, 1, 4), (0, 2, 1, 1, 0, 3), pad_mode="wrap"),
            sample(F(0, 3), (0, 0, 1, 2), pad_mode="wrap"),
            sample(I(3, low=-5, high=5, dtype="int8"), 2, pad_mode="wrap"),
            sample(C([float("nan"), float("inf"), 1.0]), 2, pad_mode="reflect"),
        ],
        oracle=pad,
    ),
    OpCase(
        "pad_dx",
        samples=[
            sample(F(5, 6), (1, 2, 0, 3)),
            sample(F(5, 6), 1, "edge"),
            sample(F(9, 6), (4, 2, 0, 5), "edge"),
            sample(F(4, 5), (3, 0, 1, 3), "edge"),
            sample(F(6, 9), (2, 1, 3, 2), "reflect"),
            sample(F(8, 7), (2, 3, 2, 1), "symmetric"),
            sample(F(3), (1, 1), "symmetric"),
            sample(F(8, 7), (2, 3, 2, 1), "wrap"),
            sample(F(6, 3), (2, 2, 1, 0), "wrap"),
            sample(F(2, 3), 0, "reflect"),
            sample(F(), (), "edge"),
            sample(F(0, 4), (0, 0, 1, 1), "edge"),
            sample(F(3, 2), (1, 2, 0, 0)),
        ],
        oracle=pad_dx,
    ),
]

CASES += refusals(
    {
        "pad": [
            error(_X, (1, 1), match="pad_width must be an int, or one pair"),
            error(_X, -1, match="pad_width is negative"),
            error(_X, 1, pad_mode="circular", match='"circular" is called "wrap"'),
            error(_X, 1, pad_mode="replicate", match='"replicate" is called "edge"'),
            error(_X, 1, pad_mode="mean", match="unknown padding mode"),
            error(_X, (0, 0, 4, 0), pad_mode="wrap", match="too few elements for the wrap"),
            error(_X, (0, 0, 3, 0), pad_mode="reflect", match="too few elements for the reflect"),
            error(F(0, 3), 1, pad_mode="edge", match="too few elements for the edge"),
        ],
        "pad_dx": [
            error(_X, 2, match="dy is smaller than its padding"),
            error(_X, (1, 1), match="pad_width must be an int, or one pair"),
            error(F(5, 5), 2, "reflect", match="too few elements for the reflect"),
        ],
    }
)


def strided_set(data, v, begin, end, strides=None):
    """Say by Python's own slices which element of data or v each place holds, and look it up."""
    begins, ends = ([b] if isinstance(b, int) else b for b in (begin, end))
    steps = [1] if strides is None else [strides] if isinstance(strides, int) else strides
    steps = steps * len(begins) if len(steps) == 1 else steps
    source = np.arange(data.numel()).reshape(data.shape)
    where = tuple(slice(*bounds) for bounds in zip(begins, ends, steps, strict=True))
    source[where] = data.numel() + np.arange(v.numel()).reshape(v.shape)
    return torch.cat([data.reshape(-1), v.reshape(-1)])[torch.from_numpy(source)]


CASES += [
    OpCase(
        "strided_set",
        samples=[
            sample(F(5, 4), F(3, 3), (1, 0), (4, 3)),
            sample(F(5, 4), F(3, 4), 1, 4),
            sample(F(5, 4), F(3, 2), (0, 3), (5, 0), (2, -2)),
            sample(F(5), F(5), -1, -6, -1),
            sample(F(5), F(3), -3, 100),
            sample(F(5), F(0), 4, 1),
            sample(F(6, 4), F(3, 2), (0, 1), (6, 4), 2),
            sample(F(2, 3), F(2, 3), (), ()),
            sample(F(), F(), (), ()),
            sample(F(0, 3), F(0, 1), (0, 1), (9, 2)),
            sample(I(6, low=0, high=9), I(3, low=0, high=9), 5, 0, -2),
            sample(B(3), B(1), 1, 2),
        ],
        oracle=strided_set,
    ),
]

SET_X = F(4, 3)

CASES += refusals(
    {
        "strided_set": [
            error(SET_X, F(2, 2), 0, 2, match="v has another shape than the slice"),
            error(SET_X, I(2, 3, low=0, high=3), 0, 2, match="cast the int64 one"),
            error(SET_X, F(2, 3), 0, 4, 0, match="a stride is 0"),
        ]
    }
)


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


def repeat(x, repeats, axis=None):
    """repeat_interleave, whose default flattens as well."""
    return torch.repeat_interleave(x, repeats, dim=axis)


def split(x, indices_or_sections=None, axis=0):
    """numpy's cutting rule on torch tensors."""
    parts = x.shape[axis] if indices_or_sections is None else indices_or_sections
    return torch.tensor_split(x, parts, axis)


CASES += [
    OpCase(
        "concat",
        samples=[
            sample((F(2, 3), F(4, 3))),
            sample((F(2, 3), F(2, 1), F(2, 2)), axis=-1),
            sample((F(2, 3),), axis=1),
            sample((F(2, 0), F(2, 3), F(2, 0)), axis=1),
            sample((F(0), F(0))),
            sample((I(2, low=0, high=9), I(3, low=0, high=9))),
            sample((F(2, 3), F(), F(2, 0), F(4)), axis=None),
            sample((F(2, 3),), axis=None),
        ],
        oracle=lambda arrays, axis=0: (
            torch.cat([t.flatten() for t in arrays])
            if axis is None
            else torch.cat(tuple(arrays), axis)
        ),
    ),
    OpCase(
        "concat_dx",
        samples=[
            sample((F(2, 3), F(4, 3))),
            sample((F(2, 3), F(2, 1), F(2, 2)), axis=-1),
            sample((F(2, 3),), axis=1),
            sample((F(2, 3), F(), F(4)), axis=None),
        ],
        oracle=lambda arrays, axis=0: tuple(
            np.cumsum([t.numel() if axis is None else t.shape[axis] for t in arrays])[:-1].tolist()
        ),
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
        oracle=lambda arrays, axis=0: torch.stack(tuple(arrays), axis),
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
]
