"""Cases of `meta/frontend/onnx/converters/cast.py`: every pair of dtypes with their odd numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

from tests.frontend.onnx.records import OnnxCase

ODD = [0.0, -0.0, 0.26, -0.25, 0.75, 1.25, 1.75, -2.5, 3.5, 5.0, 7.9, 17.5, 100.3, -126.0]
EXTREME = [248.0, 244.0, 464.0, 465.0, -500.0, 61440.0, 6e4, 1e-3, 2.0**-10, 1.4e-5, 3e38]
SPECIAL = [np.inf, -np.inf, np.nan]
FLOATS = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")
FLOAT8 = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
SMALL = ("INT4", "UINT4", "INT2", "UINT2")
WHOLE = ("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64")


def values(kind: str, numbers: list[float]) -> Any:
    """Return numbers in a dtype, one without all of them in its own."""
    dtype = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, kind))
    if kind in (*SMALL, *WHOLE):
        info = ml_dtypes.iinfo(dtype)
        found = [0, 1, int(info.min), int(info.max), min(int(info.max), 3), 2 % (info.max + 1)]
        return np.array(found, np.int64 if kind != "UINT64" else np.uint64).astype(dtype)
    with np.errstate(all="ignore"):
        return np.array(numbers, np.float64).astype(np.float32).astype(dtype)


def case(source: str, target: str, numbers: list[float], attributes: str = "") -> OnnxCase:
    """Return the cast of numbers from one dtype to another."""
    kind = getattr(TensorProto, target)
    name = source.lower()
    graph = f"({name}[N] x) => ({target.lower()}[N] y) {{ y = Cast<to = {kind}{attributes}>(x) }}"
    label = f"{source}-{target}{attributes.replace(' ', '').replace(',', '-')}"
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    both = source in SMALL and target in SMALL  # of which the reference evaluator has no cast
    expected = (lambda x: x.astype(np.int32).astype(dtype)) if both else None
    return OnnxCase("Cast", graph, (values(source, numbers),), 25, expected=expected, label=label)


def power_above(x: Any) -> Any:
    """Return the nearest power of two that is not below, as ONNX's table has it."""
    with np.errstate(all="ignore"):
        exponent = np.clip(np.ceil(np.log2(x.astype(np.float64))), -127, 127)
    return np.where(np.isnan(x), np.nan, 2.0**exponent).astype(ml_dtypes.float8_e8m0fnu)


SCALES = np.array([0.0, 1.0, 1.1, 3.0, 4.0, 1e-40, 2.0**-127, 3e38, np.inf, np.nan], np.float32)
CASES = [
    *(case(a, b, ODD + EXTREME + SPECIAL) for a in FLOATS for b in FLOAT8),
    *(case(a, b, ODD + EXTREME + SPECIAL, ", saturate = 0") for a in FLOATS for b in FLOAT8),
    *(case(a, "FLOAT4E2M1", ODD + EXTREME + SPECIAL) for a in FLOATS),
    *(case(a, b, ODD) for a in FLOATS for b in SMALL),
    *(case(a, b, []) for a in SMALL for b in (*SMALL, *WHOLE, *FLOATS, *FLOAT8, "FLOAT4E2M1")),
    *(case(a, b, []) for a in WHOLE for b in (*SMALL, "FLOAT4E2M1")),
    *(case(a, b, ODD) for a in (*FLOAT8, "FLOAT4E2M1") for b in (*FLOATS, "INT32", "INT4")),
    *(case(a, b, [0.5, 448.0, -6.0]) for a in FLOAT8 for b in FLOAT8 if a != b),
    OnnxCase(
        "Cast",
        f"(float[N] x) => (float8e8m0[N] y) {{ y = Cast<to = {TensorProto.FLOAT8E8M0}>(x) }}",
        (SCALES,),
        25,
        expected=power_above,
        label="FLOAT-FLOAT8E8M0",
    ),
    *(
        OnnxCase(
            "Cast",
            f"(float[N] x) => (float8e8m0[N] y) {{ y = Cast<to = {TensorProto.FLOAT8E8M0}, "
            f'round_mode = "{mode}">(x) }}',
            (np.array([1.0, 1.1, 1.6, 3.9, 1e-20, 5e30], np.float32),),
            25,
            label=f"FLOAT-FLOAT8E8M0-{mode}",
        )
        for mode in ("down", "nearest", "up")
    ),
    OnnxCase(
        "CastLike",
        "(float[N] x, int4[1] t) => (int4[N] y) { y = CastLike(x, t) }",
        (np.array([-3.7, 5.2, 7.0], np.float32), np.array([1], ml_dtypes.int4)),
    ),
    OnnxCase(
        "Cast",
        '(float[N] x) => (int64[N] y) { y = Cast<to = "INT64">(x) }',
        (np.array([-3.7, 5.2], np.float32),),
        5,
        expected=lambda x: x.astype(np.int64),
    ),
    OnnxCase(
        "Cast",
        f"(float[N] x) => (string[N] y) {{ y = Cast<to = {TensorProto.STRING}>(x) }}",
        (np.array([1.0], np.float32),),
        refused="arrays have no texts",
    ),
    OnnxCase(
        "Cast",
        "(int4[N, 2] x) => (int4[2, N] y) { y = Transpose<perm = [1, 0]>(x) }",
        (np.array([[1, -8], [7, 3]]).astype(ml_dtypes.int4),),
        label="moved",
    ),
    OnnxCase(
        "Cast",
        "(int4[N] x) => (int4[N] y) { y = Add(x, x) }",
        (np.array([1, -8]).astype(ml_dtypes.int4),),
        label="arithmetic",
        refused="no arithmetic of int4",
    ),
]
