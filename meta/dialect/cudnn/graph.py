"""Graphs of cuDNN's operations under construction, in the words of nvidia-cudnn-frontend.

A kernel describes its graph by a function of a `Graph`: arguments, nodes, results. The tensors of a
call are given to the plan in the order in which the description names them. The package's C++
interface is used, whose calls take addresses; what the package has in Python on top of it looks at
every tensor of every call.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any

from meta.dialect.cudnn import library
from meta.op.core.window import layout_permutation

_DTYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE"}


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor of a graph: its extents and strides in the order of axes that a node expects."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @classmethod
    def compact(
        cls, shape: tuple[int, ...], dtype: str, layout: str = "", canonical: str = ""
    ) -> Operand:
        """Return a compact tensor, its axes brought from ``layout`` to ``canonical`` if given."""
        strides, step = [], 1
        for extent in reversed(shape):
            strides.append(step)
            step *= max(extent, 1)
        order = layout_permutation(layout, canonical, "layout") if layout else range(len(shape))
        strides.reverse()
        return cls(tuple(shape[i] for i in order), tuple(strides[i] for i in order), dtype)

    def with_axis(self, place: int) -> Operand:
        """Return it with an axis of extent 1 before the axis ``place``."""
        step = self.dims[place] * self.strides[place]
        dims = (*self.dims[:place], 1, *self.dims[place:])
        return Operand(dims, (*self.strides[:place], step, *self.strides[place:]), self.dtype)


class Graph:
    """A graph of operations on data of ``dtype``, computed in at least float32.

    ``node`` has the operations: `conv_fprop`, `relu`, `sdpa` and others of the frontend.
    """

    def __init__(self, dtype: str, handle: int) -> None:
        types = frontend().data_type
        wide = types.DOUBLE if dtype == "float64" else types.FLOAT
        self.node: Any = frontend().backend_graph(
            io_data_type=getattr(types, _DTYPES[dtype]),
            intermediate_data_type=wide,
            compute_data_type=wide,
            handle=handle,
        )
        self.count = 0

    def argument(self, operand: Operand, **options: Any) -> Any:
        """Return the next tensor of the calls, as an argument of nodes."""
        self.count += 1
        dim, stride, dtype = list(operand.dims), list(operand.strides), _data_type(operand.dtype)
        return self.node.tensor(dim=dim, stride=stride, data_type=dtype, uid=self.count, **options)

    def number(self) -> Any:
        """Return a float32 number of the calls, which are given an address on the host."""
        one = 1, 1, 1, 1
        return self.argument(Operand(one, one, "float32"), is_pass_by_value=True)

    def result(self, tensor: Any, operand: Operand) -> None:
        """Let the next tensor of the calls be filled with what a node returned."""
        self.count += 1
        tensor.set_output(True).set_uid(self.count).set_data_type(_data_type(operand.dtype))
        tensor.set_dim(list(operand.dims)).set_stride(list(operand.strides))


@cache
def frontend() -> Any:
    """Return the frontend's compiled module, which calls the same libcudnn as `library`."""
    found = importlib.import_module("cudnn._compiled_module")
    found._set_dlhandle_cudnn(library.functions()._handle)
    return found


def _data_type(dtype: str) -> Any:
    return getattr(frontend().data_type, _DTYPES[dtype])
