"""What the converters of `boxes.py` have to give; the oracles are loops."""

import numpy as np
import torch

from tests.frontend.relay.records import ConverterCase as Case

RNG = np.random.default_rng(2)


def floats(*shape):
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def corners(*shape):
    ends = np.sort(RNG.uniform(0, 1, (*shape, 2, 2)), -2)
    return ends.reshape(*shape, 4).astype(np.float32)


def priors(height, width, sizes, ratios, steps=(-1, -1), offsets=(0.5, 0.5), clip=False):
    rows = []
    sy = steps[0] if steps[0] > 0 else 1 / height
    sx = steps[1] if steps[1] > 0 else 1 / width
    shapes = [(s * height / width / 2, s / 2) for s in sizes]
    shapes += [(sizes[0] * height / width * r**0.5 / 2, sizes[0] / r**0.5 / 2) for r in ratios[1:]]
    for i in range(height):
        for j in range(width):
            y, x = (i + offsets[0]) * sy, (j + offsets[1]) * sx
            rows += [(x - w, y - h, x + w, y + h) for w, h in shapes]
    boxes = np.array([rows], np.float32)
    return boxes.clip(0, 1) if clip else boxes


def transform(clip, threshold, variances):
    def run(prob, loc, anchor):
        batch, _, anchors = prob.shape
        rows = np.full((batch, anchors, 6), -1, np.float32)
        count = np.zeros(batch, np.int32)
        for b in range(batch):
            for a in range(anchors):
                kind = int(prob[b, 1:, a].argmax()) + 1
                if prob[b, kind, a] < threshold:
                    continue
                left, top, right, bottom = anchor[0, a].astype(np.float64)
                px, py, pw, ph = loc[b, 4 * a : 4 * a + 4] * np.array(variances)
                x, y = px * (right - left) + (left + right) / 2, py * (bottom - top)
                y += (top + bottom) / 2
                w, h = np.exp(pw) * (right - left) / 2, np.exp(ph) * (bottom - top) / 2
                box = np.array([x - w, y - h, x + w, y + h])
                box = box.clip(0, 1) if clip else box
                rows[b, count[b]] = (kind - 1, prob[b, kind, a], *box)
                count[b] += 1
        return rows, count

    return run


def reorg(stride):
    """Darknet's own loops over flat memory."""

    def run(x):
        batch, channels, height, width = x.shape
        out = channels // stride**2
        y = np.zeros(x.size, x.dtype)
        flat = x.reshape(-1)
        for b in range(batch):
            for k in range(channels):
                for j in range(height):
                    for i in range(width):
                        row = j * stride + k // out // stride
                        column = i * stride + k // out % stride
                        source = column + width * stride * (
                            row + height * stride * (k % out + out * b)
                        )
                        y[i + width * (j + height * (k + channels * b))] = flat[source]
        return y.reshape(batch, channels * stride**2, height // stride, width // stride)

    return run


PROB = RNG.dirichlet(np.ones(4), (2, 6)).transpose(0, 2, 1).astype(np.float32)
LOC, ANCHOR = floats(2, 24), corners(1, 6)
# Scores are in column 1, the class is in column 0.
ROWS = np.array(
    [
        [
            [0.0, 0.9, 0.0, 0.0, 1.0, 1.0],
            [0.0, 0.8, 0.1, 0.1, 1.0, 1.0],
            [1.0, 0.7, 0.0, 0.0, 1.0, 1.0],
            [0.0, 0.2, 2.0, 2.0, 3.0, 3.0],
        ]
    ],
    np.float32,
)
FOUR = np.array([4], np.int32)
NUMBERS = np.arange(4, dtype=np.int32)[None]
KEPT = np.array([[0, 2, 3, -1]], np.int32)
COUNT = np.array([[3]], np.int32)
SORTED = np.where(np.arange(4)[None, :, None] == 1, np.float32(-1), ROWS)
COLUMNS = {"id_index": 0, "score_index": 1}
NMS = {"coord_start": 2, "score_index": 1, "id_index": 0}


def valid(threshold):
    keep = ROWS[0, :, 1] > threshold
    rows, names = np.full_like(ROWS, -1), np.full((1, 4), -1, np.int32)
    rows[0, : keep.sum()], names[0, : keep.sum()] = ROWS[0, keep], np.flatnonzero(keep)
    return np.array([keep.sum()], np.int32), rows, names


CASES = [
    Case("vision.get_valid_counts", (ROWS, np.float32(0.5)), lambda *_: valid(0.5), COLUMNS,
         constants=(1,)),
    Case("vision.get_valid_counts", (ROWS,), lambda *_: valid(0.75),
         {**COLUMNS, "score_threshold": 0.75}, version=(0, 7)),
    Case("vision.non_max_suppression",
         (ROWS, FOUR, NUMBERS, np.int32(-1), np.float32(0.5)), (KEPT, COUNT), NMS,
         constants=(3, 4)),
    Case("vision.non_max_suppression",
         (ROWS, FOUR, NUMBERS, np.int32(-1), np.float32(0.5)), SORTED,
         {**NMS, "return_indices": False}, label="rows"),
    Case("vision.non_max_suppression", (ROWS, FOUR, NUMBERS, np.int32(2)),
         (np.array([[0, 2, -1, -1]], np.int32), np.array([[2]], np.int32)),
         {**NMS, "iou_threshold": 0.5}, version=(0, 7)),
    Case("vision.non_max_suppression", (ROWS, FOUR), KEPT,
         {**NMS, "iou_threshold": 0.5, "max_output_size": -1}, version=(0, 6)),
    Case("vision.multibox_prior", (floats(1, 2, 2, 3),), priors(2, 3, (0.4, 0.8), (1, 2, 0.5)),
         {"sizes": (0.4, 0.8), "ratios": (1.0, 2.0, 0.5)}),
    Case("vision.multibox_prior", (floats(1, 2, 2, 3),),
         priors(2, 3, (0.9,), (1,), (0.3, 0.6), (0.25, 0.75), True),
         {"sizes": (0.9,), "steps": (0.3, 0.6), "offsets": (0.25, 0.75), "clip": True}),
    Case("vision.multibox_transform_loc", (PROB, LOC, ANCHOR),
         transform(True, 0.01, (0.1, 0.1, 0.2, 0.2))),
    Case("vision.multibox_transform_loc", (PROB, LOC, ANCHOR),
         transform(False, 0.4, (0.5, 0.4, 0.3, 0.2)),
         {"clip": False, "threshold": 0.4, "variances": (0.5, 0.4, 0.3, 0.2)}),
    Case("vision.multibox_transform_loc", (PROB, LOC, ANCHOR), attrs={"keep_background": True},
         refused="keep_background=True is not supported"),
    Case("vision.roi_align", (floats(1, 2, 4, 4), np.array([[0, 0, 0, 3, 3]], np.float32)),
         lambda x, _: torch.from_numpy(
             (x[:, :, :3, :3] + x[:, :, 1:, :3] + x[:, :, :3, 1:] + x[:, :, 1:, 1:]) / 4
         ), {"pooled_size": (3, 3), "spatial_scale": 1.0, "sample_ratio": 1}),
    Case("vision.roi_pool", (floats(1, 2, 4, 4), np.array([[0, 0, 0, 3, 3]], np.float32)),
         lambda x, _: x.reshape(1, 2, 2, 2, 2, 2).max((3, 5)),
         {"pooled_size": (2, 2), "spatial_scale": 1.0}),
    Case("vision.yolo_reorg", (np.arange(16, dtype=np.float32).reshape(1, 4, 2, 2),), reorg(2),
         {"stride": 2}),
    Case("vision.yolo_reorg", (floats(2, 8, 4, 6),), reorg(2), {"stride": 2}, label="more"),
    Case("vision.yolo_reorg", (floats(1, 3, 4, 4),), attrs={"stride": 2}, refused="divisible by 4"),
]  # fmt: skip
