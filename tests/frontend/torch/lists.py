"""Entries of torch's database of which `from_torch` refuses samples, by what the error says."""

from __future__ import annotations

from tests.frontend.listed import by_entry
from tests.frontend.shared_lists import LACKED, NOT_RUN, ORDERS

NOT_AS_TORCH = by_entry(
    NOT_RUN,
    LACKED,
    ORDERS,
    {
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
        "the packed form in which LAPACK leaves": "lu",
        "it updates running statistics of single examples": "nn.functional.instance_norm",
        "random slopes are not drawn in one call": "nn.functional.rrelu",
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
    },
)
"""Samples that are refused, or have no gradient."""
