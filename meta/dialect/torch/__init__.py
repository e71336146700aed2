"""The `torch` dialect: every operator on PyTorch's ATen.

It is the reference and the last resort in general (REFERENCE). A kernel that beats generated code
by measurement, or that calls a tuned library, states LIBRARY. Add a kernel in the operator's family
file.
"""

from meta.dialect.core import REFERENCE, Dialect
from meta.op.core.call import CallValues

WITHOUT_UINT64 = frozenset(
    (
        *("abs", "add", "adv_index", "amax", "amin", "argmax", "argmin", "batch_matmul"),
        *("batch_matmul_nt", "batch_matmul_tn", "batch_matmul_tt", "bitwise_invert"),
        *("bitwise_left_shift", "bitwise_right_shift", "clip", "dense", "diagonal", "flip"),
        *("floor_divide", "fmax", "fmin", "fmod", "gather", "gather_nd", "index_select"),
        *("logical_not", "matmul", "matmul_nt", "matmul_tn", "matmul_tt", "max", "maximum", "min"),
        *("minimum", "negative", "remainder", "reverse", "searchsorted", "sign", "square"),
        *("subtract", "take", "tril", "triu"),
    )
)
"""Operators of which ATen has no function of uint64; generated code has."""


def _declines(call: CallValues) -> str | None:
    if call.op.name not in WITHOUT_UINT64:
        return None
    data = next(call.tensors(), None)  # indices, which come later, may be uint64
    return "ATen has none of uint64" if data is not None and data.dtype == "uint64" else None


torch = Dialect(
    "torch",
    devices=("cpu", "cuda"),
    plevel=REFERENCE,
    package=__name__,
    by_family=True,
    declines=_declines,
)
