"""Reductions: sums, extremes and their places, moments, norms."""

from meta import linalg, op
from meta.base.dtype import COMPLEX, has_gradient, is_float
from meta.frontend.aten.arguments import cast, promote, require_real
from meta.frontend.aten.registry import aten
from meta.op.core.check import normalize_axis
from meta.op.loss_reduction import in_compute_dtype


def axes_of(x, dim):
    """Return axes as base operators take them: None for all, for which torch has [] as well, and
    for the axis of a 0-d tensor, of which it has one.
    """
    if dim is None or dim == () or x.ndim == 0:
        return None
    return (dim,) if isinstance(dim, int) else tuple(dim)


def in_dtype(x, dtype):
    return x if dtype is None else cast(x, dtype)


def summed(x, dtype):
    """Return what `sum` and `prod` add or multiply: integers of any kind as int64."""
    return in_dtype(x, dtype if dtype is not None or has_gradient(x.dtype) else "int64")


def total(base, x, axes, keepdim, dtype):
    """Return a sum or product in a dtype; of none given, in that of the elements."""
    x = summed(x, dtype)
    found = base(x, axes, keepdim)
    return cast(found, x.dtype)


@aten("sum", op.sum)
def sum_of_all(x, *, dtype):
    return total(op.sum, x, None, False, dtype)


@aten("sum.dim_IntList", op.sum)
def sum_along(x, *, dim, keepdim, dtype):
    return total(op.sum, x, axes_of(x, dim), keepdim, dtype)


@aten("prod", op.prod)
def prod_of_all(x, *, dtype):
    return total(op.prod, x, None, False, dtype)


@aten("prod.dim_int", op.prod)
def prod_along(x, *, dim, keepdim, dtype):
    return total(op.prod, x, axes_of(x, dim), keepdim, dtype)


@aten("mean", op.mean)
def mean_of_all(x, *, dtype):
    return op.mean(in_dtype(x, dtype))


@aten("mean.dim", op.mean)
def mean_along(x, *, dim, keepdim, dtype):
    return op.mean(in_dtype(x, dtype), axes_of(x, dim), keepdim)


def without_nan(x):
    """Return x with 0 for every NaN, of which integers have none."""
    return op.where(op.isnan(x), 0, x) if has_gradient(x.dtype) else x


@aten("nansum", op.where, op.isnan, op.sum)
def nansum(x, *, dim, keepdim, dtype):
    require_real(x)
    return total(op.sum, without_nan(x), axes_of(x, dim), keepdim, dtype)


@aten("nanmean", op.where, op.isnan, op.sum, op.divide)
def nanmean(x, *, dim, keepdim, dtype):
    x, axes = in_dtype(x, dtype), axes_of(x, dim)
    there = cast(op.logical_not(op.isnan(x)), x.dtype)
    return op.divide(op.sum(without_nan(x), axes, keepdim), op.sum(there, axes, keepdim))


@aten("sum_to_size", op.collapse_sum_like, op.reshape, op.sum)
def sum_to_size(x, *, size):
    lead = x.ndim - len(size)
    extents = zip(x.shape[lead:], size, strict=True)
    kept = [lead + i for i, (own, wanted) in enumerate(extents) if own != 1 and wanted == 1]
    axes = (*range(lead), *kept)
    return op.reshape(op.sum(summed(x, x.dtype), axes, True), size) if axes else x


@aten("trace", op.diagonal, op.sum)
def trace(x):
    return total(op.sum, op.diagonal(x), None, False, None)


@aten("logsumexp", "special_logsumexp", op.logsumexp)
def logsumexp(x, *, dim, keepdim):
    require_real(x)
    (x,) = promote(x, floating=True)
    return op.logsumexp(x, axes_of(x, dim), keepdim)


# Whether, and how many.


def whether(base):
    def of_all(x):
        found = base(x)
        return cast(found, "uint8") if x.dtype == "uint8" else found

    def along(x, *, dim, keepdim):
        found = base(x, axes_of(x, dim), keepdim)
        return cast(found, "uint8") if x.dtype == "uint8" else found

    def along_several(x, *, dim, keepdim):
        """No axes reduce nothing here, unlike elsewhere."""
        if dim == ():
            found = x if x.dtype == "bool" else op.not_equal(x, 0)
            return cast(found, "uint8") if x.dtype == "uint8" else found
        return along(x, dim=dim, keepdim=keepdim)

    return of_all, along, along_several


for _base in (op.all, op.any):
    _of_all, _along, _along_several = whether(_base)
    aten(_base.name, _base)(_of_all)
    aten(f"{_base.name}.dim", _base)(_along)
    aten(f"{_base.name}.dims", _base)(_along_several)


@aten("count_nonzero", "count_nonzero.dim_IntList", op.not_equal, op.sum)
def count_nonzero(x, *, dim):
    there = x if x.dtype == "bool" else op.not_equal(x, 0)
    return op.sum(there, axes_of(x, dim))


# Extremes.


@aten("amax", op.max)
def amax(x, *, dim, keepdim):
    return op.max(x, axes_of(x, dim), keepdim)


@aten("amin", op.min)
def amin(x, *, dim, keepdim):
    return op.min(x, axes_of(x, dim), keepdim)


def elements_at(x, place, dim, keepdim):
    """Return the elements at indices along an axis, which have extent 1 there, and the indices."""
    values = op.take_along_axis(x, place, dim)
    return (values, place) if keepdim else (op.squeeze(values, dim), op.squeeze(place, dim))


def of_scalar(x):
    """Return the element of a 0-d tensor and its index."""
    return x, op.zeros_like(x, "int64")


@aten("max.dim", op.argmax, op.take_along_axis, op.squeeze)
def max_along(x, *, dim, keepdim):
    """The gradient goes to the element at the index, not to all equal ones."""
    return elements_at(x, op.argmax(x, dim, True), dim, keepdim) if x.ndim else of_scalar(x)


@aten("min.dim", op.argmin, op.take_along_axis, op.squeeze)
def min_along(x, *, dim, keepdim):
    return elements_at(x, op.argmin(x, dim, True), dim, keepdim) if x.ndim else of_scalar(x)


@aten("argmax", op.argmax)
def argmax(x, *, dim, keepdim):
    return op.argmax(x, axes_of(x, dim), keepdim)


@aten("argmin", op.argmin)
def argmin(x, *, dim, keepdim):
    return op.argmin(x, axes_of(x, dim), keepdim)


@aten("aminmax", "_aminmax.dim", op.min, op.max)
def aminmax(x, *, dim, keepdim):
    axes = axes_of(x, dim)
    return op.min(x, axes, keepdim), op.max(x, axes, keepdim)


@aten("_aminmax", op.min, op.max)
def aminmax_of_all(x):
    return op.min(x), op.max(x)


# Moments.


def degrees(unbiased, correction):
    """Return what is subtracted from the number of elements."""
    if correction is None:
        return 1 if unbiased else 0
    return correction


def moment(base, x, axes, keepdim, correction):
    """Return a variance or standard deviation; of complex numbers that of both parts together."""
    if x.dtype not in COMPLEX:
        return base(x, axes, keepdim, correction)
    parts = [op.var(part(x), axes, keepdim, correction) for part in (op.real, op.imag)]
    found = op.add(*parts)
    return op.sqrt(found) if base is op.std else found


def register_moment(base):
    @aten(base.name, base)
    def of_all(x, *, unbiased):
        return moment(base, x, None, False, degrees(unbiased, None))

    @aten(f"{base.name}.dim", base)
    def along(x, *, dim, unbiased, keepdim):
        return moment(base, x, axes_of(x, dim), keepdim, degrees(unbiased, None))

    @aten(f"{base.name}.correction", base)
    def corrected(x, *, dim, correction, keepdim):
        return moment(base, x, axes_of(x, dim), keepdim, degrees(True, correction))

    @aten(f"{base.name}_mean", base, op.mean)
    def with_mean_of_all(x, **options):
        return of_all(x, **options), op.mean(x)

    @aten(f"{base.name}_mean.dim", base, op.mean)
    def with_mean_along(x, *, dim, unbiased, keepdim):
        axes = axes_of(x, dim)
        found = moment(base, x, axes, keepdim, degrees(unbiased, None))
        return found, op.mean(x, axes, keepdim)

    @aten(f"{base.name}_mean.correction", base, op.mean)
    def with_mean_corrected(x, *, dim, correction, keepdim):
        axes = axes_of(x, dim)
        found = moment(base, x, axes, keepdim, degrees(True, correction))
        return found, op.mean(x, axes, keepdim)


register_moment(op.var)
register_moment(op.std)


# Norms.


def norm(x, ord, axes, keepdim, dtype):
    """Return a norm of vectors, in the dtype of the elements or of their parts."""
    x = in_dtype(x, dtype)
    return linalg.vector_norm(x, axis=axes, keepdims=keepdim, ord=2 if ord is None else ord)


NORM = (op.abs, op.square, op.sum, op.sqrt, op.pow, op.max, op.min)
"""What a norm becomes."""


@aten("linalg_vector_norm", *NORM)
def vector_norm(x, *, ord, dim, keepdim, dtype):
    return norm(x, ord, axes_of(x, dim), keepdim, dtype)


@aten("norm.Scalar", "native_norm", *NORM)
def norm_of_all(x, *, p):
    return norm(x, p, None, False, None)


@aten("norm.ScalarOpt_dtype", *NORM)
def norm_of_all_in(x, *, p, dtype):
    return norm(x, p, None, False, dtype)


@aten("norm.ScalarOpt_dim", *NORM)
def norm_along(x, *, p, dim, keepdim):
    return norm(x, p, axes_of(x, dim), keepdim, None)


@aten("norm.ScalarOpt_dim_dtype", "native_norm.ScalarOpt_dim_dtype", *NORM)
def norm_along_in(x, *, p, dim, keepdim, dtype):
    return norm(x, p, axes_of(x, dim), keepdim, dtype)


@aten("frobenius_norm.dim", *NORM)
def frobenius_norm(x, *, dim, keepdim):
    return norm(x, 2, axes_of(x, dim), keepdim, None)


@aten("dist", op.subtract, *NORM)
def dist(x, y, *, p):
    return norm(op.subtract(*promote(x, y)), p, None, False, None)


@aten("linalg__powsum", op.abs, op.pow, op.sum)
def power_sum(x, *, ord, dim, keepdim, dtype):
    x = in_dtype(x, dtype)
    found = op.sum(op.pow(op.abs(in_compute_dtype(x)), float(ord)), axes_of(x, dim), keepdim)
    return cast(found, x.dtype) if is_float(x.dtype) else found


@aten("renorm", op.where, op.greater, op.divide, op.multiply, *NORM)
def renorm(x, p, maxnorm, *, dim):
    """Slices along an axis, those above a norm scaled to it."""
    others = tuple(i for i in range(x.ndim) if i != normalize_axis(dim, x.ndim))
    size = norm(x, p, others, True, None)
    factor = op.divide(float(maxnorm), op.add(size, 1e-7))
    factor = op.where(op.greater(size, maxnorm), factor, 1.0)
    return op.multiply(x, cast(factor, x.dtype))
