"""Methods of tensor-like values: `x.sum(axis=0)`, `x.reshape(2, 3)`, `x + y`, `x[1:]`, ... call the
operators.

Arrays and traced symbols share them, so a method has the arguments, the errors and the gradient of
the operator of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from meta.base.aliases import DTYPES, LINALG, OTHER_NAMES
from meta.base.call_context import Default
from meta.base.dtype import COMPLEX
from meta.base.errors import ArgumentError, NoSuchAxes, UnknownName
from meta.base.registry import FUNCTIONS, OPERATORS

# Python operators on tensor-like values: `x + y`, `x @ y`, `x[1:]`, ... become operator calls.
#
# Arrays (floor 1) and traced symbols (floor 2) share these methods. They name the operator, and the
# registry supplies it, so that no lower floor imports a higher one.


def _binary(name: str) -> Any:
    def method(self: Any, other: Any) -> Any:
        return OPERATORS[name](self, other)

    return method


def _reflected(name: str) -> Any:
    def method(self: Any, other: Any) -> Any:
        return OPERATORS[name](other, self)

    return method


def _unary(name: str) -> Any:
    def method(self: Any) -> Any:
        return OPERATORS[name](self)

    return method


def _comparison(name: str) -> Any:
    def method(self: Any, other: Any) -> Any:
        # An array is not equal to what can be no operand; Python then compares identities.
        if other is None or isinstance(other, str):
            return NotImplemented
        return OPERATORS[name](self, other)

    return method


def _bits(bitwise: str, logical: str) -> Any:
    """Return a method that is the logical operator for arrays of bools, else the bitwise one."""

    def method(self: Any, *other: Any) -> Any:
        # A Python number takes the array's dtype; an array of integers beside bools is refused.
        logic = all(str(getattr(x, "dtype", "bool")).endswith("bool") for x in (self, *other))
        return OPERATORS[logical if logic else bitwise](self, *other)

    return method


def _in_place(method: Any) -> Any:
    """Return the method of ``x += y``, given that of ``x + y``: the name is bound to a new array.

    The dtype and the shape of x stay, or it is an error. The memory of x is not written, so other
    names of the same array keep its value, eager as traced; but see `of_same_type` for parameters.
    """

    def assign(self: Any, other: Any) -> Any:
        result = method(self, other)
        return result if result is NotImplemented else Overloads.of_same_type(self, result)

    return assign


class Overloads:
    """Mixin that turns Python's operators into calls of base operators of the given names."""

    __slots__ = ()
    # Composed operations, set once by files of `meta.op`; they are no operators of their own.
    getitem: ClassVar[Callable[[Any, Any], Any]]
    setitem: ClassVar[Callable[[Any, Any, Any], None]]
    at_parts: ClassVar[Callable[[Any], Any]]
    of_same_type: ClassVar[Callable[[Any, Any], Any]]

    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("subtract"), _reflected("subtract")
    __mul__, __rmul__ = _binary("multiply"), _reflected("multiply")
    __truediv__, __rtruediv__ = _binary("divide"), _reflected("divide")
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _reflected("floor_divide")
    __matmul__, __rmatmul__ = _binary("matmul"), _reflected("matmul")
    __mod__, __rmod__ = _binary("remainder"), _reflected("remainder")
    __pow__, __rpow__ = _binary("pow"), _reflected("pow")
    __and__ = __rand__ = _bits("bitwise_and", "logical_and")
    __or__ = __ror__ = _bits("bitwise_or", "logical_or")
    __xor__ = __rxor__ = _bits("bitwise_xor", "logical_xor")
    __invert__ = _bits("bitwise_invert", "logical_not")
    __lshift__, __rlshift__ = _binary("bitwise_left_shift"), _reflected("bitwise_left_shift")
    __rshift__, __rrshift__ = _binary("bitwise_right_shift"), _reflected("bitwise_right_shift")
    __lt__, __le__ = _binary("less"), _binary("less_equal")
    __gt__, __ge__ = _binary("greater"), _binary("greater_equal")
    __eq__, __ne__ = _comparison("equal"), _comparison("not_equal")
    __hash__ = object.__hash__
    __iadd__, __isub__, __imul__ = _in_place(__add__), _in_place(__sub__), _in_place(__mul__)
    __itruediv__, __ifloordiv__ = _in_place(__truediv__), _in_place(__floordiv__)
    __imod__, __ipow__ = _in_place(__mod__), _in_place(__pow__)
    __iand__, __ior__, __ixor__ = _in_place(__and__), _in_place(__or__), _in_place(__xor__)
    __ilshift__, __irshift__ = _in_place(__lshift__), _in_place(__rshift__)
    __neg__, __abs__ = _unary("negative"), _unary("abs")

    __imatmul__ = _in_place(__matmul__)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __getitem__(self, index: Any) -> Any:
        return Overloads.getitem(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        Overloads.setitem(self, index, value)

    @property
    def at(self) -> Any:
        """Parts to change in a new array: ``x.at[index].set(value)``, ``.get()``, and ``.add``,
        ``.subtract``, ``.multiply``, ``.divide``, ``.power``, ``.min``, ``.max``.
        """
        return Overloads.at_parts(self)


# Aliases of attributes: names of torch's tensors and NumPy's arrays, and what to write for an array
# here. `aliases.py` has the names of the modules.


ARRAY_ALIASES: dict[str, str] = {
    "gather": "meta.take_along_axis(x, indices, axis)",
    **{name: f"x.{own}(...)" for name, own in OTHER_NAMES.items()},
    **{name: f"meta.linalg.{own}(x)" for name, own in LINALG.items()},
    **{name: f'x.astype("{dtype}")' for name, dtype in DTYPES.items()},
    "H": "x.mH",
    "addmm": "x + a @ b",
    "addmv": "x + a @ v",
    "adjoint": "x.mH",
    "aminmax": "x.min(), x.max()",
    "amax": "x.max(axis)",
    "amin": "x.min(axis)",
    "argpartition": "x.topk(k), or x.argsort()",
    "baddbmm": "x + a @ b",
    "base": "x.torch(), the buffer",
    "bernoulli": "meta.random.bernoulli(x)",
    "bitwise_not": "~x",
    "bmm": "x @ y",
    "cast": "x.astype(dtype)",
    "choose": "meta.where, or x[index]",
    "chunk": "meta.split(x, chunks, axis)",
    "compress": "x[mask]",
    "contiguous": "x: operators take strided arrays; x.clone() is compact",
    "copy_": "x[...] = value, or x.update(value)",
    "byteswap": "x.numpy().byteswap()",
    "cross_entropy": "meta.cross_entropy(x, target)",
    "data": "x.detach()",
    "data_ptr": "x.torch().data_ptr()",
    "detach_": "x = x.detach()",
    "diag_embed": "meta.eye(n) * meta.expand_dims(x, -1)",
    "diagflat": "meta.eye(n) * x.flatten()",
    "dim": "x.ndim",
    "dump": "pickle.dump(x, file), or numpy.save(file, x.numpy())",
    "dumps": "pickle.dumps(x)",
    "element_size": "x.itemsize",
    "eq": "x == y",
    "equal": "x == y by element, and (x == y).all() for all",
    "expand": "x.broadcast_to(shape)",
    "expand_as": "x.broadcast_to(y.shape)",
    "fill": "x[...] = value, or meta.full(x.shape, value)",
    "fill_": "x[...] = value",
    "flags": "x.torch().is_contiguous()",
    "flat": "x.flatten()",
    "fliplr": "x.flip(1)",
    "flipud": "x.flip(0)",
    "get_device": "x.device",
    "grad_fn": "x.node",
    "hsplit": "meta.split(x, n, axis=1)",
    "index_add_": "x = x.at[index].add(value)",
    "index_copy_": "x[index] = value",
    "index_fill_": "x[index] = value",
    "index_put": "x.at[index].set(value)",
    "index_put_": "x[index] = value",
    "indices": "x.argsort(axis), x.argmax(axis) or x.argmin(axis)",
    "inner": "x @ y",
    "is_complex": 'meta.isdtype(x.dtype, "complex floating")',
    "is_contiguous": "x.torch().is_contiguous()",
    "is_cpu": 'x.device == meta.array(0.0).device, or str(x.device) == "cpu"',
    "is_cuda": 'str(x.device).startswith("cuda")',
    "is_floating_point": 'meta.isdtype(x.dtype, "real floating")',
    "is_leaf": "x.node is None",
    "is_nonzero": "bool(x)",
    "is_pinned": "x.torch().is_pinned()",
    "is_signed": 'x.dtype, a text such as "int32"',
    "isreal": "x.imag == 0",
    "kron": "meta.tensordot(x, y, 0), transposed and reshaped",
    "kthvalue": "x.sort()[k - 1]",
    "logdet": "meta.linalg.slogdet(x)",
    "masked_fill_": "x[mask] = value",
    "mm": "x @ y",
    "msort": "x.sort(0)",
    "multinomial": "meta.random.multinomial(x, n)",
    "mv": "x @ v",
    "nanquantile": "meta.quantile of x[~x.isnan()]",
    "narrow": "x[start:start + length]",
    "ndimension": "x.ndim",
    "nelement": "x.size",
    "new_empty": "meta.zeros(shape, x.dtype, device=x.device)",
    "new_full": "meta.full(shape, value, x.dtype, device=x.device)",
    "new_ones": "meta.ones(shape, x.dtype, device=x.device)",
    "new_tensor": "meta.array(values, x.dtype, device=x.device)",
    "new_zeros": "meta.zeros(shape, x.dtype, device=x.device)",
    "newbyteorder": "x: arrays are in the machine's order of bytes",
    "normal_": "x.update(meta.random.normal(x.shape))",
    "numel": "x.size",
    "partition": "x.sort()",
    "permute_dims": "x.permute(axes)",
    "pin_memory": "meta.from_dlpack(x.torch().pin_memory())",
    "ptp": "x.max() - x.min()",
    "put": "x[index] = value",
    "random_": "x.update(meta.random.randint(x.shape, low=a, high=b))",
    "ravel": "x.flatten()",
    "register_hook": "meta.grad.grad(y, x), which returns the gradient of x",
    "repeat": "meta.tile(x, reps), or meta.repeat for elements",
    "repeat_interleave": "meta.repeat(x, repeats, axis)",
    "requires_grad_": "x.requires_grad = True",
    "reshape_as": "x.reshape(y.shape)",
    "resize": "x.reshape(shape)",
    "resize_": "x.reshape(shape)",
    "resize_as": "x.reshape(y.shape)",
    "retain_grad": "meta.grad.grad(y, x), which returns the gradient of x",
    "scatter_": "x = x.scatter(axis, index, src)",
    "scatter_add_": "x = x.scatter_add(axis, index, src)",
    "select": "x[index]",
    "select_scatter": "x.at[index].set(value)",
    "setflags": "x: only copies such as x[0] are not to be written",
    "slice_scatter": "x.at[start:stop].set(value)",
    "split": "meta.split(x, parts, axis): numbers of parts as NumPy's, not sizes",
    "split_with_sizes": "meta.split(x, indices, axis)",
    "storage": "x.torch().untyped_storage()",
    "storage_offset": "x.torch().storage_offset()",
    "stride": "x.strides",
    "sum_to_size": "meta.collapse_sum_like(x, y)",
    "t": "x.T",
    "take_along_dim": "meta.take_along_axis(x, indices, axis)",
    "tensor_split": "meta.array_split(x, parts, axis)",
    "to_dense": "x, which is dense",
    "tobytes": "x.numpy().tobytes()",
    "tofile": "x.numpy().tofile(path)",
    "type": "x.astype(dtype)",
    "type_as": "x.astype(y.dtype)",
    "unbind": "meta.unstack(x)",
    "unflatten": "x.reshape(shape)",
    "unfold": "meta.stack of x[start:start + size]",
    "untyped_storage": "x.torch().untyped_storage()",
    "uniform_": "x.update(meta.random.uniform(x.shape))",
    "values": "x: one array is returned, not a pair with indices",
    "vdot": "meta.vecdot(x, y)",
    "view": "x.reshape(shape)",
    "view_as": "x.reshape(y.shape)",
    "vsplit": "meta.split(x, n, axis=0)",
    "where": "meta.where(condition, x, other)",
    "xpu": "x.to(device)",
    "zero_": "x[...] = 0",
}
"""By a name of an array's attribute: what to write."""


# Methods.


def _is_method(name: str) -> bool:
    """Whether an operator or function of this name is a method, too: methods of torch's tensors or
    of NumPy's arrays are. What means something else there has an answer in ``ARRAY_ALIASES``.
    """
    theirs = (getattr(kind, name, None) for kind in (torch.Tensor, np.ndarray))
    own = name.startswith("_") or name in ARRAY_ALIASES or name in vars(Methods)
    return not own and any(map(callable, theirs))


class _Derived:
    """A method that is an operator, or a composed function."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __get__(self, array: Any, owner: Any) -> Any:
        return self.function if array is None else MethodType(self.function, array)


class _AsMethods(dict[str, Any]):
    """Keeps the entries of a registry among the attributes of `Methods`."""

    def setdefault(self, name: str, function: Any = None, /) -> Any:
        if name not in self and _is_method(name):
            self[name] = function
            setattr(Methods, name, _Derived(function))
        return self.get(name)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        delattr(Methods, name)


def _integers(numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what is given as ``(2, 3)`` or as ``2, 3``."""
    one = numbers[0] if len(numbers) == 1 else None
    return tuple(one) if isinstance(one, tuple | list) else numbers


class Methods(Overloads):
    """Mixin of the methods that call the operator of the same name, and of short spellings."""

    __slots__ = ()
    namespace: ClassVar[Any]
    """The functions of the Array API standard: `meta.array_api`, which sets it."""

    def reshape(self, *shape: int | Sequence[int]) -> Any:
        """Return ``meta.reshape`` to a shape, given as a tuple or as numbers."""
        return OPERATORS["reshape"](self, _integers(shape))

    def permute(self, *axes: int | Sequence[int]) -> Any:
        """Return the array with its axes in this order, given as a tuple or as numbers."""
        return OPERATORS["permute_dims"](self, _integers(axes))

    def flatten(self: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
        """Return the array with the axes from ``start_dim`` to ``end_dim``, both included, merged;
        without arguments, the elements in row-major order, as a vector.
        """
        ndim = max(self.ndim, 1)
        if not (-ndim <= start_dim < ndim and -ndim <= end_dim < ndim):
            raise ArgumentError(
                "there is no such axis",
                expected=f"start_dim and end_dim from {-ndim} to {ndim - 1}",
                found=(start_dim, end_dim),
            )
        first, last = start_dim % ndim, end_dim % ndim
        if first > last:
            raise ArgumentError(
                "the first axis to merge is behind the last", found=(start_dim, end_dim)
            )
        shape = self.shape
        merged = shape[first : last + 1]
        # A shape with -1 beside a 0 would be ambiguous.
        extent = prod(merged) if all(isinstance(e, int) for e in shape) else -1
        return OPERATORS["reshape"](self, (*shape[:first], extent, *shape[last + 1 :]))

    def transpose(self, *axes: int | Sequence[int] | None) -> Any:
        """Return ``meta.permute_dims`` to an order of axes, given as a tuple or as numbers.

        As NumPy's: without axes their order is reversed. ArgumentError for two numbers, which are
        an order in NumPy, and two axes to exchange in torch.
        """
        if len(axes) == 2:
            raise ArgumentError(
                "two axes are their order in NumPy and are exchanged in torch",
                found=f"x.transpose{axes}",
                hint=f"x.permute{axes} for an order, meta.swapaxes(x, {axes[0]}, {axes[1]}) to "
                "exchange them, x.mT for the last two",
            )
        order = _integers(axes) if axes and axes != (None,) else None
        return OPERATORS["permute_dims"](self, order)

    def conj(self: Any) -> Any:
        """The complex conjugate, as ``meta.conj``; real numbers themselves."""
        return OPERATORS["conj"](self) if self.dtype in COMPLEX else self

    def clone(self) -> Any:
        """Return a copy. A gradient flows through it."""
        return OPERATORS["copy"](self)

    def __pos__(self) -> Any:
        return OPERATORS["copy"](self)

    def __round__(self: Any, ndigits: int | None = None) -> Any:
        """Return ``meta.round``: to whole numbers, or to ``ndigits`` decimal digits. Unlike those
        of Python's numbers, the result keeps the dtype.
        """
        return OPERATORS["round"](self, ndigits or 0)

    def __contains__(self, value: Any) -> bool:
        """Whether an element equals a value, which is broadcast as by ``==``."""
        equal: Any = self == value
        return False if isinstance(equal, bool) else bool(OPERATORS["any"](equal))

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        """Return `meta.array_api`. ArgumentError for a version of the standard that it is not."""
        if not hasattr(Methods, "namespace"):
            Default.complete()
        offered = Methods.namespace.__array_api_version__
        if api_version not in (None, offered):
            raise ArgumentError(
                "there is no namespace of this version of the Array API",
                expected=offered,
                found=api_version,
            )
        return Methods.namespace

    def expand_dims(self, *args: Any, **kwargs: Any) -> Any:
        """Return ``meta.expand_dims`` of the array."""
        return OPERATORS["expand_dims"](self, *args, **kwargs)

    def unsqueeze(self, axis: int) -> Any:
        """Return the array with an axis of extent 1 inserted, as ``meta.expand_dims``."""
        return OPERATORS["expand_dims"](self, axis)

    @property
    def real(self: Any) -> Any:
        """The real parts, as ``meta.real``; real numbers themselves."""
        return OPERATORS["real"](self) if self.dtype in COMPLEX else self

    @property
    def imag(self: Any) -> Any:
        """The imaginary parts, as ``meta.imag``; zeros of real numbers, as NumPy's."""
        return OPERATORS["imag" if self.dtype in COMPLEX else "zeros_like"](self)

    @property
    def T(self: Any) -> Any:
        """The transposed matrix. NoSuchAxes for other than 2 axes."""
        if self.ndim != 2:
            raise NoSuchAxes(
                "x.T is of a matrix",
                expected="2 axes",
                found=f"shape {self.shape}",
                hint="x.mT for a stack of matrices, or x.permute(*axes)",
            )
        return OPERATORS["permute_dims"](self, (1, 0))

    @property
    def mT(self: Any) -> Any:
        """Each matrix of a stack transposed. NoSuchAxes for less than 2 axes."""
        if self.ndim < 2:
            raise NoSuchAxes(
                "x.mT is of matrices", expected="2 axes or more", found=f"shape {self.shape}"
            )
        order = tuple(range(self.ndim))
        return OPERATORS["permute_dims"](self, (*order[:-2], order[-1], order[-2]))

    @property
    def mH(self: Any) -> Any:
        """Each matrix of a stack transposed and conjugated, as torch has it. NoSuchAxes for less
        than 2 axes.
        """
        transposed = self.mT
        complex = self.dtype in ("complex64", "complex128")
        return OPERATORS["conj"](transposed) if complex else transposed

    if not TYPE_CHECKING:  # for which there is no such attribute

        def __getattr__(self, name: str) -> Any:
            """Say what a missing attribute is called here; only those come here."""
            is_public = not name.startswith("_")  # not a slot that is not set, as many are
            own = getattr(type(self), name, None) if is_public else None
            if isinstance(own, property) and own.fget is not None:
                return own.fget(self)  # which has raised an AttributeError, and says why
            hint = None
            if name in ARRAY_ALIASES:
                hint = f"write {ARRAY_ALIASES[name]}"
            elif is_public and name.endswith("_"):
                hint = (
                    f"write x = x.{name[:-1]}(...): methods return new arrays; x[...] = value and "
                    "x.update(value) write to the memory of x"
                )
            elif is_public and (name in OPERATORS or name in FUNCTIONS):
                hint = f"it is a function: meta.{name}"
            if hint is not None:
                raise UnknownName(f"an array has no {name!r}", hint=hint)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        # Else numpy's functions would call the methods above, with numpy's own arguments.
        return function(*_to_numpy(arguments), **_to_numpy(options))


OPERATORS.show_in(_AsMethods())
FUNCTIONS.show_in(_AsMethods())


def _to_numpy(value: Any) -> Any:
    if isinstance(value, Methods):
        return np.asarray(value)
    if type(value) in (list, tuple):
        return type(value)(_to_numpy(v) for v in value)
    return {k: _to_numpy(v) for k, v in value.items()} if type(value) is dict else value
