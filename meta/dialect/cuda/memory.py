"""Several tensors into one vector, and out of it again, in one launch."""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import Any

from meta import op
from meta.base.dtype import bits
from meta.dialect.core import OpEnv, require_static, tunable
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.list_kernel import Definition, Launcher, Pass
from meta.ir.types import TensorType
from meta.op.core.call import CallValues

COPY = Definition((Pass("y = x;", ("x",), ("y",)),), ())


@dialect.op(op.fuse_tensor)
@tunable
def fuse_tensor(call: CallValues) -> OpEnv:
    """Return the launch that reads all tensors."""
    copy, begins = _copy(call, call.args.data)

    def run(*values: Any) -> None:
        *data, out = values
        start = out.data_ptr()
        copy((), [[t.data_ptr() for t in data], [start + b for b in begins]])

    return copy.env(run)


@dialect.op(op.defuse_tensor)
@tunable
def defuse_tensor(call: CallValues) -> OpEnv:
    """Return the launch that writes all tensors."""
    copy, begins = _copy(call, call.outputs)

    def run(data: Any, *out: Any) -> None:
        start = data.data_ptr()
        copy((), [[start + b for b in begins], [t.data_ptr() for t in out]])

    return copy.env(run)


def _copy(call: CallValues, parts: tuple[TensorType, ...]) -> tuple[Launcher, list[int]]:
    """Return what copies tensors of these types, and where in the vector each begins, in bytes."""
    require_static(*parts)
    width = bits(parts[0].dtype)
    sizes = [prod(t.static_shape) for t in parts]
    kinds = [dict.fromkeys(("x", "y"), f"bits{width}")] * len(parts)
    begins = [0, *accumulate(size * width // 8 for size in sizes)]
    return Launcher(COPY, kinds, sizes, "bits64", call.device), begins[:-1]
