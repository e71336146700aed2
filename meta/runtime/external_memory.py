"""Memory that others may write unseen: it was taken from, or given to, another library.

torch counts the writes to a tensor, and what `meta` writes in place counts as well. What NumPy or a
consumer of DLPack writes does not. Who keeps what was computed of an array compares the counts, and
asks here whether they tell all.
"""

from __future__ import annotations

import torch

share_count = 0
"""How many tensors became such memory in this process."""
_MARK = "_written_outside"


def mark_shared(tensor: torch.Tensor) -> None:
    """Note that others than torch may write to the memory of a tensor."""
    global share_count
    for one in (tensor, tensor._base):
        if one is not None:
            setattr(one, _MARK, True)
    share_count += 1


def counts_writes(tensor: torch.Tensor) -> bool:
    """Whether ``tensor._version`` changes with every write to the memory of a tensor."""
    if tensor.is_inference():  # has no counter
        return False
    return not any(hasattr(one, _MARK) for one in (tensor, tensor._base) if one is not None)
