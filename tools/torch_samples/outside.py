"""The entries of torch's database that have no adapter, because only torch has the thing."""

from __future__ import annotations

from tools.torch_samples.decline import Outside

_ENTRIES: dict[Outside, tuple[str, ...]] = {
    Outside.LAYOUT: ("sparse.sampled_addmm", "sparse.mm|reduce", "to_sparse"),
    Outside.SOURCE: (
        "jiterator_2inputs_2outputs",
        "jiterator_4inputs_with_extra_args",
        "jiterator_binary",
        "jiterator_binary_return_by_ref",
        "jiterator_unary",
    ),
    Outside.CUDA: (
        "bmm|triton_optimized",
        "torch.ops.aten._efficient_attention_forward",
        "torch.ops.aten._flash_attention_forward",
    ),
    Outside.DTYPE: ("chalf",),
    Outside.INTERNAL: ("hash_tensor",),
    Outside.MEMORY: (
        "as_strided|partial_views",
        "empty_permuted",
        "empty_strided",
        "new_empty_strided",
    ),
}

OUTSIDE: dict[str, str] = {
    entry: why.value for why, entries in _ENTRIES.items() for entry in entries
}
"""The reason, by entry."""
