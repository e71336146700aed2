"""Copies of a region's inputs in memory of the program that is free: where, and that programs then
still give the same.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.ir import TensorType
from meta.model import trace
from meta.testing import check
from meta.vm.compiler import bytecode as bc
from meta.vm.graphs import input_memory
from meta.vm.graphs.input_memory import free_offsets
from meta.vm.graphs.regions import regions
from tests.vm.recorder import standing_in

KIB = TensorType((256,), "float32")
# Registers: 0 and 1 are inputs, 2 the storage.
BLOCK = (
    bc.AllocateStorage(2, 8192),
    bc.AllocateTensor(3, KIB, 2, 0),
    bc.Invoke(0, (0,), (3,), True),
    bc.AllocateTensor(4, KIB, 2, 1024),
    bc.Invoke(0, (3,), (4,), True),
    bc.ViewTensor(5, 1, TensorType((16, 16), "float32")),
    bc.AllocateTensor(6, KIB, 2, 2048),
    bc.Invoke(0, (4, 5), (6,), True),
    bc.AllocateTensor(7, KIB, 2, 3072),
    bc.Invoke(0, (6,), (7,), True),
    bc.Return(7),
)


@pytest.mark.parametrize(
    ("sizes", "gaps", "size", "expected"),
    [
        ({0: 1024}, [], 8192, {0: 1024}),  # where what is computed later lies
        ({1: 1024}, [], 8192, {1: 3072}),  # a view is read later
        ({0: 1024, 1: 1024}, [], 8192, {0: 1024, 1: 3072}),
        ({0: 1024}, [(1536, 1600)], 8192, {0: 1600}),  # in one segment
        ({0: 4096}, [(1536, 1600)], 8192, {0: 1600}),
        ({1: 1024}, [], 4000, {}),
        ({0: 4096, 1: 4096}, [], 8192, {0: 1024}),
        ({0: 512}, [], 8192, {}),  # too small to be worth it
    ],
)
def test_where_there_is_room(
    sizes: dict[int, int],
    gaps: list[tuple[int, int]],
    size: int,
    expected: dict[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(input_memory, "LEAST", 1024)
    fixed = frozenset({2, 3, 4, 6, 7})
    (region,) = regions(BLOCK, fixed, lambda i: None, lambda i: False)
    assert free_offsets(BLOCK, region, sizes, gaps, size) == expected


def test_what_is_handed_on_stays() -> None:
    block = (*BLOCK[:-1], bc.Return((7, 5)))
    (region,) = regions(block, frozenset({2, 3, 4, 6, 7}), lambda i: None, lambda i: False)
    assert free_offsets(block, region, {0: 1 << 20, 1: 1 << 20}, [], 1 << 22) == {0: 1024}


def steps(x: Any, y: Any, z: Any) -> Any:
    """One input is returned, one is read before what takes most memory, and one is written."""
    a = op.multiply(x, y)
    b = op.add(a, x)
    c = op.subtract(op.multiply(b, x), a)
    op.assign(z, op.add(c, b))
    d = op.multiply(op.reshape(c, (8, 8, 1)), op.reshape(b, (8, 1, 8)))
    e = op.add(op.multiply(d, d), d)
    return op.sum(op.subtract(e, d), 0), op.sum(a), op.reshape(x, (-1,))


def test_programs_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_memory, "LEAST", 1)
    standing_in(monkeypatch)
    given = [meta.random.normal((8, 8)) for _ in range(3)]
    found = meta.vm.compile(trace(steps), *given)
    plain = meta.vm.compile(trace(steps), *given, cuda_graph=False)
    inside: list[torch.Tensor] = []
    copy = type(found.workspace).copy

    def copied(self: Any, tensor: torch.Tensor, offset: int) -> torch.Tensor:
        inside.append(copy(self, tensor, offset))
        return inside[-1]

    monkeypatch.setattr(type(found.workspace), "copy", copied)
    for _ in range(5):
        x, y = (meta.random.normal((8, 8)) for _ in range(2))
        states = [meta.array(torch.zeros(8, 8)) for _ in range(2)]
        for one, other in zip(found(x, y, states[0]), plain(x, y, states[1]), strict=True):
            check(one, other, 0, 0)
        check(states[0], states[1], 0, 0)
    assert len(inside) == 1  # of y: x is handed on, and z written
