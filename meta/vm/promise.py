"""META_VERIFY: what a kernel promises, looked at around each launch.

A kernel leaves what it was given as it was, but for the arguments that its operator writes, and its
results are compact, of the shape and dtype that the operator's type function says, in memory of
their own, which is told by storages: a view has another address than what it is a view of. A kernel
that fills what it is given (`OpEnv.allocates`) fills all of it, where it lies: it is given NaN, or
for integers a pattern of bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from meta.base.dtype import FROM_TORCH
from meta.base.errors import IRError
from meta.dialect.core.openv import OpEnv
from meta.ir.typeof import compatible
from meta.ir.types import TensorType
from meta.op.core.call import CallValues, written_places

_PATTERN = 0x5A


def checked_call(env: OpEnv, call: CallValues) -> Callable[..., Any]:
    """Return the kernel of an eager call, checked. It takes what `OpEnv.run` takes."""
    outputs, written = call.outputs, written_places(call)
    name = f"the kernel {env.dialect_op}"

    def run(*values: Any) -> Any:
        return launch(env.run, values, outputs, written, env.allocates, what=name, op=call.op.name)

    return run


def launch(
    run: Callable[..., Any],
    values: Sequence[Any],
    outputs: Sequence[TensorType],
    written: Collection[int],
    allocates: bool,
    *,
    what: str,
    op: str,
    taken: int | None = None,
) -> Any:
    """Run a kernel and raise IRError for a promise that it breaks; return what it returns.

    outputs: the types of its results, those that it is given behind its arguments unless it
    ``allocates`` them. written: the places of the arguments that it may write. taken: the place of
    one whose memory the last result has, which is then written.
    """

    def broken(found: str, expected: str) -> IRError:
        return IRError(f"{what} breaks its promise", op=op, expected=expected, found=found)

    count = len(values) if allocates else len(values) - len(outputs)
    given, outs = values[:count], values[count:]
    changing = {*written} if taken is None else {*written, taken}
    tensors = [(i, v) for i, v in enumerate(given) if isinstance(v, torch.Tensor) and v.numel()]
    # What lies in memory that is written may change with it.
    kept = [
        (i, v, v.clone())
        for i, v in tensors
        if i not in changing and not any(overlap(v, values[c]) for c in changing)
    ]
    for out in outs if taken is None else outs[:-1]:
        _spoil(out)
    before = [_place(out) for out in outs]
    result = run(*values)
    if allocates:
        outs = result if isinstance(result, tuple) else () if result is None else (result,)
        if len(outs) != len(outputs):
            raise broken(f"{len(outs)} results", f"{len(outputs)} results")
    for place, (out, type_) in enumerate(zip(outs, outputs, strict=True)):
        found = TensorType(tuple(out.shape), FROM_TORCH[out.dtype])
        if not compatible(found, type_) or not out.is_contiguous():
            raise broken(f"{found} with strides {out.stride()}", f"a compact {type_}")
        if out.is_neg() or out.is_conj():
            raise broken("values of the opposite sign in memory", "the values themselves")
        if not allocates:
            if before[place] != _place(out):
                raise broken(f"result {place} lies elsewhere", "results where they were asked for")
            continue
        for i, tensor in tensors:
            if _shares_storage(out, tensor):
                raise broken(
                    f"result {place} shares the memory of argument {i}", f"a fresh {type_}"
                )
        if any(overlap(out, other) for other in outs[:place]):
            raise broken(f"result {place} shares the memory of another", f"a fresh {type_}")
    for i, now, then in kept:
        if not same_bits(now, then):
            raise broken(f"argument {i} was written", "arguments as they were")
    return result


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one type have the same bits, NaN included."""
    return torch.equal(_bytes(a), _bytes(b))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


def _place(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape)


def _spoil(out: torch.Tensor) -> None:
    """Write what no kernel means to a tensor that is about to be filled."""
    if out.dtype == torch.bool:
        out.fill_(True)
    elif out.dtype.is_floating_point and out.itemsize > 1:
        out.fill_(torch.nan)
    elif out.numel():
        _bytes(out).fill_(_PATTERN)


def _shares_storage(result: torch.Tensor, argument: torch.Tensor) -> bool:
    """Whether a result lies anywhere in the storage of an argument."""
    if not result.numel():
        return False
    storage = argument.untyped_storage()
    start, end = _extent(result)
    first = storage.data_ptr()
    return start < first + storage.nbytes() and first < end


def overlap(a: Any, b: Any) -> bool:
    """Whether the memory from a tensor's first to its last element meets another's."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    if not a.numel() or not b.numel():
        return False
    (a_start, a_end), (b_start, b_end) = _extent(a), _extent(b)
    return a_start < b_end and b_start < a_end


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses of the first byte and of the one behind the last."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((extent - 1) * step for extent, step in steps)
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.itemsize
