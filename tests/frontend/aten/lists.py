"""Entries of torch's database that call overloads which converters refuse, by what these say."""

from __future__ import annotations

from tests.frontend.listed import by_entry
from tests.frontend.shared_lists import LACKED, NOT_RUN

REFUSED = by_entry(
    NOT_RUN,
    LACKED,
    {
        "torch: Could not run 'aten::normal_' with arguments from the 'SparseCPU'": "to_sparse",
        # What no program has.
        "(allclose|equal): its result is a bool of Python's": "allclose corrcoef cov equal istft",
        "_to_copy: torch.complex32 is no dtype here": "chalf",
        "_to_sparse(.sparse_dim)?: there is no converter": "to_sparse",
        # What the base operators do not have.
        "the packed form in which LAPACK leaves": "linalg.ldl_factor",
        "linalg_lstsq: which of its results are empty": "linalg.lstsq linalg.lstsq|grad_oriented",
        "_ctc_loss.*the probabilities of all alignments": "nn.functional.ctc_loss",
        # Dtypes that the base operators do not take.
        "(avg|max)_pool.*: it is of int64": """
            nn.functional.avg_pool1d nn.functional.avg_pool2d nn.functional.avg_pool3d
            nn.functional.local_response_norm nn.functional.max_pool2d nn.functional.max_pool3d
        """,
        "linalg_matrix_exp: of half precision it overflows": "matrix_exp",
    },
)
"""What of the first samples is refused, of an entry or of its gradient."""
