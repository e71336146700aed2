"""In-place writes: what may be written into the memory of an array, and of which arrays the memory
may be written.

A value that is written goes to the array's dtype, if that has its kind: a bool is an integer, an
integer a floating point number, and that a complex one, but not the other way round.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from meta.base import config
from meta.base.device import Device
from meta.base.dtype import COMPLEX, canonical, is_real
from meta.base.errors import ArgumentError, GradientError, TypeInferError
from meta.base.number import fits, integer_range, out_of_range
from meta.runtime import trace_checks, view_copies
from meta.runtime.ndarray import array, as_array, ndarray
from meta.runtime.no_gradient import NoGradient, is_recording

_KINDS = "bool", "integer", "floating point", "complex"


def _kind(dtype: str) -> int:
    if dtype == "bool" or dtype in COMPLEX:
        return 0 if dtype == "bool" else 3
    return 2 if is_real(dtype) else 1


def require_kind(dtype: str, target: str) -> None:
    """Raise TypeInferError unless an array of ``target`` may take values of ``dtype``: of its own
    kind or of a simpler one, and under `meta.strict_dtypes` of its own dtype only.
    """
    if _kind(dtype) > _kind(target):
        raise TypeInferError(
            f"a {_KINDS[_kind(dtype)]} value does not fit an array of dtype {target}",
            expected=f"a value of a kind that {target} has",
            found=dtype,
            hint=f'cast the value: value.astype("{target}"); or make the array {dtype} before',
        )
    if dtype != target and config.get("META_STRICT_DTYPES"):
        raise TypeInferError(
            "the value would be cast, which strict dtypes forbid",
            expected=target,
            found=dtype,
            hint=f'cast it first: value.astype("{target}")',
        )


def coerce_value(value: Any, dtype: str, device: Device) -> ndarray:
    """Return what is to be written: an array of ``dtype`` on ``device``.

    ``value``: a number, nested lists of them, or an array of any library. Python's numbers keep all
    their digits. TypeInferError for a kind that the dtype does not have (`require_kind`), and
    NumberOutOfRange for an integer beyond the dtype's range.
    """
    if type(value) is ndarray and value.dtype == dtype and value.device == device:
        return value
    if isinstance(value, bool | int | float | complex):
        require_kind(_python_kind(value, dtype), dtype)
        if not isinstance(value, complex) and not fits(value, dtype):
            raise out_of_range(value, dtype, "the value", "an array of a wider dtype")
        return array(value, dtype, device=device)
    if not hasattr(value, "dtype") and not hasattr(value, "__dlpack__"):
        numbers = np.asarray(value)
        if numbers.dtype.kind in "biufc" and numbers.size:
            first = numbers.flat[0].item()
            require_kind(_python_kind(first, dtype), dtype)
        elif numbers.size == 0:
            return array(numbers.astype(bool), dtype, device=device)
        return array(value, dtype, device=device)
    found = as_array(value)
    require_kind(found.dtype, dtype)
    bounds = integer_range(dtype)
    if found.dtype != dtype and bounds is not None and found.size and found.dtype != "bool":
        held = found.numpy()
        for extreme in (held.min().item(), held.max().item()):
            if not fits(extreme, dtype):
                raise out_of_range(
                    extreme, dtype, "an element of the value", "an array of a wider dtype"
                )
    if found.dtype == dtype and found.device == device:
        return found
    return array(found, dtype, device=device)


def accepts_number(value: bool | int | float, dtype: str) -> bool:
    """Whether an array of a dtype takes a Python number."""
    return _kind(canonical(type(value))) <= _kind(dtype) and fits(value, dtype)


def _python_kind(value: complex, dtype: str) -> str:
    """Return a dtype for a Python number: the target itself if that has the number's kind."""
    own = canonical(type(value))
    return dtype if _kind(own) <= _kind(dtype) else own


def writable_buffer(array: ndarray, what: str, hint: str) -> torch.Tensor:
    """Return the buffer of an array, which ``what`` is to write at once.

    Raises TraceError in code that is traced, with ``hint`` as its cure; GradientError as
    `require_unrecorded`; ArgumentError for memory that cannot be written, and for a copy such as
    ``x[0]``, as `meta.runtime.view_copies` says.
    """
    trace_checks.refuse_write(array, f"{what} is met", hint)
    trace_checks.require_values(array)
    require_unrecorded(array, what)
    view_copies.refuse_write(array.tensor, what)
    require_writable(array.tensor, "this array")
    memory = array.tensor.detach()
    if memory.is_inference() and not torch.is_inference_mode_enabled():
        raise ArgumentError(
            "an array made in torch.inference_mode takes no writes outside of it",
            found=f"shape {array.shape}",
            hint="copy it first, with meta.array(x)",
        )
    return memory


def require_unrecorded(array: ndarray, what: str) -> None:
    """Raise GradientError for an array whose values may not be written, as gradients go by them.

    That is an array computed from one that requires a gradient, and, but in a block of
    `meta.no_grad`, one that requires a gradient itself. An array that a recorded call has kept may
    be written: `backward` through that call is then a GradientError.
    """
    if not array.tracked or array.node.__class__ is NoGradient:
        return
    if array.node is not None:
        raise GradientError(
            f"{what} would write to an array that was computed from one that requires a gradient: "
            "no gradient would know of it",
            found=f"shape {array.shape}, dtype {array.dtype}",
            hint="x = x.at[index].set(value) for a new array; or write to x.clone().detach()",
        )
    if is_recording():
        raise GradientError(
            f"{what} would write to an array that requires a gradient: no gradient would know of "
            "it",
            found=f"shape {array.shape}, dtype {array.dtype}",
            hint="with meta.no_grad(): to change a parameter; x = x.at[index].set(value) for a new "
            "array that gradients pass",
        )


def require_detached(value: Any, what: str) -> None:
    """Raise GradientError for a value that requires a gradient: what is written drops it."""
    tensors = ndarray | torch.Tensor
    if isinstance(value, tensors) and value.requires_grad and is_recording():
        raise GradientError(
            f"{what} would write a value that requires a gradient to an array that has none: the "
            "gradient would end there",
            found=f"a value of shape {value.shape}, dtype {value.dtype}",
            hint="value.detach() to write the number alone; x = x.at[index].set(value) for a new "
            "array that gradients pass",
        )


def require_writable(tensor: torch.Tensor, what: str) -> None:
    """Raise ArgumentError for an expanded view: writing one of its elements changes others."""
    repeated = any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    if repeated and tensor.numel():
        raise ArgumentError(
            f"{what} cannot be written, as its elements share memory",
            expected="an array without strides of 0",
            found=f"shape {tuple(tensor.shape)}, strides {tensor.stride()}",
            hint="copy it first, with meta.array(x)",
        )


def memory_overlaps(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether writing one tensor may change the other."""
    if a.device != b.device or not a.numel() or not b.numel():
        return False
    one, other = a.untyped_storage(), b.untyped_storage()
    start, begin = one.data_ptr(), other.data_ptr()
    return start < begin + other.nbytes() and begin < start + one.nbytes()
