"""What the converters of `boxes_by_class.py` have to give; the oracles are loops over boxes."""

import math

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

RNG = np.random.default_rng(3)


def overlap(a, b, edge=0.0):
    """Intersection over union of two boxes, given by two opposite corners."""
    w = min(a[2], b[2]) - max(a[0], b[0]) + edge
    h = min(a[3], b[3]) - max(a[1], b[1]) + edge
    shared = max(w, 0.0) * max(h, 0.0)
    area = [(c[2] - c[0] + edge) * (c[3] - c[1] + edge) for c in (a, b)]
    union = sum(area) - shared
    return shared / union if union > 0 else 0.0


def suppress(boxes, scores, candidates, limit, drops):
    kept = []
    for i in sorted(candidates, key=lambda i: -scores[i]):
        if len(kept) != limit and not any(drops(boxes[k], boxes[i]) for k in kept):
            kept.append(i)
    return kept


def by_class(limit, iou, threshold, tensorflow=False):
    def run(boxes, scores, *_):
        batch, classes, count = scores.shape
        found = [
            (b, c, i)
            for b in range(batch)
            for c in range(classes)
            for i in suppress(
                boxes[b],
                scores[b, c],
                np.flatnonzero(scores[b, c] > threshold),
                limit,
                lambda p, q: overlap(p, q) >= iou,
            )
        ]
        if not tensorflow:
            rows = np.full((batch * classes * count, 3), -1, np.int64)
            rows[: len(found)] = found
            return rows, np.array([len(found)])
        rows = np.full((batch, classes * count, 2), -1, np.int64)
        best, total = np.zeros((batch, classes * count), np.float32), np.zeros(batch, np.int64)
        for b, c, i in found:
            rows[b, total[b]], best[b, total[b]] = (c, i), scores[b, c, i]
            total[b] += 1
        return rows, best, total

    return run


def regular(limit, most, classes, iou, threshold):
    def run(boxes, scores):
        batch, _, columns = scores.shape
        places = [np.zeros((batch, most, 4), np.float32)] + [
            np.zeros((batch, most), np.float32) for _ in range(2)
        ]
        total = np.zeros(batch, np.int32)
        for b in range(batch):
            found = []
            for c in range(classes):
                own = scores[b, :, columns - classes + c]
                kept = suppress(
                    boxes[b],
                    own,
                    np.flatnonzero(own >= threshold),
                    limit,
                    lambda p, q: overlap(p, q) > iou,
                )
                found += [(own[i], c, i) for i in kept]
            found = sorted(found, key=lambda f: -f[0])[:most]
            total[b] = len(found)
            for k, (score, c, i) in enumerate(found):
                places[0][b, k], places[1][b, k], places[2][b, k] = boxes[b, i], c, score
        return (*places, total)

    return run


def proposal(scales, ratios, stride, iou, pre, post, least, iou_loss=False):
    def anchor(ratio, scale):
        centre = 0.5 * (stride - 1.0)
        w = math.floor(math.sqrt(math.floor(stride * stride / ratio)) + 0.5) * scale
        h = math.floor(w / scale * ratio + 0.5) * scale
        return np.array([-(w - 1) / 2, -(h - 1) / 2, (w - 1) / 2, (h - 1) / 2]) + centre

    def run(prob, pred, info):
        batch, _, height, width = prob.shape
        shapes = [(r, s) for r in ratios for s in scales]
        result = []
        for b in range(batch):
            boxes, scores = [], []
            for y in range(height):
                for x in range(width):
                    for k, shape in enumerate(shapes):
                        box = anchor(*shape) + np.array([x, y, x, y]) * stride
                        d = pred[b, 4 * k : 4 * k + 4, y, x].astype(np.float64)
                        if iou_loss:
                            box = box + d
                        else:
                            w, h = box[2] - box[0] + 1, box[3] - box[1] + 1
                            cx, cy = d[0] * w + box[0] + (w - 1) / 2, d[1] * h + box[1]
                            cy += (h - 1) / 2
                            w, h = np.exp(d[2]) * w, np.exp(d[3]) * h
                            w, h = (w - 1) / 2, (h - 1) / 2
                            box = np.array([cx - w, cy - h, cx + w, cy + h])
                        box = np.clip(box, 0, np.array([info[b, 1], info[b, 0]] * 2) - 1)
                        score = prob[b, len(shapes) + k, y, x]
                        if y >= int(info[b, 0] / stride) or x >= int(info[b, 1] / stride):
                            score = -1.0
                        size = info[b, 2] * least
                        if box[2] - box[0] + 1 < size or box[3] - box[1] + 1 < size:
                            box, score = box + np.array([-1, -1, 1, 1]) * size / 2, -1.0
                        boxes.append(box)
                        scores.append(score)
            order = sorted(range(len(boxes)), key=lambda i: -scores[i])[:pre]
            ranks = {i: -place for place, i in enumerate(order)}
            kept = suppress(boxes, ranks, order, -1, lambda p, q: overlap(p, q, 1.0) > iou)
            result += [(b, *boxes[kept[k % len(kept)]]) for k in range(post)]
        return np.array(result, np.float32)

    return run


def corners(*shape):
    ends = np.sort(RNG.uniform(0, 1, (*shape, 2, 2)), -2)
    return ends.reshape(*shape, 4).astype(np.float32)


BOXES, SCORES = corners(2, 7), RNG.uniform(0, 1, (2, 3, 7)).astype(np.float32)
LIMIT, IOU, THRESHOLD = np.array(3), np.array(0.3, np.float32), np.array(0.2, np.float32)
CALL = (BOXES, SCORES, LIMIT, IOU, THRESHOLD)
ONES = tuple(np.reshape(x, (1,)) for x in CALL[2:])
BY_BOX = np.ascontiguousarray(SCORES.transpose(0, 2, 1))
TFLITE = {
    "max_detections_per_class": 2,
    "max_detections": 4,
    "num_classes": 2,
    "iou_threshold": 0.3,
    "score_threshold": 0.2,
}
RPN = {"scales": (1.0, 2.0), "ratios": (0.5, 1.0), "feature_stride": 4}
PROB = RNG.permutation(1 * 8 * 3 * 4).reshape(1, 8, 3, 4).astype(np.float32) / 100
PRED = RNG.uniform(-0.5, 0.5, (1, 16, 3, 4)).astype(np.float32)
INFO = np.array([[12.0, 13.0, 1.0]], np.float32)

CASES = [
    Case("vision.all_class_non_max_suppression", CALL, by_class(3, 0.3, 0.2)),
    Case(
        "vision.all_class_non_max_suppression",
        (BOXES, SCORES, *ONES),
        by_class(3, 0.3, 0.2, True),
        {"output_format": "tensorflow"},
        constants=(2, 3, 4),
    ),
    Case(
        "vision.all_class_non_max_suppression",
        (BOXES, SCORES, np.array(-1, np.int32), np.float32(0.9), np.float32(0.0)),
        by_class(-1, 0.9, 0.0),
        label="all",
    ),
    Case(
        "vision.all_class_non_max_suppression",
        (BOXES, SCORES, LIMIT, np.float32(0.0), THRESHOLD),
        (np.full((42, 3), -1), np.array([0])),
        label="no overlap allowed",
    ),
    Case("vision.all_class_non_max_suppression", CALL, attrs={"output_format": "x"}, refused="x"),
    Case(
        "vision.regular_non_max_suppression",
        (BOXES, BY_BOX),
        regular(2, 4, 2, 0.3, 0.2),
        TFLITE,
        label="background",
    ),
    Case(
        "vision.regular_non_max_suppression",
        (BOXES, BY_BOX),
        regular(2, 40, 3, 0.3, 0.5),
        {**TFLITE, "max_detections": 40, "num_classes": 3, "score_threshold": 0.5},
        label="more than there are",
    ),
    Case(
        "vision.proposal",
        (PROB, PRED, INFO),
        proposal((1.0, 2.0), (0.5, 1.0), 4, 0.5, 20, 6, 3),
        {
            **RPN,
            "threshold": 0.5,
            "rpn_pre_nms_top_n": 20,
            "rpn_post_nms_top_n": 6,
            "rpn_min_size": 3,
        },
        label="regression",
    ),
    Case(
        "vision.proposal",
        (PROB, PRED, INFO),
        proposal((1.0, 2.0), (0.5, 1.0), 4, 0.05, 48, 30, 2, True),
        {
            **RPN,
            "threshold": 0.05,
            "rpn_pre_nms_top_n": -1,
            "rpn_post_nms_top_n": 30,
            "rpn_min_size": 2,
            "iou_loss": True,
        },
        label="differences, repeated",
    ),
]
