"""What an operator is made of: schema, call, handler, type checks. Operator families import from
here.
"""

from meta.ir.types import TensorType, TupleType
from meta.op.core.call import CallValues, View, fields, map_tensors, runtime_args
from meta.op.core.op import Op, op
from meta.op.core.schema import (
    AnyScalar,
    DeviceName,
    DType,
    InOut,
    Ints,
    Scalar,
    Schema,
    Slot,
    Takes,
    Tensor,
)

__all__ = [
    "AnyScalar",
    "CallValues",
    "DType",
    "DeviceName",
    "InOut",
    "Ints",
    "Op",
    "Scalar",
    "Schema",
    "Slot",
    "Takes",
    "Tensor",
    "TensorType",
    "TupleType",
    "View",
    "fields",
    "map_tensors",
    "op",
    "runtime_args",
]
