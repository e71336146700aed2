"""Layer normalisation, and that by the root mean square, as graphs of cuDNN, over the last axis.

Batch normalisation is not here: cuDNN's graphs of it keep statistics for the gradient, which the
operators do not. With the channels last the `cuda` dialect has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from meta import op
from meta.dialect.core import OpEnv, decline_if, require_static
from meta.dialect.cudnn import cudnn as dialect
from meta.dialect.cudnn.graph import Graph, Operand, frontend
from meta.dialect.cudnn.plans import Run, plan, planned, with_plan
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


def _rows(x: TensorType, axis: int, *parameters: TensorType | None) -> Rows:
    """Return what is normalised along the last axis; Unsupported for what cuDNN does not take."""
    require_static(x)
    decline_if(normalize_axis(axis, x.ndim) != x.ndim - 1, "cuDNN normalises along the last axis")
    decline_if(x.dtype == "float64" or not x.size, f"cuDNN does not normalise {x}")
    types = {p.dtype for p in parameters if p is not None}
    decline_if(len(types) != 1 or None in parameters, "cuDNN wants all parameters, of one dtype")
    width = x.static_shape[-1]
    parameter = Operand.compact((1, width, 1, 1), types.pop())
    return Rows(Operand.compact((prod(x.static_shape[:-1]), width, 1, 1), x.dtype), parameter)


def _epsilon(eps: float) -> torch.Tensor:
    """Return a number that a kernel reads on the host when it is launched."""
    return torch.tensor(eps, dtype=torch.float32)


def _forward(graph: Graph, r: Rows, node: str, trains: bool, biased: bool) -> None:
    """Describe y of x, scale, bias if ``biased`` and eps; if ``trains`` with the statistics that
    the node has: 1 / deviation, that of a layer with the mean before it.
    """
    phases = frontend().norm_forward_phase
    named: dict[str, Any] = {"input": graph.argument(r.x), "scale": graph.argument(r.parameter)}
    if biased:
        named["bias"] = graph.argument(r.parameter)
    named["norm_forward_phase"] = phases.TRAINING if trains else phases.INFERENCE
    y, *statistics = getattr(graph.node, node)(**named, epsilon=graph.number())
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


def _rms_backward(graph: Graph, r: Rows) -> None:
    operands = r.x, r.parameter, r.x, r.statistics
    x, scale, dy, inverse = (graph.argument(o) for o in operands)
    dx, dscale, _ = graph.node.rmsnorm_backward(
        grad=dy, input=x, scale=scale, inv_variance=inverse, has_dbias=False
    )
    graph.result(dx, r.x)
    graph.result(dscale, r.parameter)


def _normalised(call: CallValues, node: str, trains: bool = False, biased: bool = True) -> OpEnv:
    a = call.args
    r = _rows(a.x, a.axis, *((a.scale, a.bias) if biased else (a.scale,)))
    options = {"dtype": a.x.dtype, "device": call.device.ordinal}
    number, place = _epsilon(a.eps), 2 + biased

    def env(run: Run) -> OpEnv:
        def launch(*tensors: torch.Tensor) -> None:
            run(*tensors[:place], number, *tensors[place:])

        return OpEnv(launch, allocates=False, workspace=lambda: run.workspace)

    return with_plan(env, _forward, r, node, trains, biased, **options)


@dialect.op(op.layer_norm)
def layer_norm(call: CallValues) -> OpEnv:
    return _normalised(call, "layernorm")


@dialect.op(op.layer_norm_train)
def layer_norm_train(call: CallValues) -> OpEnv:
    return _normalised(call, "layernorm", trains=True)


@dialect.op(op.layer_norm_train_dx)
def layer_norm_train_dx(call: CallValues) -> OpEnv:
    a = call.args
    r = _rows(a.x, a.axis, a.scale)
    return planned(_backward, r, dtype=a.x.dtype, device=call.device.ordinal)


@dialect.op(op.rms_norm)
def rms_norm(call: CallValues) -> OpEnv:
    decline_if(call.args.scale is None, "cuDNN wants a scale")
    return _normalised(call, "rmsnorm", biased=call.args.bias is not None)


@dialect.op(op.rms_norm_dx)
def rms_norm_dx(call: CallValues) -> OpEnv:
    """The operator keeps no statistics: the forward graph computes them once more."""
    a = call.args
    r = _rows(a.x, a.axis, a.scale)
    options = {"dtype": a.x.dtype, "device": call.device.ordinal}
    again = plan(_forward, r, "rmsnorm", True, False, **options)
    run = plan(_rms_backward, r, **options)
    number, shape = _epsilon(a.eps), r.statistics.dims

    def gradients(x, scale, dy, dx, dscale):
        inverse = torch.empty(shape, dtype=torch.float32, device=x.device)
        again(x, scale, number, dx, inverse)  # what it normalises is overwritten below
        run(x, scale, dy, inverse, dx, dscale)

    def workspace() -> int:
        return 4 * prod(shape) + max(again.workspace, run.workspace)

    return OpEnv(gradients, allocates=False, workspace=workspace)
