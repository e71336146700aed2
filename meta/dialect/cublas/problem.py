"""A matrix product as plain data: what a plan is made for, and what two calls share a plan by.

Matrices are as torch has them, rows first. cuBLASLt stores columns first, so it is given the
product transposed (`plan.py`): out' = x2' x1', where the memory of each stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

ALIGNMENT = 16
"""Bytes at which kernels read best; memory of torch and of a program's arena begins there."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Where the elements of a factor are.

    Attributes
    ----------
    lead: elements from one run of neighbours in memory to the next. transposed: whether a run is a
    column, not a row. step: elements from one matrix of the batch to the next, 0 for the same one.
    """

    lead: int
    transposed: bool
    step: int = 0


@dataclass(frozen=True, slots=True)
class Problem:
    """out = epilogue(x1 @ x2 + beta * out), a batch of (m, k) times (k, n).

    ``addend``: whether the product is added to another matrix (m, n), stored like ``out``.
    ``alignment``: bytes to which all addresses are aligned. ``tf32``: whether float32 factors may
    be rounded to 10 bits of mantissa. ``out_lead``: elements from one row of the result to the
    next, 0 if one begins where the other ends; ``out_step``: the same of the results of the batch.
    ``vector_step``: the same of the epilogue's vector, 0 for one that all share. ``scales``: how
    the factors are scaled: "none", "whole" by one number each, or "rows" by one for each row of x1
    and column of x2. ``dtypes``: of x1, x2 and the result where they differ.
    """

    dtype: str
    batch: int
    m: int
    n: int
    k: int
    x1: Matrix
    x2: Matrix
    epilogue: str = "none"
    addend: bool = False
    alignment: int = ALIGNMENT
    tf32: bool = False
    out_lead: int = 0
    out_step: int = 0
    vector_step: int = 0
    scales: str = "none"
    dtypes: tuple[str, str, str] | None = None

    @property
    def kinds(self) -> tuple[str, str, str]:
        """The dtypes of x1, x2 and the result."""
        return self.dtypes or (self.dtype,) * 3

    @property
    def out(self) -> Matrix:
        """Where the elements of the result are."""
        step = (self.out_step or self.m * self.n) if self.batch > 1 else 0
        return Matrix(self.out_lead or self.n, False, step)

    @property
    def has_vector(self) -> bool:
        """Whether the epilogue reads a bias or writes its gradient."""
        return "bias" in self.epilogue or "bgrad" in self.epilogue

    @property
    def has_matrix(self) -> bool:
        """Whether the epilogue reads or writes another matrix (m, n), stored like ``out``."""
        return "gelu_aux" in self.epilogue or "dgelu" in self.epilogue


def matrix(shape: tuple[int, ...], strides: tuple[int, ...]) -> Matrix | None:
    """Return how a factor, (rows, columns) or (batch, rows, columns), lies in memory.

    None if neither its rows nor its columns are runs of neighbours without overlap: it is to be
    made compact.
    """
    rows, columns = shape[-2:]
    down, right = strides[-2:]
    step = strides[0] if len(shape) == 3 and shape[0] > 1 else 0
    if right == 1 or columns == 1:
        lead = columns if rows == 1 else down
        if lead >= columns:
            return Matrix(lead, False, step)
    if down == 1 or rows == 1:
        lead = rows if columns == 1 else right
        if lead >= rows:
            return Matrix(lead, True, step)
    return None


def compact(shape: tuple[int, ...], transposed: bool) -> Matrix:
    """Return how a compact factor lies in memory, given the shape in which it is stored."""
    rows, columns = shape[-2:]
    step = rows * columns if len(shape) == 3 and shape[0] > 1 else 0
    return Matrix(columns, transposed, step)


def aligned(addresses: int) -> int:
    """Return to how many bytes addresses are aligned, given by the ``or`` of all; at most 16."""
    low = addresses & -addresses
    return min(low, ALIGNMENT) if low else ALIGNMENT
