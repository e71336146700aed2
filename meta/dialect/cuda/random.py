"""Uniform, normal and integer random numbers, and dropout, in one pass, with the bits that other
devices have.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from meta import op
from meta.base.dtype import FROM_TORCH
from meta.dialect.core import REFERENCE, Launch, OpEnv, decline_if, require_static
from meta.dialect.cuda import cubin
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.source import Parameters, source
from meta.op.core.call import CallValues
from meta.op.core.op import Op
from meta.runtime import random, variates
from meta.runtime.philox import dropout_threshold

THREADS = 256
MOST_THREAD_BLOCKS, MOST_KEYS = 2**31 - 1, 2**16 - 1
REALS = "float16", "bfloat16", "float32", "float64"
INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64,
            "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}  # fmt: skip
DRAWS = {op.random_uniform: "UNIFORM", op.random_normal: "NORMAL", op.random_integers: "INTEGERS"}
KINDS = {**DRAWS, op.dropout_train: "DROPOUT"}
DROPOUT_LEVEL = REFERENCE + 1
"""Below what compiled programs fuse with its neighbours."""


def _parameters(operator: Op) -> Parameters:
    """Return the layout: how many elements, the key unless it is in memory, three numbers."""
    return Parameters(
        ("key", "x", "mask", "out"), "5q" if operator is op.random_integers else "2q3d"
    )


@lru_cache(maxsize=64)
def _text(operator: Op, dtype: str) -> tuple[str, int]:
    """Return the source for a dtype, and the elements of a thread."""
    wide = "float64" if dtype == "float64" else "float32"
    types = {"DATA": dtype, "COMPUTE": wide, "NUMBER": "float64"}
    each = 2 if wide == "float64" and operator is not op.dropout_train else 4
    if operator is op.random_integers:
        types = {"DATA": f"bits{INTEGERS[dtype]}", "COMPUTE": "bits64", "NUMBER": "int64"}
        each = 1
    mantissa = 52 if wide == "float64" else 23
    terms = {f"{name}_TERMS": ", ".join(map(repr, coefficients[mantissa]))
             for name, coefficients in variates.SERIES.items()}  # fmt: skip
    return source("random", types, {"KIND": KINDS[operator], "EACH": each, **terms}), each


@lru_cache(maxsize=256)
def _launch(operator: Op, dtype: str, device: int, grid: tuple[int, int]) -> Launch:
    text, size = _text(operator, dtype)[0], _parameters(operator).size
    return cubin.launch(text, "random_numbers", device, grid, THREADS, size)


def _thread_blocks(operator: Op, dtype: str, count: int) -> int:
    return -(-count // (_text(operator, dtype)[1] * THREADS))


def fill(operator: Op, key: torch.Tensor | int, *numbers: float, out: torch.Tensor) -> None:
    """Fill a compact tensor with the numbers of an operator; ``numbers`` are its arguments. With
    several keys, each part of it is filled by one.
    """
    if not out.numel():
        return
    dtype, number = FROM_TORCH[out.dtype], key if isinstance(key, int) else 0
    tensors = {"out": out} if isinstance(key, int) else {"key": key, "out": out}
    keys = 1 if isinstance(key, int) else key.numel()
    count = out.numel() // keys
    given: tuple[float, ...]
    if operator is op.random_uniform:  # whose end is rounded as the results are
        low, high = numbers
        given = high - low, low, torch.tensor(high, dtype=out.dtype).item()
    elif operator is op.random_normal:
        mean, std = numbers
        given = std, mean, 0.0
    else:
        first, last = map(int, numbers)
        several = last - first + 1
        given = (first + 2**63) % 2**64 - 2**63, several & 2**32 - 1, several >> 32
    packed = _parameters(operator).packed(tensors, count, number, *given)
    grid = _thread_blocks(operator, dtype, count), keys
    _launch(operator, dtype, out.device.index or 0, grid)(packed)


def _make(call: CallValues) -> OpEnv:
    """Return the launch of a call."""
    (out,), operator = call.outputs, call.op
    require_static(out)
    integers = operator is op.random_integers
    decline_if(out.dtype not in (INTEGERS if integers else REALS), f"no kernel for {out.dtype}")
    too_many = _thread_blocks(operator, out.dtype, out.size) > MOST_THREAD_BLOCKS
    too_many |= call.args.key.size > MOST_KEYS
    decline_if(too_many, f"{out.size} are more than this kernel counts")
    numbers = (call.args.low, call.args.last) if integers else ()

    def run(key: torch.Tensor, *rest: Any) -> None:
        *given, result = rest
        fill(operator, key, *numbers, *given, out=result)

    return cubin.env(run, lambda: [_text(operator, out.dtype)[0]], call.device.ordinal)


for _operator in DRAWS:
    dialect.op(_operator)(_make)


def dropout_train_launch(call: CallValues) -> OpEnv:
    """Return the launch; without a key in memory it draws one each time."""
    x, operator = call.args.x, op.dropout_train
    require_static(x)
    decline_if(x.dtype not in REALS, f"no kernel for {x.dtype}")
    blocks = _thread_blocks(operator, x.dtype, x.size)
    decline_if(blocks > MOST_THREAD_BLOCKS, f"{x.size} are more than this kernel counts")
    numbers = 1 / (1 - call.args.p), float(dropout_threshold(call.args.p)), 0.0

    def run(x: torch.Tensor, *rest: torch.Tensor) -> None:
        *given, y, mask, _ = rest
        if not x.numel():
            return
        tensors = {"x": x, "mask": mask, "out": y, **dict(zip(("key",), given, strict=False))}
        drawn = 0 if given else random.default.key()
        packed = _parameters(operator).packed(tensors, x.numel(), drawn, *numbers)
        _launch(operator, FROM_TORCH[x.dtype], x.device.index or 0, (blocks, 1))(packed)

    return cubin.env(run, lambda: [_text(operator, x.dtype)[0]], call.device.ordinal)


dialect.op(op.dropout_train, plevel=DROPOUT_LEVEL)(dropout_train_launch)
