"""Uniform, normal and integer random numbers in one pass, with the bits that other devices have."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from meta import op
from meta.base.dtype import TO_TORCH
from meta.dialect.core import Launch, OpEnv, decline_if, require_static
from meta.dialect.cuda import cubin
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.source import Parameters, source
from meta.op.core.call import CallValues
from meta.runtime import variates

THREADS = 256
MOST_THREAD_BLOCKS = 2**31 - 1
Numbers = Callable[..., tuple[float, ...]]
REALS = "float16", "bfloat16", "float32", "float64"
SIZES = {"int8": 8, "int16": 16, "int32": 32, "int64": 64,
         "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}  # fmt: skip


def _filled(
    call: CallValues, kind: str, each: int, types: dict[str, str], numbers: Numbers
) -> OpEnv:
    """Return the launch that fills the result. ``numbers`` are the parameters of a call, given what
    it is given at run time.
    """
    (out,) = call.outputs
    require_static(out)
    if not out.size:
        return OpEnv(lambda *_: None, allocates=False)
    thread_blocks = -(-out.size // (each * THREADS))
    decline_if(thread_blocks > MOST_THREAD_BLOCKS, f"{out.size} are more than this kernel counts")
    mantissa = 52 if types["COMPUTE"] == "float64" else 23
    terms = {f"{name}_TERMS": ", ".join(map(repr, coefficients[mantissa]))
             for name, coefficients in variates.SERIES.items()}  # fmt: skip
    parameters = Parameters(("key", "out"), "q3q" if kind == "INTEGERS" else "q3d")

    @cache
    def text() -> str:
        return source("random", types, {"KIND": kind, "EACH": each, **terms})

    @cache
    def kernel() -> Launch:
        device, grid = call.device.ordinal, (thread_blocks, 1)
        return cubin.launch(text(), "random_numbers", device, grid, THREADS, parameters.size)

    def run(key: torch.Tensor, *rest: Any) -> None:
        *given, out = rest
        kernel()(parameters.packed({"key": key, "out": out}, out.numel(), *numbers(*given)))

    return cubin.env(run, lambda: [text()], call.device.ordinal)


def _real(call: CallValues, kind: str, numbers: Numbers) -> OpEnv:
    dtype = call.outputs[0].dtype
    decline_if(dtype not in REALS, f"no kernel for {dtype}")
    wide = "float64" if dtype == "float64" else "float32"
    types = {"DATA": dtype, "COMPUTE": wide, "NUMBER": "float64"}
    return _filled(call, kind, 2 if wide == "float64" else 4, types, numbers)


@dialect.op(op.random_uniform)
def random_uniform(call: CallValues) -> OpEnv:
    """Return the launch; the end of the interval is rounded to the dtype."""
    dtype = TO_TORCH[call.outputs[0].dtype]

    def numbers(low: float, high: float) -> tuple[float, ...]:
        return high - low, low, torch.tensor(high, dtype=dtype).item()

    return _real(call, "UNIFORM", numbers)


@dialect.op(op.random_normal)
def random_normal(call: CallValues) -> OpEnv:
    """Return the launch."""
    return _real(call, "NORMAL", lambda mean, std: (std, mean, 0.0))


@dialect.op(op.random_integers)
def random_integers(call: CallValues) -> OpEnv:
    """Return the launch; what it adds wraps around in the dtype."""
    low, count, dtype = call.args.low, call.args.last - call.args.low + 1, call.outputs[0].dtype
    decline_if(dtype not in SIZES, f"no kernel for {dtype}")
    first = (low + 2**63) % 2**64 - 2**63
    types = {"DATA": f"bits{SIZES[dtype]}", "COMPUTE": "bits64", "NUMBER": "int64"}
    return _filled(call, "INTEGERS", 1, types, lambda: (first, count & 2**32 - 1, count >> 32))
