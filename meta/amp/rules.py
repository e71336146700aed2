"""The table of cast rules: one line for every operator that does not simply follow its arguments.

* ``always``: computed in half precision, where matrix units make it several times faster.
* ``never``: computed in float32, because half precision would overflow or lose the small terms.
* ``infer``: in the precision in which the arguments come. It is what an operator without a line
  has: shapes and data movement, elementwise operators, pooling, comparisons, random numbers.
* ``per_argument``: a word for each argument that is cast, where arguments differ in what they need;
  and functions, where that is not enough.

A kernel computes half precision in float32 registers, accumulators included (see the dialects), so
a line here is about what is lost when results are STORED in 16 bits.
"""

from collections import Counter
from typing import Any

from meta import op
from meta.amp.cast_rule import (
    Finite,
    always,
    custom,
    finite,
    float_dtypes,
    narrow,
    never,
    per_argument,
    wide,
    widest,
)
from meta.base.dtype import bits
from meta.ir.types import TensorType
from meta.op.core.update import OPTIMIZERS, SINGLE_STEPS

# Products of matrices.
always(op.dense, op.einsum, op.packed_matmul, op.packed_conv2d)
always(op.matmul, op.matmul_nt, op.matmul_tn, op.matmul_tt)
always(op.batch_matmul, op.batch_matmul_nt, op.batch_matmul_tn, op.batch_matmul_tt)
always(op.grouped_matmul, op.grouped_matmul_nt, op.grouped_matmul_tn, op.grouped_matmul_tt)
always(op.linear_cross_entropies)
always(op.conv1d, op.conv1d_dx, op.conv1d_dw)
always(op.conv2d, op.conv2d_dx, op.conv2d_dw)
always(op.conv3d, op.conv3d_dx, op.conv3d_dw)
always(op.conv_transpose1d, op.conv_transpose1d_dx, op.conv_transpose1d_dw)
always(op.conv_transpose2d, op.conv_transpose2d_dx, op.conv_transpose2d_dw)
always(op.conv_transpose3d, op.conv_transpose3d_dx, op.conv_transpose3d_dw)

# They leave the range of float16 from moderate arguments: exp(12), 1 / 0.00001.
never(op.exp, op.pow, op.rsqrt)
never(op.expm1, op.reciprocal, op.sinh, op.cosh)
never(op.tan, op.prod, op.prod_dx)
never(op.exp2, op.square, op.erfinv, op.lgamma, op.digamma, op.trigamma, op.i0, op.i1)
# Sums of many terms: the range again, and with them the gradients of broadcast parameters.
never(op.sum, op.var, op.l2norm, op.cumsum, op.cumprod, op.dft, op.fft_r2c)
# There is no kernel for half precision, and small pivots are what is left of large differences.
never(op.linalg_inv, op.linalg_solve, op.linalg_solve_triangular, op.linalg_pinv)
never(op.linalg_det, op.linalg_cofactor, op.linalg_slogdet, op.linalg_cholesky, op.linalg_qr)
never(op.linalg_svd, op.linalg_svdvals, op.linalg_eigh, op.linalg_eigvalsh)
never(op.linalg_eig, op.linalg_eigvals, op.linalg_lu_factor, op.linalg_lu_solve)
never(op.linalg_matrix_exp)
never(op.ctc_losses, op.ctc_losses_dx)
# The parts of a complex number are at least float32.
never(op.complex)
# Probabilities and losses: the small ones carry the gradient.
never(op.softmax, op.softmax_dx, op.log_softmax, op.log_softmax_dx, op.logsumexp)
never(op.logsigmoid, op.softplus)
never(op.nll_loss, op.nll_loss_dpred, op.nll_loss_dtarget)
never(op.cross_entropy, op.cross_entropy_dpred, op.cross_entropy_dtarget)
never(op.cross_entropy_train, op.cross_entropy_train_dpred)
never(op.smooth_l1_loss, op.smooth_l1_loss_dpred, op.smooth_l1_loss_dtarget)
never(op.mse_loss, op.mse_loss_dpred, op.l1_loss, op.l1_loss_dpred)
never(op.huber_loss, op.huber_loss_dpred, op.kl_div, op.kl_div_dpred)
never(op.binary_cross_entropy, op.binary_cross_entropy_dpred)
never(op.binary_cross_entropy_with_logits, op.binary_cross_entropy_with_logits_dpred)
# A row, or a place, that occurs often adds up many terms, and not in a register.
never(op.embedding_dx)
never(op.take_along_axis_dx, op.gather_nd_dx, op.scatter_add, op.scatter_reduce)
# The bits of half precision are others.
never(op.reinterpret)

# Not above, though float32 in other systems, for reasons that are not ours:
# * multiply, tanh, gelu, erf, atan and the gradients of tanh, gelu and erf: their results are no
#   larger than what they come from, and one compiler's failure to build them in half precision is
#   not ours; a test measures each against float64.
# * log, acos, asin: results of moderate size.
# * gather_nd, arange: nothing is computed from values, or the dtype is stated.
# * mean, std, pooling: of a sum that is accumulated in float32 only the mean is stored, which is no
#   larger than the terms.

# Gradients that take dy in any precision, and of whose x only the type counts.
per_argument(op.sum_dx, op.repeat_dx)
# Of the second argument only the type counts, so neither precision follows the other.
per_argument(op.reshape_like, op.broadcast_to_like, op.cast_like)
# Nothing is computed; or the dtype is stated.
per_argument(op.optimization_barrier, op.group_cast)
# PyTorch's own functions take what they are given.
per_argument(op.torch_call)
# The array keeps its dtype, and takes the value in it.
per_argument(op.assign, op.assign_at, value=(widest, "x"))
per_argument(op.cache_update, key=(widest, "keys"), value=(widest, "keys"))
# In the precision of x: the sum of squares is not stored, and results are at most 1.
per_argument(op.l2_normalize)
# A kernel takes tensors of any dtypes, and nothing is gained by a copy.
per_argument(*OPTIMIZERS, op.lans)
per_argument(op.multi_tensor_axpby, op.multi_tensor_norm, op.multi_tensor_cast)
per_argument(op.multi_tensor_fold_batch_norm)
# The gradient comes in the parameter's precision; all else stays as it is.
per_argument(*(SINGLE_STEPS.keys() - {op.lans}), dx=(widest, "x"))
# The bias, or the weight, is a float32 parameter: it follows x; else each layer would widen.
per_argument(op.bias_add, bias=(widest, "x"))
per_argument(op.prelu, weight=(widest, "x"))
# Sums of many terms, as `sum`, `embedding_dx`: dx has the dtype of x, which is only its type.
per_argument(op.collapse_sum_like, x=wide)
per_argument(op.adv_index_dx, dy=wide, inputs=wide)
per_argument(op.take_dx, x=wide, dy=wide)
# Quantized networks count on every bit of their scales.
per_argument(op.fixed_point_number, x="float64")
# It takes float8, with scales in float32, and states the dtype of its result.
per_argument(op.scaled_matmul, scale1="float32", scale2="float32")
# Scales and zeros are as they were stored.
per_argument(op.quantized_matmul, x=narrow)
# Normalisations keep statistics, scale and shift in float32 beside activations in half precision:
# running averages move by less than a half precision number can resolve.
per_argument(
    *(op.batch_norm_train, op.batch_norm_infer),
    **dict.fromkeys(("running_mean", "running_var", "w", "b"), wide),
)
per_argument(op.batch_norm_train_dxwb, dy=(widest, "x"), w=wide, b=wide)
per_argument(op.group_norm, op.instance_norm, scale=wide, bias=wide)
per_argument(op.group_norm_dx, scale=wide, dy=(widest, "x"))
# In networks of attention the data, too: what is added up around layers stays as it is, and what a
# layer reads of it, and the backward pass keeps, is rounded once. The results are no larger than
# the square root of the extent.
per_argument(op.layer_norm, op.layer_norm_train, op.rms_norm, x=narrow, scale=wide, bias=wide)
per_argument(op.layer_norm_dx, op.rms_norm_dx, x=narrow, scale=wide, dy=(narrow, "x"))
per_argument(op.layer_norm_train_dx, x=narrow, scale=wide, dy=(narrow, "x"), mean=wide, invvar=wide)
# Attention is two products of matrices, of one dtype; the logsumexp is always float32.
_ATTENTION_OPERANDS = "query", "key", "value", "mask"
per_argument(
    op.fused_attention,
    **dict.fromkeys(("query", "key", "value"), (narrow, *_ATTENTION_OPERANDS)),
    mask=(finite, *_ATTENTION_OPERANDS),
    slopes=wide,
)
per_argument(
    *(op.fused_attention_dx, op.fused_attention_dmask, op.fused_attention_dslopes),
    **dict.fromkeys(("query", "key", "value", "y", "dy"), (narrow, *_ATTENTION_OPERANDS)),
    mask=(finite, *_ATTENTION_OPERANDS),
    logsumexp=(wide, *_ATTENTION_OPERANDS),
    slopes=wide,
)
# A cache is as large as it is: it stays, and what reads it follows.
_CACHES = "keys", "values"
per_argument(
    op.cached_attention,
    **dict.fromkeys(("query", *_CACHES), (widest, *_CACHES)),
    sinks=(wide, *_CACHES),
)
_FACTORS = "x", "linear_weight", "linear_bias"
# Products of the factors; what there is of rows is in float32, as losses are.
per_argument(
    op.linear_cross_entropies_dxwb,
    **dict.fromkeys(("x", "linear_weight", "linear_bias"), (narrow, *_FACTORS)),
    **dict.fromkeys(("dloss", "dlogsumexp", "logsumexp"), (wide, *_FACTORS)),
)
# Angles of far positions need float32; activations come in half precision.
per_argument(op.rotary_embedding, cos=wide, sin=wide)
per_argument(op.rotary_embedding_dtable, x=(widest, "x", "dy"), dy=(widest, "x", "dy"), cos=wide)


Dtypes = tuple[str | None, ...]


@custom(op.add, op.subtract)
def sum_into(args: Any, half: str) -> Dtypes:
    """A sum with ``otherwise`` takes its dtype; else, operands meet as those of `multiply`. A
    vector that follows may be a mask, and stays finite.
    """
    stated = float_dtypes(args.otherwise)
    target = stated[0] if stated else common_dtype(args.x1, args.x2)
    dtypes: list[str | None] = [
        Finite(target) if target is not None and is_vector_of(vector, whole) else target
        for vector, whole in ((args.x1, args.x2), (args.x2, args.x1))
    ]
    return *dtypes, None, None


@custom(op.multiply)
def product(args: Any, half: str) -> Dtypes:
    """Operands meet in the wider dtype; but a bias or a scale, a float32 parameter, follows."""
    return (common_dtype(args.x1, args.x2),) * 2


def common_dtype(x1: Any, x2: Any) -> str | None:
    """Return the dtype in which two operands meet. A vector along the last axis of the other one
    follows it: it is rounded no worse than what it is combined with, and does not widen a layer.
    """
    first, second = float_dtypes(x1), float_dtypes(x2)
    both = [*first, *second]
    for vector, whole, dtypes in ((x1, x2, second), (x2, x1, first)):
        if is_vector_of(vector, whole) and dtypes in (["float16"], ["bfloat16"]):
            return "float64" if "float64" in both else dtypes[0]
    return widest(both)


def is_vector_of(vector: Any, whole: Any) -> bool:
    """Whether a tensor is a vector along the last of several axes of another one."""
    if not isinstance(vector, TensorType) or not isinstance(whole, TensorType):
        return False
    return vector.ndim == 1 < whole.ndim and vector.shape[0] == whole.shape[-1] != 1


@custom(op.concat)
def majority(args: Any, half: str) -> Dtypes:
    """Parts take the dtype that most of them have, in a tie the wider: few are rewritten."""
    counts = Counter(float_dtypes(args.arrays))
    if not counts or "float64" in counts:
        return (widest(list(counts)),)
    return (max(counts, key=lambda dtype: (counts[dtype], bits(dtype))),)


@custom(op.scatter_nd)
def scatter_nd(args: Any, half: str) -> Dtypes:
    """A sum, as `scatter_add`, unless rows are only put in their places."""
    found = float_dtypes((args.data, args.updates))
    dtype = widest(found) if args.mode == "update" else wide(found)
    return dtype, None, dtype
