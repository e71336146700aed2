"""Values that are on their way to the host while the device goes on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class HostCopy:
    """Copies of tensors, which begin behind what the device has been given to do so far: what it is
    given from now on is not waited for.

    tensors: of one device; those of the CPU are not copied.

    >>> import torch
    >>> from meta.runtime.host_copies import HostCopy
    >>> HostCopy([torch.arange(3), torch.ones(1)]).values()
    [[0, 1, 2], [1.0]]
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors, self._done = list(tensors), None
        if self._tensors and self._tensors[0].is_cuda:
            with torch.cuda.device(self._tensors[0].device):
                self._tensors = [_begun(t) for t in self._tensors]
                self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._done.record()

    def values(self) -> list[Any]:
        """Wait for the copies; return them as lists of numbers."""
        if self._done is not None:
            self._done.synchronize()
        return [t.tolist() for t in self._tensors]


def _begun(tensor: torch.Tensor) -> torch.Tensor:
    to = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return to.copy_(tensor, non_blocking=True)
