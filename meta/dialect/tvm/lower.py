"""From tensor expressions to the PrimFunc that the schedules start from.

A kernel family calls `prim_func` with the tensors and scalars of one call; nothing here knows
operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, te, tirx
from tvm.tirx.buffer import BufferType, is_buffer_var

from meta.dialect.tvm.floats import unsimplified
from meta.dialect.tvm.integers import wrapping

NO_ALIAS = "tirx.noalias"
SCHEDULED = "meta.scheduled"
"""The attribute of a function whose loops are as they are to be."""
OVERWRITTEN = "meta.overwritten"
"""The attribute of a function whose last outputs share the memory of inputs: their positions."""
_INT32_ELEMENTS = 2**31


def no_alias(function: tirx.PrimFunc) -> bool:
    """Whether no parameters of a function share memory."""
    return bool(function.attrs) and NO_ALIAS in function.attrs


def prim_func(
    inputs: Sequence[te.Tensor | tirx.Var],
    outputs: Sequence[te.Tensor],
    in_place: Sequence[int] = (),
) -> tirx.PrimFunc:
    """Return the unscheduled function ``(*inputs, *outputs) -> None``.

    Parameters
    ----------
    inputs: placeholders, and scalar variables (``te.var(name, dtype)``) for values that are
        passed at each call as a Python int or float; in the order of the call.
    outputs: the tensors to compute, destination passing. A placeholder, or a tensor given twice,
        is copied.
    in_place: the positions of the inputs whose memory the last outputs share, in their order. An
        element may be overwritten by the output's own computation of that element only, so an
        update must be elementwise; other outputs see the old values.

    The kernels accept any buffer that torch calls contiguous, at any address. (Of a tensor that is
    empty in a dynamic dimension they may refuse the strides; `ForAllExtents` does not launch them.)
    """
    seen: list[te.Tensor] = [tensor for tensor in inputs if isinstance(tensor, te.Tensor)]
    distinct: list[te.Tensor] = []
    for tensor in outputs:
        if any(tensor.same_as(other) for other in seen):
            tensor = copied(tensor)
        seen.append(tensor)
        distinct.append(tensor)
    early, late = _write_order(inputs, distinct, in_place)
    between = [stage.output(i) for stage in _operations(distinct) for i in range(stage.num_outputs)]
    large = any(_elements(tensor) >= _INT32_ELEMENTS for tensor in (*seen, *between))
    function = te.create_prim_func(
        [*inputs, *(distinct[i] for i in early), *(copied(distinct[i]) for i in late)],
        "int64" if large else None,
    )
    function = wrapping(unsimplified(function))
    if late:
        function = _permuted(function, len(inputs), [*early, *late])
    if in_place:
        function = function.without_attr(NO_ALIAS).with_attr(OVERWRITTEN, list(in_place))
    return any_strides_if_empty(function)


def _write_order(
    inputs: Sequence[te.Tensor | tirx.Var], outputs: Sequence[te.Tensor], in_place: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Split the outputs into those to store at once and those to store when all is computed.

    Late are those that overwrite an input that something reads which need not come before them.
    """
    first, readers = len(outputs) - len(in_place), _operations(outputs)
    early = list(range(first))
    late: list[int] = []
    for i, position in enumerate(in_place, first):
        others = readers - _operations([outputs[i]])
        overwritten = inputs[position].op
        read = any(t.op == overwritten for operation in others for t in operation.input_tensors)
        (late if read else early).append(i)
    return early, late


def _operations(tensors: Sequence[te.Tensor]) -> set[te.tensor.Operation]:
    """All operations that the tensors depend on, their own included."""
    found: set[te.tensor.Operation] = set()
    stack = [tensor.op for tensor in tensors]
    while stack:
        operation = stack.pop()
        if operation not in found:
            found.add(operation)
            stack.extend(tensor.op for tensor in operation.input_tensors)
    return found


def _permuted(function: tirx.PrimFunc, inputs: int, order: list[int]) -> tirx.PrimFunc:
    """Bring the output parameters, now in ``order``, into their own order."""
    parameters = list(function.params)
    outputs = dict(zip(order, parameters[inputs:], strict=True))
    parameters[inputs:] = [outputs[i] for i in range(len(order))]
    return tirx.PrimFunc(parameters, function.body, function.ret_type, function.attrs)


def copied(tensor: te.Tensor) -> te.Tensor:
    """Return a stage of the same elements."""
    return te.compute(tensor.shape, lambda *index: tensor(*index), name="copy")


def _elements(tensor: te.Tensor) -> int:
    """The number of elements, dynamic dimensions counted as one."""
    return math.prod(e.value for e in tensor.shape if isinstance(e, tirx.IntImm))


def with_root(function: tirx.PrimFunc, body: Any, buffers: Any) -> tirx.PrimFunc:
    """Return a scheduled function with another body of its root block, and arrays in it."""
    root = function.body.block
    block = s_tir.SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint, body, root.init, buffers,
        root.match_buffers, root.annotations,
    )  # fmt: skip
    realize = s_tir.SBlockRealize(function.body.iter_values, function.body.predicate, block)
    return function.with_body(realize)


def any_strides_if_empty(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let empty parameters have any strides; TVM's idea of compact ones is not torch's."""
    return _redeclared(
        function,
        lambda kind: any(isinstance(e, tirx.IntImm) and e.value == 0 for e in kind.shape),
        lambda kind: {
            "strides": [te.var(f"stride{i}", t) for i, t in enumerate(_stride_types(kind.shape))],
            "layout": None,
        },
    )


def _stride_types(shape: Sequence[Any]) -> list[str]:
    """Return the types that TVM expects of strides: of products of the extents behind them, which
    are of 64 bits if one extent is.
    """
    wide = [str(e.ty.dtype) == "int64" for e in shape]
    return ["int64" if any(wide[k:]) else "int32" for k in range(len(wide))]


def element_aligned(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Declare every parameter to be aligned to its element only, so that views can be passed.

    TVM promises LLVM 64 bytes, and the aligned vector loads that follow from it crash on
    ``x[1:]``. To be called after scheduling: buffers that a schedule makes inherit the promise,
    and they keep it.
    """
    return _redeclared(
        function,
        lambda kind: True,
        lambda kind: {"data_alignment": max(1, kind.dtype.dtype.bits // 8)},
    )


def _redeclared(
    function: tirx.PrimFunc,
    which: Callable[[BufferType], bool],
    changes: Callable[[BufferType], dict[str, Any]],
) -> tirx.PrimFunc:
    """Change the declaration of some buffer parameters."""
    replaced = {}
    for parameter in function.params:
        if not is_buffer_var(parameter) or not which(parameter.ty):
            continue
        kind = parameter.ty
        fields = {
            "strides": kind.strides,
            "elem_offset": kind.elem_offset,
            "scope": kind.storage_scope,
            "data_alignment": kind.data_alignment,
            "offset_factor": kind.offset_factor,
            "layout": kind.layout,
            **changes(kind),
        }
        replaced[parameter] = tirx.decl_buffer(kind.shape, kind.dtype, parameter.name, **fields)
    if not replaced:
        return function
    return tvm_ffi.structural_map(function, (tvm.ir.Var, lambda var: replaced.get(var, var)))
