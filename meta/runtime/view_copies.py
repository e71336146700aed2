"""Arrays that are copies here where NumPy and PyTorch have views: `x[0]`, `x[1:3]`, `x.T`, and the
parts of `meta.split(x)`.

Arrays own compact memory, so these have memory of their own, whatever the shapes. A write to one
would be seen in x by those libraries and cannot be seen here, so it is an error. The buffer is
marked for that; what is a view of it is, too. Reading pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from meta.base.call_context import context, override_context
from meta.base.errors import ArgumentError

_MARK = "_copy_of_a_part"


def mark(tensor: torch.Tensor, what: Any) -> None:
    """Note that a tensor is such a copy. ``what``: the name of the operator, as text, or the index
    that it is of.
    """
    if context.get().marks_copies:
        setattr(tensor, _MARK, what)


def mark_all(results: Any, what: str) -> None:
    """Mark the result of a kernel, or all of them; for no ``what`` none."""
    if what:
        for tensor in results if isinstance(results, tuple | list) else (results,):
            mark(tensor, what)


def with_marking(kernel: Callable[..., torch.Tensor], what: str) -> Callable[..., torch.Tensor]:
    """Return a kernel whose result is marked; for no ``what`` the kernel itself."""

    def run(*values: Any) -> torch.Tensor:
        found = kernel(*values)
        mark(found, what)
        return found

    return run if what else kernel


def view_or_copy(x: torch.Tensor, shape: tuple[int, ...], what: str) -> torch.Tensor:
    """Return a tensor in another shape: a view; where its strides allow none, a marked copy."""
    if x.is_contiguous():
        return propagate_mark(x, x.view(shape))
    found = x.reshape(shape)
    if found.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
        return propagate_mark(x, found)
    setattr(found, _MARK, what)  # in any block: only what users gave has such strides
    return found


def no_marking() -> AbstractContextManager[None]:
    """Mark nothing in this block, which runs no code of a user's: only what leaves it counts."""
    return override_context(marks_copies=False)


def propagate_mark(source: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """Return a view, marked as what it is a view of."""
    if hasattr(source, _MARK):
        setattr(view, _MARK, getattr(source, _MARK))
    return view


def is_marked(tensor: torch.Tensor) -> bool:
    """Whether a tensor is such a copy, or a view of one."""
    return hasattr(tensor, _MARK)


def without_mark(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor for who computed it for a purpose of its own; it is no such copy to
    others.
    """
    return tensor.detach() if hasattr(tensor, _MARK) else tensor


def refuse_write(tensor: torch.Tensor, what: str) -> None:
    """Raise ArgumentError for a copy, which ``what`` is to write."""
    if not hasattr(tensor, _MARK):
        return
    made = getattr(tensor, _MARK)
    found = f"shape {tuple(tensor.shape)}"
    if isinstance(made, str):
        raise ArgumentError(
            f"{what} would write to a result of {made}, which is a copy here: the array that it "
            "was made of would not change, as it does in NumPy and PyTorch",
            found=found,
            hint="write to that array itself, x[index] = value; or to x.clone() of the result if "
            "the copy is what you want",
        )
    place = _text(made)
    items = made if isinstance(made, tuple) else (made,)
    more = ", index" if tensor.ndim and all(isinstance(i, int) for i in items) else ""
    raise ArgumentError(
        f"{what} would write to x[{place}], which is a copy here: x would not change, as it does "
        "in NumPy and PyTorch",
        found=found,
        hint=f"x[{place}{more}] = value, one index, writes to x; or write to x[{place}].clone() if "
        "the copy is what you want",
    )


def _text(index: Any) -> str:
    if isinstance(index, tuple):
        return ", ".join(map(_text, index)) or "()"
    if isinstance(index, slice):
        ends = ["" if e is None else str(e) for e in (index.start, index.stop)]
        return ":".join(ends if index.step is None else [*ends, str(index.step)])
    return "..." if index is ... else str(index)
