"""Dropout in Triton: one random block for four neighbours, which are read and written together."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from meta import op
from meta.dialect.core import OpEnv, decline_if, require_static
from meta.dialect.core.knobs import ask, tunable
from meta.dialect.triton import triton_dialect as dialect
from meta.dialect.triton.sequence import TritonLaunch, launch_sequence
from meta.op.core.call import CallValues
from meta.runtime import random
from meta.runtime.philox import dropout_threshold

DTYPES = ("float16", "bfloat16", "float32")
LEVEL = 4
"""Below TVM's, whose kernel compiled programs fuse with its neighbours. Alone, of 8192 x 8192
elements in half precision on an H200 (2026-11-27), this one takes 88 us and that 97.
"""
MOST_ELEMENTS = 2**33
"""As many as there are, four at a time, with 31 bits."""


@triton.jit
def mask_of_four(seed, blocks, threshold, BLOCK: tl.constexpr):
    """Return which of 4 * BLOCK elements are kept that lie one after the other, by the numbers of
    their random blocks.
    """
    low, high = blocks.to(tl.uint32), (blocks >> 32).to(tl.uint32)
    a, b, c, d = tl.philox(seed, low, high, low * 0, low * 0)
    even = tl.join((a >= threshold).to(tl.int8), (c >= threshold).to(tl.int8))
    odd = tl.join((b >= threshold).to(tl.int8), (d >= threshold).to(tl.int8))
    return tl.reshape(tl.join(even, odd), (4 * BLOCK,)) != 0


@triton.jit
def dropout(x, key, y, mask, count, scale, threshold: tl.uint32, DRAWN: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    """Drop elements. DRAWN: the key is a number, else there is one in memory."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    seed = key if DRAWN else tl.load(key)
    keep = mask_of_four(seed, first + tl.arange(0, BLOCK), threshold, BLOCK)
    at = first * 4 + tl.arange(0, 4 * BLOCK)
    inside = at < count
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    dropped = tl.where(keep, value * scale, 0.0).to(y.dtype.element_ty)
    tl.store(y + at, dropped, mask=inside)
    tl.store(mask + at, keep, mask=inside)


@dialect.op(op.dropout_train, plevel=dialect.levels(LEVEL))
@tunable
def dropout_train(call: CallValues) -> OpEnv:
    """Return the launch; without a key in memory it draws one each time."""
    x, p, key = call.args.x, call.args.p, call.args.in_states
    require_static(x)
    decline_if(x.dtype not in DTYPES, f"made for {', '.join(DTYPES)}")
    decline_if(x.size >= MOST_ELEMENTS, "there are too many elements")
    threshold = dropout_threshold(p)
    decline_if(threshold >= 2**32, "nothing is kept")
    block = ask("BLOCK", 256, (128, 512))
    y, mask, _ = call.outputs
    launch = TritonLaunch(
        dropout, call.device, (-(-x.size // (4 * block)),), x=x, key="i64" if key is None else key,
        y=y, mask=mask, count=x.size, scale=1 / (1 - p), threshold=threshold, DRAWN=key is None,
        BLOCK=block, num_warps=4,
    )  # fmt: skip

    def run(x: torch.Tensor, *rest: torch.Tensor) -> None:
        *given, y, mask, _ = rest
        launch(x, given[0] if given else random.default.key(), y, mask)

    return launch_sequence(run, launch)
