"""Products of a few rows with a matrix that is read once, with what stands around them in a
network: normalisation by the root mean square before, bias, activation, gate or sum behind.

That is the time of a step of decoding. Libraries make a product of one row as one of many, and what
stands around it is a launch each, in which memory is idle. In us on an H200, beside cuBLAS's
product of bfloat16 alone, and the time of a copy of as many bytes of bfloat16, of 8 and of 4 bits
(groups of 64):

================================  =====  =====  =====  =====  ======  ===============
in -> out                         1 row      4   int8   int4  cuBLAS  bytes
================================  =====  =====  =====  =====  ======  ===============
2048 -> 3072, normalised            4.8    4.6    4.2    3.4     6.5  2.9, 1.5, 0.8
2048 -> 2048, added                 3.7    3.8    3.2    2.1     6.1  2.0, 1.0, 0.5
2048 -> 8192, normalised, gated    17.6   16.9   11.6    8.1    18.2  15.6, 7.8, 4.2
8192 -> 2048, added                 9.6    9.3    6.3    5.3    13.7  7.8, 3.9, 2.1
================================  =====  =====  =====  =====  ======  ===============

What holds back the products with fewer bits is not memory: a launch takes 2 us at least, and to
make halves of the numbers takes as long as to read them. In a CUDA graph that does not write the
matrix, its first columns are read while the kernels before are still running.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd, prod
from typing import Any

import torch

from meta import op
from meta.base.device import Device
from meta.base.dtype import DType
from meta.dialect.core import Launch, OpEnv, Unsupported, decline_if
from meta.dialect.core.knobs import ask, tunable
from meta.dialect.cuda import cubin
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.activations import ACTIVATIONS, macros
from meta.dialect.cuda.source import Parameters, source
from meta.dialect.cuda.tensor_core import HALF, require_tensor_cores
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.check import normalize_axis
from meta.runtime import gpu_properties
from meta.runtime.allocate import is_only_read

MOST_ROWS = 16
COLUMNS, STEP = 16, 128
"""Columns of a tile, and bytes of each that a warp multiplies together."""
SHARED, STATIC = 96 * 1024, 48 * 1024
"""Bytes of shared memory that a thread block may have, of which two run together, and those of them
whose extent is known when it is compiled.
"""
GATES = ("silu", "gelu", "gelu_tanh")
AFTER = ("relu", *GATES)
PARAMETERS = Parameters(("x", "w", "scales", "zeros", "scale", "bias", "addend", "out"), "fII4x")
BASE = {"float16": 0x64646464, "bfloat16": 0x43434343}
"""The bytes in front of those that are small whole numbers then, of a half type."""
BITS = {"int8": 8, "uint8": 4}
"""Of the numbers of quantised weights, by the dtype that stores them."""


def _rows_of(type_: TensorType, width: int, what: str) -> int:
    """Return how many rows of some width an array has."""
    decline_if(not type_.is_static, f"an extent of {what} is known at run time only")
    fits = type_.ndim > 0 and type_.static_shape[-1] == width
    decline_if(not fits, f"{what}, {type_}, has no rows of {width} elements")
    return prod(type_.static_shape[:-1])


def _line(groups: int, group: int, step: int, dtype: str) -> int:
    """Return of how many bytes the scales of a row in a step are, if a copy can have so many, else
    0.
    """
    units = step // group
    size = units * DType(dtype).itemsize
    fits = step % group == 0 and groups % units == 0 and size in (4, 8, 16)
    return size if groups > 1 and fits else 0


@tunable
def product(
    x: TensorType, w: TensorType, result: TensorType, device: Device,
    scale: TensorType | None = None, eps: float = 0.0, bias: TensorType | None = None,
    addend: TensorType | None = None, activation: str | None = None, gates: bool = False,
    scales: TensorType | None = None, zeros: TensorType | None = None,
) -> OpEnv:  # fmt: skip
    """Return the launch for x (..., in) and w (out, in), or (2 * out, in) if the first half gates
    the second; with scales, w is quantised.
    """
    require_tensor_cores(device)
    decline_if(x.dtype not in HALF, f"made for half precision, not {x.dtype}")
    decline_if(not (w.is_static and result.is_static), "extents are known at run time only")
    if scale is not None and not scale.dtype == x.dtype == "bfloat16":
        raise Unsupported(f"{x.dtype} times {scale.dtype} may be too large before it is normalised")
    for name, other in {"the bias": bias, "what is added": addend}.items():
        if other is not None and other.dtype != x.dtype:
            raise Unsupported(f"{name} is of {other.dtype} beside rows of {x.dtype}")
    bits, all_columns = 16, w.static_shape[0]
    if scales is not None:
        bits = BITS.get(w.dtype, 0)
        decline_if(not bits, f"no kernel for weights of {w.dtype}")
        decline_if(not scales.is_static, "extents are known at run time only")
        fits = scales.dtype in (*HALF, "float32") and (zeros is None or zeros == scales)
        decline_if(not fits, f"scales={scales}, zeros={zeros}: made for one half or float32 type")
    else:
        decline_if(w.dtype != x.dtype, f"a matrix of {w.dtype} beside rows of {x.dtype}")
    width, numbers = w.static_shape[1] * (2 if bits == 4 else 1), 128 // bits
    groups = 1 if scales is None else scales.static_shape[1]
    group = width // max(groups, 1)
    columns = all_columns // (1 + gates)
    rows = _rows_of(x, width, "x")
    decline_if(rows > MOST_ROWS, f"{rows} rows: made for up to {MOST_ROWS}")
    decline_if(rows != _rows_of(result, columns, "the result"), "a reshape changes the rows")
    decline_if(not (rows and columns and width), "there is an empty array")
    decline_if(width % numbers != 0, f"rows of {width} elements are not read by {numbers}")
    decline_if(groups > 1 and group % numbers != 0, f"groups of {group} are not read by {numbers}")
    if addend is not None and addend.shape != result.shape:
        raise Unsupported(f"what is added, {addend}, has not the shape of {result}")
    if bias is not None and bias.shape != (all_columns,):
        raise Unsupported(f"the bias, {bias}, is not of {all_columns} columns")
    early = gpu_properties.begins_early(device)
    step = STEP * 8 // bits
    steps = -(-width // step)
    tiles = 1 + gates
    # Few thread blocks have much under way each, many of them share a processor.
    processors = gpu_properties.target_of(device).processors
    per = ask("per", 2 if columns > 16 * COLUMNS * processors else 1, [1, 2])
    blocks = -(-columns // (per * COLUMNS))
    most = min(16 if blocks <= processors else 8, 1 << (steps - 1).bit_length())
    warps = max(-(-per * rows * COLUMNS // 32), ask("warps", most, [4, 8, 16]))
    turns = -(-steps // warps)
    line = 0 if scales is None else _line(groups, group, step, scales.dtype)
    grids = per * tiles * COLUMNS * line * (1 + (zeros is not None))
    given = (rows + (scale is not None)) * step * 2
    slot = warps * (per * tiles * COLUMNS * STEP + given + grids)
    results = 4 * warps * rows * (per * tiles * COLUMNS + 1)
    together = min(2, turns)
    fits = together * slot + results <= SHARED
    ahead = ask("ahead", together if fits else 1, [1, 2, 4])
    over = ahead * slot + results > SHARED or results > STATIC
    decline_if(over, "more shared memory than a thread block has")
    sizes = {
        "ROWS": rows, "WIDTH": width, "COLUMNS": columns, "PER": per, "WARPS": warps,
        "AHEAD": ahead, "GATES": int(gates), "NORMALIZES": int(scale is not None),
        "BIASED": int(bias is not None), "ADDS": int(addend is not None), "EARLY": int(early),
        "ACTIVATES": int(activation is not None),
        "WEIGHT_BITS": bits, "GROUP": group, "UNIT": gcd(group, step), "LINE": line,
        "BLOCKS": ask("blocks", 2 if warps <= 8 else 1, [1, 2, 3]),
        "ZEROS": int(zeros is not None), "HALF": HALF[x.dtype],
        "BRIEF": int(x.dtype == "bfloat16"),
    }  # fmt: skip
    more = {} if activation is None else macros(activation)
    types = {"DATA": x.dtype, "GRID": x.dtype if scales is None else scales.dtype}
    text = source("few_rows", types, {**sizes, **more})
    present = {
        "scales": scales, "zeros": zeros, "scale": scale, "bias": bias, "addend": addend,
    }  # fmt: skip
    order = "x", "w", *(n for n, t in present.items() if t is not None), "out"
    launch: list[Launch] = []

    def run(*values: torch.Tensor) -> None:
        tensors = dict(zip(order, values, strict=True))
        for name in ("x", "w", "scale", "scales", "zeros"):
            if name in tensors and tensors[name].data_ptr() % 16:
                tensors[name] = tensors[name].clone()
        if not launch:
            how = device.ordinal, (blocks, 1), 32 * warps, PARAMETERS.size, ahead * slot
            launch.append(cubin.launch(text, "few_rows", *how, early=early))
        ready = all(is_only_read(tensors[n]) for n in ("w", "scales", "zeros") if n in tensors)
        launch[0](PARAMETERS.packed(tensors, eps, BASE[x.dtype], ready))

    return cubin.env(run, lambda: [text], device.ordinal)


def alone(call: CallValues) -> OpEnv:
    """Return the launch of a product alone."""
    return product(call.args.x1, call.args.x2, call.out, call.device)


for _operator in (op.dense, op.matmul_nt):
    dialect.op(_operator)(alone)


def quantized(call: CallValues) -> OpEnv:
    """Return the launch of a product with a quantised matrix."""
    a = call.args
    return product(a.x, a.weight, call.out, call.device, scales=a.scales, zeros=a.zeros)


dialect.op(op.quantized_matmul)(quantized)


def _joined(
    x: Any, w: Any, scales: Any, zeros: Any, scale: Any, axis: Any, eps: Any, b: Any, along: Any
) -> Any:
    """A product of rows, which may be normalised, with a bias or none, in a pattern."""
    normal = op.rms_norm.plain(x, scale, None, axis, eps)
    rows = op.reshape(normal, ...) | normal | x
    y = op.dense(rows, w) | op.quantized_matmul(rows, w, scales, zeros)
    y = y | op.reshape(y, ...)
    return op.bias_add(y, b, along) | y


def _define(name: str, describes: Callable[..., Any], **how: Any) -> None:
    """Register a pattern of `_joined`, and what is behind it."""

    def make(
        x: TensorType, w: TensorType, result: TensorType, device: Device,
        scales: Any = None, zeros: Any = None, scale: Any = None, axis: Any = None,
        eps: Any = None, b: Any = None, along: Any = None, c: TensorType | None = None,
        last: int = -1,
    ) -> OpEnv:  # fmt: skip
        ends = normalize_axis(last, result.ndim) == result.ndim - 1
        decline_if(not ends, "the gate is not the first half of the columns")
        if axis is not None and normalize_axis(axis, x.ndim) != x.ndim - 1:
            raise Unsupported("made for normalisation along the last axis")
        decline_if(axis is not None and scale is None, "made for a normalisation with a scale")
        if along is not None and normalize_axis(along, result.ndim) != result.ndim - 1:
            raise Unsupported("the bias is not along the last axis")
        more = {"scales": scales, "zeros": zeros, **how}
        return product(x, w, result, device, scale, eps or 0.0, b, c, **more)

    dialect.pattern_op(describes, name=f"few_rows_{name}")(make)


def _added(x, w, scales, zeros, scale, axis, eps, b, along, c):
    return op.add(_joined(x, w, scales, zeros, scale, axis, eps, b, along), c)


def _activated(name: str) -> Callable[..., Any]:
    def describes(x, w, scales, zeros, scale, axis, eps, b, along):
        return ACTIVATIONS[name].value(_joined(x, w, scales, zeros, scale, axis, eps, b, along))

    return describes


def _gated(name: str) -> Callable[..., Any]:
    def describes(x, w, scales, zeros, scale, axis, eps, b, along, last):
        parts = op.split(_joined(x, w, scales, zeros, scale, axis, eps, b, along), 2, last)
        return op.multiply(ACTIVATIONS[name].value(parts[0]), parts[1])

    return describes


_define("joined", _joined)
_define("added", _added)
for _name in AFTER:
    _define(_name, _activated(_name), activation=_name)
for _name in GATES:
    _define(f"{_name}_gated", _gated(_name), activation=_name, gates=True)
