"""Cases of `meta/frontend/onnx/converters/trees.py`: random trees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator

from tests.frontend.onnx.records import OnnxCase, data

X = data(9, 4)
X[2, 1] = np.nan
WHOLE = np.array([[1, 0, -1, 0], [0, 1, 0, -1]], np.int64)
MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
ML = (("ai.onnx.ml", 3),)


def trees(count: int, depth: int, modes: tuple[str, ...], missing: bool = False) -> dict[str, Any]:
    """Return the columns of random trees, whose leaves are at several depths."""
    random = np.random.default_rng(count * 10 + depth)
    columns: dict[str, list[Any]] = {
        name: []
        for name in (
            *("nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_values", "nodes_modes"),
            *("nodes_truenodeids", "nodes_falsenodeids", "nodes_missing_value_tracks_true"),
        )
    }

    def grow(tree: int, level: int, numbers: list[int]) -> int:
        number = numbers[0]
        numbers[0] += 1
        place = len(columns["nodes_nodeids"])
        leaf = level == depth or (level > 1 and random.random() < 0.3)
        row = (
            *(tree, number, int(random.integers(4)), round(float(random.uniform(-1, 1)), 3)),
            *("LEAF" if leaf else f"BRANCH_{random.choice(modes)}", 0, 0),
            int(missing and random.integers(2)),
        )
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
        if not leaf:
            columns["nodes_truenodeids"][place] = grow(tree, level + 1, numbers)
            columns["nodes_falsenodeids"][place] = grow(tree, level + 1, numbers)
        return number

    for tree in range(count):
        grow(tree, 0, [0])
    return columns


def votes(
    kind: str, columns: dict[str, Any], targets: int, low: float = -1.0, every: bool = False
) -> dict[str, Any]:
    """Return the votes of all leaves, some of them of two; or of each one for ``every`` target."""
    random = np.random.default_rng(len(columns["nodes_nodeids"]) + targets)
    rows = []
    for i, mode in enumerate(columns["nodes_modes"]):
        chosen = random.integers(targets, size=1 + int(random.random() < 0.3))
        for target in range(targets) if every else chosen:
            if mode == "LEAF":
                weight = round(float(random.uniform(low, 1)), 3)
                place = (columns["nodes_treeids"][i], columns["nodes_nodeids"][i])
                rows.append((*place, int(target), weight))
    names = ("treeids", "nodeids", "ids", "weights")
    return {f"{kind}_{n}": list(c) for n, c in zip(names, zip(*rows, strict=True), strict=True)}


def text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(text, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def case(operator: str, results: str, label: str, x: Any = X, **attributes: Any) -> OnnxCase:
    refused = attributes.pop("refused", None)
    kind = {"float32": "float", "float64": "double", "int64": "int64"}[str(x.dtype)]
    stated = ", ".join(f"{n} = {text(v)}" for n, v in attributes.items())
    names = ", ".join(r.split()[-1] for r in results.split(", "))
    call = f"{names} = ai.onnx.ml.{operator}<{stated}>(x)"
    graph = f"({kind}{list(x.shape)} x) => ({results}) {{ {call} }}"
    return OnnxCase(
        f"ai.onnx.ml.{operator}",
        graph,
        (x,),
        17,
        ML,
        tolerance=1e-5,
        label=label,
        refused=refused,
    )


def regressor(
    label: str, count: int, depth: int, modes: tuple[str, ...] = ("LEQ",), **more: Any
) -> OnnxCase:
    x, missing = more.pop("x", X), more.pop("missing", True)
    columns = trees(count, depth, modes, missing)
    voted = votes("target", columns, 3, every=more.pop("every", False))
    return case(
        "TreeEnsembleRegressor", "float y", label, x, n_targets=3, **columns, **voted, **more
    )


def classifier(label: str, classes: int, low: float = -1.0, **more: Any) -> OnnxCase:
    columns = trees(5, 3, ("LEQ",), True)
    voted = votes("class", columns, classes, low, more.pop("every", False))
    labels = more.pop("labels", [10, 7, 3][: max(classes, 2)])
    return case(
        "TreeEnsembleClassifier",
        "int64 l, float y",
        label,
        classlabels_int64s=labels,
        **columns,
        **voted,
        **more,
    )


CASES = [
    *(regressor(f"{mode}", 3, 3, (mode,)) for mode in MODES),
    regressor("all", 12, 6, MODES),
    regressor("no-missing", 4, 4, ("LEQ", "GT"), missing=False),
    regressor("AVERAGE", 5, 3, aggregate_function="AVERAGE"),
    *(regressor(a, 5, 3, aggregate_function=a, every=True) for a in ("MIN", "MAX")),
    regressor("MIN-of-none", 1, 3, aggregate_function="MIN", refused="the MIN of no votes"),
    regressor("base", 3, 2, base_values=[0.5, -1.0, 2.0]),
    replace(
        regressor("integers", 3, 3, x=WHOLE),
        expected=lambda x: ReferenceEvaluator(
            regressor("floats", 3, 3, x=x.astype(np.float32)).model()
        ).run(None, {"x": x.astype(np.float32)})[0],
    ),
    regressor("probit", 3, 2, post_transform="PROBIT", refused="'PROBIT' is not supported"),
    *(classifier(t, 3, every=True, post_transform=t) for t in ("NONE", "SOFTMAX", "LOGISTIC")),
    classifier("base", 3, every=True, base_values=[0.5, -1.0, 2.0]),
    classifier("positive", 3, 0.0),
    classifier("signs", 3, refused="the SUM of no votes"),
    classifier("binary", 1, 0.0),
    classifier("binary-logistic", 1, post_transform="LOGISTIC"),
    classifier("binary-signs", 1, refused="runtimes read in several ways"),
    classifier("binary-alone", 1, labels=[1], refused="the class 0 alone, of 1"),
]
