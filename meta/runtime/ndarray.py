"""`ndarray`: a tensor in memory, owning a `torch.Tensor` buffer.

torch supplies the allocator, streams, pinned memory and DLPack; all computation goes through
operators. What defines an array for dispatch (shape, dtype, device, compactness) is one interned
`ArrayKey`, so the hot path of an eager call compares identities only.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from meta.base import dtype as dtypes
from meta.base.call_context import Default
from meta.base.device import NOWHERE, Device, default_device, destination, require
from meta.base.errors import ArgumentError, GradientError
from meta.base.number import Size
from meta.base.registry import OPERATORS
from meta.base.signature_check import check_signature
from meta.runtime import trace_checks, view_copies
from meta.runtime.array_coercion import from_host, share_memory
from meta.runtime.array_export import ArrayExport, array_html
from meta.runtime.array_key import ArrayKey, key_of
from meta.runtime.no_gradient import NoGradient, set_recording
from meta.runtime.out_of_memory import copy_to_device
from meta.runtime.placement import Placement
from meta.runtime.torch_leaf import TorchLeaf, detach_resolved, refuse_detach, torch_leaf

if TYPE_CHECKING:
    from meta.runtime.array_types import ArrayMethods  # a stub: `python -m tools.stubs`
else:
    ArrayMethods = ArrayExport

gradient_lock = threading.RLock()
"""Held while a gradient is added to a leaf's: threads may differentiate by one leaf."""


class ndarray(ArrayMethods):
    """An n-dimensional array. Create one with `array`, or as the result of an operator.

    Attributes
    ----------
    shape: tuple of ints. dtype: canonical name. ndim: number of axes. device: `Device`. strides: in
    elements.
    requires_grad: whether operators on this array are recorded for `backward`.
    grad: the accumulated gradient, an ndarray of the same type, or None.
    name: a label for messages and traces.
    key: what dispatch needs to know of it. tensor: the buffer. tracked: whether calls are recorded,
    those that no gradient reaches included. Eager calls read these slots: `torch()` and
    `requires_grad` take longer.

    >>> x = meta.array([[1.0, 2.0, 3.0]], device="cpu")
    >>> x.shape, x.dtype, x.ndim, x.device, x.strides
    ((1, 3), 'float32', 2, 'cpu', (3, 1))
    >>> x.requires_grad = True
    >>> (x * x).sum().backward()
    >>> x.grad.tolist()
    [[2.0, 4.0, 6.0]]
    """

    __slots__ = (
        "__weakref__",
        "_deferred",
        "_placement",
        "_trained",
        "grad",
        "key",
        "name",
        "node",
        "tensor",
        "tracked",
    )
    # Of an array that has no values yet: those that it will have (`runtime/deferred_values.py`).
    _deferred: Any
    # Makes numpy defer to our reflected operators: np_array + x calls x.__radd__.
    __array_priority__ = 1000

    def __init__(self, tensor: torch.Tensor, key: ArrayKey | None = None, name: str = "") -> None:
        if key is None:
            key = key_of(tensor)
            if tensor.requires_grad:
                refuse_detach(tensor, "ndarray()", "meta.asarray(t), through which gradients pass")
                tensor = tensor.detach()
        self.tensor = tensor
        self.key = key
        self.tracked = False
        self.grad: ndarray | None = None
        # How this value was computed, if that was recorded: a tape node and the index of its result
        # (see meta.grad).
        self.node: Any = None
        self.name = name

    def __init_subclass__(cls) -> None:
        # Eager calls tell arrays from other arguments by their exact class.
        raise TypeError("ndarray cannot be subclassed; hold one in an object of your own")

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, outermost axis first."""
        return self.key.shape

    @property
    def dtype(self) -> dtypes.DType:
        """Canonical name of the element type; see `DType`."""
        return dtypes.NAMED[self.key.dtype]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.key.shape)

    @property
    def size(self) -> Size:
        """Number of elements; called, as torch's: the shape, or the extent of an axis."""
        return Size(self.tensor.numel(), self.key.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.tensor.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.tensor.nbytes

    @property
    def device(self) -> Device:
        """Where the buffer lives."""
        return self.key.device

    @property
    def strides(self) -> tuple[int, ...]:
        """Distance between neighbours along each axis, in elements."""
        return tuple(self.tensor.stride())

    @property
    def requires_grad(self) -> bool:
        """Whether operators on this array are recorded."""
        # Also what no gradient reaches is followed, for the error that says so.
        return self.tracked and self.node.__class__ is not NoGradient

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and not dtypes.has_gradient(self.dtype):
            raise GradientError(
                "only floating point arrays have gradients, real or complex",
                found=repr(self.dtype),
                hint="cast it first",
            )
        if self.node.__class__ is NoGradient:
            self.node = None
        if value and self.node is not None:
            raise GradientError(
                "this array was computed from what requires a gradient, or is a torch tensor that "
                "does: gradients pass, and do not end here",
                found=f"shape {self.shape}, dtype {self.dtype}",
                hint="x = x.detach() is an array where gradients may end",
            )
        self.tracked = bool(value)
        if value:
            self._trained = True

    @property
    def trainable(self) -> bool:
        """Whether ``requires_grad`` is or was set: a parameter, also one that is frozen now."""
        return getattr(self, "_trained", False)

    @property
    def placement(self) -> Placement:
        """Which part of an array of a distributed program this is; the whole unless it was set."""
        return getattr(self, "_placement", None) or Placement(self.key.shape)

    @placement.setter
    def placement(self, value: Placement) -> None:
        if value.local != self.key.shape:
            raise ArgumentError(
                "the placement is of another shape", expected=self.key.shape, found=value.local
            )
        self._placement = value

    @check_signature
    def to(self, target: object = None, *, device: object = None, dtype: object = None) -> ndarray:
        """Return the array on another device or in another dtype; the array itself if nothing
        changes.

        ``target`` is one of both: ``x.to("cuda")``, ``x.to("float16")``, ``x.to(torch.float16)``.

        A gradient flows through it, as through `meta.astype` and `meta.device_copy`.
        """
        trace_checks.require_values(self)
        device, dtype = destination(target, device, dtype)
        where = self.device if device is None else require(device)
        kind = self.dtype if dtype is None else dtypes.canonical(dtype)
        if where == self.device and kind == self.dtype:
            return self
        if not self.tracked:
            return ndarray(
                copy_to_device(self.tensor, where, dtypes.TO_TORCH[kind]), name=self.name
            )
        found = self if kind == self.dtype else OPERATORS["astype"](self, kind)
        if where != self.device:
            found = OPERATORS["device_copy"](found, str(self.device), str(where))
        found.name = self.name
        return found

    def to_device(self, device: object, /, *, stream: object = None) -> ndarray:
        """Return the array on another device; see `to`. ArgumentError for a ``stream``: the copy
        is on the current one.
        """
        if stream is not None:
            raise ArgumentError("to_device copies on the current stream", found=repr(stream))
        return self.to(device=device)

    def cpu(self) -> ndarray:
        """Return the array on the CPU; see `to`."""
        return self.to(device="cpu")

    def cuda(self, index: int = 0) -> ndarray:
        """Return the array on an NVIDIA GPU; see `to`. DeviceError where there is none."""
        return self.to(device=f"cuda:{index}")

    def detach(self) -> ndarray:
        """Return an array that shares memory with this one, and that no gradient reaches."""
        trace_checks.refuse_read(self)
        return ndarray(
            view_copies.propagate_mark(self.tensor, self.tensor.detach()), self.key, self.name
        )

    def update(self, value: object) -> None:
        """Overwrite the values in place, keeping buffer, dtype, device and every alias of it.

        ``value`` is array-like of the same shape, and goes to this dtype as in `array`. What is
        recorded for `backward` is dropped. A number is written without waiting for the device.
        TraceError in code that is traced, ArgumentError for a copy such as ``x[0]``.
        """
        trace_checks.refuse_write(self)
        view_copies.refuse_write(self.tensor, "update()")
        if isinstance(value, bool | int | float) and not self.shape and self.device is not NOWHERE:
            with torch.no_grad():
                self.tensor.fill_(array(value, self.dtype).item())
            self._detach()
            return
        if isinstance(self.node, TorchLeaf):
            raise GradientError(
                "update() would write to a torch tensor that requires a gradient: no gradient "
                "would know of it",
                found=f"shape {self.shape}, dtype {self.dtype}",
                hint="write to meta.asarray(t.detach()), which has the same memory",
            )
        if isinstance(value, torch.Tensor):
            refuse_detach(value, "update()", "x.update(t.detach())")
        source = value
        if not isinstance(source, ndarray):
            where = None if self.key.device is NOWHERE else self.device
            source = array(value, self.dtype, device=where)
        if source.shape != self.shape:
            raise ArgumentError(
                "update() needs the same shape", expected=self.shape, found=source.shape
            )
        if self.key.device is NOWHERE:  # it has memory from now on
            given = array(source, self.dtype, device=self._deferred.device)
            self.tensor, self.key = given.tensor, given.key
            del self._deferred
            return
        with torch.no_grad():
            self.tensor.copy_(source.tensor)
        self._detach()

    def _detach(self) -> None:
        """Forget how the values were computed: they were written."""
        if self.node.__class__ is NoGradient:
            self.tracked = False
        self.node = None

    @check_signature
    def backward(self, gradient: object = None, *, create_graph: bool = False) -> None:
        """Propagate a gradient back to every array with ``requires_grad`` this one was computed
        from.

        ``gradient`` has this array's shape; it may be omitted for an array with one element (then
        it is 1). Results are added to each leaf's ``grad``. With ``create_graph`` their computation
        is recorded, so that they can be differentiated in turn, by the leaves and by ``gradient``;
        a leaf and its ``grad`` then refer to each other until ``grad`` is set to None, which
        `meta.grad.grad` avoids. Raises GradientError if nothing was recorded.
        """
        seed = self.seed(gradient, create_graph)
        if self.node is not None:
            self.node.backward(seed, create_graph)
            return
        if not self.tracked:
            raise GradientError(
                "this array was not computed from one that requires a gradient",
                hint="set requires_grad = True on the inputs before the computation",
            )
        with gradient_lock:
            self.grad = seed if self.grad is None else OPERATORS["add"](self.grad, seed)

    def seed(self, gradient: object, linked: bool) -> ndarray:
        """Return what `backward` starts from: ``gradient``, checked, in memory of its own; ones
        for None.

        ``linked``: one that requires a gradient stays linked to where it came from.
        """
        if gradient is None:
            if self.dtype in dtypes.COMPLEX:
                raise GradientError(
                    "a complex result has a gradient in many directions",
                    found=self.dtype,
                    hint="pass gradient=, or differentiate a real number: meta.abs(x)",
                )
            if self.size != 1:
                raise GradientError(
                    "backward() without a gradient needs an array with one element",
                    found=f"shape {self.shape}",
                    hint="pass gradient=, an array of the same shape",
                )
            return ndarray(torch.ones_like(self.tensor))
        with set_recording(linked):
            if isinstance(gradient, torch.Tensor):
                gradient = as_array(gradient)
            if linked and isinstance(gradient, ndarray) and gradient.requires_grad:
                seed: ndarray = OPERATORS["copy"](OPERATORS["astype"](gradient, self.dtype))
            else:
                seed = array(gradient, dtype=self.dtype, device=self.device)
        if seed.shape != self.shape:
            raise GradientError(
                "the gradient has another shape", expected=self.shape, found=seed.shape
            )
        return seed

    def __copy__(self) -> ndarray:
        """Return a leaf with memory of its own, as numpy's arrays do, without a gradient."""
        trace_checks.refuse_read(self)
        result = ndarray(self.tensor.detach().clone(), name=self.name)
        result.train_like(self)
        return result

    def train_like(self, other: ndarray) -> None:
        """Take over whether a gradient is required, and whether one was, and the placement."""
        self.requires_grad = other.trainable
        self.requires_grad = other.requires_grad
        if other.placement.splits:
            self.placement = other.placement

    def __reduce__(self) -> Any:
        """Pickle values, dtype, device, name and placement of a leaf, and whether it requires a
        gradient.
        """
        trained = self.trainable, self.requires_grad
        return _unpickled, (self.numpy(), str(self.device), self.name, trained, self.placement)

    def __deepcopy__(self, memo: dict[int, Any]) -> ndarray:
        """Return a leaf with memory of its own; what shared memory still does among the copies."""
        trace_checks.refuse_read(self)
        tensor = view_copies.without_mark(copy.deepcopy(self.tensor, memo))
        result = memo[id(self)] = ndarray(tensor, name=self.name)
        result.train_like(self)
        result.grad = copy.deepcopy(self.grad, memo)
        return result

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentError("len() of a 0-d array")
        return self.shape[0]

    def __iter__(self) -> Iterator[ndarray]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        extents = " x ".join(str(d) for d in self.shape)
        return f"{self.numpy()}\n<NDArray [{extents}] @ {self.device}, dtype={self.dtype}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the values, of a large array its corners."""
        trace_checks.refuse_read(self)
        return array_html(self)


def array_with_key(
    tensor: torch.Tensor, key: ArrayKey, new: Callable[[type], ndarray] = object.__new__
) -> ndarray:
    """Return ``ndarray(tensor, key)`` in two thirds of the time, as results of eager calls are
    made: Python's way to `__init__` is as long as the rest.
    """
    array = new(ndarray)
    array.tensor, array.key, array.tracked = tensor, key, False
    array.grad = array.node = None
    array.name = ""
    return array


def _unpickled(
    values: Any, device: str, name: str, trained: tuple[bool, bool], placement: Placement
) -> ndarray:
    """Return a pickled array; DeviceError where its device is absent."""
    Default.complete()  # who gets an array, as a process of a data loader, uses it
    made = array(values, device=device, name=name)
    if placement.splits:
        made.placement = placement
    for required in trained:
        made.requires_grad = required
    return made


@check_signature
def array(obj: object, dtype: object = None, *, device: object = None, name: str = "") -> ndarray:
    """Create an array from numbers, lists, an array, also of NumPy or torch, or a DLPack exporter.

    ``dtype`` and ``device`` default to the object's own; Python floats give float32, ints int64,
    and host data go to the CPU, or where a block says (``with meta.device("cuda"):``). The data are
    copied (use `from_dlpack` to share memory): of an ndarray, to one without history; a torch
    tensor that requires a gradient is given that of the copy. Numbers and lists of them go to
    ``dtype`` at once, with all their digits, to integers by dropping the fraction; arrays are cast
    as by `meta.astype`. Raises ArgumentError for what is no array, NumberOutOfRange for numbers
    beyond an integer dtype, and DeviceError for an absent device.

    >>> meta.array([[1, 2]], dtype="float32").tolist()
    [[1.0, 2.0]]
    """
    where = None if device is None else require(device)
    kind = None if dtype is None else dtypes.canonical(dtype)
    if isinstance(obj, ndarray):
        trace_checks.require_values(obj)
        tensor = obj.tensor
    elif isinstance(obj, torch.Tensor):
        given = as_array(obj)
        if given.tracked:
            found = given.to(device=where, dtype=kind)
            found = OPERATORS["copy"](given) if found is given else found
            if isinstance(found, ndarray):  # a symbol where code is traced
                found.name = name
            return found
        tensor = given.tensor
    else:
        tensor = from_host(obj, kind)
        where = where or default_device()
    kind = kind or key_of(tensor).dtype
    return ndarray(copy_to_device(tensor, where, dtypes.TO_TORCH[kind]).contiguous(), name=name)


def as_array(obj: object) -> ndarray:
    """Return an ndarray for any tensor-like argument, sharing memory with torch tensors and
    ndarrays. It gives a torch tensor that requires a gradient its own.
    """
    if isinstance(obj, ndarray):
        return obj
    if isinstance(obj, torch.Tensor):
        found = ndarray(detach_resolved(obj))
        found.node = torch_leaf(obj)
        found.tracked = found.node is not None
        return found
    return ndarray(from_host(obj))


@check_signature
def asarray(
    obj: Any, dtype: object = None, *, device: object = None, copy: bool | None = None
) -> ndarray:
    """Return an array of numbers, nested lists of them, an array, or a DLPack exporter.

    ``copy``: True gives memory of its own, False that of ``obj``, and ArgumentError where that
    cannot be; None copies where it has to. Other arguments and errors as of `array`.

    >>> meta.asarray([1, 2, 3]).dtype, meta.asarray([1, 2], dtype="float16").tolist()
    ('int64', [1.0, 2.0])
    >>> x = meta.ones(3)
    >>> meta.asarray(x) is x, meta.asarray(x, copy=True) is x
    (True, False)
    """
    arrays = isinstance(obj, ndarray | torch.Tensor | np.ndarray) or hasattr(obj, "__dlpack__")
    if copy is not True and arrays:
        given = as_array(obj)
        found: ndarray = given.to(device=device, dtype=dtype)
        if found is given or copy is None:
            return found
    if copy is False:
        raise ArgumentError(
            "this object cannot be an array without a copy",
            expected="an array of the dtype, on the device",
            found=type(obj).__name__,
            hint="copy=None",
        )
    return array(obj, dtype, device=device)


def from_dlpack(x: Any, /, *, device: object = None, copy: bool | None = None) -> ndarray:
    """Return an array that shares memory with any DLPack exporter (NumPy, torch, JAX, TVM, ...).

    ``copy``: True gives memory of its own. ``device``: where the array is to be, if elsewhere a
    copy, which ``copy=False`` refuses. Raises ArgumentError for what exports none, for memory that
    must not be written, and for dtypes that `meta` does not have.

    >>> import torch
    >>> memory = torch.zeros(2)
    >>> x = meta.from_dlpack(memory)
    >>> memory[0] = 7.0
    >>> x.tolist()
    [7.0, 0.0]
    """
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        if copy:
            return array(x, device=device)
        raise ArgumentError(
            "read-only memory cannot be shared: an array can be written",
            found="a read-only numpy array",
            hint="copy it with meta.array(x)",
        )
    found = ndarray(share_memory(x))
    if copy:
        return array(found, device=device)
    moved = found if device is None else found.to(device=device)
    if copy is False and moved is not found:
        raise ArgumentError(
            "memory of another device cannot be shared",
            expected=found.device,
            found=device,
            hint="copy=None",
        )
    return moved
