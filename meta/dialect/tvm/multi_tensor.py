"""Optimizer steps of several parameters as one CPU kernel each: what happens to an element."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx

from meta import op
from meta.base.source import definition_span
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.tvm import tvm as dialect
from meta.dialect.tvm.broadcast import computing, constant
from meta.dialect.tvm.build import deferred
from meta.dialect.tvm.launch import Launch
from meta.dialect.tvm.list_kernel import Pass, Update, list_kernel
from meta.dialect.tvm.list_launch import NUMBERS, ListLaunch
from meta.dialect.tvm.target import for_device
from meta.ir.types import TensorType, TupleType
from meta.op.core.call import CallValues
from meta.op.core.op import Op

PARALLEL = 1 << 15
"""Elements from which it pays to wake the threads."""


def gradient(e, k):
    """Return the clamped ``factor * dx``; what is no number stays so."""
    g = k.factor * e["dx"]
    below, above = g < -k.clip_value, g > k.clip_value
    return tirx.Select(above, k.clip_value, tirx.Select(below, -k.clip_value, g))


def updated(e, x, **stores):
    """Return the stores of a new parameter, of its copy if it has one, and of its state."""
    copies = {"copies": x} if "copies" in e else {}
    return {"x": x, **copies, **stores}


def sgd(nesterov):
    def step(e, k, sums):
        g = gradient(e, k) + k.decay * e["x"]
        if "v" not in e:
            return updated(e, e["x"] - k.rate * g), []
        v = k.momentum * e["v"] + g
        u = g + k.momentum * v if nesterov else v
        return updated(e, e["x"] - k.rate * u, v=v), []

    return (Pass(step),)


def moments(e, k, g):
    """Return the new m and v."""
    return k.beta1 * e["m"] + k.new1 * g, k.beta2 * e["v"] + k.new2 * g * g


def divisor(k, v):
    return tirx.sqrt(v * k.unbias2) + k.eps


def adam(e, k, sums):
    m, v = moments(e, k, gradient(e, k) + k.decay * e["x"])
    u = m * k.unbias1 / divisor(k, v)
    return updated(e, e["x"] - k.rate * u, m=m, v=v), []


def adamw(e, k, sums):
    m, v = moments(e, k, gradient(e, k))
    u = m * k.unbias1 / divisor(k, v) + k.decay * e["x"]
    return updated(e, e["x"] - k.rate * u, m=m, v=v), []


def lamb_moments(e, k, sums):
    m, v = moments(e, k, gradient(e, k))
    u = m * k.unbias1 / divisor(k, v) + k.decay * e["x"]
    return {"m": m, "v": v}, [e["x"] * e["x"], u * u]


def lamb(e, k, sums):
    u = e["m"] * k.unbias1 / divisor(k, e["v"]) + k.decay * e["x"]
    return updated(e, e["x"] - k.rate * ratio(sums(0), sums(1)) * u), []


def ratio(square, other):
    """Return the quotient of two norms, 1 where either is 0."""
    zero, one = constant(0, square), constant(1, square)
    defined = tirx.And(square > zero, other > zero)
    return tirx.Select(defined, tirx.sqrt(square / tirx.Select(defined, other, one)), one)


def lans_norm(e, k, sums):
    g = gradient(e, k)
    return {}, [g * g]


def normalized(e, k, sums):
    one, zero = constant(1, sums(0)), constant(0, sums(0))
    return gradient(e, k) / tirx.sqrt(tirx.Select(sums(0) > zero, sums(0), one))


def lans_moments(e, k, sums):
    g = normalized(e, k, sums)
    m, v = moments(e, k, g)
    decay, below = k.decay * e["x"], divisor(k, v)
    r, c = m * k.unbias1 / below + decay, g / below + decay
    return {"m": m, "v": v}, [e["x"] * e["x"], r * r, c * c]


def lans(e, k, sums):
    decay, below = k.decay * e["x"], divisor(k, e["v"])
    r = e["m"] * k.unbias1 / below + decay
    c = normalized(e, k, sums) / below + decay
    along = k.beta1 * ratio(sums(1), sums(2)) * r + k.new1 * ratio(sums(1), sums(3)) * c
    return updated(e, e["x"] - k.rate * along), []


def axpby(e, k, sums):
    def times(number, value):
        zero = constant(0, value)
        return tirx.Select(number.equal(zero), zero, number * value)

    return {"y": times(k.alpha, e["x"]) + times(k.beta, e["y"])}, []


def square(e, k, sums):
    return {}, [e["x"] * e["x"]]


def rounded(e, k, sums):
    return {"y": e["x"]}, []


UPDATES: dict[Op, Update] = {
    op.multi_tensor_adam: (Pass(adam),),
    op.multi_tensor_adamw: (Pass(adamw),),
    op.multi_tensor_lamb: (Pass(lamb_moments, (0, 1)), Pass(lamb)),
    op.multi_tensor_lans: (Pass(lans_norm, (0,)), Pass(lans_moments, (1, 2, 3)), Pass(lans)),
    op.multi_tensor_axpby: (Pass(axpby),),
    op.multi_tensor_norm: (Pass(square, (0,)),),
    op.multi_tensor_cast: (Pass(rounded),),
}


def _make(call: CallValues) -> OpEnv:
    """Return the kernel of a call: one for all of its tensors."""
    if call.device.kind != "cpu":
        raise Unsupported("addresses are read on the host; the dialect cuda has a kernel")
    args = dict(zip(call.op.schema.names, call.args, strict=True))
    slots: list[tuple[str, int]] = []
    lists: dict[str, tuple[TensorType, ...]] = {}
    for slot in call.op.schema.slots:
        value = args[slot.name]
        if slot.kind == "tensors":
            slots.append((slot.name, len(value)))
            if value:
                lists[slot.name] = value
        elif slot.kind != "attribute" and value is not None:
            slots.append((slot.name, -1))
    if isinstance(call.out, TupleType) and call.outputs:  # the results are a list, too
        slots.append(("y", len(call.outputs)))
        lists["y"] = call.outputs
    if not all(t.is_static for tensors in lists.values() for t in tensors):
        raise Unsupported("this kernel is built for extents that are numbers")
    kinds = [
        dict(zip(lists, (t.dtype for t in together), strict=True))
        for together in zip(*lists.values(), strict=True)
    ]
    distinct = [dict(pairs) for pairs in dict.fromkeys(tuple(k.items()) for k in kinds)]
    sizes = tuple(prod(t.static_shape) for t in next(iter(lists.values())))
    norm = call.op is op.multi_tensor_norm
    wide = "float64" if norm else computing(lists["y" if "y" in lists else "x"][0].dtype)
    launch = ListLaunch(
        call.op.name, tuple(slots), sizes, tuple(map(distinct.index, kinds)), outputs=int(norm)
    )
    update = UPDATES[call.op] if call.op in UPDATES else sgd(args["nesterov"])
    names = tuple(NUMBERS[call.op.name])
    function = list_kernel(update, names, distinct, wide, sum(sizes) >= PARALLEL, norm)
    run = deferred(function, for_device(call.device), Launch(lists=launch))
    return OpEnv(run, allocates=False)


def _register(operator: Op, element: Any) -> None:
    dialect.register(operator, _make, definition_span(element))


_register(op.multi_tensor_sgd, sgd)
for _operator, _update in UPDATES.items():
    _register(_operator, _update[-1].function)
