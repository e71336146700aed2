"""A step of decoding between two projections, in one launch: query and key are rotated where they
are in the rows of a joint projection, key and value written to a cache, and attention reads what
the token sees. A second launch joins the parts of long caches.

On an H200 these are six launches or seven otherwise, of about a microsecond each and as long in
between, in each layer of a model.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from meta import op
from meta.base.device import Device
from meta.dialect.core import Launch, OpEnv, Unsupported, decline_if, require_static
from meta.dialect.core.knobs import ask, tunable
from meta.dialect.cuda import cubin
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.source import Parameters, source
from meta.dialect.cuda.tensor_core import HALF
from meta.ir.types import TensorType
from meta.op.attention import score_scale
from meta.op.attention_cache import slots_of
from meta.op.core.check import normalize_axis
from meta.runtime import gpu_properties

WIDTHS = (32, 64, 128, 256)
MOST_SHARE = 8
"""Queries that a head of keys serves, which a thread block holds in registers."""
MOST_TEXTS = 64
LEAST, MOST_SPLITS = 64, 32
"""Slots that are worth a thread block of their own, and the most thread blocks of a head."""
SHARED = 40 * 2**10
"""Bytes of shared memory for what warps have found."""
PARAMETERS = Parameters(
    (
        *("rows", "cos", "sin", "query_scale", "key_scale", "keys", "values", "positions"),
        *("table", "parts", "out"),
    ),
    "fff4x",
)
JOIN = Parameters(("parts", "out"), "")


@tunable
def launches(
    rows: TensorType, sections: Any, axis: int, keys: TensorType, values: TensorType,
    positions: TensorType, result: TensorType, device: Device, scale: float | None,
    window: int | None, cap: float | None, table: TensorType | None = None,
    cos: TensorType | None = None, sin: TensorType | None = None, interleaved: bool | None = None,
    query_scale: TensorType | None = None, key_scale: TensorType | None = None,
    norm_axis: int | None = None, eps: float | None = None,
) -> OpEnv:  # fmt: skip
    """Return the launches for rows (n, 1, (heads + 2 groups) width) of query, key and value."""
    given = {"rows": rows, "keys": keys, "values": values, "positions": positions}
    require_static(*given.values(), result)
    decline_if(rows.dtype not in HALF, f"made for half precision, not {rows.dtype}")
    texts, steps, heads, width = result.static_shape
    _, groups, size, _ = keys.static_shape
    decline_if(steps != 1, f"{steps} tokens of a text: made for one")
    decline_if(not 0 < texts <= MOST_TEXTS, f"{texts} texts: made for up to {MOST_TEXTS}")
    decline_if(width not in WIDTHS or values.static_shape[3] != width, f"heads of {width} elements")
    decline_if(heads > MOST_SHARE * groups, "too many queries share a head of keys")
    decline_if(not (size and prod(keys.static_shape)), "the cache is empty")
    inner = (heads + 2 * groups) * width
    joint = normalize_axis(axis, rows.ndim) == rows.ndim - 1 and rows.size == texts * inner
    fits = joint and tuple(sections) == (heads * width, (heads + groups) * width)
    decline_if(not fits, "query, key and value are not the parts of the rows")
    normalizes = query_scale is not None
    decline_if(normalizes != (key_scale is not None), "only one of query and key is normalised")
    if normalizes:
        decline_if(norm_axis not in (-1, 3), "not normalised by head")
        scales = {s.dtype for s in (query_scale, key_scale) if s is not None}
        fits = scales in ({rows.dtype}, {"float32"})
        decline_if(not fits, f"scales of {scales} beside {rows.dtype}")
    if cos is not None:
        decline_if(cos.dtype != "float32", f"angles of {cos.dtype}")
        shapes = [(n, 1, 1, width // 2) for n in (1, texts)]
        found = (1,) * (4 - cos.ndim) + cos.static_shape
        decline_if(found not in shapes, f"angles of the shape {cos.shape}")
    early = gpu_properties.begins_early(device)
    slots = slots_of(keys, table)
    least = min(slots, window) if window is not None else slots
    processors = gpu_properties.query(device.ordinal).processors
    blocks, best = groups * texts, 1
    if 2 * blocks <= processors:
        best = max(1, min(-(-least // LEAST), MOST_SPLITS, 2 * processors // blocks))
    parts = ask("parts", best, [1, 2, 4, 8, 16, 32])
    most_warps = SHARED // (heads // groups * (width + 2) * 4)
    warps = ask("warps", max(n for n in (1, 2, 4, 8) if n <= most_warps), [1, 2, 4, 8, 16])
    decline_if(warps > most_warps, "warps do not fit the shared memory")
    sizes = {
        "TEXTS": texts, "HEADS": heads, "GROUPS": groups, "WIDTH": width, "SIZE": size,
        "PAGED": int(table is not None), "BLOCKS": keys.static_shape[0],
        "MOST": 1 if table is None else table.static_shape[1], "PARTS": parts, "WARPS": warps,
        "TURNS": ask("turns", 1, [2, 4]), "ROTATES": int(cos is not None),
        "INTERLEAVED": int(bool(interleaved)), "NORMALIZES": int(normalizes),
        "BROADCASTS": int(cos is None or cos.size == width // 2), "WINDOW": window or 0,
        "CAPS": int(cap is not None), "EARLY": int(early),
    }  # fmt: skip
    types = {"DATA": rows.dtype, "SCALE": query_scale.dtype if query_scale else rows.dtype}
    text = source("decode_attention", types, sizes)
    split = 4 if parts >= 8 else 1
    more = {**{name: sizes[name] for name in ("WIDTH", "PARTS", "EARLY")}, "SPLIT": split}
    join = source("decode_attention_join", {"DATA": rows.dtype}, more)
    numbers = score_scale(scale, width), cap or 0.0, eps or 0.0
    present = {
        "rows": rows, "query_scale": query_scale, "key_scale": key_scale, "cos": cos, "sin": sin,
        "keys": keys, "values": values, "positions": positions, "table": table,
    }  # fmt: skip
    order = *(n for n, t in present.items() if t is not None), "out"
    workspace = texts * heads * parts * (width + 2) if parts > 1 else 0
    made: list[Launch] = []

    def run(*arguments: torch.Tensor) -> None:
        tensors = dict(zip(order, arguments, strict=True))
        if any(tensors[n].data_ptr() % 16 for n in ("keys", "values")):
            raise Unsupported("a cache begins at an address that is no multiple of 16")
        if not made:
            how = device.ordinal, (groups * parts, texts), 32 * warps, PARAMETERS.size
            made.append(cubin.launch(text, "decode_attention", *how, early=early))
            if parts > 1:
                how = device.ordinal, (texts * heads, 1), width * split, JOIN.size
                made.append(cubin.launch(join, "join", *how, early=early))
        if parts > 1:
            of = tensors["rows"].device
            tensors["parts"] = torch.empty(workspace, dtype=torch.float32, device=of)
        made[0](PARAMETERS.packed(tensors, *numbers))
        if parts > 1:
            made[1](JOIN.packed(tensors))

    texts_of = [text, join] if parts > 1 else [text]
    return cubin.env(run, lambda: texts_of, device.ordinal, 4 * workspace)


def decode_attention(
    rows, sections, axis, query_scale, key_scale, norm_axis, eps, cos, sin, interleaved, keys,
    values, positions, table, scale, window, cap,
):  # fmt: skip
    """What the launch does, in a pattern."""
    parts = op.split(rows, sections, axis)

    def rotated(x, by):
        x = op.reshape(x, ...)
        x = op.rms_norm.plain(x, by, None, norm_axis, eps) | x
        return op.rotary_embedding(x, cos, sin, interleaved) | x

    query, key = rotated(parts[0], query_scale), rotated(parts[1], key_scale)
    value = op.reshape(parts[2], ...)
    update = op.cache_update(keys, values, key, value, positions, table)
    found = op.cached_attention(query, keys, values, positions, table, None, scale, window, cap)
    return update, found


dialect.pattern_op(decode_attention, name="decode_attention")(launches)
