"""What the outputs of a graph are made of: results of its program, inputs as they are, views.

AOTAutograd counts on what its trace says of them: which share memory, with each other or with
inputs, and how they lie in memory, since the code behind the graph was traced with that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import fx

from meta import op
from meta.base.device import Device
from meta.frontend.dynamo.extents import Extents, NotForAllSizes
from meta.frontend.dynamo.layout import inverse, is_usual, order_by_strides, order_of
from meta.ir.dims import SymbolicDim


@dataclass(frozen=True)
class Given:
    """The graph's input of this number, the very tensor."""

    number: int


@dataclass(frozen=True)
class Known:
    """A value that is the same for every call; a symbolic dimension for every size."""

    value: Any


@dataclass(frozen=True)
class Result:
    """A result of the program.

    number: among the results. axes: how its axes are permuted to be the output's, None for as they
    are. strides: how the output lies in memory, if no order of axes says it. device: where it is to
    be, if elsewhere. shares: whether it may be in the memory of an input.
    """

    number: int
    axes: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    device: torch.device | None = None
    shares: bool = False


@dataclass(frozen=True)
class View:
    """A view of another output, which is all of the memory."""

    of: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


Output = Given | Known | Result | View


def outputs_of(
    graph: fx.GraphModule, values: Any, extents: Extents, device: Device, users: int
) -> tuple[list[Output], list[Any]]:
    """Return what outputs are made of, and the program's results among the values of the outputs.

    values: of the graph's output node, as the walker returns them. users: how many outputs the user
    gets; the others go to a graph of ours, which is given their elements without gaps.
    """
    nodes = list(graph.graph.nodes)
    places = [n for n in nodes if n.op == "placeholder"]
    wanted = next(n for n in nodes if n.op == "output").args[0]
    given = {_memory(n.meta["val"]) for n in places if _is_tensor(n)}
    wholes = _wholes(wanted)
    outputs: list[Output] = []
    results: list[Any] = []
    for at, (node, value) in enumerate(zip(wanted, values, strict=True)):
        if not isinstance(node, fx.Node) or not _is_tensor(node):
            outputs.append(Given(places.index(node)) if node in places else Known(value))
            continue
        said = node.meta["val"]
        whole = wholes.get(_memory(said), at)
        if node in places:
            outputs.append(Given(places.index(node)))
        elif whole != at and _memory(said) not in given and _alike(said, wanted[whole].meta["val"]):
            if extents.symbolic:
                raise NotForAllSizes("an output is a view of another one")
            shape, strides = map(extents.of, said.shape), map(extents.of, said.stride())
            offset = extents.of(said.storage_offset())
            outputs.append(View(whole, tuple(shape), tuple(strides), offset))
        else:
            made, symbol = _result(len(results), said, value, extents, device, at >= users)
            outputs.append(replace(made, shares=_memory(said) in given))
            results.append(symbol)
    return outputs, results


def _result(
    number: int, said: torch.Tensor, value: Any, extents: Extents, device: Device, ours: bool
) -> tuple[Result, Any]:
    """Return what an output is, and what the program returns for it."""
    order = order_of(said)
    elsewhere = None if str(said.device) == str(device) else said.device
    if order is None and ours:
        order = order_by_strides(said)
    if order is None:
        if extents.symbolic:
            raise NotForAllSizes("an output is not dense")
        return Result(number, None, tuple(map(extents.of, said.stride())), elsewhere), value
    if is_usual(order):
        return Result(number, None, None, elsewhere), value
    return Result(number, inverse(order), None, elsewhere), op.permute_dims(value, order)


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _memory(said: torch.Tensor) -> int:
    found: int = said.untyped_storage()._cdata
    return found


def _alike(view: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether two tensors read the same memory as the same numbers: a conjugate, a negative and a
    view in another dtype, as of the parts of complex numbers, do not.
    """
    same = view.is_conj() == whole.is_conj() and view.is_neg() == whole.is_neg()
    return same and view.dtype == whole.dtype


def _wholes(wanted: Sequence[Any]) -> dict[int, int]:
    """Return, by memory that several outputs share, the output that is all of it; of memory that
    none is all of, the outputs are copies.
    """
    found: dict[int, int] = {}
    for at, node in enumerate(wanted):
        if not isinstance(node, fx.Node) or not _is_tensor(node) or node.op == "placeholder":
            continue
        said = node.meta["val"]
        if any(isinstance(d, torch.SymInt) for d in (*said.shape, *said.stride())):
            continue
        whole = prod(said.shape) * said.itemsize == said.untyped_storage().nbytes()
        if whole and order_of(said) is not None:
            found.setdefault(_memory(said), at)
    return found


def size_of(value: Any, extents: dict[str, int]) -> Any:
    """Return a `Known` value in a call with these extents."""
    return value.evaluate(extents) if isinstance(value, SymbolicDim) else value
