"""The most probable token and the logarithm of its probability, by one pass over the scores: what
stands at the end of a step of decoding. Two launches, of about 3 us together for a vocabulary of
128,256 on an H200; three reductions take ten.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from meta import op
from meta.base.device import Device
from meta.dialect.core import Launch, OpEnv, decline_if
from meta.dialect.cuda import cubin
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.source import Parameters, source
from meta.ir.types import TensorType
from meta.op.core.check import normalize_axis
from meta.runtime import gpu_properties

DTYPES = ("float32", "float16", "bfloat16")
LEAST = 1024
"""Columns of a row that are worth a thread block of their own."""
MOST_ROWS = 64
THREADS = 128
SPLIT_BYTES = 12
"""Bytes of what `choose` finds in a split of a row."""
PARAMETERS = Parameters(("scores", "parts", "tokens", "logprobs"), "")


def launches(
    scores: TensorType, axes: tuple[Any, ...], result: Any, device: Device, wide: str | None = None
) -> OpEnv:
    """Return the launches for scores (rows, columns)."""
    decline_if(not scores.is_static, "extents are known at run time only")
    decline_if(scores.dtype not in DTYPES, f"no kernel for scores of {scores.dtype}")
    decline_if(wide not in (None, "float32"), f"made for probabilities in float32, not {wide}")
    decline_if(wide is None and scores.dtype != "float32", f"probabilities in {scores.dtype}")
    *front, columns = scores.static_shape
    rows = prod(front)
    for axis in axes:
        one = axis if isinstance(axis, int) else axis[0] if axis and len(axis) == 1 else None
        last = one is not None and normalize_axis(one, scores.ndim) == scores.ndim - 1
        decline_if(not last, "made for the last axis")
    shapes = {t.static_shape for t in result}
    decline_if(shapes != {tuple(front)}, "axes are kept")
    decline_if(not 0 < rows <= MOST_ROWS, f"{rows} rows: made for up to {MOST_ROWS}")
    decline_if(columns < LEAST, f"rows of {columns} elements are short")
    early = gpu_properties.begins_early(device)
    processors = gpu_properties.query(device.ordinal).processors
    splits = max(1, min(-(-columns // LEAST), processors // rows))
    sizes = {"COLUMNS": columns, "SPLITS": splits, "THREADS": THREADS, "EARLY": int(early)}
    text = source("greedy_choice", {"DATA": scores.dtype}, sizes)
    made: list[Launch] = []

    def run(scores: torch.Tensor, tokens: torch.Tensor, logprobs: torch.Tensor) -> None:
        if scores.data_ptr() % 16:
            scores = scores.clone()
        if not made:
            for name, grid, threads in (("choose", splits, THREADS), ("join", 1, 32)):
                how = (grid, rows) if grid > 1 or name == "choose" else (rows, 1)
                made.append(
                    cubin.launch(
                        text, name, device.ordinal, how, threads, PARAMETERS.size, early=early
                    )
                )
        parts = torch.empty(rows * splits * SPLIT_BYTES, dtype=torch.uint8, device=scores.device)
        given = {"scores": scores, "parts": parts, "tokens": tokens, "logprobs": logprobs}
        for launch in made:
            launch(PARAMETERS.packed(given))

    return cubin.env(run, lambda: [text], device.ordinal, rows * splits * SPLIT_BYTES)


def _greedy(x, wide, axis, of_max, of_sum):
    scores = op.astype(x, wide) | x
    best = op.max(scores, of_max, False) - op.logsumexp(scores, of_sum, False)
    return op.argmax(scores, axis, False), best


@dialect.pattern_op(_greedy)
def greedy_choice(
    x: TensorType, axis: Any, of_max: Any, of_sum: Any, result: Any, device: Device,
    wide: str | None = None,
) -> OpEnv:  # fmt: skip
    """The launches of a pattern."""
    return launches(x, (axis, of_max, of_sum), result, device, wide)
