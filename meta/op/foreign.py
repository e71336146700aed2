"""Calls of functions that are no operators of this package. Add one here."""

from __future__ import annotations

from itertools import pairwise

from meta.base.dtype import canonical
from meta.ir.types import UNKNOWN, Dim
from meta.op.core import Ints, Tensor, TensorType, op
from meta.op.core.check import require


def _as_tuple(value: Ints) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else value


@op(random=True, float8=True)
def torch_call(
    tensors: tuple[Tensor, ...],
    target: str,
    dtypes: str,
    shapes: Ints = (),
    shape_indices: Ints = (0,),
    extents: Ints = (),
) -> tuple[Tensor, ...]:
    """What an operator of PyTorch returns, for which there is none of this package: a tuple.

    tensors: its tensors, any shapes and dtypes. target: its name and its other arguments, as
    `meta.dialect.torch.foreign.call_text` writes them. dtypes: those of its results, at least one,
    with commas. shapes: the extents of all results, one after the other; -1 for one that depends on
    data. shape_indices: for each result, where in ``shapes`` its extents end, as for
    `defuse_tensor`. extents: the dimensions among the arguments, to which ``target`` refers.

    The results are compact, and in memory of their own. The operator may be a random one, of which
    torch's generator is drawn from, so no two calls are merged. TypeInferError for no result, and
    for shapes that do not fit. Running it raises ArgumentError for a target that does not exist,
    and BackendError for results of other types than these.
    """
    names = [canonical(name) for name in dtypes.split(",")] if dtypes else []
    require(len(names) > 0, "a call has no result", expected="at least one dtype")
    dims, ends = _as_tuple(shapes), _as_tuple(shape_indices)
    fits = (
        len(ends) == len(names)
        and all(a <= b for a, b in pairwise((0, *ends)))
        and ends[-1] == len(dims)
    )
    found = f"dtypes={dtypes}, shapes={dims}, shape_indices={ends}"
    require(fits, "shape_indices do not cut shapes into one part per dtype", found=found)
    known: list[Dim] = [UNKNOWN if isinstance(d, int) and d < 0 else d for d in dims]
    parts = pairwise((0, *ends))
    return tuple(TensorType(tuple(known[a:b]), n) for n, (a, b) in zip(names, parts, strict=True))
