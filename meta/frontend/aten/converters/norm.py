"""Normalisations and their gradients, with the statistics that torch saves in between.

Statistics are computed in float32 for half precision. On the CPU torch rounds those that it saves
to the data's dtype, unless parameters or running statistics are float32 as well.
"""

from math import prod

from meta import op
from meta.base.dtype_info import finfo
from meta.frontend.aten.arguments import cast, value_of
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible
from meta.grad.core import pullback
from meta.op.core.function import device_of
from meta.op.norm import statistics_dtype


def _others(x, axis=1):
    return tuple(i for i in range(len(x.shape)) if i != axis)


def _per_channel_view(t, x):
    """Return a value for each channel with the axes of x."""
    return op.reshape(t, (1, -1, *(1,) * (len(x.shape) - 2)))


def _saved_dtype(x, call, *beside):
    """Return the dtype of the statistics that torch saves."""
    wide = statistics_dtype(x.dtype)
    mixed = any(t is not None and t.dtype == wide for t in beside)
    return x.dtype if call.device.kind == "cpu" and not mixed else wide


def _wide(x):
    return cast(x, statistics_dtype(x.dtype))


def _ones(weight, bias):
    """Return both, a weight of ones beside a bias alone."""
    return (op.ones_like(bias) if weight is None and bias is not None else weight), bias


# Of batches.


def _train(x, weight, bias, momentum, eps, running):
    """Return the result, mean and 1 / sqrt(var + eps) of a batch, and the new running statistics.

    One call gives all: running statistics that follow at once are those of the batch.
    """
    wide, count = statistics_dtype(x.dtype), prod(x.shape[i] for i in _others(x))
    if isinstance(count, int) and count < 2:
        raise Unconvertible("there are too few values per channel")
    weight, bias = _ones(weight, bias)
    mean, var = (op.zeros((x.shape[1],), wide, device_of(x)) for _ in range(2))
    y, mean, var = op.batch_norm_train(x, mean, var, weight, bias, 1.0, eps)
    inv = op.rsqrt(op.add(op.multiply(var, _share(count, wide)), eps))
    new = tuple(
        None
        if old is None
        else cast(
            op.add(op.multiply(cast(old, wide), 1.0 - momentum), op.multiply(found, momentum)),
            old.dtype,
        )
        for old, found in zip(running, (mean, var), strict=True)
    )
    return y, mean, inv, new


def _share(count, dtype):
    """Return (count - 1) / count: what the biased variance is of the other."""
    if isinstance(count, int):
        return (count - 1) / count
    values = (cast(value_of(n), dtype) for n in (count - 1, count))
    return op.divide(*values)


def _infer(x, weight, bias, mean, var, eps, call):
    """Return the result and what is saved: nothing on the CPU."""
    weight, bias = _ones(weight, bias)
    y = op.batch_norm_infer(x, mean, var, weight, bias, 0.1, eps)
    if call.device.kind == "cpu":
        nothing = op.zeros((0,), _saved_dtype(x, call, weight, mean), "cpu")
        return y, nothing, nothing
    wide = statistics_dtype(x.dtype)
    return y, cast(mean, wide), op.rsqrt(op.add(cast(var, wide), eps))


def _batch_norm(x, weight, bias, mean, var, training, momentum, eps, call):
    """Return the result, what is saved, and the new running statistics."""
    if not training:
        return (*_infer(x, weight, bias, mean, var, eps, call), mean, var)
    y, found, inv, new = _train(x, weight, bias, momentum, eps, (mean, var))
    dtype = _saved_dtype(x, call, weight, mean)
    return y, cast(found, dtype), cast(inv, dtype), *new


@aten("batch_norm", op.batch_norm, ignore=("cudnn_enabled",))
def batch_norm(x, weight, bias, mean, var, *, training, momentum, eps):
    """In train mode it updates the running statistics in place."""
    return op.batch_norm(x, mean, var, weight, bias, training or mean is None, momentum, eps)


def batch_norm_updating(x, weight, bias, mean, var, *, momentum, eps):
    """Return the result by statistics of the batch; update the running ones in place."""
    scale, offset = _ones(weight, bias)
    return op.batch_norm_train(x, mean, var, scale, offset, momentum, eps)[0]


@aten("native_batch_norm", "_native_batch_norm_legit", op.batch_norm_train, op.batch_norm_infer)
def native_batch_norm(x, weight, bias, mean, var, *, training, momentum, eps, call):
    """In train mode it updates the running statistics in place."""
    if not training or mean is None:
        return _batch_norm(x, weight, bias, mean, var, training, momentum, eps, call)[:3]
    saved = _batch_norm(x, weight, bias, None, None, True, momentum, eps, call)[1:3]
    y = batch_norm_updating(x, weight, bias, mean, var, momentum=momentum, eps=eps)
    return y, *saved


@aten("_native_batch_norm_legit.no_stats", op.batch_norm_train)
def native_batch_norm_no_stats(x, weight, bias, *, training, momentum, eps, call):
    return _batch_norm(x, weight, bias, None, None, True, momentum, eps, call)[:3]


@aten("_native_batch_norm_legit_no_training", op.batch_norm_infer)
def native_batch_norm_no_training(x, weight, bias, mean, var, *, momentum, eps, call):
    return _infer(x, weight, bias, mean, var, eps, call)


@aten("_native_batch_norm_legit_functional", op.batch_norm_train, op.batch_norm_infer)
def native_batch_norm_functional(x, weight, bias, mean, var, *, training, momentum, eps, call):
    return _batch_norm(x, weight, bias, mean, var, training, momentum, eps, call)


def _reserve(call):
    return op.zeros((0,), "uint8", str(call.device))


@aten("_batch_norm_with_update_functional", op.batch_norm_train)
def batch_norm_with_update(x, weight, bias, mean, var, *, momentum, eps, call):
    found = _batch_norm(x, weight, bias, mean, var, True, momentum, eps, call)
    return *found[:3], _reserve(call), *found[3:]


@aten("_batch_norm_no_update", op.batch_norm_infer)
def batch_norm_no_update(x, weight, bias, mean, var, *, momentum, eps, call):
    return *_batch_norm(x, weight, bias, mean, var, False, momentum, eps, call)[:3], _reserve(call)


@aten("cudnn_batch_norm", op.batch_norm_train, op.batch_norm_infer)
def cudnn_batch_norm(
    x, weight, bias, mean, var, *, training, exponential_average_factor, epsilon, call
):
    factor = exponential_average_factor
    found = native_batch_norm(
        x, weight, bias, mean, var, training=training, momentum=factor, eps=epsilon, call=call
    )
    return *found, _reserve(call)


def batch_norm_gradients(dy, x, weight, *, eps):
    """Return the gradients of a normalisation by statistics of the batch, which it computes."""
    return _in_dtype_of(weight, op.batch_norm_train_dxwb(dy, x, weight, None, eps))


def batch_norm_again(dy, x, weight, bias, *, eps):
    """Return a normalisation by statistics of the batch, which updates none."""
    wide, over = _wide(x), _others(x)
    return op.batch_norm_infer(x, op.mean(wide, over), op.var(wide, over), weight, bias, eps=eps)


def _in_dtype_of(weight, found):
    if weight is None:
        return found
    return (found[0], *(cast(g, weight.dtype) for g in found[1:]))


def _batch_norm_backward(dy, x, weight, mean, var, train, eps, output_mask):
    if train:
        found = batch_norm_gradients(dy, x, weight, eps=eps)
    else:
        found = _in_dtype_of(weight, _of_running(dy, x, weight, mean, var, eps))
    return tuple(g if wanted else None for g, wanted in zip(found, output_mask, strict=True))


def _of_running(dy, x, weight, mean, var, eps):
    """Return the gradients of a normalisation by given statistics."""
    wide = statistics_dtype(x.dtype)
    inv = op.rsqrt(op.add(cast(var, wide), eps))
    factor = inv if weight is None else op.multiply(inv, cast(weight, wide))
    slope = _wide(dy)
    dx = cast(op.multiply(slope, _per_channel_view(factor, x)), x.dtype)
    centred = op.subtract(_wide(x), _per_channel_view(cast(mean, wide), x))
    dw = op.multiply(op.sum(op.multiply(slope, centred), _others(x)), inv)
    return dx, dw, op.sum(slope, _others(x))


@aten("native_batch_norm_backward", op.batch_norm_train_dxwb)
def native_batch_norm_backward(dy, x, weight, mean, var, _mean, _inv, *, train, eps, output_mask):
    return _batch_norm_backward(dy, x, weight, mean, var, train, eps, output_mask)


@aten("batch_norm_backward", op.batch_norm_train_dxwb)
def batch_norm_backward(
    dy, x, weight, mean, var, _mean, _var, _reserve, *, update, eps, output_mask
):
    return _batch_norm_backward(dy, x, weight, mean, var, update, eps, output_mask)


@aten("cudnn_batch_norm_backward", op.batch_norm_train_dxwb)
def cudnn_batch_norm_backward(x, dy, weight, mean, var, _mean, _var, _reserve, *, epsilon):
    return _batch_norm_backward(dy, x, weight, mean, var, True, epsilon, (True,) * 3)


@aten("instance_norm", op.instance_norm, op.batch_norm, ignore=("momentum", "cudnn_enabled"))
def instance_norm(x, weight, bias, mean, var, *, use_input_stats, eps):
    if use_input_stats and mean is not None:
        raise Unconvertible("it updates running statistics of single examples")
    return op.instance_norm(x, mean, var, weight, bias, use_input_stats, eps=eps)


# Along the last axes, and of groups of channels.


def _rows(x, normalized_shape):
    """Return x with the last axes as one, and the extents of the others."""
    lead = tuple(x.shape[: len(x.shape) - len(normalized_shape)])
    return op.reshape(x, (*lead, prod(x.shape[len(lead) :]))), lead


def _flat(t):
    return None if t is None else op.reshape(t, (prod(t.shape),))


@aten("layer_norm", op.layer_norm, ignore=("cudnn_enable",))
def layer_norm(x, weight, bias, *, normalized_shape, eps):
    return op.layer_norm(x, normalized_shape, weight, bias, eps)


@aten("native_layer_norm", op.layer_norm, op.layer_norm_train)
def native_layer_norm(x, weight, bias, *, normalized_shape, eps, call):
    if call.results == 1:
        return op.layer_norm(x, normalized_shape, weight, bias, eps), None, None
    rows, lead = _rows(x, normalized_shape)
    scale, offset = _ones(_flat(weight), _flat(bias))
    y, mean, inv = op.layer_norm_train(rows, scale, offset, -1, eps)
    dtype = _saved_dtype(x, call, weight, bias)
    beside = (*lead, *(1,) * len(normalized_shape))
    saved = (cast(op.reshape(t, beside), dtype) for t in (mean, inv))
    return op.reshape(y, tuple(x.shape)), *saved


@aten("native_layer_norm_backward", op.layer_norm_train_dx)
def native_layer_norm_backward(dy, x, mean, inv, weight, bias, *, normalized_shape, output_mask):
    rows, lead = _rows(x, normalized_shape)
    slope = op.reshape(dy, tuple(rows.shape))
    wide = statistics_dtype(x.dtype)
    mean, inv = (cast(op.reshape(t, lead), wide) for t in (mean, inv))
    found = op.layer_norm_train_dx(rows, _flat(weight), slope, mean, inv, -1, 0.0)
    dx, dw, db = (found, None, None) if weight is None else found
    if db is None and bias is not None:
        db = cast(op.sum(_wide(slope), tuple(range(len(lead)))), bias.dtype)
    return tuple(
        op.reshape(g, shape) if wanted and g is not None else None
        for g, shape, wanted in zip(
            (dx, dw, db),
            (tuple(x.shape), *(tuple(normalized_shape),) * 2),
            output_mask,
            strict=True,
        )
    )


@aten("group_norm", op.group_norm, ignore=("cudnn_enabled",))
def group_norm(x, weight, bias, *, num_groups, eps):
    return op.group_norm(x, num_groups, weight, bias, eps)


def _grouped(x, groups):
    """Return x in wide numbers with an axis of groups, then of their channels."""
    batch, channels = x.shape[:2]
    return op.reshape(_wide(x), (batch, groups, channels // groups, prod(x.shape[2:])))


@aten("native_group_norm", op.group_norm, ignore=("N", "C", "HxW"))
def native_group_norm(x, weight, bias, *, group, eps, call):
    """The statistics are computed beside the result, and are dead code where nothing reads them."""
    y = op.group_norm(x, group, weight, bias, eps)
    data = _grouped(x, group)
    mean = op.mean(data, (2, 3), True)
    centred = op.subtract(data, mean)
    inv = op.rsqrt(op.add(op.mean(op.multiply(centred, centred), (2, 3)), eps))
    dtype = _saved_dtype(x, call, weight, bias)
    return y, cast(op.reshape(mean, tuple(inv.shape)), dtype), cast(inv, dtype)


@aten("native_group_norm_backward", ignore=("N", "C", "HxW"))
def native_group_norm_backward(dy, x, mean, inv, weight, *, group, output_mask):
    """With xhat = (x - mean) * inv and g = dy * weight:
    dx = inv * (g - mean(g) - xhat * mean(g * xhat)), dw = sum(dy * xhat), db = sum(dy).
    """
    data, slope = _grouped(x, group), _grouped(dy, group)
    lifted = (*data.shape[:2], 1, 1)
    mean, inv = (op.reshape(cast(t, data.dtype), lifted) for t in (mean, inv))
    xhat = op.multiply(op.subtract(data, mean), inv)
    dx = dw = db = None
    if output_mask[0]:
        g = slope
        if weight is not None:
            of_group = (1, *data.shape[1:3], 1)
            g = op.multiply(slope, op.reshape(cast(weight, data.dtype), of_group))
        dx = cast(op.reshape(_projected(g, xhat, inv, (2, 3)), tuple(x.shape)), x.dtype)
    channels = (x.shape[1],)
    dtype = x.dtype if weight is None else weight.dtype
    if output_mask[1]:
        dw = cast(op.reshape(op.sum(op.multiply(slope, xhat), (0, 3)), channels), dtype)
    if output_mask[2]:
        db = cast(op.reshape(op.sum(slope, (0, 3)), channels), dtype)
    return dx, dw, db


def _projected(g, xhat, inv, axes, centred=True):
    """Return ``inv * (g - mean(g) - xhat * mean(g * xhat))``, or without the mean of g."""
    rest = op.multiply(xhat, op.mean(op.multiply(g, xhat), axes, True))
    if centred:
        rest = op.add(rest, op.mean(g, axes, True))
    return op.multiply(inv, op.subtract(g, rest))


def _bound(x, eps):
    return finfo(statistics_dtype(x.dtype)).eps if eps is None else eps


@aten("rms_norm", op.rms_norm)
def rms_norm(x, weight, *, normalized_shape, eps):
    return op.rms_norm(x, normalized_shape, weight, eps)


@aten("_fused_rms_norm", op.rms_norm)
def fused_rms_norm(x, weight, *, normalized_shape, eps):
    wide, ndim = _wide(x), len(x.shape)
    axes = tuple(range(ndim - len(normalized_shape), ndim))
    inv = op.rsqrt(op.add(op.mean(op.multiply(wide, wide), axes, True), _bound(x, eps)))
    return op.rms_norm(x, normalized_shape, weight, eps), inv


@aten("_fused_rms_norm_backward")
def fused_rms_norm_backward(dy, x, inv, weight, *, normalized_shape, output_mask):
    """As of `native_group_norm_backward`, with a mean of 0."""
    data, slope, ndim = _wide(x), _wide(dy), len(x.shape)
    inv = cast(inv, data.dtype)
    split = ndim - len(normalized_shape)
    xhat, dx, dw = op.multiply(data, inv), None, None
    if output_mask[0]:
        g = slope if weight is None else op.multiply(slope, cast(weight, data.dtype))
        dx = cast(_projected(g, xhat, inv, tuple(range(split, ndim)), centred=False), x.dtype)
    if output_mask[1] and weight is not None:
        product = op.multiply(slope, xhat)
        dw = cast(op.sum(product, tuple(range(split))) if split else product, weight.dtype)
    return dx, dw


# Of weights.


def _norms(v, pow, dim):
    """Return the norms of v over all axes but one, which have the extent 1; for -1 its norm."""
    axes = tuple(range(len(v.shape))) if dim == -1 else _others(v, dim % len(v.shape))
    kept = dim != -1
    if pow == 2:
        return op.sqrt(op.sum(op.multiply(v, v), axes, kept))
    return op.pow(op.sum(op.pow(op.abs(v), float(pow)), axes, kept), 1 / pow)


@aten("norm_except_dim", op.sum)
def norm_except_dim(v, *, pow, dim):
    return cast(_norms(_wide(v), pow, dim), v.dtype)


def _weighted(v, g, dim):
    wide = _wide(v)
    norms = _norms(wide, 2, dim)
    return cast(op.multiply(wide, op.divide(_wide(g), norms)), v.dtype), norms


@aten("_weight_norm", op.multiply)
def weight_norm(v, g, *, dim):
    return _weighted(v, g, dim)[0]


@aten("_weight_norm_interface", op.multiply)
def weight_norm_interface(v, g, *, dim, call):
    w, norms = _weighted(v, g, dim)
    return w, cast(norms, g.dtype if call.device.kind == "cpu" else norms.dtype)


@aten("_weight_norm_interface_backward", "_weight_norm_differentiable_backward")
def weight_norm_backward(dw, v, g, norms, *, dim):
    return pullback(lambda v, g: weight_norm(v, g, dim=dim), (v, g), dw)


aten.refuse(
    "miopen_batch_norm",
    "miopen_batch_norm_backward",
    why="it is of a device that is not supported",
)
aten.refuse("quantized_batch_norm", why="its operands are quantised")
