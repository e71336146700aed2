"""Optimizer steps and casts of several tensors, one launch for each pass over memory."""

from __future__ import annotations

from math import prod
from typing import Any

from meta import op
from meta.base.source import definition_span
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.list_kernel import NUMBER_KINDS, Definition, Launcher
from meta.dialect.cuda.list_source import Pass
from meta.ir.types import TensorType, TupleType
from meta.op.core.call import CallValues
from meta.op.core.op import Op

RATES = "learning_rate", "weight_decay"
GRADIENT = "factor", "clip_value"
BETAS = "beta1", "beta2", "eps", "step"

CLAMPED = """
inline W gradient(W dx, const Known& k) {
  W g = k.factor * dx;
  return g > k.clip_value ? k.clip_value : g < -k.clip_value ? -k.clip_value : g;
}
"""
NEW_COPY = """
#ifdef HAS_COPIES
copies = x;
#endif
"""
# What depends on the step only, in float64: 1 - beta2 and 1 - beta2**step lose digits in float32.
UNBIAS = """
    k.new1 = (W)(1.0 - read(p.number[4], 0));
    k.new2 = (W)(1.0 - read(p.number[5], 0));
    k.unbias1 = (W)(1.0 / (1.0 - pow(read(p.number[4], 0), read(p.number[7], 0))));
    k.unbias2 = (W)(1.0 / (1.0 - pow(read(p.number[5], 0), read(p.number[7], 0))));
"""
MOMENTS = """
m = k.beta1 * m + k.new1 * g;
v = k.beta2 * v + k.new2 * g * g;
"""
RATIO = """
inline W ratio(W square, W other) { return square > 0 && other > 0 ? root(square / other) : (W)1; }
inline W divisor(W v, const Known& k) { return root(v * k.unbias2) + k.eps; }
"""
ALL = "x", "dx", "m", "v"
STATE = "x", "m", "v", "copies"


def sgd(nesterov: bool) -> Definition:
    """Return the kernel of `multi_tensor_sgd`."""
    u = "g + k.momentum * v" if nesterov else "v"
    code = f"""
W g = gradient(dx, k) + k.weight_decay * x;
#ifdef HAS_V
v = k.momentum * v + g;
x = x - k.learning_rate * ({u});
#else
x = x - k.learning_rate * g;
#endif
{NEW_COPY}"""
    one = Pass(code, ("x", "dx", "v"), ("x", "v", "copies"))
    return Definition((one,), (*RATES, *GRADIENT, "momentum"), helpers=CLAMPED)


def adaptive(*passes: Pass, sums: int = 0) -> Definition:
    """Return the kernels of a relative of Adam."""
    numbers = (*RATES, *GRADIENT, *BETAS)
    return Definition(passes, numbers, UNBIAS, CLAMPED + RATIO, sums)


ADAM = f"""
W g = gradient(dx, k) + k.weight_decay * x;
{MOMENTS}
x = x - k.learning_rate * (m * k.unbias1 / divisor(v, k));
{NEW_COPY}"""
ADAMW = f"""
W g = gradient(dx, k);
{MOMENTS}
x = x - k.learning_rate * (m * k.unbias1 / divisor(v, k) + k.weight_decay * x);
{NEW_COPY}"""
LAMB_MOMENTS = f"""
W g = gradient(dx, k);
{MOMENTS}
W u = m * k.unbias1 / divisor(v, k) + k.weight_decay * x;
terms[0] += (double)x * x;
terms[1] += (double)u * u;
"""
LAMB = f"""
W u = m * k.unbias1 / divisor(v, k) + k.weight_decay * x;
x = x - k.learning_rate * ratio(sums[0], sums[1]) * u;
{NEW_COPY}"""
LANS_NORM = """
W g = gradient(dx, k);
terms[0] += (double)g * g;
"""
NORMALIZED = "W g = gradient(dx, k) / root(sums[0] > 0 ? sums[0] : (W)1);"
ALONG = """
W decay = k.weight_decay * x, below = divisor(v, k);
W r = m * k.unbias1 / below + decay, c = g / below + decay;
"""
LANS_MOMENTS = f"""
{NORMALIZED}
{MOMENTS}
{ALONG}
terms[1] += (double)x * x;
terms[2] += (double)r * r;
terms[3] += (double)c * c;
"""
LANS = f"""
{NORMALIZED}
{ALONG}
W u = k.beta1 * ratio(sums[1], sums[2]) * r + k.new1 * ratio(sums[1], sums[3]) * c;
x = x - k.learning_rate * u;
{NEW_COPY}"""
AXPBY = "y = (k.alpha == 0 ? (W)0 : k.alpha * x) + (k.beta == 0 ? (W)0 : k.beta * y);"

DEFINITIONS = {
    op.multi_tensor_adam: adaptive(Pass(ADAM, ALL, STATE)),
    op.multi_tensor_adamw: adaptive(Pass(ADAMW, ALL, STATE)),
    op.multi_tensor_lamb: adaptive(
        Pass(LAMB_MOMENTS, ALL, ("m", "v"), sums=(0, 1)),
        Pass(LAMB, ("x", "m", "v"), ("x", "copies"), needs=(0, 1)),
        sums=2,
    ),
    op.multi_tensor_lans: adaptive(
        Pass(LANS_NORM, ("dx",), sums=(0,)),
        Pass(LANS_MOMENTS, ALL, ("m", "v"), sums=(1, 2, 3), needs=(0,)),
        Pass(LANS, ALL, ("x", "copies"), needs=(0, 1, 2, 3)),
        sums=4,
    ),
    op.multi_tensor_axpby: Definition((Pass(AXPBY, ("x", "y"), ("y",)),), ("alpha", "beta")),
    op.multi_tensor_norm: Definition(
        (Pass("terms[0] += x * x;", ("x",), sums=(0,)),), (), sums=1, norm=True
    ),
    op.multi_tensor_cast: Definition((Pass("y = x;", ("x",), ("y",)),), ()),
}


def _make(call: CallValues) -> OpEnv:
    """Return the launches of a call."""
    args = dict(zip(call.op.schema.names, call.args, strict=True))
    lists = {
        slot.name: args[slot.name]
        for slot in call.op.schema.slots
        if slot.kind == "tensors" and args[slot.name]
    }
    if isinstance(call.out, TupleType) and call.outputs:  # the results are a list, too
        lists["y"] = call.outputs
    if not all(t.is_static for tensors in lists.values() for t in tensors):
        raise Unsupported("this kernel is made for extents that are numbers")
    definition = DEFINITIONS.get(call.op) or sgd(args["nesterov"])
    for name in definition.numbers:
        if isinstance(args[name], TensorType) and args[name].dtype not in NUMBER_KINDS:
            raise Unsupported(f"{name} comes in {args[name].dtype}, which kernels do not read")
    dtypes = [
        dict(zip(lists, (t.dtype for t in together), strict=True))
        for together in zip(*lists.values(), strict=True)
    ]
    sizes = [prod(t.static_shape) for t in next(iter(lists.values()))]
    like = "float64" if definition.norm else lists["y" if "y" in lists else "x"][0].dtype
    wide = "float64" if like == "float64" else "float32"
    launch = Launcher(definition, dtypes, sizes, wide, call.device)
    places, end = _places(call, args)
    if "y" in lists:
        places.setdefault("y", slice(end, end + len(call.outputs)))

    def run(*values: Any) -> None:
        launch(
            [values[places[name]] for name in definition.numbers],
            [[t.data_ptr() for t in values[places[name]]] for name in lists],
            values[places["skip"]] if "skip" in places else None,
            values[end] if definition.norm else None,
        )

    return OpEnv(launch.deferred(run), allocates=False, workspace=launch.workspace)


def _places(call: CallValues, args: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return where the values of each slot are in a call, and where they end."""
    places: dict[str, Any] = {}
    end = 0
    for slot in call.op.schema.slots:
        value = args[slot.name]
        if slot.kind == "attribute" or value is None:
            continue
        width = len(value) if slot.kind == "tensors" else 1
        places[slot.name] = slice(end, end + width) if slot.kind == "tensors" else end
        end += width
    return places, end


def _register(*operators: Op) -> None:
    site = definition_span(_make)
    for operator in operators:
        dialect.register(operator, _make, site)


_register(op.multi_tensor_sgd, *DEFINITIONS)
