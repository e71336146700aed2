"""Rows: how a node of an operator is drawn for the values that there are."""

from __future__ import annotations

from tools.fuzz_models.onnx_graphs.draw import Row
from tools.fuzz_models.onnx_graphs.rows import (
    control,
    elementwise,
    indexing,
    layers,
    reduce,
    sequences,
    shapes,
)

ROWS: dict[str, Row] = {
    **elementwise.ROWS,
    **shapes.ROWS,
    **indexing.ROWS,
    **reduce.ROWS,
    **layers.ROWS,
    **sequences.ROWS,
    **control.ROWS,
}
