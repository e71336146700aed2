"""Which integers an operator uses as indices, and what they may be.

An operator that indexes by data says so beside its type function: ``@op(indices=rule)``. The rule
is a function of some of the operator's arguments, by name, a tensor being its `TensorType`; it
returns an `IndexRange` for each tensor of indices. Executors look before the kernel runs (on the
CPU always, on CUDA with META_CHECK_INDICES), and raise `IndexOutOfRange`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from meta.base import config
from meta.base.device import CPU, Device
from meta.base.dtype import has_gradient
from meta.ir.dims import product
from meta.ir.types import Dim, TensorType
from meta.op.core.check import normalize_axis
from meta.op.core.slot import INT_LIMIT


@dataclass(frozen=True, slots=True)
class IndexRange:
    """What the indices in one argument may be: from 0, or ``-extent``, to ``extent - 1``.

    Attributes
    ----------
    slot: the argument. extent: of what is indexed, which ``into`` describes.
    from_end: whether negative indices count from the end. any_below: whether any negative number is
    legal, as one that names nothing. also: another legal number that names nothing.
    field: which tensor of a slot that takes several. along: an axis of the tensor, and a position
    there: only these elements are meant. ordered: of a tensor of one axis, that none is less than
    the one before. nonzero: it is no index but a divisor: any number but 0 is legal.
    """

    slot: str
    extent: Dim
    into: str
    from_end: bool = False
    any_below: bool = False
    also: int | None = None
    field: int = 0
    along: tuple[int, int] | None = None
    ordered: bool = False
    nonzero: bool = False


IndexRule = Callable[..., Iterable[IndexRange]]


def into_axis(
    slot: str, x: TensorType, axis: int | None, name: str, *, from_end: bool = False
) -> IndexRange:
    """Return the range of indices into an axis of ``x``, or by None into all its elements."""
    if axis is None:
        return IndexRange(slot, product(x.shape), f"{name}, flattened", from_end)
    at = normalize_axis(axis, x.ndim)
    return IndexRange(slot, x.shape[at], f"axis {at} of {name}", from_end)


def _are_integers(*operands: TensorType | float) -> bool:
    """Whether operands, one of which is a tensor, are integers."""
    dtypes = {o.dtype for o in operands if isinstance(o, TensorType)}
    return not any(d == "bool" or has_gradient(d) for d in dtypes)


def divisors(x1: TensorType | float, x2: TensorType | float) -> tuple[IndexRange, ...]:
    """Return that no element of x2 is 0 where it divides integers."""
    if not _are_integers(x1, x2):
        return ()
    return (IndexRange("x2", 1, "", any_below=True, nonzero=True),)


def exponents(x1: TensorType | float, x2: TensorType | float) -> tuple[IndexRange, ...]:
    """Return that a number is no exponent of integers if it is negative."""
    if isinstance(x2, TensorType) or not _are_integers(x1):
        return ()
    return (IndexRange("x2", INT_LIMIT, "the integers"),)


def checks_indices(device: Device) -> bool:
    """Whether indices are looked at on a device: on the CPU, and where META_CHECK_INDICES says."""
    return device == CPU or bool(config.get("META_CHECK_INDICES"))
