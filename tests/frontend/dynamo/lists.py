"""Entries of torch's database that torch.compile(backend="meta") does not do as eager PyTorch does,
or not by itself, by what the error or the report says.
"""

from __future__ import annotations

from tests.frontend.listed import by_entry
from tests.frontend.shared_lists import LACKED, NOT_RUN, ORDERS

NOT_COMPARED = by_entry(
    NOT_RUN,
    {
        # Of these TorchDynamo or AOTAutograd makes no graph, for any backend. They read a number
        # of a tensor while they are traced.
        "graph: Data dependent operator": "allclose corrcoef cov equal",
        "graph: Dynamic shape operator": """
            linalg.lstsq linalg.lstsq|grad_oriented nn.functional.ctc_loss
        """,
        "graph: NotImplementedError/UnsupportedFakeTensorException": "item",
        "graph: Could not guard on data-dependent": "nn.functional.gaussian_nll_loss",
        "graph: Could not extract specialized integer": "nn.functional.one_hot tensor_split",
        # The gradient asks whether a phase matters, by allclose.
        "graph: Backend compiler exception": "linalg.svd pca_lowrank svd svd_lowrank",
        # Of complex distances torch drops the imaginary part, and warns.
        "refused: astype: complex numbers have no value": """
            nn.functional.triplet_margin_with_distance_loss
        """,
        # AOTAutograd loses a size.
        "graph: PendingUnbackedSymbolNotFound": "combinations",
        # Its bound for what a mask that is broadcast selects is too low.
        "graph: Runtime assertion failed": "masked_select",
        "graph: Attempted to call function marked as skipped": """
            nn.functional.linear_cross_entropy|chunked
            nn.functional.linear_cross_entropy|chunked_none resize_as_
        """,
        "graph: Unsupported Tensor.resize_": "resize_",
        "graph: Attempted to wrap sparse Tensor": """
            sparse.mm|reduce sparse.sampled_addmm to_sparse
        """,
    },
)
"""Samples that are not compared."""

CALLS_BACK = by_entry(
    LACKED,
    ORDERS,
    {
        # Sizes, dtypes and memory that no program has: see `NoProgram`.
        "the whole graph: a size depends on data": """
            argwhere bincount combinations index_fill index_put item masked_select narrow nonzero
            repeat_interleave tensor_split unique unique_consecutive
        """,
        "the whole graph: as_strided of a part": "as_strided|partial_views",
        "the whole graph: (_to_copy: programs do not have|the input tangents_1 is of a kind)": """
            chalf
        """,
        # What the base operators do not have.
        "the packed form in which LAPACK leaves": "linalg.ldl_factor",
        # Checks of a decomposition, which are to raise torch's error.
        "with_effects: it takes functions": """
            linalg.cholesky linalg.eig linalg.eigvals linalg.inv linalg.ldl_factor linalg.lu_factor
            linalg.matrix_power linalg.solve linalg.tensorinv linalg.tensorsolve
        """,
        # Dtypes that the base operators do not take.
        "evenly spaced complex numbers": "linspace|tensor_overload logspace|tensor_overload",
        "it is not converted for complex64": "logcumsumexp logsumexp masked.logsumexp",
        "does not take complex": """
            gather logaddexp masked_scatter nn.functional.unfold nonzero_static scatter_add sigmoid
            sinc take_along_dim
        """,
        "avg_pool[23]d: ": """
            nn.functional.avg_pool1d nn.functional.avg_pool2d nn.functional.avg_pool3d
            nn.functional.local_response_norm
        """,
        "max_pool[23]d_with_indices: ": "nn.functional.max_pool2d nn.functional.max_pool3d",
        "linalg_matrix_exp: ": "matrix_exp",
        "rrelu_with_noise_functional: ": "nn.functional.rrelu",
    },
)
"""Calls that PyTorch runs from within a program, or graphs."""
