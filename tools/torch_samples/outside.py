"""The entries of torch's database that have no adapter, and why: only torch has the thing, or
`meta` does not have it. The latter are gaps.
"""

from __future__ import annotations

from tools.torch_samples.decline import Outside

_ONLY_TORCH: dict[Outside, tuple[str, ...]] = {
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
    Outside.DTYPE: ("chalf", "torch._scaled_mm", "torch._scaled_mm_v2"),
    Outside.INTERNAL: (
        "hash_tensor",
        "max_pool2d_with_indices_backward",
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
    ),
    Outside.MEMORY: (
        "as_strided|partial_views",
        "empty_permuted",
        "empty_strided",
        "new_empty_strided",
    ),
    Outside.PACKED: (
        "geqrf",
        "linalg.ldl_factor",
        "linalg.ldl_factor_ex",
        "linalg.ldl_solve",
        "ormqr",
    ),
    Outside.WRITES: ("_batch_norm_with_update",),
}

_GAPS: dict[str, tuple[str, ...]] = {
    "no gradient of eigenvalues of matrices that are not symmetric": (
        "linalg.eig",
        "linalg.eigvals",
    ),
    "no gradient of the LU decomposition": (
        "linalg.lu",
        "linalg.lu_factor",
        "linalg.lu_factor_ex",
        "lu",
    ),
    "no polar decomposition and no square root of matrices": (
        "linalg.matrix_sqrth",
        "linalg.polar",
    ),
    "no greatest common divisor": ("gcd", "lcm"),
    "no incomplete gamma function": ("igamma", "igammac"),
    "no polygamma or zeta function": (
        *(f"polygamma|polygamma_n_{n}" for n in range(5)),
        "special.polygamma|special_polygamma_n_0",
        "special.zeta",
    ),
    "no function of Bessel but i0 and i1, nor of Airy": (
        "special.airy_ai",
        "special.bessel_j0",
        "special.bessel_j1",
        "special.bessel_y0",
        "special.bessel_y1",
        "special.modified_bessel_k0",
        "special.modified_bessel_k1",
        "special.scaled_modified_bessel_k0",
        "special.scaled_modified_bessel_k1",
    ),
    "no scaled form of erfc, nor the logarithm of ndtr": ("special.erfcx", "special.log_ndtr"),
    "no inverse of transforms of frames": ("istft",),
    "no resizing with a low-pass filter": ("_upsample_bilinear2d_aa",),
    "no pooling of random regions": (
        "nn.functional.fractional_max_pool2d",
        "nn.functional.fractional_max_pool3d",
    ),
}

GAPS: dict[str, str] = {entry: why for why, entries in _GAPS.items() for entry in entries}
"""What `meta` does not have, by entry."""

OUTSIDE: dict[str, str] = {
    entry: why.value for why, entries in _ONLY_TORCH.items() for entry in entries
} | GAPS
"""The reason of every entry that has no adapter."""
