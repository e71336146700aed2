"""Operators that TVM's compiler puts into programs: hints, which are the identity, and what is not
converted, with the reason that an error and docs/frontends.md state.
"""

from meta.frontend.relax.registry import ONLY_LOOPS, relax


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
