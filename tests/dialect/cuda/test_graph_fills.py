"""Small memsets of a graph become kernels between the same neighbours, with a driver of our own."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from meta.base.errors import DeviceError
from meta.dialect.cuda import graph_fills
from meta.dialect.cuda.graph_fills import MOST_BYTES, fill_by_kernels
from meta.runtime import cuda_driver as driver

KERNEL, MEMCPY, MEMSET = 0, 1, 2
Params = tuple[int, int, int, int, int, int]
"""Of a memset: at, pitch, value, bytes of an element, width, height."""


@dataclass
class Node:
    kind: int
    params: Params | None = None
    launch: tuple[Any, ...] = ()


@dataclass
class Driver:
    """The functions of the driver on graphs: nodes by their handles, and edges."""

    nodes: dict[int, Node] = field(default_factory=dict)
    edges: set[tuple[int, int]] = field(default_factory=set)
    with_data: set[tuple[int, int]] = field(default_factory=set)
    fails: str = ""

    def add(self, kind: int, params: Params | None = None, *, after: tuple[int, ...] = ()) -> int:
        handle = 100 + 8 * len(self.nodes)
        self.nodes[handle] = Node(kind, params)
        self.edges |= {(one, handle) for one in after}
        return handle

    def listed(self, found: list[int], into: Any, count: Any) -> int:
        place = ctypes.cast(count, ctypes.POINTER(ctypes.c_size_t)).contents
        if into is not None:
            assert place.value >= len(found)
            for i, one in enumerate(found):
                into[i] = one
        place.value = len(found)
        return 0

    def cuGraphGetNodes(self, graph: Any, into: Any, count: Any) -> int:
        assert graph.value == 77
        return self.listed(list(self.nodes), into, count)

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> int:
        ctypes.cast(kind, ctypes.POINTER(ctypes.c_int)).contents.value = self.nodes[node.value].kind
        return 0

    def cuGraphMemsetNodeGetParams(self, node: Any, into: Any) -> int:
        params = self.nodes[node.value].params
        assert params is not None
        found = ctypes.cast(into, ctypes.POINTER(graph_fills._Memset)).contents
        for (name, _), value in zip(graph_fills._Memset._fields_, params, strict=True):
            setattr(found, name, value)
        return 0

    def neighbours(self, node: int, mine: int, into: Any, count: Any) -> int:
        found = sorted(edge for edge in self.edges if edge[mine] == node)
        if self.with_data.intersection(found):
            return 402
        return self.listed([edge[1 - mine] for edge in found], into, count)

    def cuGraphNodeGetDependencies(self, node: Any, into: Any, count: Any) -> int:
        return self.neighbours(node.value, 1, into, count)

    def cuGraphNodeGetDependentNodes(self, node: Any, into: Any, count: Any) -> int:
        return self.neighbours(node.value, 0, into, count)

    def cuGraphAddKernelNode(self, into: Any, graph: Any, before: Any, count: Any, of: Any) -> int:
        if self.fails:
            return 1
        kernel = ctypes.cast(of, ctypes.POINTER(graph_fills._Kernel)).contents
        types = ctypes.c_uint64, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint
        values = [
            ctypes.cast(kernel.parameters[i], ctypes.POINTER(t)).contents.value
            for i, t in enumerate(types)
        ]
        new = self.add(KERNEL, after=tuple(before[: count.value]))
        launch = kernel.function, tuple(kernel.grid), tuple(kernel.block), kernel.shared_bytes
        self.nodes[new].launch = (*launch, *values)
        ctypes.cast(into, ctypes.POINTER(ctypes.c_void_p)).contents.value = new
        return 0

    def cuGraphAddDependencies(self, graph: Any, first: Any, second: Any, count: Any) -> int:
        self.edges |= set(zip(first[: count.value], second[: count.value], strict=True))
        return 0

    def cuGraphDestroyNode(self, node: Any) -> int:
        self.nodes[node.value].kind = -1
        self.edges = {edge for edge in self.edges if node.value not in edge}
        return 0

    def cuGetErrorString(self, code: int, into: Any) -> int:
        return 0


class Graph:
    """A recorded graph."""

    def raw_cuda_graph(self) -> int:
        return 77


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    fill = driver.Function(ctypes.c_void_p(5), ctypes.c_void_p(6), 0)
    monkeypatch.setattr(driver, "library", lambda: made)
    monkeypatch.setattr(graph_fills, "_fill", lambda device: fill)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return made


def filled() -> int:
    return fill_by_kernels(Graph(), 0)  # type: ignore[arg-type]


def test_a_memset_becomes_a_kernel_in_its_place(fake: Driver) -> None:
    one, other = fake.add(KERNEL), fake.add(MEMCPY)
    memset = fake.add(MEMSET, (4096, 0, 7, 4, 300, 1), after=(one, other))
    last = [fake.add(KERNEL, after=(memset,)) for _ in range(2)]
    assert filled() == 1
    new = max(fake.nodes)
    assert fake.edges == {(one, new), (other, new), (new, last[0]), (new, last[1])}
    assert fake.nodes[new].launch == (5, (2, 1, 1), (256, 1, 1), 0, 4096, 7, 4, 300)
    assert fake.nodes[memset].kind == -1


def test_first_and_last(fake: Driver) -> None:
    fake.add(MEMSET, (8, 0, 0, 1, 4, 1))
    assert filled() == 1
    assert fake.nodes[max(fake.nodes)].launch == (5, (1, 1, 1), (32, 1, 1), 0, 8, 0, 1, 4)
    assert not fake.edges


def test_a_chain_of_memsets(fake: Driver) -> None:
    first = fake.add(MEMSET, (8, 0, 0, 1, 4, 1))
    second = fake.add(MEMSET, (16, 0, 0, 2, 4, 1), after=(first,))
    fake.add(KERNEL, after=(second,))
    assert filled() == 2
    alive = [n for n, node in fake.nodes.items() if node.kind == KERNEL]
    kernel, *new = alive
    assert fake.edges == {(new[0], new[1]), (new[1], kernel)}


@pytest.mark.parametrize(
    "params", [(8, 0, 0, 4, MOST_BYTES // 4 + 1, 1), (8, 512, 0, 1, 4, 2), (8, 0, 0, 1, 0, 1)]
)
def test_large_ones_and_those_of_rows_stay(fake: Driver, params: Params) -> None:
    memset = fake.add(MEMSET, params)
    assert filled() == 0
    assert fake.nodes[memset].kind == MEMSET


@pytest.mark.parametrize("behind", [False, True])
def test_an_edge_with_data_stays(fake: Driver, behind: bool) -> None:
    first = fake.add(KERNEL)
    memset = fake.add(MEMSET, (8, 0, 0, 1, 4, 1), after=(first,))
    last = fake.add(KERNEL, after=(memset,))
    fake.with_data = {(memset, last)} if behind else {(first, memset)}
    assert filled() == 0
    assert fake.edges == {(first, memset), (memset, last)}


def test_what_the_driver_refuses_is_an_error(fake: Driver) -> None:
    fake.add(MEMSET, (8, 0, 0, 1, 4, 1))
    fake.fails = "cuGraphAddKernelNode"
    with pytest.raises(DeviceError, match="cuGraphAddKernelNode failed"):
        filled()
