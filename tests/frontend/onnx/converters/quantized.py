"""Cases of `meta/frontend/onnx/converters/quantized.py`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.frontend.onnx.records import OnnxCase, data

X = data(2, 3, 4, low=-9, high=9)
X[0, 0, :3] = (1e8, -1e8, np.nan)
SCALE, SCALES = np.array(0.35, np.float32), np.array([0.2, 0.5, 1.5], np.float32)
BLOCKS = data(2, 3, 2, low=0.1, high=0.9)
NAMES = {
    "uint8": np.uint8,
    "int8": np.int8,
    "uint16": np.uint16,
    "int16": np.int16,
    "uint4": ml_dtypes.uint4,
    "int4": ml_dtypes.int4,
    "uint2": ml_dtypes.uint2,
    "int2": ml_dtypes.int2,
    "float8e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8e5m2": ml_dtypes.float8_e5m2,
    "float8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "float4e2m1": ml_dtypes.float4_e2m1fn,
}
FLOAT = tuple(n for n in NAMES if n.startswith("float"))


def zero(name: str, *shape: int) -> np.ndarray:
    return np.full(shape, 0 if name in FLOAT else 1).astype(NAMES[name])


def levels(name: str) -> np.ndarray:
    """Return numbers of a dtype, [2, 3, 4]."""
    if name in FLOAT:
        return data(2, 3, 4, low=-5, high=5).astype(NAMES[name])
    info = ml_dtypes.iinfo(NAMES[name])
    return data(2, 3, 4, low=int(info.min), high=int(info.max)).astype(int).astype(NAMES[name])


A, B = data(3, 4, low=0, high=255).astype(np.uint8), data(4, 2, low=-99, high=99).astype(np.int8)
PIXELS = data(1, 3, 5, 5, low=0, high=255).astype(np.uint8)
KERNEL = data(4, 3, 3, 3, low=-128, high=127).astype(np.int8)
U8 = np.array(7, np.uint8)
CASES = [
    *(
        OnnxCase(
            "QuantizeLinear",
            f"(float[2, 3, 4] x, float s, {name} z) => ({name}[2, 3, 4] y) "
            "{ y = QuantizeLinear(x, s, z) }",
            (X, SCALE, zero(name)),
            25,
            label=name,
        )
        for name in NAMES
    ),
    *(
        OnnxCase(
            "QuantizeLinear",
            f"(float[2, 3, 4] x, float[3] s, {name}[3] z) => ({name}[2, 3, 4] y) "
            "{ y = QuantizeLinear<axis = -2>(x, s, z) }",
            (X, SCALES, zero(name, 3)),
            21,
            label=f"axis-{name}",
        )
        for name in ("uint8", "int4", "float8e4m3fn")
    ),
    OnnxCase(
        "QuantizeLinear",
        "(float[2, 3, 4] x, float[2, 3, 2] s) => (int8[2, 3, 4] y) "
        "{ y = QuantizeLinear<axis = 2, block_size = 2, output_dtype = 3>(x, s) }",
        (X, BLOCKS),
        21,
        label="blocks",
    ),
    OnnxCase(
        "QuantizeLinear",
        "(float[2, 3, 3] x, float[2, 3, 2] s) => (uint8[2, 3, 3] y) "
        "{ y = QuantizeLinear<axis = 2, block_size = 2>(x, s) }",
        (X[:, :, :3], BLOCKS),
        21,
        label="blocks-that-do-not-divide",
    ),
    OnnxCase(
        "QuantizeLinear",
        "(float16[2, 3, 4] x, float16 s) => (uint8[2, 3, 4] y) { y = QuantizeLinear(x, s) }",
        (data(2, 3, 4).astype(np.float16), np.array(0.01, np.float16)),
        21,
        label="half",
    ),
    OnnxCase(
        "QuantizeLinear",
        "(float16[2, 3, 4] x, float16 s) => (uint8[2, 3, 4] y) "
        "{ y = QuantizeLinear<precision = 1>(x, s) }",
        (data(2, 3, 4).astype(np.float16), np.array(0.01, np.float16)),
        23,
        label="precision",
    ),
    OnnxCase(
        "QuantizeLinear",
        "(float[4] x, float s, float8e4m3fn z) => (float8e4m3fn[4] y) "
        "{ y = QuantizeLinear<saturate = 0>(x, s, z) }",
        (np.array([1e4, -1e4, 3.0, 0.1], np.float32), SCALE, zero("float8e4m3fn")),
        19,
        label="not-saturated",
    ),
    OnnxCase(
        "QuantizeLinear",
        "(float[2, 3, 4] x, float s) => (int8[2, 3, 4] y) { y = QuantizeLinear(x, s) }",
        (X, SCALES),
        10,
        refused="along axis 1|has another type",
        label="scale",
    ),
    *(
        OnnxCase(
            "DequantizeLinear",
            f"({name}[2, 3, 4] x, float s, {name} z) => (float[2, 3, 4] y) "
            "{ y = DequantizeLinear(x, s, z) }",
            (levels(name), SCALE, zero(name)),
            25,
            label=name,
        )
        for name in NAMES
    ),
    OnnxCase(
        "DequantizeLinear",
        "(int32[3] x, float s) => (float[3] y) { y = DequantizeLinear(x, s) }",
        (np.array([2**31 - 1, -(2**31), 5], np.int32), SCALE),
        13,
        expected=lambda x, s: x.astype(np.float32) * s,
        label="int32",
    ),
    OnnxCase(
        "DequantizeLinear",
        "(int4[2, 3, 4] x, float16[2, 3, 2] s, int4[2, 3, 2] z) => (float16[2, 3, 4] y) "
        "{ y = DequantizeLinear<axis = 2, block_size = 2>(x, s, z) }",
        (levels("int4"), BLOCKS.astype(np.float16), zero("int4", 2, 3, 2)),
        21,
        label="blocks",
    ),
    OnnxCase(
        "DequantizeLinear",
        "(uint8[2, 3, 4] x, float[3] s, uint8[3] z) => (float16[2, 3, 4] y) "
        "{ y = DequantizeLinear<output_dtype = 10>(x, s, z) }",
        (levels("uint8"), SCALES, zero("uint8", 3)),
        23,
        label="output_dtype",
    ),
    *(
        OnnxCase(
            "DynamicQuantizeLinear",
            "(float[N] x) => (uint8[N] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear(x) }",
            (np.array(x, np.float32),),
            11,
            label=str(i),
        )
        for i, x in enumerate([(0, 2, -3, 2.5, 1.3), (-1, -2.1), (1, 2.1, 4.3), (0, 0)])
    ),
    OnnxCase(
        "MatMulInteger",
        "(uint8[3, 4] a, int8[4, 2] b, uint8 za, int8[2] zb) => (int32[3, 2] y) "
        "{ y = MatMulInteger(a, b, za, zb) }",
        (A, B, U8, np.array([3, -2], np.int8)),
        10,
    ),
    OnnxCase(
        "MatMulInteger",
        "(uint8[3, 4] a, int8[4, 2] b, uint8[3] za) => (int32[3, 2] y) "
        "{ y = MatMulInteger(a, b, za) }",
        (A, B, np.array([1, 2, 3], np.uint8)),
        10,
        expected=lambda a, b, z: (a.astype(np.int32) - z[:, None]) @ b.astype(np.int32),
        label="rows",
    ),
    *(
        OnnxCase(
            "QLinearMatMul",
            "(uint8[3, 4] a, float sa, uint8 za, int8[4, 2] b, float[2] sb, int8[2] zb, float sy, "
            "uint8 zy) => (uint8[3, 2] y) { y = QLinearMatMul(a, sa, za, b, sb, zb, sy, zy) }",
            (A, SCALE, U8, B, SCALES[:2], np.array([3, -2], np.int8), scale, U8),
            opset,
            label=str(scale),
        )
        for scale in (np.array(90.0, np.float32), np.array(500.0, np.float32))
        for opset in (10, 21)
    ),
    OnnxCase(
        "ConvInteger",
        "(uint8[1, 3, 5, 5] x, int8[4, 3, 3, 3] w, uint8 z) => (int32 y) "
        "{ y = ConvInteger<pads = [1, 1, 1, 1]>(x, w, z) }",
        (PIXELS, KERNEL, U8),
        10,
        expected=lambda x, w, z: _convolved(x, w, 7, 1),
    ),
    OnnxCase(
        "QLinearConv",
        "(uint8[1, 3, 5, 5] x, float sx, uint8 zx, int8[4, 3, 3, 3] w, float[4] sw, int8 zw, "
        "float sy, uint8 zy, int32[4] b) => (uint8 y) "
        "{ y = QLinearConv<strides = [2, 2]>(x, sx, zx, w, sw, zw, sy, zy, b) }",
        (
            *(PIXELS, SCALE, U8, KERNEL, np.array([0.1, 0.2, 0.3, 0.4], np.float32)),
            *(np.array(0, np.int8), np.array(99.0, np.float32), np.array(128, np.uint8)),
            np.array([100, -200, 300, 0], np.int32),
        ),
        10,
        expected=lambda x, sx, zx, w, sw, zw, sy, zy, b: np.clip(
            np.rint(
                (_convolved(x, w, 7, 0)[:, :, ::2, ::2] + b.reshape(1, 4, 1, 1))
                * (sx * sw.reshape(1, 4, 1, 1) / sy).astype(np.float64)
            )
            + 128,
            0,
            255,
        ).astype(np.uint8),
    ),
]


def _convolved(x: np.ndarray, w: np.ndarray, zero: int, pad: int) -> np.ndarray:
    """Return a convolution by kernels of 3 x 3, exactly."""
    wide = np.pad(x.astype(np.int64) - zero, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w.astype(np.int64)).astype(np.int32)


def _quantised(x: Any) -> Any:
    """Return what the 256 numbers of the range of x and 0 make of it."""
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = (high - low) / 255 or 1
    zero = np.round(-low / scale)
    return (np.clip(np.round(x / scale) + zero, 0, 255) - zero) * scale


def _quantised_lstm(x: Any, w: Any, r: Any, b: Any, ws: Any, wz: Any, rs: Any, rz: Any) -> Any:
    """Return Y and the last states of DynamicQuantizeLSTM, in one direction."""
    w, r = ((q[0].astype(np.float64) - z[0]) * s[0] for q, z, s in ((w, wz, ws), (r, rz, rs)))
    rows, bias = _quantised(x.astype(np.float64)), np.split(b[0].astype(np.float64), 2)
    h = c = np.zeros((x.shape[1], r.shape[0]))
    ys = []
    for row in rows:
        seen = np.stack([_quantised(one) for one in h])
        i, o, f, g = np.split(row @ w + seen @ r + sum(bias), 4, 1)
        i, o, f = (1 / (1 + np.exp(-v)) for v in (i, o, f))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        ys.append(h)
    return tuple(v.astype(np.float32) for v in (np.stack(ys)[:, None], h[None], c[None]))


def _bytes(*shape: int, dtype: str = "uint8") -> Any:
    limits = np.iinfo(dtype)
    return np.random.default_rng(3).integers(limits.min, limits.max, shape).astype(dtype)


CASES += [
    OnnxCase(
        "com.microsoft.DynamicQuantizeLSTM",
        f"(float[4, 2, 3] x, {kind}[1, 3, 20] w, {kind}[1, 5, 20] r, float[1, 40] b, "
        f"float{list(scale.shape)} ws, {kind}{list(scale.shape)} wz, float{list(scale.shape)} rs, "
        f"{kind}{list(scale.shape)} rz) => (float y, float h, float c) {{ y, h, c = "
        "com.microsoft.DynamicQuantizeLSTM<hidden_size = 5>"
        "(x, w, r, b, , , , , ws, wz, rs, rz) }",
        (
            data(4, 2, 3),
            _bytes(1, 3, 20, dtype=kind),
            _bytes(1, 5, 20, dtype=kind),
            data(1, 40),
            scale,
            zero.astype(kind),
            scale,
            zero.astype(kind),
        ),
        17,
        (("com.microsoft", 1),),
        expected=_quantised_lstm,
        tolerance=1e-4,
        label=f"{kind}-{scale.ndim}",
    )
    for kind, scale, zero in (
        ("uint8", np.array([0.01], np.float32), np.array([128])),
        ("int8", data(1, 20, low=0.002, high=0.01), np.zeros((1, 20))),
    )
]
