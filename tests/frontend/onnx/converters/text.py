"""Cases of `meta/frontend/onnx/converters/text.py`."""

from __future__ import annotations

import numpy as np

from tests.frontend.onnx.records import OnnxCase

X = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]], np.int32)
POOL = (
    "ngram_counts = [0, 4], ngram_indexes = {columns}, pool_int64s = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7]"
)
STRAIGHT, MIXED = "[0, 1, 2, 3, 4, 5, 6]", "[3, 1, 6, 5, 4, 2, 0]"


def case(
    mode: str, columns: str, skip: int, lengths: tuple[int, int], more: str = "", **how: object
) -> OnnxCase:
    x = how.pop("x", X)
    return OnnxCase(
        "TfIdfVectorizer",
        f"(int32{list(x.shape)} x) => (float y) {{ y = TfIdfVectorizer<"
        f'mode = "{mode}", max_skip_count = {skip}, min_gram_length = {lengths[0]}, '
        f"max_gram_length = {lengths[1]}, {POOL.format(columns=columns)}{more}>(x) }}",
        (x,),
        9,
        label="-".join([mode, str(skip), str(lengths), str(x.ndim), columns[:3]]),
        **how,
    )


def present(x: np.ndarray) -> np.ndarray:
    """Return which grams of the pool are in each row, up to five others between their elements."""
    found = np.zeros((x.shape[0], 7), np.float32)
    grams = [(2,), (3,), (5,), (4,), (5, 6), (7, 8), (6, 7)]
    for row, result in zip(x.tolist(), found, strict=True):
        for column, gram in zip([3, 1, 6, 5, 4, 2, 0], grams, strict=True):
            if len(gram) == 1:
                result[column] = gram[0] in row
            else:
                pairs = [(row[i], row[j]) for i in range(len(row)) for j in range(i + 1, len(row))]
                result[column] = gram in pairs
    return found


WEIGHTS = ", weights = [2.0, 2.0, 3.0, 3.0, 5.0, 7.0, 0.5]"
CASES = [
    *(
        case("TF", MIXED, skip, lengths)
        for skip in (0, 1, 5)
        for lengths in ((1, 1), (2, 2), (1, 2))
    ),
    case("TF", MIXED, 0, (1, 2), x=X[0]),
    case("TF", MIXED, 3, (2, 2), x=X[:, :1]),
    case("IDF", MIXED, 5, (1, 2), expected=present),
    case("IDF", STRAIGHT, 5, (1, 2), WEIGHTS),
    case("TFIDF", STRAIGHT, 1, (1, 2), WEIGHTS),
    case("TFIDF", MIXED, 1, (1, 2), WEIGHTS, refused="not in the order of their columns"),
    OnnxCase(
        "StringConcat",
        '() => (string[2] y) { x = Constant<value = string[2] {"a", "b"}>() '
        "y = StringConcat(x, x) }",
        refused="arrays have no texts",
        opset=20,
    ),
]
