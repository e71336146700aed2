"""Recurrent layers."""

from __future__ import annotations

from functools import partial

from tools.fuzz_models.onnx_graphs.draw import Draw, Node, Row
from tools.fuzz_models.onnx_graphs.rows.layers import weights

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(draw: Draw, op: str) -> Node:
    """Forward; what the reference evaluator knows."""
    x = draw.pick(lambda v: v.ndim == 3 and v.fixed[2] and v.dtype == "float32")
    hidden, rows = 3, 3 * GATES[op]
    w = weights(draw, (1, rows, x.shape[2]), x.dtype)
    r = weights(draw, (1, rows, hidden), x.dtype)
    bias = (weights(draw, (1, 2 * rows), x.dtype),) if draw.chance(0.6) else ()
    return Node(op, (x.name, w, r, *bias), {"hidden_size": hidden}, draw.random.randint(1, 2))


ROWS: dict[str, Row] = {op: partial(recurrent, op=op) for op in GATES}
