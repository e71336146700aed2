"""Converters of sequences, optionals and text, which are data while converting, and of
TfIdfVectorizer.

A sequence is a list of values, an optional is its value or None. So a sequence has as many elements
as the conversion knows, and every path of a program gives it as many. A position that only the run
time knows is possible where all elements are arrays of one type. Text is computed by
`meta.frontend.onnx.text` where it is constant.
"""

from __future__ import annotations

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant, constant_ints, constant_number, static_extent
from meta.frontend.onnx.registry import onnx
from meta.op.core.check import normalize_axis


def require_sequence(value):
    """Return the list of a sequence; Unconvertible for anything else."""
    if not isinstance(value, list):
        raise Unconvertible("its input is no sequence")
    return value


def _position(index, least, most):
    """Return a known position, counted from the end if it is below 0; None if it is not known."""
    known = constant_number(index)
    if known is None:
        return None
    if not least <= known < most:
        raise Unconvertible(f"the position {known} is not in [{least}, {most})")
    return int(known)


def _stacked(elements, what):
    """Return elements of one type as one array; Unconvertible if their types differ."""
    types = {(tuple(e.shape), e.dtype) if hasattr(e, "dtype") else None for e in elements}
    if len(types) != 1 or None in types:
        raise Unconvertible(
            f"{what} at a position that is not known while converting, in a sequence of "
            f"{len(elements)} elements of several types",
            hint="make the position a constant",
        )
    return op.stack(tuple(elements), 0)


def _checked(index, count, ends, call):
    """Return a position of the run time, counted from the start: it is looked up in a table of all
    positions from ``-count`` to before ``ends``, so that one out of range is an error.
    """
    places = constant([*range(count), *range(ends)], "int64", call)
    index = op.reshape(op.astype(index, "int64"), (1,))
    return op.take_along_axis(places, op.add(index, count), 0)


def _rows(stacked, count):
    return [op.squeeze(row, 0) for row in op.split(stacked, count, 0)]


@onnx("SequenceConstruct")
def construct(*elements):
    return list(elements)


@onnx("SequenceEmpty", ignore=("dtype",))
def empty():
    return []


@onnx("SequenceLength")
def length(sequence, *, call):
    return constant(len(require_sequence(sequence)), "int64", call)


@onnx("SequenceAt", op.take)
def at(sequence, index):
    elements = require_sequence(sequence)
    count = len(elements)
    place = _position(index, -count, count)
    if place is not None:
        return elements[place]
    return op.take(_stacked(elements, "an element"), op.reshape(index, ()), 0)


@onnx("SequenceInsert", op.take)
def insert(sequence, tensor, position=None, *, call):
    elements = require_sequence(sequence)
    count = len(elements)
    place = count if position is None else _position(position, -count, count + 1)
    if place is not None:
        place += count if place < 0 else 0
        return [*elements[:place], tensor, *elements[place:]]
    where = _checked(position, count, count + 1, call)
    rows = constant(range(count + 1), "int64", call)
    # Row i is element i in front of the place, the new one at it, and element i - 1 behind.
    source = op.where(op.equal(rows, where), count, op.where(op.less(rows, where), rows, rows - 1))
    stacked = _stacked([*elements, tensor], "an insertion")
    return _rows(op.take(stacked, source, 0, "fast"), count + 1)


@onnx("SequenceErase", op.take)
def erase(sequence, position=None, *, call):
    elements = require_sequence(sequence)
    count = len(elements)
    if not count:
        raise Unconvertible("the sequence has no element")
    place = count - 1 if position is None else _position(position, -count, count)
    if place is not None:
        place += count if place < 0 else 0
        return elements[:place] + elements[place + 1 :]
    stacked = _stacked(elements, "an erasure")
    where = _checked(position, count, count, call)
    if count == 1:
        return []
    rows = constant(range(count - 1), "int64", call)
    source = op.where(op.less(rows, where), rows, rows + 1)
    return _rows(op.take(stacked, source, 0, "fast"), count - 1)


@onnx("ConcatFromSequence", op.concat, op.stack)
def concat_from_sequence(sequence, *, axis, new_axis):
    elements = require_sequence(sequence)
    if not elements:
        raise Unconvertible("the sequence has no element")
    return op.stack(tuple(elements), axis) if new_axis else op.concat(tuple(elements), axis)


@onnx("SplitToSequence", op.strided_slice, op.squeeze)
def split_to_sequence(x, split=None, *, axis, keepdims):
    """Without ``split`` the parts are of one element, and ``keepdims`` says whether they keep the
    axis.
    """
    axis = normalize_axis(axis, x.ndim)
    total = static_extent(x.shape[axis], "the axis that is split")
    sizes = [1] * total
    if split is not None:
        given = constant_ints(split)
        if given is None:
            raise Unconvertible("the sizes of the parts are not known while converting")
        sizes = list(given)
        if split.ndim == 0:
            (size,) = given
            if size < 1:
                raise Unconvertible(f"parts of {size} elements")
            sizes = [min(size, total - start) for start in range(0, total, size)]
        if sum(sizes) != total or min(sizes, default=0) < 0:
            raise Unconvertible(f"parts of {sizes} elements of an axis of {total}")
    parts, start = [], 0
    for size in sizes:
        index = (slice(None),) * axis + (slice(start, start + size),)
        part = x[index]
        parts.append(op.squeeze(part, axis) if split is None and not keepdims else part)
        start += size
    return parts


@onnx("SequenceMap")
def sequence_map(first, *others, body, call):
    """The body is called for each element, of several sequences for those at one place; what is no
    sequence is the same each time.
    """
    elements = require_sequence(first)
    for other in others:
        if isinstance(other, list) and len(other) != len(elements):
            raise Unconvertible(f"sequences of {len(elements)} and {len(other)} elements")
    rows = [
        body(element, *(o[i] if isinstance(o, list) else o for o in others))
        for i, element in enumerate(elements)
    ]
    return tuple([row[k] for row in rows] for k in range(len(body.outputs)))


@onnx("Optional", ignore=("type",))
def optional(value=None):
    return value


@onnx("OptionalGetElement")
def get_element(value=None):
    if value is None:
        raise Unconvertible("the optional has no element")
    return value


@onnx("OptionalHasElement")
def has_element(value=None, *, call):
    return constant(value is not None, "bool", call)


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
