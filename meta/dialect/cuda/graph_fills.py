"""Memsets of a recorded CUDA graph as kernels.

cuBLASLt and cuDNN set a counter of a few bytes to zero before some of their kernels: 50 times in a
training step of GPT-2. A graph runs a memset elsewhere than a kernel, and waits before and after
it: 4.7 us on an H100, 8.6 us in a graph with several branches, where a kernel takes one.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch

from meta.base.errors import DeviceError
from meta.runtime import cuda_driver as driver

MOST_BYTES = 1 << 16
"""Larger memsets stay: their time is that of the memory."""
THREADS = 256
_MEMSET = 2
"""CU_GRAPH_NODE_TYPE_MEMSET."""
_LOSSY_QUERY = 402
"""CUDA_ERROR_LOSSY_QUERY: an edge of the node says more than that one comes before the other."""
_SOURCE = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry fill(.param .u64 at, .param .u32 value, .param .u32 size, .param .u32 count) {
  .reg .pred %p<4>;
  .reg .b32 %r<7>;
  .reg .b64 %d<4>;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r1, %r1, %r2, %r3;
  ld.param.u32 %r4, [count];
  setp.ge.u32 %p1, %r1, %r4;
  @%p1 ret;
  ld.param.u32 %r5, [value];
  ld.param.u32 %r6, [size];
  ld.param.u64 %d1, [at];
  cvta.to.global.u64 %d1, %d1;
  mul.wide.u32 %d2, %r1, %r6;
  add.u64 %d3, %d1, %d2;
  setp.eq.u32 %p2, %r6, 4;
  @%p2 st.global.u32 [%d3], %r5;
  @%p2 ret;
  setp.eq.u32 %p3, %r6, 2;
  @%p3 st.global.u16 [%d3], %r5;
  @%p3 ret;
  st.global.u8 [%d3], %r5;
  ret;
}
"""
"""Sets ``count`` elements of ``size`` bytes to ``value``. In PTX, which the driver translates for
every device, so that graphs need no compiler."""


class _Memset(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS."""

    _fields_ = (
        ("at", ctypes.c_uint64),
        ("pitch", ctypes.c_size_t),
        ("value", ctypes.c_uint),
        ("element_size", ctypes.c_uint),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


class _Kernel(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.POINTER(ctypes.c_void_p)),
    )


def fill_by_kernels(graph: torch.cuda.CUDAGraph, device: int) -> int:
    """Let kernels do what small memsets of a recorded graph do, and return how many.

    graph: recorded with ``keep_graph=True``, and not instantiated yet. Its order stays as it is.
    Raises DeviceError if the driver does.
    """
    raw = ctypes.c_void_p(graph.raw_cuda_graph())
    with torch.cuda.device(device):
        found = [(node, memset) for node in _nodes(raw) if (memset := _small(node)) is not None]
        return sum(_replace(raw, node, memset, _fill(device)) for node, memset in found)


@lru_cache
def _fill(device: int) -> driver.Function:
    return driver.load(_SOURCE, "fill", device)


def _nodes(graph: ctypes.c_void_p) -> list[int]:
    return _listed("cuGraphGetNodes", graph)


def _small(node: int) -> _Memset | None:
    """Return what a node sets, if it is a memset of few bytes in a row."""
    kind = ctypes.c_int()
    _call("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
    if kind.value != _MEMSET:
        return None
    found = _Memset()
    _call("cuGraphMemsetNodeGetParams", ctypes.c_void_p(node), ctypes.byref(found))
    in_a_row = found.height == 1 and found.width * found.element_size <= MOST_BYTES
    return found if in_a_row and found.width else None


def _replace(graph: ctypes.c_void_p, node: int, memset: _Memset, fill: driver.Function) -> bool:
    """Put a kernel in the place of a memset; return whether that can be."""
    old = ctypes.c_void_p(node)
    before = _neighbours("cuGraphNodeGetDependencies", old)
    after = _neighbours("cuGraphNodeGetDependentNodes", old)
    if before is None or after is None:
        return False
    values = (
        ctypes.c_uint64(memset.at),
        ctypes.c_uint(memset.value),
        ctypes.c_uint(memset.element_size),
        ctypes.c_uint(memset.width),
    )
    places = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    threads = min(THREADS, -(-memset.width // 32) * 32)
    kernel = _Kernel(
        fill.handle,
        (-(-memset.width // threads), 1, 1),
        (threads, 1, 1),
        0,
        ctypes.cast(places, ctypes.POINTER(ctypes.c_void_p)),
        None,
    )
    new = ctypes.c_void_p()
    _call(
        "cuGraphAddKernelNode",
        ctypes.byref(new), graph, _array(before), ctypes.c_size_t(len(before)),
        ctypes.byref(kernel),
    )  # fmt: skip
    assert new.value is not None
    if after:
        edges = _array([new.value] * len(after)), _array(after), ctypes.c_size_t(len(after))
        _call("cuGraphAddDependencies", graph, *edges)
    _call("cuGraphDestroyNode", old)
    return True


def _neighbours(name: str, node: ctypes.c_void_p) -> list[int] | None:
    """Return the nodes before or behind another one, or None if its edges say more than that."""
    try:
        return _listed(name, node)
    except _LossyQuery:
        return None


class _LossyQuery(DeviceError):
    pass


def _listed(name: str, of: ctypes.c_void_p) -> list[int]:
    """Return the nodes that a function of the driver lists."""
    count = ctypes.c_size_t()
    _call(name, of, None, ctypes.byref(count))
    if not count.value:
        return []
    nodes = (ctypes.c_void_p * count.value)()
    _call(name, of, nodes, ctypes.byref(count))
    return [node for node in nodes[: count.value] if node is not None]


def _array(nodes: list[int]) -> Any:
    return (ctypes.c_void_p * len(nodes))(*nodes)


def _call(name: str, *args: Any) -> None:
    code = getattr(driver.library(), name)(*args)
    if code == _LOSSY_QUERY:
        raise _LossyQuery(f"{name} failed", found="an edge with data")
    driver.check(code, name)
