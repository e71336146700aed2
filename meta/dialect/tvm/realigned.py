"""Kernels that access their arguments by vectors, called with arguments at any address.

A vector access to an address that is no multiple of its size kills the process. Fresh tensors are
aligned to far more than 16 bytes, but a view such as ``x[1:]`` need not be. So a function whose
kernels access a parameter by vectors begins with a check of the addresses, on the host, before
anything is launched (`cuda_parameters`): an `and` and a compare for each. What it raises,
`realigned` catches: the call is repeated with aligned copies, which are copied back. An aligned
call pays nothing for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import tvm_ffi

ALIGNMENT = 16
"""Bytes: the widest access of a thread."""
KIND = "MetaUnaligned"
"""What compiled code calls the error."""


@tvm_ffi.register_error(KIND)
class Unaligned(RuntimeError):
    """An argument's address is no multiple of `ALIGNMENT`."""


def realigned(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``run`` for arguments at any address."""

    def launch(*values: Any) -> None:
        try:
            run(*values)
        except Unaligned:
            copies: dict[tuple[int, int], torch.Tensor] = {}
            again = [_aligned(value, copies) for value in values]
            run(*again)
            for value, copied in zip(values, again, strict=True):
                if copied is not value:
                    value.copy_(copied)

    return launch


def _aligned(value: Any, copies: dict[tuple[int, int], torch.Tensor]) -> Any:
    """Return a value, or an aligned copy of it: the same one for the same memory."""
    if not isinstance(value, torch.Tensor) or value.data_ptr() % ALIGNMENT == 0:
        return value
    key = (value.data_ptr(), value.numel())
    if key not in copies:
        copies[key] = value.clone()
    return copies[key]
