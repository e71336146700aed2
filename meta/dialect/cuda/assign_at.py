"""Slices written at coordinates in place, in one launch: a step of decoding has two in each layer,
and ATen takes several launches for each, most of them for the indices.
"""

from __future__ import annotations

from functools import cache
from math import gcd, prod

import torch

from meta import op
from meta.base.dtype import bits
from meta.dialect.core import Launch, OpEnv, decline_if, require_static
from meta.dialect.cuda import cubin
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.source import Parameters, source
from meta.op.core.call import CallValues

BLOCK = 128
"""Threads of a block: what is written is small, and is to reach many processors."""
INDICES = "int32", "int64"
MOST_BLOCKS = 2**31 - 1
PARAMETERS = Parameters(("x", "indices", "value"), "q")


def slices(call: CallValues) -> OpEnv:
    """Return the launch for indices of int32 or int64."""
    x, indices, value, axis = (call.args[i] for i in range(4))
    require_static(x, indices, value)
    decline_if(indices.dtype not in INDICES, f"no kernel for indices of {indices.dtype}")
    depth, *rest = indices.static_shape
    extents = x.static_shape[axis : axis + depth]
    inner = prod(x.static_shape[axis + depth :]) * bits(x.dtype)
    if not value.size:
        return OpEnv(lambda *_: None, allocates=False)
    widest = gcd(inner, 64)  # bits of a word
    decline_if(value.size // BLOCK >= MOST_BLOCKS, "more values than this kernel counts")

    @cache
    def text(width: int) -> str:
        types = {"WORD": f"bits{width}", "INDEX": indices.dtype}
        numbers = {"INNER": inner // width, "REST": prod(rest), "PLACES": prod(extents)}
        sizes = {name: f"{n}ll" for name, n in numbers.items()}
        sizes |= {"EXTENTS": ", ".join(map(str, extents))}
        return source("assign_at", types, {**sizes, "DEPTH": depth, "BLOCK": BLOCK})

    @cache
    def kernel(width: int) -> tuple[Launch, int]:
        count = value.size * bits(x.dtype) // width
        grid = (-(-count // BLOCK), 1)
        launch = cubin.launch(
            text(width), "assign_at", call.device.ordinal, grid, BLOCK, PARAMETERS.size
        )
        return launch, count

    def run(x: torch.Tensor, indices: torch.Tensor, value: torch.Tensor) -> None:
        width = gcd(8 * (x.data_ptr() | value.data_ptr()), widest)
        launch, count = kernel(width)
        given = {"x": x, "indices": indices, "value": value}
        launch(PARAMETERS.packed(given, count))

    return cubin.env(run, lambda: [text(widest)], call.device.ordinal)


dialect.op(op.assign_at)(slices)
