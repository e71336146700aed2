"""What an operator is made of: schema, call, handler, type checks. Operator families import from
here.

Rules that hold for all operators:

- **Schema**: the signature is the schema (`schema.py` lists the annotations). There are no
  attributes apart from arguments.
- **Type function**: the body maps argument types to the result type, and a user's error is raised
  there, for all dialects. A body that returns a plain value instead (`shape`, arithmetic of
  numbers) makes the result known at once; nothing is executed.
- **Declare**: only an operator for which inferring the type and allocating the result is not enough
  writes one. `reshape` and other views set ``call.out`` to a `View`, `device_copy` sets
  ``call.out_device``.
- **Dtypes**: a type function promotes nothing (`require_same_dtype`). The tensors of a call have
  one dtype; operands of several dtypes in a user's call are cast before (`promotion.py`). The
  exceptions are logical operators, ``add(otherwise=)``, float32 statistics beside half precision
  data, and gradient operators that need only the type of an argument.
- **Numbers**: a Python number is typed once, in the schema: a ``Scalar`` takes the dtype of the
  result, `Takes` names another one, and an ``AnyScalar`` keeps its 64 bits. A number that an
  integer dtype or bool cannot represent raises NumberOutOfRange, which names the cast, before a
  dialect sees the call. Floating point dtypes round as IEEE 754 does. Half precision is computed in
  float32 with all digits of the number, unless the operator says otherwise (`remainder`, `pow`).
- **Unsigned integers** (``uint8`` to ``uint64``) wrap around as the signed ones do, and stand
  wherever these do; sums are int64. ATen has few functions of uint16, uint32 and uint64: see
  `meta/dialect/torch/unsigned.py`.
- **Float8** (``float8_e4m3fn``, ``float8_e5m2``) is stored, moved and cast. It has no arithmetic,
  no gradient and no generated code. An operator that takes it says ``@op(float8=True)``; others
  refuse it before their type function runs. `scaled_matmul` is its matrix product, with float32
  scales: on the `cublas` dialect, and by casts on `torch`. `quantized_matmul` takes weights of it.
- **Complex** numbers (``complex64``, ``complex128``) are moved, compared for equality, added,
  multiplied, transformed (`fourier.py`) and arguments of elementary functions. No code is generated
  for them: they run on the `torch` dialect. An operator that takes them says ``@op(complex=True)``
  or ``@op(float8=True)``; others refuse them before their type function runs. The gradient of a
  real number by z = a + ib is that by a plus i times that by b, as torch has it
  (`grad/core/holomorphic.py`).
- **Out**: a user's call of an operator with one result takes ``out=``, an array to write it to
  (`write_out`); programs have no such calls.
- **Writes**: an operator with in-out slots types its own results only; a caller gets them followed
  by the written arguments, those of a tuple one by one. Such a call has an effect: no pass removes,
  moves or repeats it.
- **Indices**: an operator that indexes by data declares the valid range (`indices.py`), and
  executors check it. Kernels stay within their tensors in any case. Negative indices count from the
  end in `take`, `index_select` and `adv_index`, as in NumPy; elsewhere they are errors, as in
  PyTorch. `take` has the modes "clip" and "wrap" for other meanings.
- **Bounds**: a result has at most 64 axes and less than 2^63 bytes (`base/number.py`).
"""

from meta.ir.types import TensorType
from meta.op.core.call import CallValues, View, map_tensors, result_types, runtime_args
from meta.op.core.declare import op
from meta.op.core.op import Op
from meta.op.core.schema import Schema
from meta.op.core.slot import (
    AnyScalar,
    DeviceName,
    DType,
    InOut,
    Ints,
    Scalar,
    Slot,
    Takes,
    Tensor,
    Weight,
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
    "View",
    "Weight",
    "map_tensors",
    "op",
    "result_types",
    "runtime_args",
]
