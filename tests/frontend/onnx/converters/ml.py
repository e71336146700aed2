"""Cases of `meta/frontend/onnx/converters/domains.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.frontend.onnx.records import OnnxCase, data

ML = (("ai.onnx.ml", 4),)
X = data(3, 4)
X[1] = 0
WHOLE = np.array([[5, 1], [3, 9]], np.int64)


def case(operator: str, results: str, attributes: str = "", *inputs: Any, **how: Any) -> OnnxCase:
    kinds = {"float32": "float", "float64": "double", "int64": "int64"}
    values = inputs or (X,)
    declared = ", ".join(
        f"{kinds[str(v.dtype)]}{list(v.shape)} {n}" for n, v in zip("xyz", values, strict=False)
    )
    names = ", ".join(r.split()[-1] for r in results.split(", "))
    given = ", ".join("xyz"[: len(values)])
    stated = f"<{attributes}>" if attributes else ""
    graph = f"({declared}) => ({results}) {{ {names} = ai.onnx.ml.{operator}{stated}({given}) }}"
    label = attributes.replace(" ", "").replace('"', "").replace(",", "-")
    return OnnxCase(f"ai.onnx.ml.{operator}", graph, values, 17, ML, label=label, **how)


COEFFICIENTS = "coefficients = [1.0, 2.0, 3.0, -1.0, 0.5, -0.5, 0.25, 0.0, -1.0, 0.1, 0.2, 0.3]"
ONE_ROW = "coefficients = [1.0, 2.0, 3.0, -1.0], intercepts = [0.1]"
CASES = [
    case("Scaler", "float r", "offset = [0.5], scale = [2.0]"),
    case("Scaler", "float r", "offset = [0.5, 1.0, 0.0, 2.0], scale = [2.0, 1.0, 0.5, 4.0]"),
    case(
        "LinearRegressor",
        "float r",
        f"targets = 3, {COEFFICIENTS}, intercepts = [0.1, 0.2, 0.3]",
    ),
    *(
        case(
            "LinearClassifier",
            "int64 l, float r",
            f'post_transform = "{transform}", classlabels_ints = [7, 3, 5], {COEFFICIENTS}, '
            "intercepts = [0.1, 0.2, 0.3]",
        )
        for transform in ("NONE", "LOGISTIC", "SOFTMAX")
    ),
    case(
        "LinearClassifier",
        "int64 l, float r",
        f'post_transform = "LOGISTIC", classlabels_ints = [7, 3], {ONE_ROW}',
    ),
    case(
        "LinearClassifier",
        "int64 l, float r",
        f"classlabels_ints = [7, 3], {ONE_ROW}",
        refused="runtimes read in two ways",
    ),
    case("Normalizer", "float r", 'norm = "L1"'),
    case("Normalizer", "float r", 'norm = "L2"'),
    case("Normalizer", "float r", 'norm = "MAX"', refused="runtimes read in two ways"),
    case(
        "Imputer",
        "float r",
        "imputed_value_floats = [1.0, 2.0, 3.0, 4.0]",
        expected=lambda x: np.where(x == 0, np.arange(1, 5, dtype=np.float32), x),
    ),
    case(
        "Imputer",
        "int64 r",
        "imputed_value_int64s = [7], replaced_value_int64 = 9",
        WHOLE,
        expected=lambda x: np.where(x == 9, 7, x),
    ),
    case("Imputer", "float r", "imputed_value_floats = [1.0, 2.0]", refused="2 values for"),
    case("FeatureVectorizer", "float r", "inputdimensions = [2, 6, 4]", X, X + 1, X - 1),
    case("FeatureVectorizer", "float r", "inputdimensions = [2]", X, X, refused="not one number"),
    case("OneHotEncoder", "float r", "cats_int64s = [5, 1, 3]", WHOLE),
    case("OneHotEncoder", "float r", "cats_int64s = [5, 1, 3]", WHOLE[0]),
    case("OneHotEncoder", "float r", "cats_int64s = [5], zeros = 0", WHOLE, refused="an error"),
    case(
        "LabelEncoder",
        "float r",
        "keys_int64s = [5, 1, 3], values_floats = [0.5, 1.5, 2.5], default_float = -1.0",
        WHOLE,
    ),
]
