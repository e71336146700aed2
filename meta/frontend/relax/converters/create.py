"""Converters of operators that make tensors, and of those that TVM's compiler puts into programs:
hints, which are the identity, and what is not converted, with the reason that an error and
docs/frontends.md state.
"""

from __future__ import annotations

import numpy as np
import torch

from meta import op
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.core.operators import filled_like, full_tensor
from meta.frontend.relax.values import ONLY_LOOPS, RuntimeExtent, RuntimeShape, relax
from meta.runtime.ndarray import array


@relax("full", op.full, op.broadcast_to, op.dynamic_full)
def full(shape, value, *, dtype, call):
    dtype = dtype or value.dtype
    if isinstance(shape, RuntimeShape):
        return op.dynamic_full(value, shape.vector, dtype)
    return full_tensor(value, tuple(shape), dtype, call)


@relax("full_like", op.full_like, op.broadcast_to_like)
def full_like(x, value, *, dtype):
    return filled_like(cast_to(x, dtype or x.dtype), value)


def _filled(name, value):
    @relax(name, op.full, op.dynamic_full)
    def converter(shape, *, dtype, call):
        return full(shape, array(value, dtype, device=call.device), dtype=dtype, call=call)


_filled("zeros", 0)
_filled("ones", 1)


relax.same("zeros_like", op.zeros_like, "dtype")
relax.same("ones_like", op.ones_like, "dtype")


@relax("eye")
def eye(n, m, k, *, dtype, call):
    return array(np.eye(n, m, k), dtype, device=call.device)


@relax("eye_like")
def eye_like(x, k, *, dtype, call):
    return array(np.eye(*x.shape, k), dtype or x.dtype, device=call.device)


@relax("arange", op.arange, op.dynamic_arange)
def arange(start, end, step, *, dtype, call):
    given = (start, end, step)
    if any(isinstance(v, RuntimeExtent) for v in given):
        tensors = (
            v.tensor if isinstance(v, RuntimeExtent) else array(v, device=call.device)
            for v in given
        )
        return op.dynamic_arange(*tensors, dtype)
    return op.arange(start, end, step, dtype, str(call.device))


@relax("hamming_window")
def hamming_window(size, periodic, alpha, beta, *, dtype, call):
    """alpha - beta * cos(2 pi i / n), n = size, one less if not periodic; of one element 1."""
    window = torch.hamming_window(size, bool(periodic), alpha, beta, dtype=torch.float64)
    return array(window, dtype, device=call.device)


relax.same("tril", op.tril)
relax.same("triu", op.triu)


@relax("one_hot", op.one_hot)
def one_hot(indices, on, off, *, depth, axis, call):
    dtype = call.result_type.dtype if call.result_type is not None else "float32"
    return op.one_hot(indices, depth, on, off, axis, dtype, mode="ignore")


@relax("null_value")
def null_value():
    """What stands for an argument that is absent."""
    return None


@relax(
    "builtin.stop_lift_params",
    "grad.end_checkpoint",
    "grad.no_grad",
    "grad.start_checkpoint",
    "hint_on_device",
    "memory.ensure_zero_offset",
    "to_vdevice",
    ignore=("device_type", "index", "memory_scope", "dst_vdevice"),
)
def hint(x):
    """Hints for TVM's own passes: the argument as it is."""
    return x


REFUSED = {
    "builtin.alloc_tensor memory.alloc_storage memory.alloc_tensor memory.kill_storage "
    "memory.kill_tensor memory.view vm.alloc_storage vm.alloc_tensor vm.kill_object": "it handles "
    "memory: this is a program that was lowered; import it before",
    "call_builtin_with_ctx call_dps_packed call_inplace_packed call_pure_packed call_py_func": "it "
    "calls a function outside of the program",
    "call_tir_inplace call_tir_with_grad vm.call_tir_dyn": ONLY_LOOPS,
    "ccl.allgather ccl.allreduce ccl.broadcast_from_worker0 ccl.scatter_from_worker0 "
    "dist.annotate_sharding dist.call_tir_local_view dist.redistribute "
    "dist.redistribute_replica_to_shard": "it belongs to a program that is spread over several "
    "devices",
    "inspect.tensor_byte_offset inspect.tensor_dtype_bits inspect.tensor_dtype_code "
    "inspect.tensor_dtype_lanes inspect.tensor_elem_offset inspect.tensor_ndim "
    "inspect.tensor_shape_i inspect.tensor_stride_i": "it looks at how a tensor lies in memory",
    "invoke_closure invoke_pure_closure make_closure": "closures are converted before they are "
    "lowered only",
    "print assert_op": "it has an effect besides its result",
    "layout_transform": "its index map is a function in TIR",
    "nn.attention_var_len": "sequences of several lengths in one tensor are not supported",
    "grad.nll_loss_backward": "differentiate the loss itself instead",
}
for _names, _why in REFUSED.items():
    relax.refuse(*_names.split(), why=_why)
