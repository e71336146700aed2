"""Entries of torch's database that lack the same wherever they are run: through converters of
calls, through `from_torch` and under `torch.compile`. The list of each has this one, and its own.
"""

from __future__ import annotations

NOT_RUN = {
    "torch: Jiterator is only supported on CUDA": """
        jiterator_2inputs_2outputs jiterator_4inputs_with_extra_args jiterator_binary
        jiterator_binary_return_by_ref jiterator_unary
    """,
    "torch: Could not run 'aten::_efficient_attention_forward'": """
        torch.ops.aten._efficient_attention_forward
    """,
}
"""What PyTorch does not run on the CPU."""
LACKED = {
    "there is no incomplete gamma function": "igamma igammac",
    "histograms with edges are not converted": "histogram histogramdd",
    "the packed form in which LAPACK leaves": "geqrf linalg.ldl_factor_ex linalg.ldl_solve ormqr",
    "segment_reduce.*no converter": "_segment_reduce|lengths _segment_reduce|offsets",
    "hash_tensor.*no converter": "hash_tensor",
    "of Bessel's functions": """
        special.airy_ai special.bessel_j0 special.bessel_j1 special.bessel_y0 special.bessel_y1
        special.modified_bessel_k0 special.modified_bessel_k1
        special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1
    """,
    "no scaled form of erfc": "special.erfcx special.log_ndtr special.ndtri",
    "_linear_cross_entropy_batch_chunked": """
        nn.functional.linear_cross_entropy|chunked
        nn.functional.linear_cross_entropy|chunked_none
    """,
}
"""What the base operators do not have."""
ORDERS = {
    "the orders of polynomials are not known": """
        special.chebyshev_polynomial_t special.chebyshev_polynomial_u
        special.chebyshev_polynomial_v special.chebyshev_polynomial_w
        special.hermite_polynomial_h special.hermite_polynomial_he
        special.laguerre_polynomial_l special.legendre_polynomial_p
        special.shifted_chebyshev_polynomial_t special.shifted_chebyshev_polynomial_u
        special.shifted_chebyshev_polynomial_v special.shifted_chebyshev_polynomial_w
    """,
}
"""What a program does not know while it is made, and a call does."""
WITHOUT_DTYPE = {
    "torch._scaled_mm",
    "torch._scaled_mm_v2",
    "torch.ops.aten._flash_attention_forward",
}
"""Entries of dtypes that are not run here."""
