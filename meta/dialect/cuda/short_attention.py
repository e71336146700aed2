"""Attention over short sequences in half precision, forward and backward: all of a head is in
shared memory, what is added to the scores in registers.

Windows of images, say: 49 tokens, heads of 32 elements, thousands of windows that share a bias. A
thread block keeps its head and goes from batch to batch, so that a mask that batches share is read
once. The gradient needs no y: with all keys at hand, ``sum(dy * y)`` is that of p times
``dy @ value.T``. That of a mask is summed up over batches in registers, then over thread blocks in
one order.

Attention over short sequences whose query, key and value are parts of one array's rows, as a
joint projection gives them: read where they are.

A part has its heads behind the steps.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, prod
from typing import Any

import torch

from meta import op
from meta.base.device import Device
from meta.dialect.core import Launch, OpEnv, Unsupported, decline_if
from meta.dialect.core.knobs import ask, tunable
from meta.dialect.core.shared_patterns import (
    ROWS,
    THIRDS,
    attention_gradient_pattern,
    attention_gradients_pattern,
    attention_pattern,
    require_masks_only,
    saved_attention_pattern,
    split_offsets,
)
from meta.dialect.cuda import cubin
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.source import Parameters, source
from meta.dialect.cuda.tensor_core import HALF, require_tensor_cores
from meta.ir.types import TensorType
from meta.op.attention import HEADS_FIRST, HEADS_LATER, heads_first, score_scale
from meta.op.core.call import CallValues
from meta.op.core.check import normalize_axis
from meta.runtime import gpu_properties

LONGEST, WIDEST = 64, 64
"""The most queries, keys, and elements of a head."""
ALIGNED = 8
"""What the elements of a head are a multiple of: a thread copies 16 bytes."""
_SIZES = struct.Struct("<19q8if4x")
"""Of the parameters: strides, extents and the scale, which are those of the call."""
_PARAMETERS = Parameters(
    (
        *("query", "key", "value", "mask", "logsumexp", "dy"),
        *("out", "new_lse", "dkey", "dvalue", "dmask"),
    ),
    f"{_SIZES.size}s",
)
FORWARD, BACKWARD = "short_attention_forward", "short_attention_backward"
_RESIDENT = {FORWARD: (5, 4), BACKWARD: (3, 2)}
"""By kernel, the thread blocks of four warps that fit a multiprocessor, for heads of up to 32
elements and for wider ones."""

Strides = tuple[int, int, int]
"""How many elements it is from one batch to the next, from one head, and from one step."""


@dataclass(frozen=True, slots=True)
class OperandStrides:
    """Where elements lie: of query, of key and value, of results with their axes, and of dy."""

    own: Strides
    other: Strides
    out_own: Strides
    out_other: Strides
    given: Strides


def strides(type_: TensorType, layout: str, joined: int = 1) -> Strides:
    """Return those of an array [b, h, s, d] or, in the other layout, [b, s, h, d].

    ``joined``: how many such arrays lie in one row of memory, heads and width.
    """
    _, heads, steps, width = heads_first(type_, layout).static_shape
    by_head, by_step = (steps * width, width) if layout == HEADS_FIRST else (width, heads * width)
    return heads * steps * width * joined, by_head, by_step * joined


def operand_strides(call: CallValues, joined: int = 1) -> OperandStrides:
    """Return where the operands of a call lie, and its results; ``joined`` as in `strides`."""
    a = call.args
    own, other = strides(a.query, a.layout), strides(a.key, a.layout)
    results = strides(a.query, a.layout, joined), strides(a.key, a.layout, joined)
    return OperandStrides(own, other, *results, own)


class Kernels:
    """A kernel for the attention of a call, for each variant compiled when it is first launched."""

    def __init__(self, call: CallValues, name: str, where: OperandStrides, **variant: int) -> None:
        a = call.args
        require_masks_only(call)
        _require_fits([a.query, a.key, a.value], a.mask, call.device)
        query, key = (heads_first(t, a.layout).static_shape for t in (a.query, a.key))
        self.batches, self.heads, self.queries, width = query
        self.share, self.keys = self.heads // key[1], key[2]
        self.name, self.device, wide = name, call.device.ordinal, -(-width // 16) * 16
        rows, key_rows = -(-self.queries // 16) * 16, -(-self.keys // 16) * 16
        warps = (rows if name == FORWARD else max(rows, key_rows)) // 16
        blocks = _RESIDENT[name][wide > 32] * 4 // warps
        near = (blocks // 2, blocks - 1, blocks + 1)
        blocks = ask("blocks", blocks, [n for n in near if n >= 1])
        self.threads, tile = 32 * warps, wide + 8
        if name == FORWARD:
            elements = 2 * (rows + 2 * key_rows) * tile
        else:
            elements = 4 * (rows + key_rows) * tile + 2 * rows * (key_rows + 8)
        self.shared = 2 * elements
        masked = {None: 0, "bool": 1}.get(None if a.mask is None else a.mask.dtype, 2)
        sizes = {"BF16": int(a.query.dtype == "bfloat16"), "WIDTH": width, "WIDE": wide}
        sizes |= {"QUERIES": rows, "KEYS": -(-self.keys // 8) * 8, "WARPS": warps}
        sizes |= {"BLOCKS": blocks, "MASK": masked, **variant}
        self.source = source(name, {"T": a.query.dtype}, sizes)
        by_mask = _broadcast(a.mask)
        resident = blocks * gpu_properties.query(self.device).processors
        self.windows = a.mask.static_shape[0] if by_mask[0] else 1
        items = self.windows * self.heads
        self.chunks = _chunks(self.batches // self.windows, items, resident)
        lies = (*where.own, *where.other, *where.out_own, *where.out_other, *where.given, *by_mask)
        counts = (
            *(self.batches, self.windows, self.chunks, self.heads, self.share),
            *(self.queries, self.keys, int(a.causal)),
        )
        scale = score_scale(a.scale, width)
        self.sizes = _SIZES.pack(*lies, *counts, scale)
        self.kernel = cache(self._kernel)

    def _kernel(self) -> Launch:
        how = (self.heads * self.windows * self.chunks, 1), self.threads, _PARAMETERS.size
        return cubin.launch(self.source, self.name, self.device, *how, self.shared)

    def prepared(self, run: Callable[..., None], workspace: int = 0) -> OpEnv:
        """Return what launches the kernel, compiled before."""
        text = self.source
        return cubin.env(run, lambda: [text], self.device, workspace)

    def launch(self, **tensors: torch.Tensor) -> None:
        """Launch the kernel with tensors by the names of its parameters."""
        self.kernel()(_PARAMETERS.packed(tensors, self.sizes))


def _require_fits(types: list[TensorType], mask: TensorType | None, device: Device) -> None:
    given = [*types, *([mask] if mask is not None else [])]
    if any(t.dtype not in HALF for t in types) or not all(t.is_static for t in given):
        raise Unsupported(f"made for half precision of extents that are numbers, not {types[0]}")
    decline_if(not all(t.size for t in given), "there is an empty tensor")
    own, other = types[0].static_shape[3], types[2].static_shape[3]
    decline_if(own != other, f"values are {other} wide and keys {own}: made for one width")
    if own % ALIGNED or own > WIDEST:
        raise Unsupported(f"made for heads of multiples of {ALIGNED} elements, up to {WIDEST}")
    require_tensor_cores(device)


def require_short(call: CallValues) -> None:
    """Raise Unsupported for sequences that do not fit a thread block."""
    a = call.args
    decline_if(not (a.query.is_static and a.key.is_static), "extents are known at run time only")
    longest = max(heads_first(t, a.layout).static_shape[2] for t in (a.query, a.key))
    decline_if(longest > LONGEST, f"{longest} queries or keys: made for up to {LONGEST}")


def _broadcast(mask: TensorType | None) -> tuple[int, ...]:
    """Return the strides of a mask for its four axes: 0 where it is broadcast."""
    shape = () if mask is None else mask.static_shape
    found, step = [0, 0, 0, 0], 1
    for i, extent in enumerate(reversed(shape)):
        found[3 - i] = step if extent != 1 else 0
        step *= extent
    return tuple(found)


def _chunks(batches: int, heads: int, resident: int) -> int:
    """Return how many thread blocks share the batches of a head, or of a head and a window, of
    which so many run at a time.

    A thread block begins as slowly as it computes one batch.
    """

    def turns(chunks: int) -> int:
        return ceil(heads * chunks / resident) * (ceil(batches / chunks) + 1)

    most = range(1, min(batches, 4 * ceil(resident / heads)) + 1)
    return ceil(batches / ceil(batches / min(most, key=turns)))


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose rows can be read by 16 bytes."""
    return tensor.clone() if tensor.data_ptr() % 16 else tensor


def forward(call: CallValues) -> OpEnv:
    """Return the launch of `fused_attention`."""
    require_short(call)
    kernels = Kernels(call, FORWARD, operand_strides(call))
    names = "query", "key", "value", *(["mask"] if call.args.mask is not None else [])

    def run(*values: torch.Tensor) -> None:
        given = dict(zip(names, values, strict=False))
        given |= {n: aligned(given[n]) for n in names[:3]}
        out, logsumexp = values[len(names) :]
        kernels.launch(**given, out=out, new_lse=logsumexp)

    return kernels.prepared(run)


def _argument_names(call: CallValues) -> tuple[str, ...]:
    masked = call.args.mask is not None
    return "query", "key", "value", *(["mask"] if masked else []), "y", "logsumexp", "dy"


def _read(names: tuple[str, ...], values: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    given = dict(zip(names, values, strict=False))
    del given["y"]
    return given | {n: aligned(given[n]) for n in ("query", "key", "value", "dy")}


def backward(call: CallValues, joined: int = 1) -> OpEnv:
    """Return the launch of `fused_attention_dx`; ``joined``: as parts of the rows of one array."""
    require_short(call)
    kernels = Kernels(call, BACKWARD, operand_strides(call, joined), GRADIENTS=1, DMASK=0)
    decline_if(kernels.share != 1, "several heads share a key")
    names, a = _argument_names(call), call.args
    row = kernels.heads * a.query.static_shape[3]

    def run(*values: torch.Tensor) -> None:
        results = values[len(names) :]
        if joined != 1:
            results = tuple(results[0].narrow(-1, i * row, row) for i in range(joined))
        out, dkey, dvalue = results
        kernels.launch(**_read(names, values), out=out, dkey=dkey, dvalue=dvalue)

    return kernels.prepared(run)


Finish = Callable[[torch.Tensor, torch.Tensor], None]


def summed_up(
    kernels: Kernels, mask: TensorType
) -> tuple[Callable[[torch.device], torch.Tensor], Finish, int]:
    """Return what makes room for the gradients of a mask by thread block, what sums them up to a
    result, and how many bytes that takes.
    """
    shape = kernels.chunks, kernels.windows, kernels.heads, kernels.queries, kernels.keys
    whole = (1,) * (4 - mask.ndim) + mask.static_shape
    axes = (0, *(i for i, n in enumerate(whole, 1) if n == 1))

    def partial(device: torch.device) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    def finish(sums: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(sums.sum(axes).view(out.shape))

    return partial, finish, 8 * prod(shape)


def backward_mask(call: CallValues) -> OpEnv:
    """Return the launches of `fused_attention_dmask`."""
    require_short(call)
    kernels = Kernels(call, BACKWARD, operand_strides(call), GRADIENTS=0, DMASK=1)
    names = _argument_names(call)
    partial, finish, size = summed_up(kernels, call.args.mask)

    def run(*values: torch.Tensor) -> None:
        out = values[len(names)]
        sums = partial(out.device)
        kernels.launch(**_read(names, values), dmask=sums)
        finish(sums, out)

    return kernels.prepared(run, workspace=size)


def _call(
    rows: TensorType, y: TensorType, mask: Any, causal: bool, scale: float | None, layout: str,
    device: Device,
) -> tuple[CallValues, Strides, Strides]:  # fmt: skip
    """Return the call on compact parts, and the strides of parts of rows and of compact ones."""
    decline_if(layout != HEADS_LATER or y.ndim != 4, "made for heads behind the steps")
    batch, steps, heads, width = y.static_shape
    part, row = heads * width, THIRDS * heads * width
    fits = rows.static_shape[:ROWS] == (batch, steps) and prod(rows.static_shape[ROWS:]) == row
    decline_if(not fits or y.dtype != rows.dtype, f"{y} is no attention of thirds of {rows}")
    call = op.fused_attention.call_values((y, y, y, mask, causal, scale, layout), device)
    require_short(call)
    return call, (steps * row, width, row), (steps * part, width, part)


def _thirds(whole: torch.Tensor, starts: Sequence[int]) -> dict[str, torch.Tensor]:
    flat = aligned(whole).view(-1)
    return {n: flat[s:] for n, s in zip(("query", "key", "value"), starts, strict=True)}


def _of_rows(
    rows: TensorType, sections: Any, at: int, mask: Any, causal: bool, scale: float | None,
    layout: str, y: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    """Return the launch for parts of rows."""
    starts = split_offsets(rows, sections, at)
    call, of_rows, of_parts = _call(rows, y, mask, causal, scale, layout, device)
    kernels = Kernels(call, FORWARD, OperandStrides(of_rows, of_rows, of_parts, of_parts, of_parts))
    masked = mask is not None

    def run(whole: torch.Tensor, *rest: torch.Tensor) -> None:
        given = _thirds(whole, starts) | ({"mask": rest[0]} if masked else {})
        results = dict(zip(("out", "new_lse"), rest[masked:], strict=False))
        kernels.launch(**given, **results)

    return kernels.prepared(run)


@dialect.pattern_op(attention_pattern)
@tunable
def attention_of_rows(
    rows: TensorType, sections: Any, at: int, mask: Any, causal: bool, scale: float | None,
    layout: str, result: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    return _of_rows(rows, sections, at, mask, causal, scale, layout, result, device)


@dialect.pattern_op(saved_attention_pattern)
@tunable
def attention_of_rows_saved(
    rows: TensorType, sections: Any, at: int, mask: Any, causal: bool, scale: float | None,
    layout: str, result: tuple[TensorType, TensorType], device: Device,
) -> OpEnv:  # fmt: skip
    return _of_rows(rows, sections, at, mask, causal, scale, layout, result[0], device)


def _gradient(
    rows: TensorType, sections: Any, at: int, mask: Any, y: TensorType, causal: bool,
    scale: float | None, layout: str, axis: int, result: TensorType, device: Device, by_mask: bool,
) -> OpEnv:  # fmt: skip
    """Return the launch of the gradient of rows, and of the mask if that is wanted."""
    starts = split_offsets(rows, sections, at)
    decline_if(normalize_axis(axis, result.ndim) != ROWS, "gradients are not joined as rows")
    call, of_rows, of_parts = _call(rows, y, mask, causal, scale, layout, device)
    where = OperandStrides(of_rows, of_rows, of_rows, of_rows, of_parts)
    kernels = Kernels(call, BACKWARD, where, GRADIENTS=1, DMASK=int(by_mask))
    part = prod(y.static_shape[ROWS:])
    partial, finish, size = summed_up(kernels, mask) if by_mask else (None, None, 0)
    masked = mask is not None

    def run(whole: torch.Tensor, *rest: torch.Tensor) -> None:
        given = _thirds(whole, starts) | ({"mask": rest[0]} if masked else {})
        _, logsumexp, dy, joined, *others = rest[masked:]
        given |= {"logsumexp": logsumexp, "dy": aligned(dy)}
        flat = joined.view(-1)
        results = {n: flat[i * part :] for i, n in enumerate(("out", "dkey", "dvalue"))}
        if partial is None or finish is None:
            kernels.launch(**given, **results)
            return
        sums = partial(joined.device)
        kernels.launch(**given, **results, dmask=sums)
        finish(sums, others[0])

    return kernels.prepared(run, workspace=size)


@dialect.pattern_op(attention_gradient_pattern)
@tunable
def attention_of_rows_dx(
    rows: TensorType, sections: Any, at: int, mask: Any, y: TensorType, causal: bool,
    scale: float | None, layout: str, axis: int, result: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    given = rows, sections, at, mask, y, causal, scale, layout, axis, result, device
    return _gradient(*given, by_mask=False)


@dialect.pattern_op(attention_gradients_pattern)
@tunable
def attention_of_rows_dx_dmask(
    rows: TensorType, sections: Any, at: int, mask: Any, y: TensorType, causal: bool,
    scale: float | None, layout: str, axis: int, result: tuple[TensorType, TensorType],
    device: Device,
) -> OpEnv:  # fmt: skip
    given = rows, sections, at, mask, y, causal, scale, layout, axis, result[0], device
    return _gradient(*given, by_mask=True)
