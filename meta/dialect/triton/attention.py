"""Attention with dropout, windows and slopes in Triton: one launch forward, two for the gradients.

Scores stay on the chip. Dropout keeps what `dropout_train` keeps for the same key. Without dropout,
a window or slopes libraries have been measured, and come first.

Attention with dropout whose query, key and value are parts of one array's rows, as a joint
projection gives them, in Triton: read where they are, and gradients written where they belong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import torch

from meta import op
from meta.base import config
from meta.base.device import Device
from meta.dialect.core import OpEnv, decline_if
from meta.dialect.core.knobs import ask, tunable
from meta.dialect.core.shared_patterns import ROWS, THIRDS, joined_rows, split_offsets, split_rows
from meta.dialect.triton import triton_dialect as dialect
from meta.dialect.triton.attention_kernels import (
    attention_dkey,
    attention_dquery,
    attention_forward,
)
from meta.dialect.triton.sequence import TritonLaunch, launch_sequence
from meta.ir.types import TensorType
from meta.op.attention import HEADS_FIRST, HEADS_LATER, heads_first, mask_repeats, score_scale
from meta.op.core.call import CallValues
from meta.op.core.check import normalize_axis
from meta.runtime.philox import dropout_threshold

DTYPES = ("float16", "bfloat16", "float32")
WIDEST = 256
"""The most elements of a head."""
LEVEL = 13
"""Below the kernels of libraries, which serve what has no dropout, window or slopes."""
MASKS = {None: 0, "bool": 1}
"""How the kernels name dtypes of masks; 2 is numbers to add."""

Sizes = tuple[int, int, int, int]
"""Rows of queries and of keys at a time, warps, and stages of a pipeline."""
FORWARD: dict[tuple[bool, int], Sizes] = {
    (True, 64): (64, 32, 4, 3),
    (True, 128): (128, 64, 8, 2),
    (True, 256): (64, 32, 8, 2),
    (False, 64): (64, 32, 4, 2),
    (False, 128): (64, 32, 8, 2),
    (False, 256): (32, 32, 4, 1),
}
"""By whether numbers are half, and the width of a head up to which the sizes hold."""
BACKWARD: dict[tuple[bool, int], Sizes] = {
    (True, 64): (64, 64, 4, 1),
    (True, 128): (64, 64, 8, 1),
    (True, 256): (32, 32, 4, 1),
    (False, 64): (32, 32, 4, 2),
    (False, 128): (32, 32, 4, 1),
    (False, 256): (32, 32, 8, 1),
}


Launches = tuple[TritonLaunch, ...]


def wide_tile(width: int) -> int:
    """Return the width of a tile for heads of so many elements: a power of two."""
    return max(16, 1 << (width - 1).bit_length())


def sizes_of(
    table: dict[tuple[bool, int], Sizes], half: bool, width: int, few: bool = False
) -> dict[str, int]:
    """Return the meta-parameters of a launch; ``few``: no more rows than are stated."""
    fits = min(n for kind, n in table if kind == half and n >= width)
    rows, keys, warps, stages = table[half, fits]
    rows = rows if few else ask("BLOCK_M", rows, (32, 64, 128))
    keys = ask("BLOCK_N", keys, (32, 64, 128))
    warps = ask("num_warps", warps, (4, 8))
    stages = ask("num_stages", stages, (1, 2, 3))
    return {"BLOCK_M": rows, "BLOCK_N": keys, "num_warps": warps, "num_stages": stages}


def _strides(shape: Sequence[int], layout: str) -> tuple[int, int, int]:
    """Return how many elements it is from one batch to the next, from one head, and from one row
    of a compact array whose extents, heads first, are ``shape``.
    """
    _, heads, rows, width = shape
    if layout == HEADS_FIRST:
        return heads * rows * width, rows * width, width
    return heads * rows * width, width, heads * width


class Attention:
    """What the launches of a call have in common.

    row: query, key and value, and their gradients, are parts of rows of so many elements, with
    heads behind the steps; None: they are compact.
    """

    def __init__(self, call: CallValues, row: int | None = None) -> None:
        a = call.args
        self.call, self.device = call, call.device
        given = [t for t in (a.query, a.key, a.value, a.mask, a.slopes) if t is not None]
        decline_if(not all(t.is_static for t in given), "extents are known at run time only")
        decline_if(a.query.dtype not in DTYPES, f"made for {', '.join(DTYPES)}")
        decline_if(not all(t.size for t in given), "there is an empty tensor")
        query, key, value = (
            heads_first(t, a.layout).static_shape for t in (a.query, a.key, a.value)
        )
        self.batch, self.heads, self.queries, width = query
        self.groups, self.keys, value_width = key[1], key[2], value[3]
        widest = max(width, value_width)
        decline_if(widest > WIDEST, f"made for heads of up to {WIDEST} elements")
        decline_if(self.queries + self.keys >= 2**30, "there are too many queries or keys")
        self.half, self.wide = a.query.dtype != "float32", wide_tile(widest)
        result = (*query[:3], value_width)
        places: dict[str, int] = {}
        for letter, shape in (("q", query), ("k", key), ("v", value), ("y", result)):
            steps = _strides(shape, a.layout)
            if row is not None and letter != "y":
                steps = shape[2] * row, shape[3], row
            places |= zip(
                (f"{letter}_batch", f"{letter}_head", f"{letter}_row"), steps, strict=True
            )
        drops = a.dropout_key is not None and a.dropout_p > 0
        threshold = dropout_threshold(a.dropout_p)
        decline_if(threshold >= 2**32, "nothing is kept")
        left, right = a.window or (-1, -1)
        far = self.queries + self.keys
        right = 0 if a.causal else right
        self.arguments: dict[str, Any] = {
            "heads": self.heads, "share": self.heads // self.groups,
            "queries": self.queries, "keys": self.keys, "width": width, "value_width": value_width,
            **places, **_mask_positions(call),
            "slope_batch": self.heads if a.slopes is not None and a.slopes.ndim == 2 else 0,
            "left": far if left < 0 else min(left, far),
            "right": far if right < 0 else min(right, far),
            "scale": float(score_scale(a.scale, width)),
            "kept_scale": 1 / (1 - a.dropout_p) if drops else 1.0,
            "threshold": threshold,
            "MASK": MASKS.get(None if a.mask is None else a.mask.dtype, 2),
            "SLOPES": a.slopes is not None, "DROPS": drops, "VECTOR": self.keys % 4 == 0,
            "WIDTH": wide_tile(width), "VALUE_WIDTH": wide_tile(value_width),
        }  # fmt: skip
        self.tensors = {
            "query": a.query, "key": a.key, "value": a.value, "mask": a.mask, "slopes": a.slopes,
            "dropout_key": a.dropout_key if drops else None,
        }  # fmt: skip

    def launch(
        self, kernel: Any, sizes: dict[str, int], exact: bool, by_key: bool, **tensors: Any
    ) -> TritonLaunch:
        """Prepare a launch; ``by_key``: each block has some keys, not some queries."""
        if by_key:
            blocks = -(-self.keys // sizes["BLOCK_N"]) * self.groups
        else:
            blocks = -(-self.queries // sizes["BLOCK_M"]) * self.heads
        grid = (blocks * self.batch,)
        given = {**self.tensors, **tensors, **self.arguments, **sizes}
        # Three products of what TensorFloat-32 has are about one of float32.
        precision = "tf32x3" if exact else "tf32"
        return TritonLaunch(kernel, self.device, grid, PRECISION=precision, **given)

    def exact(self) -> bool:
        """Whether products are to be as precise as float32, by the knob of now."""
        return not (self.half or config.get("META_TF32"))

    def read(self, given: Mapping[str, torch.Tensor], *names: str) -> list[torch.Tensor]:
        """Return tensors of a run by their names, without those that no kernel reads."""
        unread = "dropout_key" if self.tensors["dropout_key"] is None else ""
        return [given[n] for n in names if n in given and n != unread]

    def forward(self) -> tuple[Callable[..., None], Launches]:
        """Return a function of a run's tensors by name, y and logsumexp, and what it launches."""
        sizes = sizes_of(FORWARD, self.half, self.wide)
        names = "query", "key", "value", "mask", "slopes", "dropout_key"
        y = self.call.args.query.dtype

        @cache
        def launches(exact: bool) -> Launches:
            given = {"y": y, "logsumexp": "float32"}
            return (self.launch(attention_forward, sizes, exact, False, **given),)

        def run(given: Mapping[str, torch.Tensor], *results: torch.Tensor) -> None:
            (forward,) = launches(self.exact())
            forward(*self.read(given, *names), *results)

        return run, launches(self.exact())

    def backward(self) -> tuple[Callable[..., None], Launches]:
        """Return a function of a run's tensors by name, and the gradients, and what it launches."""
        sizes, dtype = sizes_of(BACKWARD, self.half, self.wide), self.call.args.query.dtype
        shape = self.batch, self.heads, self.queries
        rest = "slopes", "dropout_key"

        @cache
        def launches(exact: bool) -> Launches:
            given = {"dy": dtype, "logsumexp": "float32", "delta": "float32"}
            by_query, by_key = {"y": dtype, "dquery": dtype}, {"dkey": dtype, "dvalue": dtype}
            return (
                self.launch(attention_dquery, sizes, exact, False, **given, **by_query),
                self.launch(attention_dkey, sizes, exact, True, **given, **by_key),
            )

        def run(
            given: Mapping[str, torch.Tensor], dquery: torch.Tensor, *others: torch.Tensor
        ) -> None:
            first, second = launches(self.exact())
            delta = torch.empty(shape, dtype=torch.float32, device=dquery.device)
            read = self.read(given, "query", "key", "value", "mask")
            sums, more = self.read(given, "logsumexp", "dy"), self.read(given, *rest)
            first(*read, *self.read(given, "y"), *sums, *more, dquery, delta)
            second(*read, *sums, *more, delta, *others)

        return run, launches(self.exact())

    @property
    def statistics(self) -> int:
        """The bytes of a number for each query."""
        return 4 * self.batch * self.heads * self.queries


def _mask_positions(call: CallValues) -> dict[str, int]:
    """Return how a mask lies: of its batches, which are repeated, heads, rows and keys; steps are 0
    where it is broadcast.
    """
    mask = call.args.mask
    shape = (1, 1, 1, 1) if mask is None else (1,) * (4 - mask.ndim) + mask.static_shape
    steps, step = [0, 0, 0, 0], 1
    for axis in (3, 2, 1, 0):
        steps[axis] = step if shape[axis] != 1 else 0
        step *= shape[axis]
    batches = shape[0]
    repeats = mask_repeats(mask, call.args.query.shape[0])
    assert batches == 1 or batches * repeats == call.args.query.shape[0]
    names = ("mask_batch", "mask_head", "mask_row", "mask_key")
    return {"mask_batches": batches, **dict(zip(names, steps, strict=True))}


def _named(call: CallValues) -> list[str]:
    """Return the names of the tensors that a run is given."""
    slots = zip(call.op.schema.names, call.args, strict=True)
    return [name for name, given in slots if isinstance(given, TensorType)]


@dialect.op(op.fused_attention, plevel=dialect.levels(LEVEL))
@tunable
def fused_attention(call: CallValues) -> OpEnv:
    """Return the launch of the forward pass."""
    forward, launches = Attention(call).forward()
    names = _named(call)

    def run(*values: torch.Tensor) -> None:
        forward(dict(zip(names, values, strict=False)), *values[len(names) :])

    return launch_sequence(run, *launches)


@dialect.op(op.fused_attention_dx, plevel=dialect.levels(LEVEL))
@tunable
def fused_attention_dx(call: CallValues) -> OpEnv:
    """Return the launches of the gradients: by queries, and by keys."""
    made = Attention(call)
    backward, launches = made.backward()
    names = _named(call)

    def run(*values: torch.Tensor) -> None:
        backward(dict(zip(names, values, strict=False)), *values[len(names) :])

    return launch_sequence(run, *launches, workspace=made.statistics)


_NAMES = "query", "key", "value"


def alone(
    rows: Any, sections: Any, at: Any, mask: Any, causal: Any, scale: Any, layout: Any,
    dropout_key: Any, dropout_p: Any,
) -> Any:  # fmt: skip
    """A pattern: the result, without what its gradient needs."""
    given = *split_rows(rows, sections, at), mask, causal, scale, layout
    return op.fused_attention(*given, dropout_key=dropout_key, dropout_p=dropout_p)[0]


def saved(
    rows: Any, sections: Any, at: Any, mask: Any, causal: Any, scale: Any, layout: Any,
    dropout_key: Any, dropout_p: Any,
) -> Any:  # fmt: skip
    """A pattern: the result, and the logsumexp."""
    given = *split_rows(rows, sections, at), mask, causal, scale, layout
    found = op.fused_attention(*given, dropout_key=dropout_key, dropout_p=dropout_p)
    return found[0], found[1]


def gradient(
    rows: Any, sections: Any, at: Any, mask: Any, y: Any, logsumexp: Any, dy: Any, causal: Any,
    scale: Any, layout: Any, dropout_key: Any, dropout_p: Any, axis: Any,
) -> Any:  # fmt: skip
    """A pattern: the gradient of the rows."""
    given = *split_rows(rows, sections, at), mask, y, logsumexp, dy, causal, scale, layout
    found = op.fused_attention_dx(*given, dropout_key=dropout_key, dropout_p=dropout_p)
    return joined_rows(found, axis)


def _launches(
    rows: TensorType, y: TensorType, mask: Any, causal: bool, scale: float | None, layout: str,
    dropout_key: Any, dropout_p: float, device: Device,
) -> Attention:  # fmt: skip
    """Return the attention of parts of rows; Unsupported if they are none."""
    decline_if(dropout_key is None, "made for attention with dropout")
    decline_if(layout != HEADS_LATER or y.ndim != 4, "made for heads behind the steps")
    batch, steps, heads, width = y.static_shape
    row = THIRDS * heads * width
    fits = rows.static_shape[:ROWS] == (batch, steps) and prod(rows.static_shape[ROWS:]) == row
    decline_if(not fits or y.dtype != rows.dtype, f"{y} is no attention of thirds of {rows}")
    options = mask, causal, scale, layout, None, None, dropout_key, dropout_p
    return Attention(op.fused_attention.call_values((y, y, y, *options), device), row)


def _thirds(whole: torch.Tensor, starts: Sequence[int]) -> dict[str, torch.Tensor]:
    flat = whole.view(-1)
    return {name: flat[start:] for name, start in zip(_NAMES, starts, strict=True)}


def _argument_names(
    starts: Sequence[int], names: Sequence[str], values: Sequence[torch.Tensor]
) -> Mapping[str, torch.Tensor]:
    """Return a run's tensors by name: the rows' parts, and those that follow."""
    return _thirds(values[0], starts) | dict(zip(names, values[1:], strict=False))


@dialect.pattern_op(saved, plevel=dialect.levels(LEVEL))
@tunable
def attention_of_rows_saved(
    rows: TensorType, sections: Any, at: int, mask: Any, causal: bool, scale: float | None,
    layout: str, dropout_key: Any, dropout_p: float, result: tuple[TensorType, TensorType],
    device: Device,
) -> OpEnv:  # fmt: skip
    starts = split_offsets(rows, sections, at)
    made = _launches(rows, result[0], mask, causal, scale, layout, dropout_key, dropout_p, device)
    forward, launches = made.forward()
    names = [*(["mask"] if mask is not None else []), "dropout_key"]

    def run(*values: torch.Tensor) -> None:
        forward(_argument_names(starts, names, values), *values[1 + len(names) :])

    return launch_sequence(run, *launches)


@dialect.pattern_op(alone, plevel=dialect.levels(LEVEL))
@tunable
def attention_of_rows(
    rows: TensorType, sections: Any, at: int, mask: Any, causal: bool, scale: float | None,
    layout: str, dropout_key: Any, dropout_p: float, result: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    starts = split_offsets(rows, sections, at)
    made = _launches(rows, result, mask, causal, scale, layout, dropout_key, dropout_p, device)
    forward, launches = made.forward()
    names = [*(["mask"] if mask is not None else []), "dropout_key"]
    shape = made.batch, made.heads, made.queries

    def run(*values: torch.Tensor) -> None:
        y = values[-1]
        logsumexp = torch.empty(shape, dtype=torch.float32, device=y.device)
        forward(_argument_names(starts, names, values), y, logsumexp)

    return launch_sequence(run, *launches, workspace=made.statistics)


@dialect.pattern_op(gradient, plevel=dialect.levels(LEVEL))
@tunable
def attention_of_rows_dx(
    rows: TensorType, sections: Any, at: int, mask: Any, y: TensorType, causal: bool,
    scale: float | None, layout: str, dropout_key: Any, dropout_p: float, axis: int,
    result: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    starts = split_offsets(rows, sections, at)
    decline_if(normalize_axis(axis, result.ndim) != ROWS, "gradients are not joined as rows")
    made = _launches(rows, y, mask, causal, scale, layout, dropout_key, dropout_p, device)
    backward, launches = made.backward()
    names = [*(["mask"] if mask is not None else []), "y", "logsumexp", "dy", "dropout_key"]
    third = made.heads * y.static_shape[3]

    def run(*values: torch.Tensor) -> None:
        results = _thirds(values[-1], range(0, THIRDS * third, third))
        backward(_argument_names(starts, names, values), *results.values())

    return launch_sequence(run, *launches, workspace=made.statistics)
