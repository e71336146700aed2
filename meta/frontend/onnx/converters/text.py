"""TfIdfVectorizer, of integers, and operators of text, which `meta.frontend.onnx.text` computes
where it is constant.
"""

from __future__ import annotations

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant, static_extent
from meta.frontend.onnx.registry import onnx

onnx.refuse("RegexFullMatch", why="patterns of a file are not searched for")


@onnx("StringConcat", "StringNormalizer", "StringSplit")
def of_text(*inputs, **attributes):
    """Never called with text."""
    raise Unconvertible("its input is no text")


def _grams(pool, starts, least, most, columns):
    """Return the grams by length, each with its column in the result; of equal ones the last."""
    found, number = {}, 0
    for length, start in enumerate(starts, 1):
        end = starts[length] if length < len(starts) else len(pool)
        for i in range(start, end, length):
            if least <= length <= most:
                found.setdefault(length, {})[tuple(pool[i : i + length])] = columns[number]
            number += 1
    return found


@onnx("TfIdfVectorizer", op.equal, op.logical_and, op.sum, op.scatter_add)
def tfidf_vectorizer(
    x,
    *,
    max_gram_length,
    max_skip_count,
    min_gram_length,
    mode,
    ngram_counts,
    ngram_indexes,
    pool_int64s,
    pool_strings,
    weights,
    call,
):
    """How often each gram of the pool is in x, [C] or [N, C], its elements next to one another or
    with up to ``max_skip_count`` others between two of them.
    """
    if pool_strings or not pool_int64s:
        raise Unconvertible("arrays have no texts")
    if mode not in ("TF", "IDF", "TFIDF"):
        raise Unconvertible(f"mode={mode!r} is unknown", hint="TF, IDF or TFIDF")
    width = max(ngram_indexes) + 1
    if mode != "TF" and weights and tuple(ngram_indexes) != tuple(range(width)):
        # ONNX's text counts weights by the place in the pool, its evaluator by the column.
        raise Unconvertible("weights of grams that are not in the order of their columns")
    rows = op.reshape(x, (1, *x.shape)) if x.ndim == 1 else x
    if rows.ndim != 2:
        raise Unconvertible(f"x has {x.ndim} axes, not 1 or 2")
    total = op.zeros((rows.shape[0], width), "float32", str(call.device))
    grams = _grams(pool_int64s, ngram_counts, min_gram_length, max_gram_length, ngram_indexes)
    for length, columns in grams.items():
        for skip in range(1 if length == 1 else max_skip_count + 1):
            counts = _counted(rows, tuple(columns), skip + 1, call)
            if counts is not None:
                places = constant([tuple(columns.values())], "int64", call)
                total = op.scatter_add(total, 1, op.broadcast_to(places, counts.shape), counts)
    if mode == "IDF":
        total = op.astype(op.greater(total, 0.0), "float32")
    if mode != "TF" and weights:
        total = op.multiply(total, constant(weights, "float32", call))
    return op.reshape(total, (width,)) if x.ndim == 1 else total


def _counted(rows, grams, distance, call):
    """Return how often each gram is in each row, [N, grams], its elements ``distance`` apart; None
    for rows that are too short.
    """
    length = len(grams[0])
    places = static_extent(rows.shape[1], "the axis of the elements") - (length - 1) * distance
    if places < 1:
        return None
    same = None
    for k in range(length):
        seen = op.expand_dims(rows[:, k * distance : k * distance + places], 2)
        wanted = constant([gram[k] for gram in grams], rows.dtype, call)
        hits = op.equal(seen, wanted)
        same = hits if same is None else op.logical_and(same, hits)
    return op.sum(op.astype(same, "float32"), 1)
