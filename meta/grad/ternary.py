"""Gradients of elementwise operators of three operands, in the order of `meta/op/ternary.py`."""

from meta import op
from meta.grad.core import gradient, onto
from meta.ir.types import TensorType


@gradient(op.addcmul)
def addcmul(x: TensorType, tensor1, tensor2, value, dy):
    """dx = dy, dtensor1 = dy * value * tensor2, dtensor2 = dy * value * tensor1"""
    scaled = op.multiply(dy, value)
    return (
        onto(x, lambda: dy),
        onto(tensor1, lambda: op.multiply(scaled, tensor2)),
        onto(tensor2, lambda: op.multiply(scaled, tensor1)),
    )


@gradient(op.addcdiv)
def addcdiv(x: TensorType, tensor1, tensor2, value, dy):
    """dx = dy, dtensor1 = dy * value / tensor2, dtensor2 = -dy * value * tensor1 / tensor2**2"""
    scaled = op.divide(op.multiply(dy, value), tensor2)
    quotient = op.divide(tensor1, tensor2)
    return (
        onto(x, lambda: dy),
        onto(tensor1, lambda: scaled),
        onto(tensor2, lambda: op.negative(op.multiply(scaled, quotient))),
    )


@gradient(op.lerp)
def lerp(x, end, weight, dy):
    """dx = dy * (1 - weight), dend = dy * weight, dweight = dy * (end - x)"""
    grads = (
        onto(x, lambda: op.multiply(dy, op.subtract(1.0, weight))),
        onto(end, lambda: op.multiply(dy, weight)),
    )
    return *grads, onto(weight, lambda: op.multiply(dy, op.subtract(end, x)))
