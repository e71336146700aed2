"""Operators that change shapes and move elements, by attributes or by inputs."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np

from tools.fuzz_models.onnx_graphs.draw import Draw, Node, Rejected, Row, Value


def axis_of(draw: Draw, x: Value, fixed: bool = False) -> int:
    """Return an axis of a value, also counted from behind."""
    axes = [i for i in range(x.ndim) if not fixed or x.fixed[i]]
    if not axes:
        raise Rejected("no axis")
    axis = draw.random.choice(axes)
    return axis - x.ndim if draw.chance(0.3) else axis


def computed(draw: Draw, *values: int) -> str:
    """Return the name of a vector of int64: a constant, or one that a node computes of another."""
    if draw.chance(0.8):
        return draw.ints(*values)
    (made,) = draw.add(Node("Identity", (draw.ints(*values),)))
    return made.name


def transpose(draw: Draw) -> Node:
    x = draw.pick()
    order = draw.random.sample(range(x.ndim), x.ndim)
    return Node("Transpose", (x.name,), {"perm": order} if order and draw.chance(0.8) else {})


def reshape(draw: Draw) -> Node:
    """Axes are merged, split or kept by 0; one extent is -1; or it is another value's shape."""
    x = draw.pick(lambda v: v.ndim >= 1 and prod(v.shape) > 0)
    shape: list[int] = []
    kind = draw.random.random()
    if kind < 0.3:
        shape = [-1]
    elif kind < 0.6:
        at = draw.random.randrange(x.ndim)
        shape = [0] * at + [-1]
    elif kind < 0.8 and x.fixed[-1]:
        shape = [-1, x.shape[-1]]
    elif kind < 0.9:
        like = draw.pick(lambda v: [prod(s) for s in v.shapes] == [prod(s) for s in x.shapes])
        (made,) = draw.add(Node("Shape", (like.name,)))
        return Node("Reshape", (x.name, made.name))
    else:
        (made,) = draw.add(Node("Shape", (x.name,)))
        if draw.opset < 13:
            (first,) = draw.add(Node("Slice", *_head(draw, made)))
        else:
            (first,) = draw.add(Node("Gather", (made.name, draw.ints(0))))
        (whole,) = draw.add(Node("Concat", (first.name, draw.ints(-1)), {"axis": 0}))
        return Node("Reshape", (x.name, whole.name))
    return Node("Reshape", (x.name, computed(draw, *shape)))


def _head(draw: Draw, x: Value) -> tuple[tuple[str, ...], dict[str, Any]]:
    if draw.opset < 10:
        return (x.name,), {"starts": [0], "ends": [1]}
    return (x.name, draw.ints(0), draw.ints(1)), {}


def flatten(draw: Draw) -> Node:
    x = draw.pick(lambda v: v.ndim >= 1)
    low = -x.ndim if draw.opset >= 11 else 0
    return Node("Flatten", (x.name,), {"axis": draw.random.randint(low, x.ndim)})


def squeeze(draw: Draw) -> Node:
    x = draw.pick(lambda v: any(f and e == 1 for e, f in zip(v.shape, v.fixed, strict=True)))
    ones = [i for i in range(x.ndim) if x.fixed[i] and x.shape[i] == 1]
    axes = draw.random.sample(ones, draw.random.randint(1, len(ones)))
    return _with_axes(draw, "Squeeze", x, axes)


def unsqueeze(draw: Draw) -> Node:
    x = draw.pick(lambda v: v.ndim <= 3)
    axes = draw.random.sample(range(x.ndim + 1), draw.random.randint(1, min(2, x.ndim + 1)))
    if draw.opset >= 13 and draw.chance(0.3):  # before, the reference evaluator is wrong
        axes = [a - x.ndim - len(axes) for a in axes]
    return _with_axes(draw, "Unsqueeze", x, sorted(axes))


def _with_axes(draw: Draw, op: str, x: Value, axes: list[int]) -> Node:
    if draw.opset < 13:
        return Node(op, (x.name,), {"axes": axes})
    return Node(op, (x.name, draw.ints(*axes)))


def concat(draw: Draw) -> Node:
    x = draw.pick(lambda v: v.ndim >= 1)
    axis = axis_of(draw, x)
    at = axis % x.ndim

    def fits(v: Value) -> bool:
        same = v.ndim == x.ndim and v.dtype == x.dtype
        return same and all(
            s[:at] + s[at + 1 :] == t[:at] + t[at + 1 :]
            for s, t in zip(x.shapes, v.shapes, strict=True)
        )

    names = [draw.pick(fits).name for _ in range(draw.random.randint(1, 2))]
    return Node("Concat", (x.name, *names), {"axis": axis})


def split(draw: Draw) -> Node:
    x = draw.pick(lambda v: any(f and e >= 2 for e, f in zip(v.shape, v.fixed, strict=True)))
    axes = [i for i in range(x.ndim) if x.fixed[i] and x.shape[i] >= 2]
    axis = draw.random.choice(axes)
    extent = x.shape[axis]
    first = draw.random.randint(1, extent - 1)
    sizes = [first, extent - first]
    if draw.chance(0.3) and (extent % 2 == 0 or draw.opset >= 18):
        more = {"num_outputs": 2} if draw.opset >= 18 else {}
        return Node("Split", (x.name,), {"axis": axis, **more}, 2)
    if draw.opset < 13:
        return Node("Split", (x.name,), {"axis": axis, "split": sizes}, 2)
    return Node("Split", (x.name, computed(draw, *sizes)), {"axis": axis}, 2)


def slice_(draw: Draw) -> Node:
    """Bounds beyond the axis, from behind, and backwards."""
    x = draw.pick(lambda v: v.ndim >= 1)
    axes = draw.random.sample(range(x.ndim), draw.random.randint(1, min(2, x.ndim)))
    starts, ends, steps = [], [], []
    for axis in axes:
        extent = min(s[axis] for s in x.shapes)
        start, end = draw.random.randint(-extent, extent), draw.random.randint(-extent, extent + 3)
        step = (
            draw.random.choice((1, 1, 1, 2))
            if draw.opset < 10
            else draw.random.choice((1, 1, 2, -1, -2))
        )
        if draw.chance(0.3):
            end = (1 << 62) if step > 0 else -(1 << 62)
        starts.append(start)
        ends.append(end)
        steps.append(step)
    if draw.opset < 10:
        return Node("Slice", (x.name,), {"starts": starts, "ends": ends, "axes": axes})
    given = [computed(draw, *starts), computed(draw, *ends), computed(draw, *axes)]
    if any(s != 1 for s in steps) or draw.chance(0.3):
        given.append(draw.ints(*steps))
    return Node("Slice", (x.name, *given))


def expand(draw: Draw) -> Node:
    x = draw.pick(lambda v: v.ndim <= 4)
    shape = [
        draw.random.randint(2, 3) if f and e == 1 else 1
        for e, f in zip(x.shape, x.fixed, strict=True)
    ]
    if draw.chance(0.4):
        shape = [2, *shape]
    if draw.chance(0.3):
        like = draw.pick(lambda v: v.ndim <= 4)
        (made,) = draw.add(Node("Shape", (like.name,)))
        return Node("Expand", (x.name, made.name))
    return Node(
        "Expand",
        (x.name, computed(draw, *shape) if shape else draw.constant(np.zeros(0, np.int64))),
    )


def tile(draw: Draw) -> Node:
    x = draw.pick(lambda v: 1 <= v.ndim <= 4)
    return Node(
        "Tile", (x.name, computed(draw, *(draw.random.choice((1, 1, 2)) for _ in range(x.ndim))))
    )


def pad(draw: Draw) -> Node:
    x = draw.pick(lambda v: v.ndim >= 1 and v.is_float)
    modes = ["constant", "reflect", "edge"] + (["wrap"] if draw.opset >= 19 else [])
    mode = draw.random.choice(modes)
    least = [min(s[i] for s in x.shapes) for i in range(x.ndim)]
    most = [(2 if mode == "constant" else max(e - 1, 0)) for e in least]
    pads = [draw.random.randint(0, min(2, m)) for m in (*most, *most)]
    if mode == "constant" and draw.chance(0.2) and all(e > 2 for e in least):
        pads[0] = -1
    if draw.opset < 11:
        return Node("Pad", (x.name,), {"mode": mode, "pads": pads, "value": 0.5})
    value = draw.constant(np.array(0.5, x.dtype))
    names = (x.name, computed(draw, *pads)) + (
        (value,) if mode == "constant" and draw.chance(0.6) else ()
    )
    return Node("Pad", names, {"mode": mode})


def shape_(draw: Draw) -> Node:
    x = draw.pick()
    attributes = {}
    if draw.opset >= 15 and draw.chance(0.4):
        attributes = {"start": draw.random.randint(-2, 2), "end": draw.random.randint(-2, 3)}
    return Node("Shape", (x.name,), attributes)


def of_size(draw: Draw) -> Node:
    return Node("Size", (draw.pick().name,))


def constant_of_shape(draw: Draw) -> Node:
    from onnx import numpy_helper

    (made,) = draw.add(Node("Shape", (draw.pick(lambda v: v.ndim <= 4).name,)))
    value = numpy_helper.from_array(
        draw.array((1,), draw.random.choice(("float32", "int64", "bool")))
    )
    return Node("ConstantOfShape", (made.name,), {"value": value} if draw.chance(0.7) else {})


def depth_to_space(draw: Draw, op: str) -> Node:
    x = draw.pick(lambda v: v.ndim == 4 and v.is_float)
    if op == "SpaceToDepth" and any(n % 2 for shape in x.shapes for n in shape[2:]):
        raise Rejected("the block size divides no odd extent")
    attributes: dict[str, Any] = {"blocksize": 2}
    if op == "DepthToSpace" and draw.opset >= 11:
        attributes["mode"] = draw.random.choice(("DCR", "CRD"))
    return Node(op, (x.name,), attributes)


def trilu(draw: Draw) -> Node:
    if draw.opset < 14:
        raise Rejected("too old")
    x = draw.pick(lambda v: v.ndim >= 2)
    k = (draw.constant(np.array(draw.random.randint(-2, 2))),) if draw.chance(0.6) else ()
    return Node("Trilu", (x.name, *k), {"upper": draw.random.randint(0, 1)})


def eye_like(draw: Draw) -> Node:
    x = draw.pick(lambda v: v.ndim == 2)
    return Node("EyeLike", (x.name,), {"k": draw.random.randint(-1, 1), "dtype": 1})


def range_(draw: Draw) -> Node:
    """Bounds that are known, or the extent of an axis."""
    if draw.opset < 11:
        raise Rejected("too old")
    if draw.chance(0.5):
        (made,) = draw.add(Node("Size", (draw.pick(lambda v: prod(v.shape) < 100).name,)))
        limit = made.name
    else:
        limit = draw.constant(np.array(draw.random.randint(0, 6)))
    start = draw.constant(np.array(draw.random.randint(-2, 1)))
    return Node("Range", (start, limit, draw.constant(np.array(draw.random.choice((1, 2))))))


def reverse(draw: Draw) -> Node:
    if draw.opset < 10:
        raise Rejected("too old")
    x = draw.pick(lambda v: v.ndim >= 2 and v.fixed[0])
    least = min(s[1] for s in x.shapes)
    lengths = draw.array((x.shape[0],), "int64", 1, max(least, 1))
    return Node(
        "ReverseSequence", (x.name, draw.constant(lengths)), {"batch_axis": 0, "time_axis": 1}
    )


ROWS: dict[str, Row] = {
    "Transpose": transpose,
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Expand": expand,
    "Tile": tile,
    "Pad": pad,
    "Shape": shape_,
    "Size": of_size,
    "ConstantOfShape": constant_of_shape,
    "DepthToSpace": partial(depth_to_space, op="DepthToSpace"),
    "SpaceToDepth": partial(depth_to_space, op="SpaceToDepth"),
    "Trilu": trilu,
    "EyeLike": eye_like,
    "Range": range_,
    "ReverseSequence": reverse,
}
