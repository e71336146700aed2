"""Plans of cuBLASLt on the CPU: the same layouts, epilogues and addresses, computed by torch."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from meta.base.dtype import TO_TORCH
from meta.dialect.core import Config, Unsupported
from meta.dialect.core.preference import forget
from meta.dialect.cublas import cublas, gemm, product
from meta.dialect.cublas.problem import Matrix, Problem

ALGORITHMS: list[Config] = [(("algorithm", name), ("version", 1)) for name in ("xa", "xb")]
"""What each product has besides its default."""


def extent(one: Matrix, shape: tuple[int, int], batch: int) -> int:
    """Return how many elements of memory a factor reaches over."""
    rows, columns = reversed(shape) if one.transposed else shape
    return one.lead * (rows - 1) + columns + one.step * (batch - 1)


def memory(address: int, count: int, dtype: str) -> torch.Tensor:
    """Return memory as a flat tensor."""
    kind = TO_TORCH[dtype]
    buffer = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    return torch.frombuffer(buffer, dtype=kind)


class EmulatedPlan:
    """What `meta.dialect.cublas.plan.ProductPlan` does, for addresses of the CPU."""

    def __init__(self, problem: Problem, config: Config = ()) -> None:
        self.problem, self.workspace = problem, len(config) and 64

    def factor(
        self, one: Matrix, address: int, rows: int, columns: int, dtype: str = ""
    ) -> torch.Tensor:
        of = self.problem
        flat = memory(address, extent(one, (rows, columns), of.batch), dtype or of.dtype)
        strides = (1, one.lead) if one.transposed else (one.lead, 1)
        return flat.as_strided((of.batch, rows, columns), (one.step, *strides)).double()

    def matrix(self, address: int) -> torch.Tensor:
        of = self.problem
        flat = memory(address, extent(of.out, (of.m, of.n), of.batch), of.kinds[2])
        return flat.as_strided((of.batch, of.m, of.n), (of.out.step, of.out.lead, 1))

    def vector(self, address: int) -> torch.Tensor:
        of = self.problem
        flat = memory(address, of.vector_step * (of.batch - 1) + of.n, of.dtype)
        return flat.as_strided((of.batch, 1, of.n), (of.vector_step, 0, 1)).double()

    def __call__(self, x1: int, x2: int, out: int, addend: int = 0) -> None:
        self.with_vectors(x1, x2, out, 0, 0, addend)

    def with_vectors(
        self, x1: int, x2: int, out: int, vector: int, matrix: int = 0, addend: int = 0
    ) -> None:
        of = self.problem
        everything = [a for a in (x1, x2, out, vector, matrix, addend) if a]
        assert all(a % of.alignment == 0 for a in everything)
        assert bool(vector) == of.has_vector and bool(matrix) == of.has_matrix
        assert bool(addend) == of.addend
        left, right = self.factor(of.x1, x1, of.m, of.k), self.factor(of.x2, x2, of.k, of.n)
        y = left @ right
        if addend:
            y += self.matrix(addend).double()
        if of.epilogue.startswith("bias"):
            y += self.vector(vector)
        if of.epilogue == "dgelu":
            before = self.matrix(matrix).double().requires_grad_()
            [y] = torch.autograd.grad(F.gelu(before, approximate="tanh"), before, y)
        elif matrix:
            self.matrix(matrix).copy_(y)
        if "relu" in of.epilogue:
            y = y.relu()
        if of.epilogue in ("gelu", "bias_gelu", "bias_gelu_aux"):
            y = F.gelu(y, approximate="tanh")
        if of.epilogue == "bgrad_x1":
            memory(vector, of.m, of.dtype).copy_(left[0].sum(1))
        if of.epilogue == "bgrad_x2":
            memory(vector, of.n, of.dtype).copy_(right[0].sum(0))
        self.matrix(out).copy_(y)

    def with_scales(self, x1: int, x2: int, out: int, scale1: int, scale2: int) -> None:
        of = self.problem
        assert all(a % of.alignment == 0 for a in (x1, x2, out))
        # What cuBLASLt takes: the terms of a sum side by side, in runs of 16 bytes.
        assert not of.x1.transposed and of.x2.transposed and of.k % 16 == of.n % 16 == 0
        first, second, result = of.kinds
        left = self.factor(of.x1, x1, of.m, of.k, first)[0]
        right = self.factor(of.x2, x2, of.k, of.n, second)[0]
        rows = of.scales == "rows"
        s1 = memory(scale1, of.m if rows else 1, "float32").double().reshape(-1, 1)
        s2 = memory(scale2, of.n if rows else 1, "float32").double()
        memory(out, of.m * of.n, result).copy_(((left * s1) @ (right * s2)).reshape(-1))


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the dialect run on the CPU, aligned as torch's memory is there; the fixture's value is
    the list of the problems that were planned.
    """
    planned: list[Problem] = []

    def plan(problem: Problem, device: int, config: Config = ()) -> EmulatedPlan:
        assert device == 0 and math.log2(problem.alignment) % 1 == 0
        if config not in ((), *ALGORITHMS):
            raise Unsupported(f"no algorithm {config}")
        planned.append(problem)
        return EmulatedPlan(problem, config)

    monkeypatch.setattr(product, "plan", plan)
    monkeypatch.setattr(product, "other_algorithms", lambda problem, device: ALGORITHMS)
    monkeypatch.setattr(gemm, "lacking", lambda scales, device: None)
    monkeypatch.setattr(cublas, "unavailable", None)
    monkeypatch.setattr(cublas, "devices", ("cpu",))
    forget()
    yield planned
    forget()
