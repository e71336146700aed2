"""Elements added to those that indices name along the last axis, such as the gradient of a gather,
in one pass over the result. ATen's kernel adds in the dtype of the result in any order; with casts
to float32 around it, it moves an array five times.
"""

from __future__ import annotations

from functools import cache
from math import prod

import torch

from meta import op
from meta.dialect.core import Launch, OpEnv, decline_if, require_static
from meta.dialect.cuda import cubin
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.source import Parameters, source
from meta.op.core.call import CallValues
from meta.op.core.check import normalize_axis

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
INDICES = "int32", "int64"
WIDEST = 2048
"""Elements of a row: of wider ones too few fit into the shared memory of a processor together."""
LANES = 32
MOST_ROWS = 2**31 - 1
PARAMETERS = Parameters(("x", "index", "added", "out"), "")


def rows(call: CallValues) -> OpEnv:
    """Return the launch for rows of float16, bfloat16 or float32."""
    x, index, added = call.args.x, call.args.index, call.args.src
    require_static(x, index, added)
    decline_if(x.dtype not in BYTES, f"no kernel for sums of {x.dtype}")
    decline_if(index.dtype not in INDICES, f"no kernel for indices of {index.dtype}")
    last = x.ndim > 0 and normalize_axis(call.args.axis, x.ndim) == x.ndim - 1
    decline_if(not last, "it adds along the last axis only")
    *outer, width = x.static_shape
    outers = {tuple(outer), index.static_shape[:-1], added.static_shape[:-1]}
    decline_if(len(outers) > 1, "not all rows have indices")
    decline_if(width > WIDEST, f"rows of {width} elements are too wide")
    count = prod(outer)
    decline_if(count > MOST_ROWS, f"{count} rows, more than this kernel counts")
    if not x.size:
        return OpEnv(lambda *_: None, allocates=False)

    @cache
    def text(vector: int) -> str:
        types = {"DATA": x.dtype, "INDEX": index.dtype}
        sizes = {"WIDTH": width, "COUNT": index.static_shape[-1], "GIVEN": added.static_shape[-1]}
        return source("scatter_add", types, {**sizes, "VECTOR": vector})

    @cache
    def kernel(vector: int) -> Launch:
        device, grid = call.device.ordinal, (count, 1)
        return cubin.launch(text(vector), "scatter_add", device, grid, LANES, PARAMETERS.size)

    def widest(addresses: int) -> int:
        """Return the elements of an access, at such addresses."""
        vector = 16 // BYTES[x.dtype]
        while width % vector or addresses % (vector * BYTES[x.dtype]):
            vector //= 2
        return vector

    def run(x: torch.Tensor, index: torch.Tensor, added: torch.Tensor, out: torch.Tensor) -> None:
        given = {"x": x, "index": index, "added": added, "out": out}
        kernel(widest(x.data_ptr() | out.data_ptr()))(PARAMETERS.packed(given))

    return cubin.env(run, lambda: [text(widest(0))], call.device.ordinal)


dialect.op(op.scatter_add)(rows)
