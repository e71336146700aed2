"""The table of cast rules: one line for every operator that does not simply follow its arguments.

* ``always``: computed in half precision, where matrix units make it several times faster.
* ``never``: computed in float32, because half precision would overflow or lose the small terms.
* ``infer``: in the precision in which the arguments come. It is what an operator without a line
  has: shapes and data movement, elementwise operators, pooling, comparisons, random numbers.
* below them, rules of their own, where arguments differ in what they need.

A kernel computes half precision in float32 registers, accumulators included (see the dialects), so
a line here is about what is lost when results are STORED in 16 bits.
"""

from collections import Counter

from meta import op
from meta.amp.core import Finite, always, custom, float_dtypes, never
from meta.base.dtype import bits
from meta.ir.types import TensorType
from meta.op.core.update import OPTIMIZERS, SINGLES

# Products of matrices.
always(op.dense, op.einsum)
always(op.matmul, op.matmul_nt, op.matmul_tn, op.matmul_tt)
always(op.batch_matmul, op.batch_matmul_nt, op.batch_matmul_tn, op.batch_matmul_tt)
always(op.conv1d, op.conv1d_dx, op.conv1d_dw)
always(op.conv2d, op.conv2d_dx, op.conv2d_dw)
always(op.conv3d, op.conv3d_dx, op.conv3d_dw)
always(op.conv1d_transpose, op.conv1d_transpose_dx, op.conv1d_transpose_dw)
always(op.conv2d_transpose, op.conv2d_transpose_dx, op.conv2d_transpose_dw)
always(op.conv3d_transpose, op.conv3d_transpose_dx, op.conv3d_transpose_dw)

# They leave the range of float16 from moderate arguments: exp(12), 1 / 0.00001.
never(op.exp, op.power, op.rsqrt)
never(op.expm1, op.reciprocal, op.sinh, op.cosh)
never(op.tan, op.prod, op.prod_dx)
never(op.exp2, op.square, op.erfinv, op.lgamma, op.digamma, op.trigamma, op.i0, op.i1)
# Sums of many terms: the range again, and with them the gradients of broadcast parameters.
never(op.sum, op.var, op.l2norm, op.dft)
# Probabilities and losses: the small ones carry the gradient.
never(op.softmax, op.softmax_dx, op.log_softmax, op.log_softmax_dx, op.logsumexp)
never(op.logsigmoid, op.softplus)
never(op.nll_loss, op.nll_loss_dpred, op.nll_loss_dtrue)
never(op.cross_entropy, op.cross_entropy_dpred, op.cross_entropy_dtrue)
never(op.smooth_l1_loss, op.smooth_l1_loss_dpred, op.smooth_l1_loss_dtrue)
never(op.mse_loss, op.mse_loss_dpred, op.l1_loss, op.l1_loss_dpred)
never(op.huber_loss, op.huber_loss_dpred, op.kl_div, op.kl_div_dpred)
never(op.binary_cross_entropy, op.binary_cross_entropy_dpred)
never(op.binary_cross_entropy_with_logits, op.binary_cross_entropy_with_logits_dpred)
# A row, or a place, that occurs often adds up many terms, and not in a register.
never(op.embedding_dx)
never(op.gather_dx, op.gather_nd_dx, op.scatter_add, op.scatter_reduce)
# The bits of half precision are others.
never(op.reinterpret)

# Not above, though float32 in other systems, for reasons that are not ours:
# * multiply, tanh, gelu, erf, atan and the gradients of tanh, gelu and erf: their results are no
#   larger than what they come from, and one compiler's failure to build them in half precision is
#   not ours; a test measures each against float64.
# * log, acos, asin, cumsum, cumprod: results of moderate size; the last two state a dtype.
# * gather_nd, arange: nothing is computed from values, or the dtype is stated.
# * mean, std, pooling: of a sum that is accumulated in float32 only the mean is stored, which is no
#   larger than the terms.


@custom(op.add, op.subtract)
def sum_into(args, half):
    """A sum with ``otherwise`` takes its dtype; else, operands meet as those of `multiply`. A
    vector that follows may be a mask, and stays finite.
    """
    target = (float_dtypes(args.otherwise) or [meeting(args.x1, args.x2)])[0]
    dtypes = [
        Finite(target) if target is not None and is_vector_of(vector, whole) else target
        for vector, whole in ((args.x1, args.x2), (args.x2, args.x1))
    ]
    return *dtypes, None, None


@custom(op.multiply)
def product(args, half):
    """Operands meet in the wider dtype; but a bias or a scale, a float32 parameter, follows."""
    return (meeting(args.x1, args.x2),) * 2


def meeting(x1, x2):
    """Return the dtype in which two operands meet. A vector along the last axis of the other one
    follows it: it is rounded no worse than what it is combined with, and does not widen a layer.
    """
    for vector, whole in ((x1, x2), (x2, x1)):
        if is_vector_of(vector, whole) and widest(whole) in ("float16", "bfloat16"):
            return "float64" if widest(vector) == "float64" else widest(whole)
    return widest(x1, x2)


def is_vector_of(vector, whole):
    """Whether a tensor is a vector along the last of several axes of another one."""
    tensors = isinstance(vector, TensorType) and isinstance(whole, TensorType)
    return tensors and vector.ndim == 1 < whole.ndim and vector.shape[0] == whole.shape[-1] != 1


@custom(op.concatenate)
def majority(args, half):
    """Parts take the dtype that most of them have, in a tie the wider: few are rewritten."""
    counts = Counter(float_dtypes(args.x))
    if not counts or "float64" in counts:
        return (widest(args.x),)
    return (max(counts, key=lambda dtype: (counts[dtype], bits(dtype))),)


@custom(op.bias_add)
def like_x(args, half):
    """The bias, a float32 parameter, follows what it is added to; else each layer would widen."""
    return None, widest(args.x)


@custom(op.prelu)
def prelu(args, half):
    """The weight, a float32 parameter, follows x as a bias does."""
    return None, widest(args.x)


# Gradients that take dy in any precision, and of whose x only the type counts.
@custom(op.sum_dx, op.repeat_dx)
def of_type_of_x(args, half):
    return None, None


# Of the second argument only the type counts, so neither precision follows the other.
@custom(op.reshape_like, op.broadcast_to_like, op.cast_like)
def like_another(args, half):
    return None, None


@custom(op.optimization_barrier)
def barrier(args, half):
    """Nothing is computed."""
    return None, None


@custom(op.collapse_sum_like)
def collapse_sum_like(args, half):
    """A sum of many terms, as `sum`."""
    return wide(args.x), None


@custom(op.fixed_point_number)
def in_double_precision(args, half):
    """Quantized networks count on every bit of their scales."""
    return ("float64",)


@custom(op.scaled_matmul)
def scaled_matmul(args, half):
    """It takes float8, with scales in float32, and states the dtype of its result."""
    return None, None, "float32", "float32"


@custom(op.group_cast)
def group_cast(args, half):
    """It states the dtype itself."""
    return (None,)


@custom(op.adv_index_dx)
def adv_index_dx(args, half):
    """In float32, as `take_dx`."""
    return wide(args.dy), wide(args.inputs)


@custom(op.scatter_nd)
def scatter_nd(args, half):
    """A sum, as `scatter_add`, unless rows are only put in their places."""
    if args.mode == "update":
        return widest(args.data, args.updates), None, widest(args.data, args.updates)
    return wide((args.data, args.updates)), None, wide((args.data, args.updates))


@custom(op.take_dx)
def take_dx(args, half):
    """In float32, as `embedding_dx`: the result has the dtype of x, which is only its type."""
    return wide(args.x), wide(args.dy), None


# Normalisations keep statistics, scale and shift in float32 beside activations in half precision:
# running averages move by less than a half precision number can resolve.
@custom(op.batch_norm_train, op.batch_norm_infer)
def batch_norm(args, half):
    return None, wide(args.running_mean), wide(args.running_var), wide(args.w), wide(args.b)


@custom(op.batch_norm_train_dxwb)
def batch_norm_train_dxwb(args, half):
    return widest(args.x), None, wide(args.w), wide(args.b)


# In networks of attention the data, too: what is added up around layers stays as it is, and what a
# layer reads of it, and the backward pass keeps, is rounded once. The results are no larger than
# the square root of the extent.
@custom(op.layer_norm, op.layer_norm_train)
def layer_norm(args, half):
    return narrow(args.x, half), wide(args.scale), wide(args.bias)


@custom(op.layer_norm_dx)
def layer_norm_dx(args, half):
    x = narrow(args.x, half)
    return x, wide(args.scale), x


@custom(op.layer_norm_train_dx)
def layer_norm_train_dx(args, half):
    x = narrow(args.x, half)
    return x, wide(args.scale), x, wide(args.mean), wide(args.invvar)


@custom(op.rms_norm)
def rms_norm(args, half):
    return narrow(args.x, half), wide(args.scale), wide(args.bias)


@custom(op.rms_norm_dx)
def rms_norm_dx(args, half):
    x = narrow(args.x, half)
    return x, wide(args.scale), x


@custom(op.group_norm, op.instance_norm)
def group_norm(args, half):
    return None, wide(args.scale), wide(args.bias)


@custom(op.group_norm_dx)
def group_norm_dx(args, half):
    return None, wide(args.scale), widest(args.x)


@custom(op.l2_normalize)
def l2_normalize(args, half):
    """In the precision of x: the sum of squares is not stored, and results are at most 1."""
    return (None,)


# Attention is two products of matrices; the logsumexp is always float32.
@custom(op.scaled_dot_product_attention)
def attention(args, half):
    dtype = attention_dtype(args, half)
    return dtype, dtype, dtype, Finite(dtype)


@custom(op.scaled_dot_product_attention_dx, op.scaled_dot_product_attention_dmask)
def attention_dx(args, half):
    dtype = attention_dtype(args, half)
    statistics = "float64" if dtype == "float64" else "float32"
    return dtype, dtype, dtype, Finite(dtype), dtype, statistics, dtype


def attention_dtype(args, half):
    """Return the one dtype of an attention's arguments."""
    present = float_dtypes((args.query, args.key, args.value, args.mask))
    return "float64" if "float64" in present else half


# Angles of far positions need float32; activations come in half precision.
@custom(op.rotary_embedding)
def rotary_embedding(args, half):
    return None, wide(args.cos), wide(args.sin)


@custom(op.rotary_embedding_dtable)
def rotary_embedding_dtable(args, half):
    x = widest(args.x, args.dy)
    return x, x, wide(args.cos)


def as_they_come(*ops):
    """A kernel takes tensors of any dtypes, and nothing is gained by a copy."""
    for one in ops:
        casts = (None,) * len(one.schema.tensor_slots)
        custom(one)(lambda args, half, casts=casts: casts)


as_they_come(*OPTIMIZERS, op.lans)
as_they_come(op.multi_tensor_axpby, op.multi_tensor_norm, op.multi_tensor_cast)


# The gradient comes in the parameter's precision; all else stays as it is.
for _step in SINGLES.keys() - {op.lans}:
    _rest = (None,) * (len(_step.schema.tensor_slots) - 2)
    custom(_step)(lambda args, half, rest=_rest: (None, widest(args.x), *rest))


def narrow(argument, half):
    """Return the half dtype, unless an argument is in double precision."""
    return "float64" if "float64" in float_dtypes(argument) else half


def wide(argument):
    """Return the dtype of at least float32 in which to keep an argument."""
    return "float64" if "float64" in float_dtypes(argument) else "float32"


def widest(*arguments):
    """Return the widest dtype among the arguments, None if they hold no floating point tensor.

    float16 and bfloat16 meet in float32.
    """
    dtypes = {d for a in arguments for d in float_dtypes(a)}
    if dtypes == {"float16", "bfloat16"}:
        return "float32"
    return max(dtypes, key=bits, default=None)
