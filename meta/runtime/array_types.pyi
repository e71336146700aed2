"""Types of arguments, and the methods of arrays, for type checkers alone.

Written by `python -m tools.stubs`.
"""

from collections.abc import Sequence
from meta.runtime.array_export import ArrayExport
from meta.runtime.ndarray import ndarray
from typing import Any
from typing import NamedTuple
from typing import Protocol
from typing import TypeAlias
import numpy as np
import torch

class SupportsArray(Protocol):
    def __array__(self) -> Any: ...

class SupportsDLPack(Protocol):
    def __dlpack__(self) -> Any: ...

Number: TypeAlias = float | np.number[Any] | np.bool_
"""A number whose value a kernel is given at run time."""
ArrayLike: TypeAlias = (
    SupportsArray | SupportsDLPack | complex | np.generic | list[Any] | tuple[Any, ...]
)
"""An array, a traced one, or what `meta.array` takes: torch's and NumPy's, numbers, lists."""
Ints: TypeAlias = int | tuple[int, ...] | list[int]
"""An int or several: a shape, axes, the extents of a window."""
DTypeLike: TypeAlias = str | torch.dtype | np.dtype[Any] | type[Any]
"""A dtype: its name, or that of torch, NumPy or Python."""
DeviceLike: TypeAlias = str | torch.device
"""A device: its name, or that of torch."""

class Frexp(NamedTuple):
    """Result of `frexp`."""

    mantissa: ndarray
    exponent: ndarray

class Histogram(NamedTuple):
    """Result of `histogram`."""

    counts: ndarray
    edges: ndarray

class TopK(NamedTuple):
    """Result of `topk`."""

    values: ndarray
    indices: ndarray

class UniqueAll(NamedTuple):
    """Result of `unique_all`."""

    values: ndarray
    indices: ndarray
    inverse_indices: ndarray
    counts: ndarray

class UniqueCounts(NamedTuple):
    """Result of `unique_counts`."""

    values: ndarray
    counts: ndarray

class UniqueInverse(NamedTuple):
    """Result of `unique_inverse`."""

    values: ndarray
    inverse_indices: ndarray

class ArrayMethods(ArrayExport):
    """What arrays have by the registry."""

    def __add__(self, other: ArrayLike) -> ndarray: ...

    def __radd__(self, other: ArrayLike) -> ndarray: ...

    def __sub__(self, other: ArrayLike) -> ndarray: ...

    def __rsub__(self, other: ArrayLike) -> ndarray: ...

    def __mul__(self, other: ArrayLike) -> ndarray: ...

    def __rmul__(self, other: ArrayLike) -> ndarray: ...

    def __truediv__(self, other: ArrayLike) -> ndarray: ...

    def __rtruediv__(self, other: ArrayLike) -> ndarray: ...

    def __floordiv__(self, other: ArrayLike) -> ndarray: ...

    def __rfloordiv__(self, other: ArrayLike) -> ndarray: ...

    def __matmul__(self, other: ArrayLike) -> ndarray: ...

    def __rmatmul__(self, other: ArrayLike) -> ndarray: ...

    def __mod__(self, other: ArrayLike) -> ndarray: ...

    def __rmod__(self, other: ArrayLike) -> ndarray: ...

    def __pow__(self, other: ArrayLike) -> ndarray: ...

    def __rpow__(self, other: ArrayLike) -> ndarray: ...

    def __and__(self, other: ArrayLike) -> ndarray: ...

    def __rand__(self, other: ArrayLike) -> ndarray: ...

    def __or__(self, other: ArrayLike) -> ndarray: ...

    def __ror__(self, other: ArrayLike) -> ndarray: ...

    def __xor__(self, other: ArrayLike) -> ndarray: ...

    def __rxor__(self, other: ArrayLike) -> ndarray: ...

    def __invert__(self) -> ndarray: ...

    def __lshift__(self, other: ArrayLike) -> ndarray: ...

    def __rlshift__(self, other: ArrayLike) -> ndarray: ...

    def __rshift__(self, other: ArrayLike) -> ndarray: ...

    def __rrshift__(self, other: ArrayLike) -> ndarray: ...

    def __lt__(self, other: ArrayLike) -> ndarray: ...

    def __le__(self, other: ArrayLike) -> ndarray: ...

    def __gt__(self, other: ArrayLike) -> ndarray: ...

    def __ge__(self, other: ArrayLike) -> ndarray: ...

    def __eq__(self, other: object) -> ndarray: ...  # type: ignore[override]

    def __ne__(self, other: object) -> ndarray: ...  # type: ignore[override]

    def __iadd__(self, other: ArrayLike) -> ndarray: ...

    def __isub__(self, other: ArrayLike) -> ndarray: ...

    def __imul__(self, other: ArrayLike) -> ndarray: ...

    def __itruediv__(self, other: ArrayLike) -> ndarray: ...

    def __ifloordiv__(self, other: ArrayLike) -> ndarray: ...

    def __imod__(self, other: ArrayLike) -> ndarray: ...

    def __ipow__(self, other: ArrayLike) -> ndarray: ...

    def __iand__(self, other: ArrayLike) -> ndarray: ...

    def __ior__(self, other: ArrayLike) -> ndarray: ...

    def __ixor__(self, other: ArrayLike) -> ndarray: ...

    def __ilshift__(self, other: ArrayLike) -> ndarray: ...

    def __irshift__(self, other: ArrayLike) -> ndarray: ...

    def __neg__(self) -> ndarray: ...

    def __abs__(self) -> ndarray: ...

    def __imatmul__(self, other: ArrayLike) -> ndarray: ...

    def __divmod__(self, other: ArrayLike) -> tuple[ndarray, ndarray]: ...

    def __rdivmod__(self, other: ArrayLike) -> tuple[ndarray, ndarray]: ...

    def __getitem__(self, index: Any) -> ndarray: ...

    def __setitem__(self, index: Any, value: ArrayLike) -> None: ...

    @property
    def at(self) -> Any:
        """Parts to change in a new array: ``x.at[index].set(value)``, ``.get()``, and ``.add``,
        ``.subtract``, ``.multiply``, ``.divide``, ``.power``, ``.min``, ``.max``.
        """

    def reshape(self, *shape: int | Sequence[int]) -> ndarray:
        """Return ``meta.reshape`` to a shape, given as a tuple or as numbers."""

    def permute(self, *axes: int | Sequence[int]) -> ndarray:
        """Return the array with its axes in this order, given as a tuple or as numbers."""

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> ndarray:
        """Return the array with the axes from ``start_dim`` to ``end_dim``, both included, merged;
        without arguments, the elements in row-major order, as a vector.
        """

    def transpose(self, *axes: int | Sequence[int] | None) -> ndarray:
        """Return ``meta.permute_dims`` to an order of axes, given as a tuple or as numbers."""

    def conj(self) -> ndarray:
        """The complex conjugate, as ``meta.conj``; real numbers themselves."""

    def clone(self) -> ndarray:
        """Return a copy. A gradient flows through it."""

    def __pos__(self) -> ndarray: ...

    def __round__(self, ndigits: int | None = None) -> ndarray:
        """Return ``meta.round``: to whole numbers, or to ``ndigits`` decimal digits. Unlike those
        of Python's numbers, the result keeps the dtype.
        """

    def __contains__(self, value: ArrayLike) -> bool:
        """Whether an element equals a value, which is broadcast as by ``==``."""

    def expand_dims(self, *args: ArrayLike, **kwargs: ArrayLike) -> ndarray:
        """Return ``meta.expand_dims`` of the array."""

    def unsqueeze(self, axis: int) -> ndarray:
        """Return the array with an axis of extent 1 inserted, as ``meta.expand_dims``."""

    @property
    def real(self) -> ndarray:
        """The real parts, as ``meta.real``; real numbers themselves."""

    @property
    def imag(self) -> ndarray:
        """The imaginary parts, as ``meta.imag``; zeros of real numbers, as NumPy's."""

    @property
    def T(self) -> ndarray:
        """The transposed matrix. NoSuchAxes for other than 2 axes."""

    @property
    def mT(self) -> ndarray:
        """Each matrix of a stack transposed. NoSuchAxes for less than 2 axes."""

    @property
    def mH(self) -> ndarray:
        """Each matrix of a stack transposed and conjugated, as torch has it. NoSuchAxes for less
        than 2 axes.
        """

    def abs(self, *, out: ndarray | None = None) -> ndarray:
        """Absolute value. ``x``: any shape and dtype; the result has its type, of complex numbers that
        of their parts. Integers wrap.
        """

    def acos(self, *, out: ndarray | None = None) -> ndarray:
        """Inverse cosine, between 0 and pi; NaN for |x| > 1."""

    def acosh(self, *, out: ndarray | None = None) -> ndarray:
        """Inverse hyperbolic cosine, not negative; NaN for x < 1."""

    def add(
        self,
        x2: ArrayLike,
        otherwise: ArrayLike | None = None,
        where: ArrayLike | None = None,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """x1 + x2; for two bool operands the logical or."""

    def addcdiv(
        self,
        tensor1: ArrayLike,
        tensor2: ArrayLike,
        value: Number = 1,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """x + value * tensor1 / tensor2."""

    def addcmul(
        self,
        tensor1: ArrayLike,
        tensor2: ArrayLike,
        value: Number = 1,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """x + value * tensor1 * tensor2."""

    def all(
        self,
        axis: int | tuple[int, ...] | list[int] | None = None,
        keepdims: bool = False,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """Whether no element is 0 (bool); true if there are none."""

    def angle(self, *, out: ndarray | None = None) -> ndarray:
        """The angles of complex numbers from the positive real axis, from -pi to pi, as float32 or
        float64; 0 at 0, where the gradient is taken as 0, too. Raises TypeInferError for other dtypes.
        """

    def any(
        self,
        axis: int | tuple[int, ...] | list[int] | None = None,
        keepdims: bool = False,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """Whether an element is not 0 (bool); false if there are none."""

    def argmax(
        self,
        axis: int | tuple[int, ...] | list[int] | None = None,
        keepdims: bool = False,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """The index (int64) of the first largest one; a NaN counts as largest."""

    def argmin(
        self,
        axis: int | tuple[int, ...] | list[int] | None = None,
        keepdims: bool = False,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """The index (int64) of the first smallest element; a NaN counts as smallest."""

    def argsort(
        self,
        axis: int = -1,
        descending: bool = False,
        stable: bool = True,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """The indices (int64) that sort ``x`` along ``axis``."""

    def argwhere(self, *, out: ndarray | None = None) -> ndarray:
        """The indices of the elements that are not 0, in row-major order: int64[?, ndim]."""

    def asin(self, *, out: ndarray | None = None) -> ndarray:
        """Inverse sine, between -pi/2 and pi/2; NaN for |x| > 1."""

    def asinh(self, *, out: ndarray | None = None) -> ndarray:
        """Inverse hyperbolic sine."""

    def astype(self, dtype: DTypeLike, *, out: ndarray | None = None) -> ndarray:
        """``x`` in another dtype. Floats are truncated to integers; a bool says whether not 0."""

    def atan(self, *, out: ndarray | None = None) -> ndarray:
        """Inverse tangent, between -pi/2 and pi/2."""

    def atan2(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """The angle of the point (x2, x1) from the x axis, from -pi to pi; signed zeros count as in C."""

    def atanh(self, *, out: ndarray | None = None) -> ndarray:
        """Inverse hyperbolic tangent; infinite at 1 and -1, NaN beyond."""

    def bitwise_and(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """The bits that both have; of bools the logical and."""

    def bitwise_left_shift(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """x1 * 2**x2 modulo the dtype's range; 0 for an ``x2`` that is negative or beyond the bits."""

    def bitwise_or(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """The bits that one or both have; of bools the logical or. Arguments as of `bitwise_and`."""

    def bitwise_right_shift(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """floor(x1 / 2**x2); for an ``x2`` that is negative or beyond the bits 0, or -1 if x1 < 0."""

    def bitwise_xor(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """The bits that exactly one has; of bools whether they differ. Arguments as `bitwise_and`."""

    def broadcast_to(
        self,
        shape: int | tuple[int, ...] | list[int],
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """``x`` repeated along axes of extent 1, and along new leading axes, to have ``shape``."""

    def ceil(self, *, out: ndarray | None = None) -> ndarray:
        """The smallest whole number not below x."""

    def clip(
        self,
        min: Number | None = None,
        max: Number | None = None,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """x, but at least ``min`` and at most ``max``; a NaN stays, as does a bound that is one."""

    def copy(self, *, out: ndarray | None = None) -> ndarray:
        """The values of ``x`` in memory of their own. ``x``: any shape and dtype."""

    def copysign(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """|x1| with the sign of x2, zeros' included."""

    def cos(self, *, out: ndarray | None = None) -> ndarray:
        """Cosine."""

    def cosh(self, *, out: ndarray | None = None) -> ndarray:
        """Hyperbolic cosine."""

    def cumprod(
        self,
        axis: int | None = None,
        dtype: DTypeLike | None = None,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """Products of the elements up to each along ``axis``, in ``dtype``; the shape of ``x`` stays."""

    def cumsum(
        self,
        axis: int | None = None,
        dtype: DTypeLike | None = None,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """Sums of the elements up to each along ``axis``, in ``dtype``; the shape of ``x`` stays."""

    def deg2rad(self, *, out: ndarray | None = None) -> ndarray:
        """Degrees in radians: x * pi / 180."""

    def diagonal(
        self,
        offset: int = 0,
        axis1: int = 0,
        axis2: int = 1,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """The elements whose index along ``axis2`` is that along ``axis1`` plus ``offset``."""

    def digamma(self, *, out: ndarray | None = None) -> ndarray:
        """The derivative of log(gamma(x)); infinite at 0, with the other sign, NaN at -1, -2, ..."""

    def divide(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """x1 / x2, true division: of integers and bools it is float32."""

    def erf(self, *, out: ndarray | None = None) -> ndarray:
        """Error function: 2 / sqrt(pi) times the integral of exp(-t**2) for t from 0 to x."""

    def erfc(self, *, out: ndarray | None = None) -> ndarray:
        """1 - erf(x), without loss for large x."""

    def erfinv(self, *, out: ndarray | None = None) -> ndarray:
        """The inverse of `erf`: infinite at 1 and -1, NaN beyond."""

    def exp(self, *, out: ndarray | None = None) -> ndarray:
        """e**x."""

    def exp2(self, *, out: ndarray | None = None) -> ndarray:
        """2**x."""

    def expm1(self, *, out: ndarray | None = None) -> ndarray:
        """exp(x) - 1 without loss for small x."""

    def flip(
        self,
        axis: int | tuple[int, ...] | list[int] | None = None,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """``x`` with the elements along each of the axes in reversed order."""

    def floor(self, *, out: ndarray | None = None) -> ndarray:
        """The largest whole number not above x."""

    def floor_divide(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """floor(x1 / x2) in the operands' dtype, rounded towards -inf as in Python."""

    def fmax(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """The larger of x1 and x2; the other one where one is NaN, unlike `maximum`."""

    def fmin(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """The smaller of x1 and x2; the other one where one is NaN, unlike `minimum`."""

    def fmod(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """The remainder x1 - x2 * trunc(x1 / x2); it has the sign of x1, unlike `remainder`."""

    def frac(self, *, out: ndarray | None = None) -> ndarray:
        """x - trunc(x), the fraction, with the sign of x. ``x``: floating point of any shape."""

    def greater(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """x1 > x2 for operands of one dtype; the result is bool, False for a NaN."""

    def greater_equal(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """x1 >= x2 for operands of one dtype; the result is bool, False for a NaN."""

    def hardshrink(self, lambd: Number = 0.5, *, out: ndarray | None = None) -> ndarray:
        """x where |x| > lambd, else 0; a NaN stays. ``x``: floating point; ``lambd`` >= 0."""

    def heaviside(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """The step of x1: 0 below 0 and of NaN, 1 above, x2 at 0."""

    def hypot(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """sqrt(x1**2 + x2**2), without overflow between."""

    def i0(self, *, out: ndarray | None = None) -> ndarray:
        """The modified Bessel function of the first kind of order 0."""

    def index_select(
        self,
        axis: int,
        index: ArrayLike,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """The slices of ``x`` along ``axis`` that ``index``, a vector of integers, names."""

    def isclose(
        self,
        x2: ArrayLike,
        rtol: Number = 1e-05,
        atol: Number = 1e-08,
        equal_nan: bool = False,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """Whether |x1 - x2| <= atol + rtol * |x2|, or both are the same infinity."""

    def isfinite(self, *, out: ndarray | None = None) -> ndarray:
        """Whether x is neither infinite nor NaN. ``x``: any shape and dtype; the result is bool."""

    def isinf(self, *, out: ndarray | None = None) -> ndarray:
        """Whether x is infinite, of either sign. ``x``: any shape and dtype; the result is bool."""

    def isnan(self, *, out: ndarray | None = None) -> ndarray:
        """Whether x is NaN. ``x``: any shape and dtype; the result is bool."""

    def isneginf(self, *, out: ndarray | None = None) -> ndarray:
        """Whether x is -infinity. ``x``: any shape and dtype; the result is bool."""

    def isposinf(self, *, out: ndarray | None = None) -> ndarray:
        """Whether x is +infinity. ``x``: any shape and dtype; the result is bool."""

    def ldexp(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """x1 * 2**x2; the exponent may be broken."""

    def lerp(self, end: ArrayLike, weight: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """x + weight * (end - x): ``x`` for weight 0, ``end`` for weight 1, exactly."""

    def less(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """x1 < x2 for operands of one dtype; the result is bool, False for a NaN."""

    def less_equal(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """x1 <= x2 for operands of one dtype; the result is bool, False for a NaN."""

    def lgamma(self, *, out: ndarray | None = None) -> ndarray:
        """log(|gamma(x)|); infinite at 0, -1, -2, ..."""

    def log(self, *, out: ndarray | None = None) -> ndarray:
        """Natural logarithm; -inf at 0, NaN below."""

    def log10(self, *, out: ndarray | None = None) -> ndarray:
        """Logarithm to base 10; -inf at 0, NaN below."""

    def log1p(self, *, out: ndarray | None = None) -> ndarray:
        """log(1 + x) without loss for small x; -inf at -1, NaN below."""

    def log2(self, *, out: ndarray | None = None) -> ndarray:
        """Logarithm to base 2; -inf at 0, NaN below."""

    def log_softmax(self, axis: int = -1, *, out: ndarray | None = None) -> ndarray:
        """log(softmax(x)): x - max(x) - log(sum(exp(x - max(x)))) along ``axis``. As `softmax`."""

    def logaddexp(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """log(exp(x1) + exp(x2)), without overflow."""

    def logaddexp2(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """log2(2**x1 + 2**x2), without overflow."""

    def logical_and(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """Whether both are nonzero (a NaN is). Any dtypes; the result is bool."""

    def logical_not(self, *, out: ndarray | None = None) -> ndarray:
        """True where ``x`` is zero or False. ``x``: any shape and dtype; the result is bool."""

    def logical_or(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """Whether one or both are nonzero (a NaN is). Any dtypes; the result is bool."""

    def logical_xor(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """Whether exactly one is nonzero (a NaN is). Any dtypes; the result is bool."""

    def logit(self, eps: float | None = None, *, out: ndarray | None = None) -> ndarray:
        """log(x / (1 - x)), the inverse of `sigmoid`: infinite at 0 and 1, NaN beyond."""

    def logsumexp(
        self,
        axis: int | tuple[int, ...] | list[int] | None = None,
        keepdims: bool = False,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """log(sum(exp(x))), computed on x - max(x) so that nothing overflows."""

    def matmul(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """Matrix product ``x1 @ x2``."""

    def max(
        self,
        axis: int | tuple[int, ...] | list[int] | None = None,
        keepdims: bool = False,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """The largest element. NaN if one is NaN. Any dtype."""

    def maximum(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """The larger of x1 and x2; NaN if either is NaN."""

    def mean(
        self,
        axis: int | tuple[int, ...] | list[int] | None = None,
        keepdims: bool = False,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """The arithmetic mean; NaN if there are no elements."""

    def min(
        self,
        axis: int | tuple[int, ...] | list[int] | None = None,
        keepdims: bool = False,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """The smallest element. NaN if one is NaN. Any dtype."""

    def minimum(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """The smaller of x1 and x2; NaN if either is NaN."""

    def multiply(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """x1 * x2; for two bool operands the logical and. Integers wrap."""

    def nan_to_num(
        self,
        nan: float = 0.0,
        posinf: float | None = None,
        neginf: float | None = None,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """x with ``nan`` in place of NaN, ``posinf`` and ``neginf`` in place of the infinities."""

    def negative(self, *, out: ndarray | None = None) -> ndarray:
        """-x. ``x``: numbers of any shape and dtype; the result has its type."""

    def nextafter(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """The number of the dtype that follows x1 on the way to x2; x2 where they are equal."""

    def nonzero(self) -> tuple[ndarray, ...]:
        """The columns of `argwhere` as a tuple: one vector of int64 per axis, all of one length."""

    def not_equal(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """x1 != x2 for operands of one dtype; the result is bool, True for a NaN."""

    def pow(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """x1 ** x2."""

    def prelu(self, weight: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """x where x > 0, else weight * x."""

    def prod(
        self,
        axis: int | tuple[int, ...] | list[int] | None = None,
        keepdims: bool = False,
        dtype: DTypeLike | None = None,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """The product of elements; 1 if there are none. Dtypes as of `sum`."""

    def rad2deg(self, *, out: ndarray | None = None) -> ndarray:
        """Radians in degrees: x * 180 / pi."""

    def reciprocal(self, *, out: ndarray | None = None) -> ndarray:
        """1 / x; infinite at 0, with its sign."""

    def relu(self, *, out: ndarray | None = None) -> ndarray:
        """max(x, 0), elementwise."""

    def remainder(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """The remainder x1 - x2 * floor(x1 / x2) in the operands' dtype; it has the sign of x2, but a zero that of x1, as torch's."""

    def roll(
        self,
        shift: int | tuple[int, ...] | list[int],
        axis: int | tuple[int, ...] | list[int] | None = None,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """``x`` shifted along axes; what leaves at one end comes back at the other."""

    def round(self, decimals: int = 0, *, out: ndarray | None = None) -> ndarray:
        """The nearest whole number, halves to the even one: 0.5 to 0, 1.5 to 2."""

    def rsqrt(self, *, out: ndarray | None = None) -> ndarray:
        """1 / sqrt(x); inf at 0, NaN below."""

    def scatter(
        self,
        axis: int,
        index: ArrayLike,
        src: ArrayLike,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """``x`` with elements of ``src`` in the places along ``axis`` that ``index`` names: for axis 1,
        ``y[i, index[i, j, k], k] = src[i, j, k]``.
        """

    def scatter_add(
        self,
        axis: int,
        index: ArrayLike,
        src: ArrayLike,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """``x`` plus elements of ``src`` in the places along ``axis`` that ``index`` names: for axis 1,
        ``y[i, index[i, j, k], k] += src[i, j, k]``.
        """

    def scatter_reduce(
        self,
        axis: int,
        index: ArrayLike,
        src: ArrayLike,
        reduce: str,
        include_self: bool = True,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """``x`` with each place along ``axis`` that ``index`` names reduced with the elements of
        ``src`` that belong to it: for axis 1 and "prod", ``y[i, index[i, j, k], k] *= src[i, j, k]``.
        """

    def searchsorted(
        self,
        x2: ArrayLike,
        side: str = 'left',
        sorter: ArrayLike | None = None,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """Where to insert ``x2`` so that the last axis of ``x1`` stays ascending: indices (int64) from
        0 to its extent.
        """

    def sigmoid(self, *, out: ndarray | None = None) -> ndarray:
        """1 / (1 + exp(-x)), without overflow."""

    def sign(self, *, out: ndarray | None = None) -> ndarray:
        """1 where x is positive, -1 where it is negative, 0 where it is 0, NaN where it is NaN."""

    def signbit(self, *, out: ndarray | None = None) -> ndarray:
        """Whether x has the sign of a negative number, as -0.0 has. ``x``: any shape and dtype; the result is bool."""

    def sin(self, *, out: ndarray | None = None) -> ndarray:
        """Sine."""

    def sinc(self, *, out: ndarray | None = None) -> ndarray:
        """sin(pi * x) / (pi * x), 1 at 0."""

    def sinh(self, *, out: ndarray | None = None) -> ndarray:
        """Hyperbolic sine."""

    def softmax(self, axis: int = -1, *, out: ndarray | None = None) -> ndarray:
        """exp(x) / sum(exp(x)) along ``axis``, computed on x - max(x)."""

    def sort(
        self,
        axis: int = -1,
        descending: bool = False,
        stable: bool = True,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """``x`` sorted along ``axis``; the result has its type."""

    def sqrt(self, *, out: ndarray | None = None) -> ndarray:
        """Square root; NaN below zero."""

    def square(self, *, out: ndarray | None = None) -> ndarray:
        """x * x. ``x``: numbers of any shape and dtype; the result has its type; integers wrap."""

    def squeeze(
        self,
        axis: int | tuple[int, ...] | list[int] | None = None,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """Remove axes of extent 1: those named, or all of them. A view."""

    def std(
        self,
        axis: int | tuple[int, ...] | list[int] | None = None,
        keepdims: bool = False,
        correction: int | float = 0.0,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """The standard deviation, sqrt(`var`). Its gradient where it is 0 is taken as 0."""

    def subtract(
        self,
        x2: ArrayLike,
        otherwise: ArrayLike | None = None,
        where: ArrayLike | None = None,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """x1 - x2, with ``otherwise`` and ``where`` as in `add`; integers wrap. Not for two bools."""

    def sum(
        self,
        axis: int | tuple[int, ...] | list[int] | None = None,
        keepdims: bool | int | tuple[int, ...] | list[int] = False,
        dtype: DTypeLike | None = None,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """The sum of elements; 0 if there are none."""

    def swapaxes(self, axis1: int, axis2: int, *, out: ndarray | None = None) -> ndarray:
        """``x`` with two axes exchanged."""

    def take(
        self,
        indices: ArrayLike,
        axis: int | None = None,
        mode: str = 'raise',
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """The slices of ``x`` along ``axis`` (None: of flattened ``x``) that ``indices`` name."""

    def tan(self, *, out: ndarray | None = None) -> ndarray:
        """Tangent."""

    def tanh(self, *, out: ndarray | None = None) -> ndarray:
        """Hyperbolic tangent."""

    def tile(
        self,
        reps: int | tuple[int, ...] | list[int],
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """``x`` repeated as a whole ``reps[i]`` times along axis i."""

    def topk(self, k: int, axis: int = -1, largest: bool = True, sorted: bool = True) -> TopK:
        """The ``k`` largest elements along ``axis``, from the largest, and their indices (int64)."""

    def tril(self, k: int = 0, *, out: ndarray | None = None) -> ndarray:
        """``x`` with 0 above diagonal k of its matrices, the last two axes. See `triu`."""

    def triu(self, k: int = 0, *, out: ndarray | None = None) -> ndarray:
        """``x`` with 0 below diagonal k of its matrices, the last two axes."""

    def trunc(self, *, out: ndarray | None = None) -> ndarray:
        """x without its fraction, rounded towards 0."""

    def unique(self, return_inverse: bool = False, return_counts: bool = False) -> Any:
        """The distinct elements of ``x``, ascending: a vector of its dtype."""

    def var(
        self,
        axis: int | tuple[int, ...] | list[int] | None = None,
        keepdims: bool = False,
        correction: int | float = 0.0,
        *,
        out: ndarray | None = None,
    ) -> ndarray:
        """The variance: the sum of (x - mean)² over n elements, divided by n - ``correction``."""

    def xlogy(self, x2: ArrayLike, *, out: ndarray | None = None) -> ndarray:
        """x1 * log(x2), and 0 where x1 is 0; NaN where x2 is."""

    def allclose(
        self,
        x2: ArrayLike,
        /,
        rtol: float = 1e-05,
        atol: float = 1e-08,
        equal_nan: bool = False,
    ) -> ndarray:
        """Return whether all elements are close, as `isclose` says: a 0-d array of bool."""

    def bincount(
        self,
        weights: ArrayLike | None = None,
        minlength: int = 0,
        *,
        length: int | None = None,
    ) -> ndarray:
        """Return how often each of 0, 1, 2, ... occurs in ``x``: int64, a vector."""

    def corrcoef(self) -> ndarray:
        """Return the correlations, from -1 to 1, of variables, of which each row of ``x`` has the
        observations.
        """

    def count_nonzero(
        self,
        axis: int | tuple[int, ...] | None = None,
        *,
        keepdims: bool = False,
    ) -> ndarray:
        """Return how many elements are not 0 along ``axis`` (None: all), as int64. A NaN is not 0."""

    def cov(self, *, correction: int = 1) -> ndarray:
        """Return the covariances of variables, of which each row of ``x`` has the observations."""

    def diag(self, k: int = 0) -> ndarray:
        """Return diagonal ``k`` of a matrix, or the matrix with a vector on this diagonal, else 0."""

    def diff(
        self,
        n: int = 1,
        axis: int = -1,
        prepend: ArrayLike | None = None,
        append: ArrayLike | None = None,
    ) -> ndarray:
        """Return the ``n``-th difference of neighbours along ``axis``, which gets shorter by ``n``."""

    def dot(self, x2: ArrayLike, /) -> ndarray:
        """Return the sums of products over the last axis of x1 and the last but one of x2, as NumPy's."""

    def frexp(self) -> Frexp:
        """Return (mantissa, exponent) with x = mantissa * 2**exponent, 0.5 <= abs(mantissa) < 1."""

    def histogram(
        self,
        bins: ArrayLike = 10,
        range: tuple[float, float] | None = None,
        *,
        weights: ArrayLike | None = None,
        density: bool = False,
    ) -> Histogram:
        """Return how many elements of ``x`` lie in each bin, and the edges of the bins. As NumPy's."""

    def index_add(
        self,
        axis: int,
        index: ArrayLike,
        source: ArrayLike,
        alpha: float = 1,
    ) -> ndarray:
        """Return ``x`` with ``alpha`` times the slices of ``source`` added to those along ``axis`` that
        ``index`` names.
        """

    def index_copy(self, axis: int, index: ArrayLike, source: ArrayLike) -> ndarray:
        """Return ``x`` with the slices of ``source`` in the place of those along ``axis`` that
        ``index`` names. Arguments and errors are those of `index_add`.
        """

    def index_fill(self, axis: int, index: ArrayLike, value: ArrayLike) -> ndarray:
        """Return ``x`` with ``value``, a number or a 0-d array, in the slices along ``axis`` that
        ``index`` names. Other arguments and errors are those of `index_add`.
        """

    def index_reduce(
        self,
        axis: int,
        index: ArrayLike,
        source: ArrayLike,
        reduce: str,
        include_self: bool = True,
    ) -> ndarray:
        """Return ``x`` with the slices along ``axis`` that ``index`` names reduced with those of
        ``source``. Reductions are those of `scatter_reduce`, other arguments those of `index_add`.
        """

    def masked_fill(self, mask: ArrayLike, value: ArrayLike) -> ndarray:
        """Return ``x`` with ``value`` where ``mask`` is true. Shapes broadcast; the dtype is x's."""

    def masked_scatter(self, mask: ArrayLike, source: ArrayLike) -> ndarray:
        """Return ``x`` with the elements of ``source``, one after the other, where ``mask`` is true."""

    def masked_select(self, mask: ArrayLike) -> ndarray:
        """Return the elements of ``x`` where ``mask``, bool, is true, as a vector."""

    def median(self, axis: int | None = None, *, keepdims: bool = False) -> ndarray:
        """Return the median along ``axis`` (None: of all): the mean of the middle two if even."""

    def mode(self, axis: int = -1) -> tuple[ndarray, ndarray]:
        """Return the most frequent element along ``axis``, and the index of its first occurrence."""

    def moveaxis(
        self,
        source: int | tuple[int, ...],
        destination: int | tuple[int, ...],
        /,
    ) -> ndarray:
        """Return ``x`` with the axes ``source`` at the places ``destination``; others keep their order."""

    def nanmean(
        self,
        axis: int | tuple[int, ...] | None = None,
        *,
        keepdims: bool = False,
    ) -> ndarray:
        """Return the mean of the elements that are not NaN along ``axis`` (None: all); NaN of none."""

    def nanmedian(self, axis: int | None = None, *, keepdims: bool = False) -> ndarray:
        """Return the `median` of the elements that are not NaN; NaN where there is none."""

    def nansum(
        self,
        axis: int | tuple[int, ...] | None = None,
        *,
        keepdims: bool = False,
    ) -> ndarray:
        """Return the sum of the elements that are not NaN along ``axis`` (None: all); 0 of none."""

    def outer(self, x2: ArrayLike, /) -> ndarray:
        """Return the products of each element of one vector with each of another."""

    def positive(self) -> ndarray:
        """Return +x, a copy of ``x``. Source: Array API 2024.12."""

    def quantile(
        self,
        q: float,
        /,
        axis: int | None = None,
        *,
        keepdims: bool = False,
    ) -> ndarray:
        """Return the ``q``-quantile along ``axis`` (None: of all), with linear interpolation."""

    def rot90(self, k: int = 1, axes: tuple[int, int] = (0, 1)) -> ndarray:
        """Return ``x`` turned ``k`` times by 90 degrees in the plane of two axes, from the first
        towards the second. Raises TypeInferError for one axis named twice.
        """
