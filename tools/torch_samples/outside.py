"""What keeps a sample or an entry from running: only torch has the thing, or `meta` lacks it. The
latter are gaps.
"""

from __future__ import annotations

from enum import Enum


class Outside(Enum):
    """What only torch has. A sample that asks for one of these does not count against `meta`."""

    DTYPE = "a dtype that meta does not have, or float8 alone"
    INTERNAL = "a function that torch itself uses, or a test of its own"
    LAYOUT = "sparse and nested tensors"
    MEMORY = "strides and storage of memory: arrays are compact"
    CUDA = "code for CUDA alone"
    PACKED = "a factor in the form in which LAPACK keeps it"
    RANDOM = "an approximation that hangs on random numbers"
    SOURCE = "a kernel given as source text"
    WRONG = "a result of torch's that is NaN where the function has a number"


class Declined(Exception):
    """The sample asks for something that `meta` does not offer; the message says what."""


class IsOutside(Exception):
    """The sample asks for something that only torch has; ``args[0]`` is the `Outside`."""


def decline_if(condition: object, reason: str) -> None:
    """Raise Declined for a sample that fulfils the condition."""
    if condition:
        raise Declined(reason)


def outside_if(condition: object, reason: Outside) -> None:
    """Raise IsOutside for a sample that fulfils the condition."""
    if condition:
        raise IsOutside(reason)


_ONLY_TORCH: dict[Outside, tuple[str, ...]] = {
    Outside.LAYOUT: ("sparse.sampled_addmm", "sparse.mm|reduce", "to_sparse"),
    Outside.SOURCE: (
        "jiterator_2inputs_2outputs",
        "jiterator_4inputs_with_extra_args",
        "jiterator_binary",
        "jiterator_binary_return_by_ref",
        "jiterator_unary",
    ),
    Outside.CUDA: (
        "torch.ops.aten._efficient_attention_forward",
        "torch.ops.aten._flash_attention_forward",
    ),
    Outside.DTYPE: ("chalf", "torch._scaled_mm", "torch._scaled_mm_v2"),
    Outside.INTERNAL: (
        "hash_tensor",
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
    ),
    Outside.MEMORY: ("as_strided|partial_views",),
    Outside.PACKED: (
        "geqrf",
        "linalg.ldl_factor",
        "linalg.ldl_factor_ex",
        "linalg.ldl_solve",
        "ormqr",
    ),
}

ONLY_TORCH: dict[str, str] = {
    entry: why.value for why, entries in _ONLY_TORCH.items() for entry in entries
}
"""The entries that are not run, as only torch has the thing, and why."""
