"""Normalisation by the root mean square as a graph of cuDNN, over the last axis."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import torch

from meta import op
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cudnn import cudnn as dialect
from meta.dialect.cudnn.graph import Graph, frontend
from meta.dialect.cudnn.norm import Rows, epsilon, rows, with_number
from meta.dialect.cudnn.plans import plan, planned
from meta.op.core.call import CallValues


def _forward(graph: Graph, r: Rows, trains: bool, biased: bool) -> None:
    """Describe y of x, scale, bias if ``biased`` and eps; with 1 / rms behind it if ``trains``."""
    phases = frontend().norm_forward_phase
    named: dict[str, Any] = {"input": graph.argument(r.x), "scale": graph.argument(r.parameter)}
    if biased:
        named["bias"] = graph.argument(r.parameter)
    named["norm_forward_phase"] = phases.TRAINING if trains else phases.INFERENCE
    y, inverse = graph.node.rmsnorm(**named, epsilon=graph.number(4))
    graph.result(y, r.x)
    if trains:
        graph.result(inverse, r.statistics)


def _backward(graph: Graph, r: Rows) -> None:
    operands = r.x, r.parameter, r.x, r.statistics
    x, scale, dy, inverse = (graph.argument(o) for o in operands)
    dx, dscale, _ = graph.node.rmsnorm_backward(
        grad=dy, input=x, scale=scale, inv_variance=inverse, has_dbias=False
    )
    graph.result(dx, r.x)
    graph.result(dscale, r.parameter)


@dialect.op(op.rms_norm)
def rms_norm(call: CallValues) -> OpEnv:
    a = call.args
    if a.scale is None:
        raise Unsupported("cuDNN wants a scale")
    biased = a.bias is not None
    r = rows(a.x, a.axis, *((a.scale, a.bias) if biased else (a.scale,)))
    env = planned(_forward, r, False, biased, dtype=a.x.dtype, device=call.device.ordinal)
    return env.wrap(partial(with_number, place=3 if biased else 2, number=epsilon(a.eps)))


@dialect.op(op.rms_norm_dx)
def rms_norm_dx(call: CallValues) -> OpEnv:
    """The operator keeps no statistics: the forward graph computes them once more."""
    a = call.args
    r = rows(a.x, a.axis, a.scale)
    options = {"dtype": a.x.dtype, "device": call.device.ordinal}
    again, run = plan(_forward, r, True, False, **options), plan(_backward, r, **options)
    number, shape = epsilon(a.eps), r.statistics.dims

    def gradients(x, scale, dy, dx, dscale):
        inverse = torch.empty(shape, dtype=torch.float32, device=x.device)
        again(x, scale, number, dx, inverse)  # what it normalises is overwritten below
        run(x, scale, dy, inverse, dx, dscale)

    def workspace() -> int:
        return 4 * prod(shape) + max(again.workspace, run.workspace)

    return OpEnv(gradients, allocates=False, workspace=workspace)
