"""Entries of torch's database that call overloads which converters refuse, by what these say."""

from __future__ import annotations

from tests.frontend.listed import by_entry

REFUSED = by_entry(
    {
        # PyTorch does not run them on the CPU.
        "torch: Jiterator is only supported on CUDA": """
            jiterator_2inputs_2outputs jiterator_4inputs_with_extra_args jiterator_binary
            jiterator_binary_return_by_ref jiterator_unary
        """,
        "torch: Could not run 'aten::_efficient_attention_forward'": """
            torch.ops.aten._efficient_attention_forward
        """,
        "torch: Could not run 'aten::normal_' with arguments from the 'SparseCPU'": "to_sparse",
        # What no program has.
        "(allclose|equal): its result is a bool of Python's": "allclose corrcoef cov equal istft",
        "_to_copy: torch.complex32 is no dtype here": "chalf",
        "_to_sparse(.sparse_dim)?: there is no converter": "to_sparse",
        # What the base operators do not have.
        "there is no incomplete gamma function": "igamma igammac",
        "histograms with edges are not converted": "histogram histogramdd",
        "the packed form in which LAPACK leaves": """
            geqrf linalg.ldl_factor linalg.ldl_factor_ex linalg.ldl_solve ormqr
        """,
        "linalg_lstsq: which of its results are empty": "linalg.lstsq linalg.lstsq|grad_oriented",
        "_ctc_loss.*the probabilities of all alignments": "nn.functional.ctc_loss",
        "segment_reduce.*: there is no converter": """
            _segment_reduce|lengths _segment_reduce|offsets
        """,
        "hash_tensor: there is no converter": "hash_tensor",
        "of Bessel's functions": """
            special.airy_ai special.bessel_j0 special.bessel_j1 special.bessel_y0 special.bessel_y1
            special.modified_bessel_k0 special.modified_bessel_k1
            special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1
        """,
        "no scaled form of erfc": "special.erfcx special.log_ndtr special.ndtri",
        "_linear_cross_entropy_batch_chunked.*: there is no converter": """
            nn.functional.linear_cross_entropy|chunked
            nn.functional.linear_cross_entropy|chunked_none
        """,
        # Dtypes that the base operators do not take.
        "(avg|max)_pool.*: it is of int64": """
            nn.functional.avg_pool1d nn.functional.avg_pool2d nn.functional.avg_pool3d
            nn.functional.local_response_norm nn.functional.max_pool2d nn.functional.max_pool3d
        """,
        "linalg_matrix_exp: of half precision it overflows": "matrix_exp",
    }
)
"""What of the first samples is refused, of an entry or of its gradient."""
