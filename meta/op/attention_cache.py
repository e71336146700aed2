"""Keys and values of the tokens that a decoder has read: they are written where they belong, and
attention reads those that a token sees.

A cache has slots, one for each position of a text. It is contiguous, [n, heads, slots, width] for n
texts, or one of blocks, [blocks, heads, block_size, width], of which a table [n, most] of int32
says which ones a text has, in order: slot i is in block ``table[row, i // block_size]``. A negative
number is no block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from meta.ir.dims import product
from meta.ir.types import Dim, TensorType
from meta.op.attention import same_extent
from meta.op.core import InOut, Tensor, op
from meta.op.core.axes import Args, Axes, Labels
from meta.op.core.check import require, require_float, require_ndim, require_same_dtype
from meta.op.core.indices import IndexRange
from meta.op.norm import statistics_dtype


def slots_of(cache: TensorType, block_table: TensorType | None) -> Any:
    """Return how many slots a text has in a cache."""
    return product((cache.shape[2], *(() if block_table is None else block_table.shape[1:])))


def _check(
    tokens: dict[str, TensorType],
    caches: dict[str, TensorType],
    positions: TensorType,
    block_table: TensorType | None,
) -> None:
    """Check what both operators take; ``tokens`` are [n, steps, heads, width]."""
    for name, x in (tokens | caches).items():
        require_ndim(x, 4, name)
    require_same_dtype(*tokens.values(), *caches.values())
    n, steps = next(iter(tokens.values())).shape[:2]
    integers: dict[str, tuple[TensorType, str, Dim | None]] = {}
    integers["positions"] = positions, "int64", steps
    if block_table is not None:
        integers["block_table"] = block_table, "int32", None
    for name, (x, dtype, extent) in integers.items():
        fits = x.dtype == dtype and x.ndim == 2 and same_extent(x.shape[0], n)
        fits = fits and (extent is None or same_extent(x.shape[1], extent))
        expected = f"{dtype}[{n}, {'blocks' if extent is None else extent}]"
        require(fits, f"{name} does not fit", expected=expected, found=x)
    first, second = caches.values()
    alike = all(map(same_extent, first.shape[:3], second.shape[:3]))
    rows = block_table is not None or same_extent(first.shape[0], n)
    found = ", ".join(f"{name}={x}" for name, x in caches.items())
    expected = f"[{n if block_table is None else 'blocks'}, heads, slots, width] both"
    require(alike and rows, "the caches do not fit", expected=expected, found=found)


def _ranges(keys: Tensor, positions: Tensor, block_table: Tensor | None) -> Iterator[IndexRange]:
    yield IndexRange("positions", slots_of(keys, block_table), "the slots", any_below=True)
    if block_table is not None:
        yield IndexRange("block_table", keys.shape[0], "the blocks of keys", any_below=True)


def _axes(args: Args) -> Iterable[Axes]:
    """Texts, and heads; what texts have of blocks is not cut by text."""
    own: Labels = ("n", None, "h", None)
    cache: Labels = ("n" if args["block_table"] is None else None, "h", None, None)
    of: dict[str, Labels] = {"keys": cache, "values": cache, "positions": ("n", None)}
    of |= {"block_table": ("n", None), "sinks": ("h",)}
    of |= {"query": own, "key": own, "value": own}
    tensors = {name: of[name] for name in args if name in of and args[name] is not None}
    results = (own,) if "query" in args else (cache, cache)
    return (Axes(tensors, results, grouped=("h",)),)


@op(axes=_axes, indices=_ranges)
def cache_update(
    keys: InOut,
    values: InOut,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    block_table: Tensor | None = None,
) -> tuple[()]:
    """Write keys and values of tokens to their slots, in place.

    keys, values: caches, [n, heads, slots, width], or [blocks, heads, block_size, width] with a
    table; the widths may differ. key, value: [n, steps, heads, width], of the dtype of the caches.
    positions: int64 [n, steps], the slot of each token. A token with a negative one is not written,
    as padding. block_table: int32 [n, most], the blocks of each text in order, negative where there
    is none; what belongs there is not written. Where a text has two tokens of one position, one of
    them is written, which is not specified. Returns the caches, the arrays that were given.

    Raises TypeInferError if they do not fit, and IndexOutOfRange for a position or a block that
    there is not: on CUDA with META_CHECK_INDICES only, without it nothing is written there.

    >>> keys, values = meta.zeros((1, 1, 4, 2)), meta.zeros((1, 1, 4, 2))
    >>> of = meta.ones((1, 2, 1, 2))
    >>> _ = meta.cache_update(keys, values, of, of, meta.array([[2, -1]]))
    >>> keys[0, 0, :, 0].numpy().tolist()
    [0.0, 0.0, 1.0, 0.0]
    """
    _check({"key": key, "value": value}, {"keys": keys, "values": values}, positions, block_table)
    for x, cache, name in ((key, keys, "key"), (value, values, "value")):
        fits = all(map(same_extent, x.shape, (*value.shape[:2], cache.shape[1], cache.shape[3])))
        expected = f"[n, steps, {cache.shape[1]}, {cache.shape[3]}]"
        require(fits, f"{name} does not fit its cache", expected=expected, found=x)
    return ()


@op(axes=_axes, indices=_ranges)
def cached_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    block_table: Tensor | None = None,
    sinks: Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    score_cap: float | None = None,
) -> Tensor:
    """Attention of tokens to the slots of a cache up to their own, which `cache_update` wrote.

    ``softmax(cap(query @ keys.T * scale)) @ values`` per head, over the slots ``j`` with
    ``position - window < j <= position``, where ``cap(s) = score_cap * tanh(s / score_cap)`` (Gemma
    Team, arXiv:2408.00118). Scores and softmax are computed in at least float32. Slots that no
    token sees are not read: what is in them does not matter, and takes no time.

    query: floating point [n, steps, h, d]. keys: [n, g, slots, d] and values: [n, g, slots, e], of
    its dtype, or [blocks, g, block_size, d] and e with a table; g divides h, and each head of keys
    serves h / g adjacent heads of query (arXiv:2305.13245). positions: int64 [n, steps]; a token
    with a negative one sees nothing. block_table: as of `cache_update`; a token does not see what
    has no block. sinks: [h], of query's dtype or float32: a score of each head beside those of the
    slots, whose value is 0 (Xiao et al., arXiv:2309.17453; as gpt-oss learns it). scale:
    1 / sqrt(d) unless given. window: at least 1; None is no limit. score_cap: above 0.

    Result: [n, steps, h, e] of query's dtype; 0 for a token that sees nothing. It has no gradient.

    Raises TypeInferError if they do not fit, and IndexOutOfRange for a position or a block that
    there is not: on CUDA with META_CHECK_INDICES only, without it nothing is read there.

    >>> keys = meta.zeros((1, 1, 4, 2))
    >>> values = meta.array([[[[2.0], [4.0], [9.0], [9.0]]]])
    >>> meta.cached_attention(meta.ones((1, 1, 1, 2)), keys, values, meta.array([[1]])).item()
    3.0
    """
    _check({"query": query}, {"keys": keys, "values": values}, positions, block_table)
    require_float(query, "query")
    heads, groups = query.shape[2], keys.shape[1]
    divides = True
    if isinstance(heads, int) and isinstance(groups, int):
        divides = heads == groups or (groups > 0 and heads % groups == 0)
    expected = f"[., a divisor of {heads}, ., {query.shape[3]}]"
    fits = divides and same_extent(query.shape[3], keys.shape[3])
    require(fits, "keys do not fit query", expected=expected, found=keys)
    if sinks is not None:
        dtypes = {query.dtype, statistics_dtype(query.dtype)}
        fits = sinks.dtype in dtypes and sinks.ndim == 1 and same_extent(sinks.shape[0], heads)
        expected = f"{' or '.join(sorted(dtypes))} of the heads [{heads}]"
        require(fits, "sinks do not fit", expected=expected, found=sinks)
    require(window is None or window >= 1, "window is at least 1", found=window)
    require(score_cap is None or score_cap > 0, "score_cap is above 0", found=score_cap)
    return query.with_shape((*query.shape[:3], values.shape[3]))
