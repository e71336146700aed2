"""Layer normalisation as a graph of cuDNN, over the last axis.

Batch normalisation is not here: cuDNN's graphs of it keep statistics for the gradient, which the
operators do not. With the channels last the `cuda` dialect has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod

import torch

from meta import op
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cudnn import cudnn as dialect
from meta.dialect.cudnn.graph import Graph, Operand, frontend
from meta.dialect.cudnn.plans import planned
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.check import normalize_axis


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that are normalised, as cuDNN sees them: [rows, width, 1, 1]."""

    x: Operand
    parameter: Operand

    @property
    def statistics(self) -> Operand:
        """One number for each row."""
        return Operand.compact((self.x.dims[0], 1, 1, 1), "float32")


def rows(x: TensorType, axis: int, *parameters: TensorType | None) -> Rows:
    """Return what is normalised along the last axis; Unsupported for what cuDNN does not take."""
    if not x.is_static:
        raise Unsupported("a plan is made for extents that are numbers")
    if normalize_axis(axis, x.ndim) != x.ndim - 1:
        raise Unsupported("cuDNN normalises along the last axis")
    if x.dtype == "float64" or not x.size:
        raise Unsupported(f"cuDNN does not normalise {x}")
    types = {p.dtype for p in parameters if p is not None}
    if len(types) != 1 or None in parameters:
        raise Unsupported("cuDNN wants all parameters, of one dtype")
    width = x.static_shape[-1]
    parameter = Operand.compact((1, width, 1, 1), types.pop())
    return Rows(Operand.compact((prod(x.static_shape[:-1]), width, 1, 1), x.dtype), parameter)


def epsilon(eps: float) -> torch.Tensor:
    """Return a number that a kernel reads on the host when it is launched."""
    return torch.tensor(eps, dtype=torch.float32)


def _forward(graph: Graph, r: Rows, trains: bool) -> None:
    phases = frontend().norm_forward_phase
    phase = phases.TRAINING if trains else phases.INFERENCE
    x, scale, bias = (graph.argument(o) for o in (r.x, r.parameter, r.parameter))
    y, *statistics = graph.node.layernorm(
        norm_forward_phase=phase, input=x, scale=scale, bias=bias, epsilon=graph.number(4)
    )
    graph.result(y, r.x)
    for found in statistics if trains else ():
        graph.result(found, r.statistics)


def _backward(graph: Graph, r: Rows) -> None:
    operands = r.x, r.parameter, r.x, r.statistics, r.statistics
    x, scale, dy, mean, invvar = (graph.argument(o) for o in operands)
    results = graph.node.layernorm_backward(
        grad=dy, input=x, scale=scale, mean=mean, inv_variance=invvar
    )
    for found, operand in zip(results, (r.x, r.parameter, r.parameter), strict=True):
        graph.result(found, operand)


def _normalised(call: CallValues, trains: bool) -> OpEnv:
    a = call.args
    r = rows(a.x, a.axis, a.scale, a.bias)
    env = planned(_forward, r, trains, dtype=a.x.dtype, device=call.device.ordinal)
    return env.wrap(partial(with_number, place=3, number=epsilon(a.eps)))


def with_number(run: Callable[..., None], place: int, number: torch.Tensor) -> Callable[..., None]:
    """Return ``run`` without its value at ``place``, which is always ``number``."""
    return lambda *values: run(*values[:place], number, *values[place:])


@dialect.op(op.layer_norm)
def layer_norm(call: CallValues) -> OpEnv:
    return _normalised(call, trains=False)


@dialect.op(op.layer_norm_train)
def layer_norm_train(call: CallValues) -> OpEnv:
    return _normalised(call, trains=True)


@dialect.op(op.layer_norm_train_dx)
def layer_norm_train_dx(call: CallValues) -> OpEnv:
    a = call.args
    r = rows(a.x, a.axis, a.scale)
    return planned(_backward, r, dtype=a.x.dtype, device=call.device.ordinal)
