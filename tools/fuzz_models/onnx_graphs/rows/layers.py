"""Layers: products, convolutions, pools, normalisations, and quantisation."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tools.fuzz_models.onnx_graphs.draw import Draw, Node, Rejected, Row, Value


def weights(
    draw: Draw, shape: tuple[int, ...], dtype: str, low: float = -1, high: float = 1
) -> str:
    return draw.constant(draw.array(shape, dtype, low, high))


def matmul(draw: Draw) -> Node:
    x = draw.pick(lambda v: v.ndim >= 1 and v.is_float)
    if draw.chance(0.3):
        fits = lambda v: v.ndim >= 1 and v.dtype == x.dtype  # noqa: E731
        return Node("MatMul", (x.name, draw.pick(fits).name))
    if not x.fixed[-1]:
        raise Rejected("the inner extent is not fixed")
    width = draw.random.randint(1, 4)
    shape: tuple[int, ...] = (x.shape[-1], width)
    if draw.chance(0.2):
        shape = (x.shape[-1],)
    elif x.ndim >= 3 and x.fixed[-3] and draw.chance(0.4):
        shape = (x.shape[-3], *shape)
    return Node("MatMul", (x.name, weights(draw, shape, x.dtype)))


def gemm(draw: Draw) -> Node:
    x = draw.pick(lambda v: v.ndim == 2 and v.is_float and any(v.fixed))
    attributes: dict[str, Any] = {}
    inner = 1
    if not x.fixed[1] or (x.fixed[0] and draw.chance(0.3)):
        attributes["transA"] = 1
        inner = 0
    width = draw.random.randint(1, 4)
    shape = (x.shape[inner], width)
    if draw.chance(0.5):
        attributes["transB"] = 1
        shape = shape[::-1]
    for name in ("alpha", "beta"):
        if draw.chance(0.3):
            attributes[name] = draw.random.uniform(0.5, 2)
    names = [x.name, weights(draw, shape, x.dtype)]
    if draw.opset < 11 or draw.chance(0.7):
        names.append(weights(draw, draw.random.choice(((width,), (1, width), (1,))), x.dtype))
    return Node("Gemm", tuple(names), attributes)


def _image(draw: Draw) -> Value:
    return draw.pick(
        lambda v: (
            v.ndim in (3, 4) and v.dtype in ("float32", "float64") and v.fixed[1] and v.shape[1] > 0
        )
    )


def _window(draw: Draw, x: Value) -> tuple[list[int], dict[str, Any]]:
    """Return a kernel and how it is moved, so that it fits at all sizes."""
    rank = x.ndim - 2
    least = [min(s[2 + i] for s in x.shapes) for i in range(rank)]
    kernel = [draw.random.randint(1, max(1, min(3, e))) for e in least]
    attributes: dict[str, Any] = {}
    if draw.chance(0.5):
        attributes["strides"] = [draw.random.randint(1, 2) for _ in range(rank)]
    if draw.chance(0.3):
        attributes["auto_pad"] = draw.random.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
        attributes.pop("strides", None)  # beyond the kernel the reference evaluator is wrong
    elif draw.chance(0.6):
        attributes["pads"] = [draw.random.randint(0, k - 1) for k in (*kernel, *kernel)]
    return kernel, attributes


def conv(draw: Draw) -> Node:
    x = _image(draw)
    kernel, attributes = _window(draw, x)
    channels = x.shape[1]
    groups = channels if draw.chance(0.3) else 1
    if draw.chance(0.3) and "auto_pad" not in attributes:
        attributes["dilations"] = [draw.random.randint(1, 2) for _ in kernel]
    out = groups * draw.random.randint(1, 2)
    w = weights(draw, (out, channels // groups, *kernel), x.dtype)
    bias = (weights(draw, (out,), x.dtype),) if draw.chance(0.6) else ()
    if draw.chance(0.5):
        attributes["kernel_shape"] = kernel
    return Node("Conv", (x.name, w, *bias), {**attributes, "group": groups})


def conv_transpose(draw: Draw) -> Node:
    x = _image(draw)
    kernel, attributes = _window(draw, x)
    attributes.pop("auto_pad", None)
    channels = x.shape[1]
    if "strides" in attributes and draw.chance(0.4):
        attributes["output_padding"] = [s - 1 for s in attributes["strides"]]
    w = weights(draw, (channels, draw.random.randint(1, 3), *kernel), x.dtype)
    return Node("ConvTranspose", (x.name, w), attributes)


def pool(draw: Draw, op: str) -> Node:
    x = _image(draw)
    kernel, attributes = _window(draw, x)
    if "pads" in attributes:  # of others the reference evaluator mixes axes and sides up
        attributes["pads"] = [min(attributes["pads"])] * (2 * len(kernel))
    attributes["kernel_shape"] = kernel
    # With pads the reference evaluator rounds up in other cases.
    plain = "auto_pad" not in attributes and "pads" not in attributes
    if plain and draw.opset >= 10 and draw.chance(0.3):
        attributes["ceil_mode"] = 1
    if op == "AveragePool" and draw.chance(0.4):
        attributes["count_include_pad"] = 1
    if op == "LpPool":
        attributes.pop("ceil_mode", None)
        attributes["p"] = draw.random.randint(1, 2)
    return Node(op, (x.name,), attributes)


def global_pool(draw: Draw, op: str) -> Node:
    # The reference evaluator's maximum of other than images has another shape.
    x = draw.pick(lambda v: v.ndim == 4 and v.dtype in ("float32", "float64"))
    return Node(op, (x.name,))


def batch_norm(draw: Draw) -> Node:
    if draw.opset < 14:
        raise Rejected("the reference evaluator computes statistics")
    x = draw.pick(lambda v: v.ndim >= 2 and v.fixed[1] and v.dtype == "float32")
    count = x.shape[1]
    names = [weights(draw, (count,), x.dtype) for _ in range(3)]
    names.append(weights(draw, (count,), x.dtype, 0.5, 2))
    attributes = {"epsilon": 1e-3} if draw.chance(0.5) else {}
    return Node("BatchNormalization", (x.name, *names), attributes)


def instance_norm(draw: Draw) -> Node:
    x = draw.pick(
        lambda v: (
            v.ndim >= 3
            and v.fixed[1]
            and v.dtype == "float32"
            and min(min(s[2:]) for s in v.shapes) > 1
        )
    )
    count = x.shape[1]
    names = [weights(draw, (count,), x.dtype) for _ in range(2)]
    return Node("InstanceNormalization", (x.name, *names), {"epsilon": 1e-2})


def layer_norm(draw: Draw) -> Node:
    if draw.opset < 17:
        raise Rejected("too old")
    x = draw.pick(
        lambda v: v.ndim >= 2 and v.fixed[-1] and v.dtype == "float32" and v.shape[-1] > 1
    )
    axis = -1
    if x.ndim >= 3 and x.fixed[-2] and draw.chance(0.4):
        axis = -2
    names = [x.name, weights(draw, x.shape[axis:], x.dtype)]
    if draw.chance(0.6):
        names.append(weights(draw, x.shape[axis:], x.dtype))
    return Node("LayerNormalization", tuple(names), {"axis": axis, "epsilon": 1e-2})


def rms_norm(draw: Draw) -> Node:
    if draw.opset < 23:
        raise Rejected("too old")
    x = draw.pick(lambda v: v.ndim >= 2 and v.fixed[-1] and v.dtype == "float32")
    return Node(
        "RMSNormalization", (x.name, weights(draw, x.shape[-1:], x.dtype)), {"epsilon": 1e-2}
    )


def group_norm(draw: Draw) -> Node:
    if draw.opset < 21:
        raise Rejected("too old")
    x = draw.pick(
        lambda v: v.ndim >= 3 and v.fixed[1] and v.dtype == "float32" and v.shape[1] % 2 == 0
    )
    count = x.shape[1]
    names = [weights(draw, (count,), x.dtype) for _ in range(2)]
    return Node("GroupNormalization", (x.name, *names), {"num_groups": 2, "epsilon": 1e-2})


def lrn(draw: Draw) -> Node:
    # The reference evaluator normalises as many channels as there are images.
    x = draw.pick(
        lambda v: v.ndim == 4 and v.dtype == "float32" and all(s[0] == s[1] for s in v.shapes)
    )
    return Node("LRN", (x.name,), {"size": draw.random.choice((1, 3)), "alpha": 0.1, "beta": 0.7})


def quantize(draw: Draw) -> Node:
    x = draw.pick(lambda v: v.dtype == "float32" and v.ndim >= 1)
    per_axis = draw.opset >= 13 and x.fixed[-1] and draw.chance(0.5)
    shape = x.shape[-1:] if per_axis else ()
    kind = draw.random.choice(("uint8", "int8"))
    zero = draw.array(shape, kind, 0, 9)
    names = (x.name, draw.constant(draw.array(shape, "float32", 0.05, 0.1)), draw.constant(zero))
    attributes = {"axis": -1} if draw.opset >= 13 else {}
    (q,) = draw.add(Node("QuantizeLinear", names, attributes))
    return Node("DequantizeLinear", (q.name, *names[1:]), attributes)


def dynamic_quantize(draw: Draw) -> Node:
    if draw.opset < 11:
        raise Rejected("too old")
    x = draw.pick(lambda v: v.dtype == "float32" and v.ndim >= 1)
    return Node("DynamicQuantizeLinear", (x.name,), {}, 3)


def resize(draw: Draw) -> Node:
    if draw.opset < 11:
        raise Rejected("too old")
    x = draw.pick(lambda v: v.ndim == 4 and v.dtype == "float32")
    mode = draw.random.choice(("nearest", "linear", "cubic"))
    transforms = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": draw.random.choice(transforms),
    }
    if mode == "nearest":
        modes = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        attributes["nearest_mode"] = draw.random.choice(modes)
    empty = draw.constant(np.zeros(0, np.float32)) if draw.opset < 13 else ""
    if all(x.fixed) and draw.chance(0.4):
        sizes = [*x.shape[:2], *(draw.random.randint(1, 8) for _ in range(2))]
        return Node("Resize", (x.name, empty, empty, draw.ints(*sizes)), attributes)
    scales = np.array([1, 1, *draw.random.choices((2.0, 0.5, 1.5, 3.0, 1.0), k=2)], np.float32)
    return Node("Resize", (x.name, empty, draw.constant(scales)), attributes)


def einsum(draw: Draw) -> Node:
    if draw.opset < 12:
        raise Rejected("too old")
    x = draw.pick(lambda v: v.ndim in (2, 3) and v.is_float)
    if x.ndim == 2:
        texts = ("ij->ji", "ij->i", "ij,ij->ij", "ij,kj->ik", "ij,ij->")
    else:
        texts = ("bij->bji", "bij,bij->b", "bij,bkj->bik", "bij->ij", "...ij->...ji")
    text = draw.random.choice(texts)
    return Node("Einsum", (x.name,) * (1 + text.count(",")), {"equation": text})


def dropout(draw: Draw) -> Node:
    return Node("Dropout", (draw.pick(lambda v: v.is_float).name,))


ROWS: dict[str, Row] = {
    "MatMul": matmul,
    "Gemm": gemm,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    **{op: partial(pool, op=op) for op in ("MaxPool", "AveragePool", "LpPool")},
    **{op: partial(global_pool, op=op) for op in ("GlobalAveragePool", "GlobalMaxPool")},
    "BatchNormalization": batch_norm,
    "InstanceNormalization": instance_norm,
    "LayerNormalization": layer_norm,
    "RMSNormalization": rms_norm,
    "GroupNormalization": group_norm,
    "LRN": lrn,
    "QuantizeLinear": quantize,
    "DynamicQuantizeLinear": dynamic_quantize,
    "Resize": resize,
    "Einsum": einsum,
    "Dropout": dropout,
}
