"""The operators that programs are made of: how a call is drawn, and what it means."""

from tools.fuzz_models.rows import (
    binary,
    indexing,
    joining,
    making,
    movement,
    norm,
    products,
    reduction,
    unary,
    windows,
    writers,
)
from tools.fuzz_models.rows.row import ROWS, Row

__all__ = ["ROWS", "Row"]

FAMILIES = (
    binary, indexing, joining, making, movement, norm, products, reduction, unary, windows, writers,
)  # fmt: skip
