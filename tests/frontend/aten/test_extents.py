"""Arithmetic of extents, and extents that are values."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import TypeInferError
from meta.frontend.aten.arguments import value_of
from meta.frontend.aten.graph import Walker
from meta.frontend.aten.symint_arithmetic import evaluate
from meta.ir.dims import UNKNOWN, SymbolicDim

N, M = SymbolicDim("n"), SymbolicDim("m")


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        (operator.add, (2, 3), 5),
        (operator.mul, (N, 2), 2 * N),
        (operator.floordiv, (4 * N, 2), 2 * N),
        (operator.pow, (N, 2), N * N),
        (operator.pow, (N, 0), 1),
        (torch.sym_min, (N, N + 1), N),
        (torch.sym_max, (N, 0), N),
        (torch.sym_max, (3, 4), 4),
        (torch.sym_int, (N,), N),
        (math.ceil, (N,), N),
        (operator.ge, (N, 1), True),
        (operator.getitem, ((N, 5), 1), 5),
    ],
)
def test_what_is_known(function: Any, args: tuple[Any, ...], expected: Any) -> None:
    assert evaluate(function, args, {}) == expected


@pytest.mark.parametrize(
    ("function", "args"),
    [(operator.add, (UNKNOWN, 1)), (operator.ge, (UNKNOWN, 0)), (operator.le, (N, 5))],
)
def test_what_is_not_known(function: Any, args: tuple[Any, ...]) -> None:
    assert evaluate(function, args, {}) is UNKNOWN


@pytest.mark.parametrize(
    ("function", "args"),
    [(torch.sym_min, (N, M)), (torch.sym_float, (N,)), (operator.pow, (2, N)), (math.sqrt, (N,))],
)
def test_what_depends_on_the_extents(function: Any, args: tuple[Any, ...]) -> None:
    with pytest.raises(TypeInferError):
        evaluate(function, args, {})


@pytest.mark.parametrize("dim", [N, 3 * N * M - 7, (N + 1) // 2, (N * M) // 3 + N])
def test_extents_are_values(dim: Any) -> None:
    @meta.model.trace
    def run(_x: Any) -> Any:
        return value_of(dim)

    exe = meta.vm.compile(run, meta.ir.parse_type("float32[n, m]"))
    for n, m in ((1, 1), (4, 7), (5, 2)):
        found = exe(meta.ones((n, m)))
        assert found.dtype == "int64" and found.item() == dim.evaluate({"n": n, "m": m})


@pytest.mark.filterwarnings("ignore:.*treespec:FutureWarning")  # of torch.export itself
def test_a_program_whose_extents_depend_on_data() -> None:
    """Its assertions about them are not converted."""

    class Chosen(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = x[x[:, 0] > 0]
            torch._check(rows.shape[0] <= x.shape[0])
            return (rows.reshape(-1) * 2).reshape(rows.shape[0], 2) + 1

    x = torch.tensor([[1.0, 2.0], [-1.0, 5.0], [3.0, 4.0]])
    program = torch.export.export(Chosen(), (x,)).run_decompositions({})

    @meta.model.trace
    def run(x: Any) -> Any:
        return Walker(program.graph_module)(x)[0]

    found = meta.vm.compile(run, meta.array(x))(meta.array(x))
    assert found.torch().equal(Chosen()(x))
