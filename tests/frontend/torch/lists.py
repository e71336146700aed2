"""Entries of torch's database of which `from_torch` refuses samples, by what the error says."""

from __future__ import annotations

from tests.frontend.listed import by_entry

NOT_AS_TORCH = by_entry(
    {
        # PyTorch does not run them on the CPU.
        "torch: Jiterator is only supported on CUDA": """
            jiterator_2inputs_2outputs jiterator_4inputs_with_extra_args jiterator_binary
            jiterator_binary_return_by_ref jiterator_unary
        """,
        "torch: Could not run 'aten::_efficient_attention_forward'": """
            torch.ops.aten._efficient_attention_forward
        """,
        # torch.export refuses them: they read a number of a tensor.
        "torch.export refuses.*DataDependentOutput": "allclose corrcoef cov equal",
        "torch.export refuses.*DynamicOutputShape": """
            linalg.lstsq linalg.lstsq|grad_oriented nn.functional.ctc_loss
        """,
        "torch.export refuses.*GuardOnDataDependent": """
            nn.functional.gaussian_nll_loss nn.functional.one_hot tensor_split
        """,
        # torch.export loses a size.
        "torch.export refuses.*PendingUnbackedSymbol": "narrow",
        "torch.export refuses.*Unable to cast NotImplemented": "sparse.sampled_addmm",
        # What no model does.
        "the module writes to its input": """
            _batch_norm_with_update _native_batch_norm_legit cauchy exponential geometric log_normal
            native_batch_norm nn.functional.batch_norm nn.functional.batch_norm|without_cudnn
            normal|in_place uniform
        """,
        "the program has effects": "linalg.ldl_factor linalg.tensorinv",
        "resize, once": "resize_as_",
        "item, once": "item tensor_split",
        "bincount, once.* how long the result is": "bincount",
        "as_strided, once.*does not lie in memory": "as_strided|partial_views",
        "chalf, once": "chalf",
        "(_to_sparse|_to_sparse.sparse_dim), once": "to_sparse",
        "_sparse_mm_reduce_impl, once": "sparse.mm|reduce",
        # What the base operators do not have.
        "there is no incomplete gamma function": "igamma igammac",
        "histograms with edges are not converted": "histogram histogramdd",
        "the packed form in which LAPACK leaves": """
            geqrf linalg.ldl_factor_ex linalg.ldl_solve lu ormqr
        """,
        "segment_reduce, once.*no converter": "_segment_reduce|lengths _segment_reduce|offsets",
        "hash_tensor, once.*no converter": "hash_tensor",
        "of Bessel's functions": """
            special.airy_ai special.bessel_j0 special.bessel_j1 special.bessel_y0 special.bessel_y1
            special.modified_bessel_k0 special.modified_bessel_k1
            special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1
        """,
        "no scaled form of erfc": "special.erfcx special.log_ndtr special.ndtri",
        "_linear_cross_entropy_batch_chunked.*no converter": """
            nn.functional.linear_cross_entropy|chunked
            nn.functional.linear_cross_entropy|chunked_none
        """,
        "it updates running statistics of single examples": "nn.functional.instance_norm",
        "random slopes are not drawn in one call": "nn.functional.rrelu",
        # What a program does not know while it is made.
        "the orders of polynomials are not known": """
            special.chebyshev_polynomial_t special.chebyshev_polynomial_u
            special.chebyshev_polynomial_v special.chebyshev_polynomial_w
            special.hermite_polynomial_h special.hermite_polynomial_he
            special.laguerre_polynomial_l special.legendre_polynomial_p
            special.shifted_chebyshev_polynomial_t special.shifted_chebyshev_polynomial_u
            special.shifted_chebyshev_polynomial_v special.shifted_chebyshev_polynomial_w
        """,
        # Gradients that the base operators do not have.
        "no gradient: (linalg_eig|linalg_eigvals): ": "linalg.eig linalg.eigvals",
        "no gradient: (linalg_lu_factor|linalg_lu_solve): ": """
            linalg.lu linalg.lu_factor linalg.lu_factor_ex linalg.lu_solve lu_solve
        """,
        # A result that depends on no argument, or in steps: an error here, and zeros in torch.
        "no gradient: equal: ": "max_pool2d_with_indices_backward",
        "no gradient: floor_divide: ": "div|floor_rounding",
        "no gradient: ones_like: ": "linalg.matrix_power",
        "no gradient: this array was not computed": "fill nn.functional.pdist zero_",
    }
)
"""Samples that are refused, or have no gradient."""
