"""Test records of detection and matching of images."""

import torch
import torch.nn.functional as F_

from meta.testing import C, F, I, OpCase, error, refusals, sample
from tests.op.conv import sides

NAN, INF = float("nan"), float("inf")


def get_valid_counts(data, score_threshold, id_index=0, score_index=1):
    counts = torch.zeros(data.shape[0], dtype=torch.int32)
    rows = torch.full_like(data, -1)
    indices = torch.full(data.shape[:2], -1, dtype=torch.int32)
    for b, batch in enumerate(data):
        for j, row in enumerate(batch):
            if row[score_index] > score_threshold and (id_index < 0 or row[id_index] >= 0):
                rows[b, counts[b]], indices[b, counts[b]] = row, j
                counts[b] += 1
    return counts, rows, indices


def overlap(a, b):
    """Intersection over union of two boxes, each given by any two opposite corners."""
    (al, ar), (at, ab) = sorted(a[::2]), sorted(a[1::2])
    (bl, br), (bt, bb) = sorted(b[::2]), sorted(b[1::2])
    shared = max(0, min(ar, br) - max(al, bl)) * max(0, min(ab, bb) - max(at, bt))
    union = (ar - al) * (ab - at) + (br - bl) * (bb - bt) - shared
    return shared / union if union > 0 else 0.0


def kept_places(rows, limit, threshold, force, top_k, coord, score, cls):
    """Return, for every place of a batch element, the row kept there or -1."""
    if not threshold > 0:
        return list(range(len(rows)))
    order = sorted(range(len(rows)), key=lambda i: -rows[i][score])
    places, kept = [], []
    for place, i in enumerate(order):
        own = rows[i]
        rivals = [
            rows[k]
            for k in kept
            if (cls < 0 or rows[k][cls] >= 0)
            and (cls < 0 or force or rows[k][cls] == own[cls])
            and overlap(own[coord : coord + 4], rows[k][coord : coord + 4]) >= threshold
        ]
        if len(kept) == limit or (0 < top_k <= place) or (own[score] > 0 and rivals):
            places.append(-1)
            continue
        places.append(i)
        if own[score] > 0:
            kept.append(i)
    return places


def non_max_suppression(
    data,
    valid_count,
    indices,
    max_output_size,
    iou_threshold,
    force_suppress=False,
    top_k=-1,
    coord_start=2,
    score_index=1,
    id_index=0,
    return_indices=True,
    invalid_to_bottom=False,
):
    batch, boxes, _ = data.shape
    rows = torch.full_like(data, -1)
    names = torch.full((batch, boxes), -1, dtype=torch.int32)
    count = torch.zeros(batch, 1, dtype=torch.int32)
    for b in range(batch):
        places = kept_places(
            data[b, : min(max(int(valid_count[b]), 0), boxes)].tolist(), int(max_output_size),
            float(iou_threshold), force_suppress, top_k, coord_start, score_index, id_index,
        )  # fmt: skip
        found = [i for i in places if i >= 0 and indices[b, i] >= 0]
        count[b] = len(found)
        names[b, : len(found)] = indices[b, found]
        if invalid_to_bottom:
            places = [i for i in places if i >= 0]
        for j, i in enumerate(places):
            if i >= 0:
                rows[b, j] = data[b, i]
    return (names, count) if return_indices else rows


# Class, score, two corners. In the order of the scores: a box, one that it covers by 0.5 exactly,
# the same of another class, one of no area, one apart with its corners swapped, background.
BOXES = [
    [1.0, 0.75, 0.0, 0.0, 4.0, 2.0],
    [0.0, 0.875, 0.0, 0.0, 4.0, 4.0],
    [0.0, 0.75, 0.0, 0.0, 4.0, 2.0],
    [-1.0, 0.5, 8.0, 8.0, 12.0, 12.0],
    [0.0, 0.625, 1.0, 1.0, 1.0, 3.0],
    [0.0, 0.5, 12.0, 11.0, 8.0, 8.0],
    [0.0, -0.5, 0.0, 0.0, 4.0, 4.0],
    [1.0, 0.25, 9.0, 8.0, 12.0, 12.0],
]

OTHERS = [[*row[:2], *(x + 1 for x in row[2:])] for row in reversed(BOXES)]

DATA = C([BOXES, OTHERS])

COUNTS = C([8, 5], "int32")

NAMES = C([list(range(10, 18)), [3, -1, 5, 0, 1, 2, 4, 6]], "int32")

ODD = C([[[0.5, NAN, 0.0, 2.0, 1.0], [0.5, 0.0, 0.0, 2.0, 2.0], [NAN, 0.0, 0.0, 2.0, 2.0],
          [0.25, 0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 0.0, 2.0, 2.0]]])  # fmt: skip

MANY = (
    F(2, 40, 6, low=0.0, high=3.0),
    C([40, 29], "int32"),
    I(2, 40, low=0, high=9, dtype="int32"),
)

BARE = {"coord_start": 0, "score_index": 4, "id_index": -1}

CASES = [
    OpCase(
        "get_valid_counts",
        samples=[
            sample(DATA, 0.5),
            sample(DATA, C(0.25), id_index=-1),
            sample(DATA, C([0.5]), 2, 3),
            sample(ODD, 0.25, id_index=-1, score_index=0),
            sample(F(3, 17, 5), 0.0),
            sample(F(2, 1, 2), 0, 1, 0),
            sample(F(2, 0, 6), 0.5),
            sample(F(0, 4, 6), 0.5),
        ],
        oracle=get_valid_counts,
        errors=[
            error(F(2, 3, 4), 0.5, 0, 4, match="score_index is no column"),
            error(F(2, 3, 4), F(2), match="one number"),
        ],
        grad=False,
    ),
    OpCase(
        "non_max_suppression",
        samples=[
            *(
                sample(DATA, COUNTS, NAMES, limit, threshold, force, top_k, **results)
                for limit, threshold, force, top_k in (
                    (-1, 0.5, False, -1),
                    (-1, 0.5, True, -1),
                    (2, 0.75, False, 0),
                    (3, 0.25, False, 5),
                    (0, 0.5, False, -1),
                    (1, 0.0, True, 2),
                    (C(3, "int32"), C(0.5), True, 6),
                )
                for results in (
                    {},
                    {"return_indices": False},
                    {"return_indices": False, "invalid_to_bottom": True},
                )
            ),
            sample(DATA, C([-3, 99], "int32"), NAMES, C([4], "int64"), 0.5),
            sample(*MANY, -1, 0.3, True),
            sample(*MANY, 7, 0.1, id_index=-1, top_k=20),
            sample(*MANY, -1, 0.2, id_index=-1, return_indices=False),
            sample(F(1, 9, 5), C([9], "int32"), I(1, 9, low=0, high=9, dtype="int32"), -1, 0.1,
                   **BARE, return_indices=False, invalid_to_bottom=True),
            sample(F(2, 1, 6), C([1, 0], "int32"), C([[0], [0]], "int32"), -1, 0.5),
            sample(F(2, 0, 6), C([0, 0], "int32"), I(2, 0, low=0, high=1, dtype="int32"), -1, 0.5),
            sample(F(0, 3, 6), C([], "int32"), I(0, 3, low=0, high=1, dtype="int32"), -1, 0.5,
                   return_indices=False),
        ],
        oracle=non_max_suppression,
        errors=[
            error(F(2, 8, 5), COUNTS, NAMES, -1, 0.5, match="coord_start is no column"),
            error(F(2, 8, 6), C([8, 8], "int64"), NAMES, -1, 0.5, match="valid_count does not"),
            error(F(2, 8, 6), COUNTS, NAMES, 1.5, 0.5, match="must be an integer"),
        ],
        grad=False,
    ),
]  # fmt: skip


def _correlation(x1, x2, kernel=1, reach=1, stride1=1, stride2=1, padding=0, multiply=True):
    a, b = (F_.pad(x, sides(padding, 2)) for x in (x1, x2))
    border = reach + kernel // 2
    height, width = (-(-(n - 2 * border) // stride1) for n in a.shape[2:])
    steps = range(-(reach // stride2) * stride2, reach + 1, stride2)
    found = []
    for dy in steps:
        for dx in steps:
            total = 0
            for p in range(kernel):
                for r in range(kernel):
                    y, x = reach + p, reach + r

                    def cut(image, y, x):
                        rows = slice(y, y + (height - 1) * stride1 + 1, stride1)
                        return image[:, :, rows, x : x + (width - 1) * stride1 + 1 : stride1]

                    own, other = cut(a, y, x), cut(b, y + dy, x + dx)
                    total = total + (own * other if multiply else (own - other).abs()).sum(1)
            found.append(total / (kernel * kernel * a.shape[1]))
    return torch.stack(found, 1)


def _correlation_dx(x1, x2, dy, *options):
    x1, x2 = (x.detach().requires_grad_() for x in (x1, x2))
    with torch.enable_grad():
        return torch.autograd.grad(_correlation(x1, x2, *options), (x1, x2), dy)


# shape of the images, options, shape of the result
_CALLS = [
    ((1, 2, 4, 4), (), (1, 9, 2, 2)),
    ((2, 3, 6, 5), (3, 2, 1, 1, 2), (2, 25, 4, 3)),
    ((1, 2, 7, 8), (1, 3, 2, 2, (1, 2, 3, 0), False), (1, 9, 3, 2)),
    ((1, 1, 6, 9), (3, 1, 3, 2, (1, 0)), (1, 1, 2, 2)),
]

CASES += [
    OpCase(
        "correlation",
        [sample(F(*x), F(*x), *options) for x, options, _ in _CALLS],
        _correlation,
        second=False,
    ),
    OpCase(
        "correlation_dx",
        [sample(F(*x), F(*x), F(*y), *options) for x, options, y in _CALLS],
        _correlation_dx,
        grad=False,
    ),
]

_X = F(1, 2, 4, 5)

CASES += refusals(
    {
        "correlation": [
            error(F(2, 4, 5), F(2, 4, 5), match="x1 must have 4 axes"),
            error(I(1, 2, 4, 5, low=0, high=2), _X, match="x1 must be floating point"),
            error(_X, I(1, 2, 4, 5, low=0, high=2), match="differ in dtype"),
            error(_X, F(1, 2, 5, 4), match="x1 and x2 differ in shape"),
            error(_X, _X, 2, match="kernel_size must be odd"),
            error(_X, _X, 1, -1, match="max_displacement is negative"),
            error(_X, _X, 1, 1, 0, match="strides must be positive"),
            error(_X, _X, 1, 2, match="the border leaves nothing"),
        ],
        "correlation_dx": [error(_X, _X, F(1, 9, 2, 2), match="dy is not of the forward")],
    }
)
