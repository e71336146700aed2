"""Scaled dot-product attention in float32 on tensor cores, forward and backward: scores stay in
registers, heads are read in either layout. (In half precision: `short_attention`.)

With META_TF32 factors are rounded to 10 bits of mantissa. Without, each is the sum of two such
numbers, and a product three: of a product's error, that leaves about what float32 has. A kernel is
as precise as the knob says when it is launched; gradients are left to others where it is off when
they are dispatched.

On an H200, beside ATen's kernels with the copies that these need, in us:

====================================  ==========  ==========  ============
queries, keys and values              TF32: y     gradients   float32: y
====================================  ==========  ==========  ============
32 x 128 steps x 12 heads x 64        35 (104)    132 (307)   65 (106)
8 x 12 heads x 512 steps x 64         98 (214)    331 (578)
4 x 16 heads x 1024 x 64, causal      167 (366)   545 (930)   353 (366)
====================================  ==========  ==========  ============

Gradients in float32 take 1.1 to 1.7 times as long as ATen's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache, partial

import torch

from meta import op
from meta.base import config
from meta.dialect.core import Launch, OpEnv, Unsupported, decline_if, shared_patterns
from meta.dialect.core.knobs import ask, tunable
from meta.dialect.core.shared_patterns import THIRDS
from meta.dialect.cuda import cubin, short_attention
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.source import Parameters, source
from meta.dialect.cuda.tensor_core import HALF, require_tensor_cores
from meta.ir.types import TensorType
from meta.op.attention import HEADS_FIRST, heads_first, mask_repeats, score_scale
from meta.op.core.call import CallValues

THREADS = 128
ROWS = 64
"""Of a thread block: 16 of each warp."""
WIDEST = {"forward": 128, "backward_query": 64, "backward_key": 64}
"""By kernel: elements of a head for which a thread's registers suffice."""
MASKS = {None: 0, "bool": 1, "float32": 2}
"""How source names the dtypes of masks."""
ROW = 4
"""Elements of an access."""
SIZES = struct.Struct("<16q5if")
"""Of the parameters: strides, extents and the scale, which are those of the call."""
PARAMETERS = Parameters(
    (
        *("query", "key", "value", "mask", "y", "logsumexp", "dy"),
        *("out", "new_lse", "delta", "dkey", "dvalue"),
    ),
    f"{SIZES.size}s",
)


class _Kernels:
    """The kernels of a call, compiled when they are first launched."""

    def __init__(self, call: CallValues, *names: str, joined: int = 1) -> None:
        """``joined``: how many results lie in one row of memory, heads and width."""
        a = call.args
        shared_patterns.require_masks_only(call)
        _require_fits([a.query, a.key, a.value], a.mask, min(WIDEST[n] for n in names))
        require_tensor_cores(call.device)
        query, key = (heads_first(t, a.layout).static_shape for t in (a.query, a.key))
        self.batch, self.heads, self.queries, self.width = query
        self.groups, self.keys = key[1:3]
        decline_if(mask_repeats(a.mask, self.batch) != 1, "batches of the mask are repeated")
        self.mask, self.device = None if a.mask is None else a.mask.dtype, call.device.ordinal
        own, other = _strides(query, a.layout), _strides(key, a.layout)
        results = (*_in_rows(own, joined), *_in_rows(other, joined))
        strides = (*own, *other, *results, *_broadcast(a.mask))
        counts = self.heads, self.heads // self.groups, self.queries, self.keys, int(a.causal)
        self.sizes = SIZES.pack(*strides, *counts, score_scale(a.scale, self.width))
        self.names, self.kernel = names, cache(self._kernel)
        self.wide = -(-self.width // 8) * 8
        tile = 64 if self.wide <= 64 else 32
        self.tile = ask("tile", tile, [n for n in (32, 64) if n <= tile])
        self.blocks = {exact: 2 if exact or self.wide > 64 else 3 for exact in (False, True)}
        blocks = self.blocks[_exact()]
        self.blocks[_exact()] = ask("blocks", blocks, (blocks - 1, blocks + 1))

    def _kernel(self, name: str, exact: bool) -> Launch:
        by_key = name == "backward_key"
        rows, heads = (self.keys, self.groups) if by_key else (self.queries, self.heads)
        grid = self.batch * heads * -(-rows // ROWS), 1
        text = self._source(name, exact)
        return cubin.launch(text, name, self.device, grid, THREADS, PARAMETERS.size)

    def _source(self, name: str, exact: bool) -> str:
        sizes = {"WIDTH": self.width, "WIDE": self.wide, "THREADS": THREADS, "ROWS": ROWS}
        sizes |= {"TILE": self.tile, "MASK": MASKS[self.mask], "EXACT": int(exact)}
        sizes["BLOCKS"] = self.blocks[exact]
        return source(f"attention_{name}", {}, sizes)

    def prepared(self, run: Callable[..., None], workspace: int = 0) -> OpEnv:
        """Return what launches the kernels, compiled before in the precision of now."""

        def sources() -> list[str]:
            return [self._source(n, _exact()) for n in self.names]

        return cubin.env(run, sources, self.device, workspace)

    def launch(self, name: str, **tensors: torch.Tensor) -> None:
        """Launch a kernel with tensors by the names of its parameters."""
        self.kernel(name, _exact())(PARAMETERS.packed(tensors, self.sizes))


def _exact() -> bool:
    return not config.get("META_TF32")


def _require_fits(types: list[TensorType], mask: TensorType | None, widest: int) -> None:
    given = [*types, *([mask] if mask is not None else [])]
    if any(t.dtype != "float32" for t in types) or not all(t.is_static for t in given):
        raise Unsupported(f"made for float32 of extents that are numbers, not {types[0]}")
    decline_if(not all(t.size for t in given), "there is an empty tensor")
    own, other = types[0].static_shape[3], types[2].static_shape[3]
    decline_if(own != other, f"values are {other} wide and keys {own}: made for one width")
    if own % ROW or own > widest:
        raise Unsupported(f"made for heads of multiples of {ROW} elements, up to {widest}")


def _strides(shape: tuple[int, ...], layout: str) -> tuple[int, int, int]:
    """Return from which element to which it is from one batch, head and step to the next."""
    _, heads, steps, width = shape
    by_head = (steps * width, width) if layout == HEADS_FIRST else (width, heads * width)
    return (heads * steps * width, *by_head)


def _in_rows(strides: tuple[int, int, int], joined: int) -> tuple[int, int, int]:
    """Return the strides of an array, heads behind steps, whose rows are parts of other rows."""
    batch, head, step = strides
    return strides if joined == 1 else (batch * joined, head, step * joined)


def _broadcast(mask: TensorType | None) -> tuple[int, ...]:
    """Return the same of a mask, for its four axes: 0 where it is broadcast."""
    shape = () if mask is None else mask.static_shape
    found, step = [0, 0, 0, 0], 1
    for i, extent in enumerate(reversed(shape)):
        found[3 - i] = step if extent != 1 else 0
        step *= extent
    return tuple(found)


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose rows can be read by several elements."""
    return tensor.clone() if tensor.data_ptr() % (4 * ROW) else tensor


@dialect.op(op.fused_attention)
@tunable
def fused_attention(call: CallValues) -> OpEnv:
    """Return the launch of the forward pass."""
    if call.args.query.dtype in HALF:
        return short_attention.forward(call)
    kernels = _Kernels(call, "forward")
    inputs = 3 + (call.args.mask is not None)

    def run(*values: torch.Tensor) -> None:
        given = dict(zip(PARAMETERS.pointers, map(_aligned, values[:3]), strict=False))
        given |= dict(zip(("mask",), values[3:inputs], strict=False))
        out, logsumexp = values[inputs:]
        kernels.launch("forward", **given, out=out, new_lse=logsumexp)

    return kernels.prepared(run)


@dialect.op(op.fused_attention_dx)
@tunable
def fused_attention_dx(call: CallValues) -> OpEnv:
    """Return the launches of the gradients, by queries and by keys."""
    return backward(call)


@dialect.op(op.fused_attention_dmask)
@tunable
def fused_attention_dmask(call: CallValues) -> OpEnv:
    """Return the launches of the gradient of a mask that is added."""
    return short_attention.backward_mask(call)


def backward(call: CallValues, joined: bool = False) -> OpEnv:
    """Return the launches of the gradients; ``joined``: as parts of the rows of one array."""
    if call.args.query.dtype in HALF:
        return short_attention.backward(call, THIRDS if joined else 1)
    decline_if(_exact(), "gradients in float32 are slower than ATen's; META_TF32 is off")
    names = "backward_query", "backward_key"
    kernels = _Kernels(call, *names, joined=THIRDS if joined else 1)
    row = kernels.heads * kernels.width
    masked = call.args.mask is not None
    shape = kernels.batch, kernels.heads, kernels.queries
    given_names = ("query", "key", "value", *(["mask"] if masked else []), "y", "logsumexp", "dy")
    count = len(given_names)

    def run(*values: torch.Tensor) -> None:
        given = dict(zip(given_names, values[:count], strict=True))
        given |= {n: _aligned(given[n]) for n in ("query", "key", "value", "y", "dy")}
        results = values[count:]
        if joined:
            results = tuple(results[0].narrow(-1, i * row, row) for i in range(THIRDS))
        out, dkey, dvalue = results
        delta = torch.empty(shape, dtype=torch.float32, device=out.device)
        kernels.launch("backward_query", **given, out=out, delta=delta)
        kernels.launch("backward_key", **given, delta=delta, dkey=dkey, dvalue=dvalue)

    return kernels.prepared(run, workspace=4 * shape[0] * shape[1] * shape[2])


shared_patterns.register_packed_attention(dialect, tunable(partial(backward, joined=True)))
