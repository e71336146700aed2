"""Cases of `meta/frontend/onnx/converters/sequence.py`."""

from __future__ import annotations

import re

import numpy as np
from onnx import TensorProto

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
WORDS = np.array([["ab", "c"], ["", "ab"]], object)
TEXTS = [
    (
        *("StringConcat", "string[2, 2] x, string[2] z", "string[2, 2] y"),
        *("y = StringConcat(x, z)", (WORDS, WORDS[0])),
    ),
    (
        *("StringSplit", "string[2] x", "string y, int64[2] n"),
        *('y, n = StringSplit<delimiter = "b">(x)', (WORDS[0],)),
    ),
    (
        *("StringNormalizer", "string[2] x", "string y"),
        *(
            'y = StringNormalizer<case_change_action = "UPPER", stopwords = ["c"], '
            "is_case_sensitive = 1>(x)",
            (WORDS[0],),
        ),
    ),
    (
        *("Equal", "string[2, 2] x, string[2] z", "float[2, 2] y"),
        *("e = Equal(x, z) y = Cast<to = 1>(e)", (WORDS, WORDS[0])),
    ),
    (
        *("Identity", "string[2, 2] x", "string[4] y, seq(string) s"),
        *(
            "n = Constant<value = int64[1] {4}>() y = Reshape(x, n) i = Identity(y) "
            "s = SequenceConstruct(i, x)",
            (WORDS,),
        ),
    ),
    (
        *("Cast", "float[2] x", "string[2] y"),
        *(f"y = Cast<to = {TensorProto.STRING}>(x)", (np.array([1.5, 2.0], np.float32),)),
    ),
]
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
    *(
        OnnxCase(
            name,
            f"({declared}) => ({results}) {{ {nodes} }}",
            inputs,
            20,
            constants=tuple(re.findall(r"\] (\w+)", declared)),
            label=str(i),
        )
        for i, (name, declared, results, nodes, inputs) in enumerate(TEXTS)
    ),
    OnnxCase(
        "StringConcat",
        "(float[2] x) => (string[2] y) { y = StringConcat(x, x) }",
        (np.ones(2, np.float32),),
        20,
        refused="its input is no text",
    ),
    OnnxCase(
        "Cast",
        f"(float[2] x) => (string[2] y) {{ y = Cast<to = {TensorProto.STRING}>(x) }}",
        (np.ones(2, np.float32),),
        20,
        refused="has to follow from constants",
    ),
    OnnxCase(
        "RegexFullMatch",
        '() => (bool[2] y) { x = Constant<value = string[2] {"a", "b"}>() '
        'y = RegexFullMatch<pattern = "a*">(x) }',
        refused="patterns of a file are not searched for",
        opset=20,
    ),
]
