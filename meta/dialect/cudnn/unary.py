"""relu, sigmoid and tanh through libcudnn."""

from __future__ import annotations

from meta import op
from meta.base.source import definition_span
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cudnn import cudnn as dialect
from meta.dialect.cudnn.descriptors import activation, factors, require_elements, tensor
from meta.dialect.cudnn.graph import Operand
from meta.dialect.cudnn.launch import Launch, Place
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.op import Op

MODES = {op.sigmoid: 0, op.relu: 1, op.tanh: 2}
GRADIENTS = {op.sigmoid_dx: 0, op.relu_dx: 1, op.tanh_dx: 2}


def _row(x: TensorType) -> Operand:
    """Return x as one row of an image; Unsupported for what has no descriptor."""
    require_elements(x)
    if x.dtype not in ("float16", "bfloat16", "float32", "float64"):
        raise Unsupported(f"cuDNN has no activation of {x.dtype}")
    return Operand.compact((1, 1, 1, x.size), x.dtype)


def forward(call: CallValues) -> OpEnv:
    x, (one, zero) = tensor(_row(call.args.x)), factors(call.args.x.dtype)
    arguments = activation(MODES[call.op]), one, x, Place(0), zero, x, Place(1)
    return OpEnv(Launch("cudnnActivationForward", call.device.ordinal, *arguments), allocates=False)


def backward(call: CallValues) -> OpEnv:
    """The library wants x as well as y, but computes from one of them."""
    x, y, dy = call.args
    if y is None and call.op is not op.relu_dx:
        raise Unsupported("cuDNN computes the gradient from the result")
    described, (one, zero) = tensor(_row(dy)), factors(dy.dtype)
    given = 1 if x is not None and y is not None else 0
    dy_place, out = Place(given + 1), Place(given + 2)
    known = described, Place(given)
    mode = activation(GRADIENTS[call.op])
    arguments = mode, one, *known, described, dy_place, *known, zero, described, out
    run = Launch("cudnnActivationBackward", call.device.ordinal, *arguments)
    return OpEnv(run, allocates=False)


def _register(operators: dict[Op, int], make) -> None:
    for operator in operators:
        dialect.register(operator, make, definition_span(make))


_register(MODES, forward)
_register(GRADIENTS, backward)
