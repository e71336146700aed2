"""Batch and layer normalisation. Add one here.

Statistics and parameters may be wider than half precision data: float32 next to float16 or
bfloat16. Statistics are always computed in `statistics_dtype`.
"""

from meta.ir.types import Dim
from meta.op.core import InOut, Tensor, TensorType, op
from meta.op.core.check import normalize_axis, require, require_float


def statistics_dtype(dtype: str) -> str:
    """Return the dtype in which mean and variance of data of ``dtype`` are computed."""
    return "float64" if dtype == "float64" else "float32"


def _channels(x: TensorType, axis: int, **parameters: TensorType | None) -> None:
    """Check per-channel tensors against x, which has its channels along ``axis``."""
    require_float(x, "x")
    require(x.ndim >= 2, "x must have a channel axis", expected="ndim >= 2", found=str(x))
    check_parameters(x, x.shape[normalize_axis(axis, x.ndim)], parameters)


def check_parameters(x: TensorType, extent: Dim, parameters: dict[str, TensorType | None]) -> None:
    """Check that parameters are of one dimension, ``extent``, and of a dtype that goes with x."""
    dtypes = {x.dtype, statistics_dtype(x.dtype)}
    for name, value in parameters.items():
        if value is None:
            continue
        unknown = not isinstance(extent, int) or not value.is_static
        fits = value.ndim == 1 and (unknown or value.shape[0] == extent) and value.dtype in dtypes
        expected = f"[{extent}] of {' or '.join(sorted(dtypes))}"
        require(fits, f"{name} does not fit", expected=expected, found=str(value))


def _enough(x: TensorType, axis: int) -> None:
    """A variance needs two values; the unbiased one divides by their number less one."""
    if x.is_static:
        enough = x.size > x.static_shape[axis]
        require(enough, "there are too few values per channel", expected="at least 2", found=str(x))


@op
def batch_norm_train(
    x: Tensor,
    running_mean: InOut,
    running_var: InOut,
    w: Tensor | None = None,
    b: Tensor | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    axis: int = 1,
) -> Tensor:
    """Normalise each channel by the statistics of the batch, and update the running ones.

    ``y = (x - mean) / sqrt(var + eps) * w + b``, mean and (biased) variance over all other axes.
    ``running = (1 - momentum) * running + momentum * batch``, where running_var takes the unbiased
    variance, n / (n - 1) of the biased (Ioffe and Szegedy, arXiv:1502.03167; as torch does).

    x: floating point, its C channels along ``axis``: [N, C, ...], or [N, ..., C] with -1.
    running_mean, running_var: [C], written in place. w, b: [C], left out 1 and 0. All of x's dtype,
    or float32 where x is half. momentum, eps: numbers.
    Results: y of x's type, then the written running_mean and running_var.

    Raises TypeInferError if a shape or dtype does not fit or there is one value per channel only.
    """
    _channels(x, axis, running_mean=running_mean, running_var=running_var, w=w, b=b)
    _enough(x, axis)
    return x


@op
def batch_norm_infer(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    w: Tensor | None = None,
    b: Tensor | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    axis: int = 1,
) -> Tensor:
    """Normalise each channel by given statistics.

    ``y = (x - running_mean) / sqrt(running_var + eps) * w + b`` per index of ``axis``;
    ``momentum`` is without meaning. Arguments as in `batch_norm_train`, nothing is written.
    Result: x's type.
    """
    _channels(x, axis, running_mean=running_mean, running_var=running_var, w=w, b=b)
    return x


@op
def batch_norm_train_dxwb(
    dy: Tensor, x: Tensor, w: Tensor | None, b: Tensor | None, eps: float, axis: int = 1
) -> tuple[TensorType, TensorType, TensorType]:
    """Gradients of `batch_norm_train` with respect to x, w and b.

    With the normalised xhat = (x - mean) * inv, inv = 1 / sqrt(var + eps) and n values per channel:
    ``db = sum(dy)``, ``dw = sum(dy * xhat)``, ``dx = w * inv * (dy - db/n - xhat * dw/n)``.

    dy, x: of one type. w, b, axis: as in the forward call (of b only the type matters).
    Results: dx of x's type; dw and db, [C], of w's and b's dtype, or of the statistics' dtype
    where those are None.
    """
    _channels(x, axis, w=w, b=b)
    _enough(x, axis)
    require(dy == x or not dy.is_static, "dy is not of x's type", expected=x, found=dy)
    default = statistics_dtype(x.dtype)
    dw, db = (TensorType((x.shape[axis],), default if p is None else p.dtype) for p in (w, b))
    return x, dw, db


def _layer(x: TensorType, axis: int, **parameters: TensorType | None) -> TensorType:
    """Check layer-norm arguments; return the type of mean and invvar."""
    require_float(x, "x")
    axis = normalize_axis(axis, x.ndim)
    check_parameters(x, x.shape[axis], parameters)
    return TensorType(x.shape[:axis] + x.shape[axis + 1 :], statistics_dtype(x.dtype))


@op
def layer_norm(
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    axis: int = -1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise along one axis: ``y = (x - mean) / sqrt(var + eps) * scale + bias``.

    mean and (biased) variance are taken along ``axis`` (Ba et al., arXiv:1607.06450), in float32
    for half precision.

    x: floating point. scale, bias: one dimension of x's extent along ``axis``, of x's dtype, or
    float32 where x is half; left out 1 and 0. Result: x's type.

    Raises TypeInferError if axis, a shape or a dtype does not fit.
    """
    _layer(x, axis, scale=scale, bias=bias)
    return x


@op(schema=layer_norm)
def layer_norm_train(
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    axis: int = -1,
    eps: float = 1e-5,
) -> tuple[TensorType, TensorType, TensorType]:
    """`layer_norm` that also returns what its gradient needs: y, mean and 1 / sqrt(var + eps).

    mean and invvar have x's shape without ``axis``; they are float64 if x is, else float32. They
    are constants to differentiation.
    """
    statistics = _layer(x, axis, scale=scale, bias=bias)
    return x, statistics, statistics


def _layer_gradients(
    x: TensorType, scale: TensorType | None, dy: TensorType
) -> TensorType | tuple[TensorType, TensorType, TensorType]:
    require(dy == x or not dy.is_static, "dy is not of x's type", expected=x, found=dy)
    return x if scale is None else (x, scale, scale)


@op
def layer_norm_dx(
    x: Tensor, scale: Tensor | None, dy: Tensor, axis: int = -1, eps: float = 1e-5
) -> TensorType | tuple[TensorType, TensorType, TensorType]:
    """Gradients of `layer_norm`: dx alone if ``scale`` is None, else (dx, dscale, dbias).

    With xhat = (x - mean) * invvar and g = dy * scale:
    ``dx = invvar * (g - mean(g) - xhat * mean(g * xhat))`` along ``axis``, and over the other axes
    ``dscale = sum(dy * xhat)``, ``dbias = sum(dy)``. dx has x's type, the others have scale's.
    """
    _layer(x, axis, scale=scale)
    return _layer_gradients(x, scale, dy)


@op
def layer_norm_train_dx(
    x: Tensor,
    scale: Tensor | None,
    dy: Tensor,
    mean: Tensor,
    invvar: Tensor,
    axis: int = -1,
    eps: float = 1e-5,
) -> TensorType | tuple[TensorType, TensorType, TensorType]:
    """`layer_norm_dx` that is given mean and invvar, as `layer_norm_train` returned them."""
    statistics = _layer(x, axis, scale=scale)
    for value, name in ((mean, "mean"), (invvar, "invvar")):
        fits = value == statistics or not (value.is_static and statistics.is_static)
        require(fits, f"{name} does not fit", expected=statistics, found=value)
    return _layer_gradients(x, scale, dy)
