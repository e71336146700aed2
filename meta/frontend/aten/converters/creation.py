"""Tensors made of numbers, and windows for Fourier transforms, which are known while converting.

A program's tensors are all on one device, the one that it runs on; the device that torch saw while
it made the program is not asked for.
"""

import math

import numpy as np
import torch

from meta import op
from meta.base.dtype import COMPLEX, is_float
from meta.frontend.aten.arguments import (
    at_least_1d,
    cast_or_take_real,
    constant,
    default_dtype,
    dtype_of_number,
    full_tensor,
    is_number,
    promote,
    require_strided,
    value_of,
)
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible, constant_value
from meta.ir.dims import SymbolicDim

COUNTS_IN_INT64 = torch.__version__ < (2, 14)  # type: ignore[operator]  # a TorchVersion
"""Whether this torch makes the bounds of a range in int64 integers before it counts."""


# Windows for Fourier transforms: numbers that are known while converting.


PLACEMENT = ("device", "pin_memory")
LIKE = (*PLACEMENT, "memory_format")


def _register_of_shape(name, value, ignore=PLACEMENT):
    @aten(name, op.full, ignore=ignore)
    def of_shape(*, size, dtype, layout, call):
        require_strided(layout)
        return full_tensor(size, value, dtype or default_dtype(), call)


def _register_like(name, value):
    @aten(name, op.full_like, ignore=LIKE)
    def like(x, *, dtype, layout, call):
        require_strided(layout)
        return full_tensor(x.shape, value, dtype or x.dtype, call)


def _register_new(name, value, ignore=PLACEMENT):
    @aten(name, op.full, ignore=ignore)
    def new(x, *, size, dtype, layout, call):
        require_strided(layout)
        return full_tensor(size, value, dtype or x.dtype, call)


# Memory that is not initialised is zeros here.
_register_of_shape("zeros", 0)
_register_of_shape("ones", 1)
_register_of_shape("_efficientzerotensor", 0)
_register_of_shape("empty.memory_format", 0, LIKE)
_register_of_shape("empty_strided", 0, (*PLACEMENT, "stride"))
_register_of_shape("empty_permuted", 0, (*PLACEMENT, "physical_layout"))
_register_like("zeros_like", 0)
_register_like("ones_like", 1)
_register_like("empty_like", 0)
_register_new("new_zeros", 0)
_register_new("new_ones", 1)
_register_new("new_empty", 0)
_register_new("new_empty_strided", 0, (*PLACEMENT, "stride"))


@aten("zero", op.full_like)
def zero(x, *, call):
    return full_tensor(x.shape, 0, x.dtype, call)


@aten("full", op.full, ignore=PLACEMENT)
def full(value, *, size, dtype, layout, call):
    require_strided(layout)
    return full_tensor(size, value, dtype or dtype_of_number(value), call)


@aten("full_like", op.full_like, ignore=LIKE)
def full_like(x, value, *, dtype, layout, call):
    require_strided(layout)
    return full_tensor(x.shape, value, dtype or x.dtype, call)


@aten("new_full", op.full, ignore=PLACEMENT)
def new_full(x, value, *, size, dtype, layout, call):
    require_strided(layout)
    return full_tensor(size, value, dtype or x.dtype, call)


@aten("fill.Scalar", op.full_like)
def fill(x, value, *, call):
    return full_tensor(x.shape, value, x.dtype, call)


@aten("fill.Tensor", op.broadcast_to)
def fill_of(x, value):
    return op.broadcast_to(cast_or_take_real(value, x.dtype), tuple(x.shape))


@aten("scalar_tensor", op.full, ignore=PLACEMENT)
def scalar_tensor(value, *, dtype, layout, call):
    """Without a dtype, in torch's default for floating point, whatever the number is."""
    require_strided(layout)
    default = dtype_of_number(value) if isinstance(value, complex) else default_dtype()
    return full_tensor((), value, dtype or default, call)


# Ranges.


def _symbolic_range(start, end, step, dtype):
    """A range that has a dimension among its bounds: sums of ones, as many as there are numbers."""
    length = (end - start) // step if step in (1, -1) else (end - start + step - 1) // step
    if not isinstance(step, int) or step == 0:
        raise Unconvertible(f"a range in steps of {step} is not supported")
    if step < -1:
        raise Unconvertible("a range of unknown length that counts down by more than 1")
    if isinstance(length, int):
        return op.add(op.multiply(op.arange(0, length, 1, "int64"), step), value_of(start))
    ones = op.full((length,), 1, "int64")
    counted = op.subtract(op.cumsum(ones, 0), 1)
    counted = counted if step == 1 else op.multiply(counted, step)
    zero = type(start) is int and start == 0
    return cast_or_take_real(counted if zero else op.add(counted, value_of(start)), dtype)


def is_integral(bound):
    """Whether a bound is a float without a fraction, as the step of ``arange(n, -n, -1.0)``."""
    return isinstance(bound, float) and bound.is_integer()


def ranged(start, end, step, dtype, call):
    if not all(is_number(b) for b in (start, end, step)):
        raise Unconvertible("a range whose bounds are tensors is not supported")
    start, end, step = (int(b) if isinstance(b, bool) else b for b in (start, end, step))
    bounds = (start, end, step)
    whole = all(isinstance(b, int | SymbolicDim) for b in bounds)
    if dtype is None:
        dtype = "int64" if whole else default_dtype()
    if any(isinstance(b, SymbolicDim) for b in bounds):
        start, end, step = (int(b) if is_integral(b) else b for b in bounds)
        if not all(isinstance(b, int | SymbolicDim) for b in (start, end, step)):
            raise Unconvertible("a range of unknown length in fractional steps is not supported")
        return _symbolic_range(start, end, step, dtype)
    if whole:
        wide = "int64" if not is_float(dtype) or dtype in ("float16", "bfloat16") else dtype
        return cast_or_take_real(op.arange(start, end, step, wide, str(call.device)), dtype)
    if dtype == "int64" and COUNTS_IN_INT64:
        return op.arange(int(start), int(end), int(step), dtype, str(call.device))
    length = max(0, math.ceil((end - start) / step))
    if not is_float(dtype):
        # torch makes the bounds integers, but has counted with what they were.
        start, step = int(start), int(step)
        counted = op.arange(0, length, 1, "int64", str(call.device))
        return cast_or_take_real(op.add(op.multiply(counted, step), start), dtype)
    counted = op.arange(0, length, 1, "float64", str(call.device))
    return cast_or_take_real(op.add(op.multiply(counted, float(step)), float(start)), dtype)


@aten("arange", op.arange, ignore=PLACEMENT)
def arange(end, *, dtype, layout, call):
    require_strided(layout)
    return ranged(0, end, 1, dtype, call)


@aten("arange.start", op.arange, ignore=PLACEMENT)
def arange_from(start, end, *, dtype, layout, call):
    require_strided(layout)
    return ranged(start, end, 1, dtype, call)


@aten("arange.start_step", op.arange, ignore=PLACEMENT)
def arange_by(start, end, *, step, dtype, layout, call):
    require_strided(layout)
    return ranged(start, end, step, dtype, call)


def _closed_range(start, end, step, dtype, call):
    """A range that its end belongs to."""
    dtype = dtype or default_dtype()
    count = math.floor((end - start) / step) + 1
    counted = op.arange(0, count, 1, "float64", str(call.device))
    return cast_or_take_real(op.add(op.multiply(counted, float(step)), float(start)), dtype)


@aten("range", op.arange, ignore=PLACEMENT)
def range_(start, end, *, dtype, layout, call):
    require_strided(layout)
    return _closed_range(start, end, 1, dtype, call)


@aten("range.step", op.arange, ignore=PLACEMENT)
def range_by(start, end, *, step, dtype, layout, call):
    require_strided(layout)
    return _closed_range(start, end, step, dtype, call)


@aten("_dim_arange", op.arange)
def dim_arange(like, *, dim, call):
    return ranged(0, like.shape[dim], 1, "int64", call)


def _float64(value, call):
    return (
        full_tensor((), value, "float64", call)
        if is_number(value)
        else cast_or_take_real(value, "float64")
    )


def spaced(start, end, steps, dtype, call):
    """Evenly spaced numbers in float64: the first half counted from the start, the other from the
    end, as torch's kernels do.
    """
    if any(isinstance(v, complex) for v in (start, end)) or dtype in COMPLEX:
        return _spaced_complex(start, end, steps, call)
    start, end = (op.reshape(_float64(_truncated(v, dtype), call), (1,)) for v in (start, end))
    counted = op.arange(0, steps, 1, "float64", str(call.device))
    step = op.divide(op.subtract(end, start), float(max(steps - 1, 1)))
    upward = op.add(start, op.multiply(counted, step))
    downward = op.subtract(end, op.multiply(op.subtract(float(steps - 1), counted), step))
    if steps == 1:
        return op.broadcast_to(start, (1,))
    return op.where(op.less(counted, steps // 2), upward, downward)


def _truncated(value, dtype):
    """A bound as torch converts it for integers: without its fraction."""
    if is_float(dtype) or dtype in COMPLEX:
        return value
    return int(value) if is_number(value) else op.trunc(cast_or_take_real(value, "float64"))


def _spaced_complex(start, end, steps, call):
    if not (is_number(start) and is_number(end)):
        start, end = (_component(v) for v in (start, end))
    values = np.linspace(start, end, steps, dtype=np.complex128)
    return constant(values, "complex128", call)


def _component(value):
    now = None if is_number(value) else constant_value(value)
    if not is_number(value) and now is None:
        raise Unconvertible("evenly spaced complex numbers between inputs are not supported")
    return value if now is None else now.item()


def _spaced_dtype(start, end, dtype):
    if dtype is not None:
        return dtype
    is_complex = any(
        isinstance(v, complex) or getattr(v, "dtype", None) in COMPLEX for v in (start, end)
    )
    return dtype_of_number(1j) if is_complex else default_dtype()


def _register_spaced(form):
    @aten(f"linspace{form}", op.arange, op.where, ignore=PLACEMENT)
    def linspace(start, end, *, steps, dtype, layout, call):
        require_strided(layout)
        dtype = _spaced_dtype(start, end, dtype)
        return cast_or_take_real(spaced(start, end, steps, dtype, call), dtype)

    @aten(f"logspace{form}", op.arange, op.pow, ignore=PLACEMENT)
    def logspace(start, end, *, steps, base, dtype, layout, call):
        require_strided(layout)
        dtype = _spaced_dtype(start, end, dtype)
        return cast_or_take_real(op.pow(base, spaced(start, end, steps, dtype, call)), dtype)


for _form in ("", ".Tensor_Tensor", ".Tensor_Scalar", ".Scalar_Tensor"):
    _register_spaced(_form)


# Matrices and grids.


def _eye(rows, columns, dtype, call):
    if isinstance(rows, int) and isinstance(columns, int):
        return op.eye(rows, columns, dtype=dtype, device=str(call.device))
    row, column = (
        op.expand_dims(ranged(0, n, 1, "int64", call), a) for n, a in ((rows, 1), (columns, 0))
    )
    return cast_or_take_real(op.equal(row, column), dtype)


@aten("eye", op.equal, ignore=PLACEMENT)
def eye(*, n, dtype, layout, call):
    require_strided(layout)
    return _eye(n, n, dtype or default_dtype(), call)


@aten("eye.m", op.equal, ignore=PLACEMENT)
def eye_of(*, n, m, dtype, layout, call):
    require_strided(layout)
    return _eye(n, m, dtype or default_dtype(), call)


def _register_triangle(name, places):
    @aten(name, ignore=PLACEMENT)
    def indices(*, row, col, offset, dtype, layout, call):
        require_strided(layout)
        return constant(np.stack(places(row, offset, col)), dtype or "int64", call)


_register_triangle("tril_indices", np.tril_indices)
_register_triangle("triu_indices", np.triu_indices)


@aten("meshgrid", op.reshape, op.broadcast_to)
def meshgrid(tensors):
    return grids(tensors, "ij")


@aten("meshgrid.indexing", op.reshape, op.broadcast_to)
def meshgrid_by(tensors, *, indexing):
    return grids(tensors, indexing)


def grids(tensors, indexing):
    vectors = [at_least_1d(t) for t in tensors]
    found = op.meshgrid(*vectors, indexing=indexing)
    return tuple(found)


@aten("one_hot", op.one_hot)
def one_hot(x, *, num_classes):
    if num_classes == -1:
        now = constant_value(x)
        if now is None:
            raise Unconvertible(
                "how many classes there are depends on the values of inputs",
                hint="state num_classes",
            )
        num_classes = int(now.numpy().max()) + 1
    return op.one_hot(x, num_classes, 1, 0, -1, "int64")


@aten("linalg_vander", op.multiply, op.stack)
def linalg_vander(x, *, N, call):
    return vander(at_least_1d(x), N=N, increasing=True, call=call)


@aten("vander", op.multiply, op.stack)
def vander(x, *, N, increasing, call):
    count = x.shape[-1] if N is None else N
    x = cast_or_take_real(x, "int64") if x.dtype != "int64" and "int" in x.dtype else x
    columns = [full_tensor(x.shape, 1, x.dtype, call)]
    for _ in range(count - 1):
        columns.append(op.multiply(columns[-1], x))
    columns = columns[:count] if increasing else columns[:count][::-1]
    if not columns:
        return op.zeros((*x.shape, 0), x.dtype, str(call.device))
    return op.stack(tuple(columns), -1)


@aten("complex", op.complex)
def complex_of(real, imag):
    return op.complex(*promote(real, imag))


@aten("polar", op.complex, op.multiply, op.cos, op.sin)
def polar(absolute, angle):
    real, imag = op.multiply(absolute, op.cos(angle)), op.multiply(absolute, op.sin(angle))
    return op.complex(real, imag)


# Windows.


def cosines(length, periodic, coefficients):
    """A sum of cosines: c0 - c1 * cos(t) + c2 * cos(2 t), t once around in the window."""
    around = np.arange(length) * (2 * np.pi / max(length if periodic else length - 1, 1))
    signs = (c * (-1) ** k * np.cos(k * around) for k, c in enumerate(coefficients))
    return sum(signs)


def triangle(length, periodic, _):
    last = max(length if periodic else length - 1, 1)
    return 1 - np.abs(2 * np.arange(length) / last - 1)


def window_constant(function, length, periodic, parameters, dtype, layout, call):
    require_strided(layout)
    values = np.ones(length) if length == 1 else function(length, periodic, parameters)
    return constant(values, dtype or default_dtype(), call)


def _register(name, function, parameters):
    @aten(f"{name}_window", ignore=PLACEMENT)
    def window(*, window_length, dtype, layout, call):
        return window_constant(function, window_length, True, parameters, dtype, layout, call)

    @aten(f"{name}_window.periodic", ignore=PLACEMENT)
    def stated(*, window_length, periodic, dtype, layout, call):
        return window_constant(function, window_length, periodic, parameters, dtype, layout, call)


_register("bartlett", triangle, ())
_register("blackman", cosines, (0.42, 0.5, 0.08))
_register("hamming", cosines, (0.54, 0.46))
_register("hann", cosines, (0.5, 0.5))


@aten("hamming_window.periodic_alpha", ignore=PLACEMENT)
def hamming_window(*, window_length, periodic, alpha, dtype, layout, call):
    return window_constant(cosines, window_length, periodic, (alpha, 0.46), dtype, layout, call)


@aten("hamming_window.periodic_alpha_beta", ignore=PLACEMENT)
def hamming_window_by(*, window_length, periodic, alpha, beta, dtype, layout, call):
    return window_constant(cosines, window_length, periodic, (alpha, beta), dtype, layout, call)


def kaiser(length, periodic, beta):
    """Kaiser and Schafer, "On the use of the I0-sinh window for spectrum analysis", 1980."""
    values = np.kaiser(length + periodic, beta)
    return values[:length]


@aten("kaiser_window", ignore=PLACEMENT)
def kaiser_window(*, window_length, dtype, layout, call):
    return window_constant(kaiser, window_length, True, 12.0, dtype, layout, call)


@aten("kaiser_window.periodic", ignore=PLACEMENT)
def kaiser_window_periodic(*, window_length, periodic, dtype, layout, call):
    return window_constant(kaiser, window_length, periodic, 12.0, dtype, layout, call)


@aten("kaiser_window.beta", ignore=PLACEMENT)
def kaiser_window_by(*, window_length, periodic, beta, dtype, layout, call):
    return window_constant(kaiser, window_length, periodic, beta, dtype, layout, call)
