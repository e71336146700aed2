"""What a kernel promises, and who looks whether it keeps to it.

A kernel leaves what it was given as it was, but for the arguments that its operator writes, and its
results are compact, of the shape and dtype that the operator's type function says, on the device of
the call, in memory of their own, which is told by storages: a view has another address than what it
is a view of. A kernel that fills what it is given (`OpEnv.allocates`) fills all of it, where it
lies: it is given a NaN that no computation makes, or a pattern of bits, and it is an error to leave
one.

**Every call** (META_VERIFY, META_CHECK_ACCESS, `with_contract_checked`): of all kernels, with
copies of the arguments to compare with; with META_CHECK_ACCESS the tensors of the state, too.

**The first call** (`FirstRun`): of kernels that were registered outside of this package, once for
each plan of an eager call and each kernel of a program. It takes no copies of large arguments: a
write to one shows in torch's counters. Integers that look as if they were not written are, unless
a second run, on another pattern, leaves them out as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from meta.base import config
from meta.base.device import Device
from meta.base.errors import BackendError, MetaError
from meta.dialect.core.fused import FUSED, KERNEL
from meta.dialect.core.ir_calls import called_op, leaf_types, written_parameters
from meta.dialect.core.openv import Kernel, OpEnv
from meta.ir import Function, TensorType, TupleType, Type, bindings
from meta.op.core.call import CallValues, array_type, written_positions
from meta.op.core.op import Op
from meta.runtime.allocate import address_span
from meta.runtime.array_key import key_of

KINDS = ("cpu", "cuda")
"""Kinds of device on which results are looked at."""
COPIED = 1 << 20
"""Bytes of an argument that is copied to be compared after a first run, at most."""
LOOKED_AT = 1 << 22
"""Elements of a result that are compared at once, which takes memory."""


@dataclass(frozen=True, slots=True)
class KernelContract:
    """What one kernel promises.

    Attributes
    ----------
    env: the kernel. name: of its operator. outputs: what the type function says of the results; an
    extent that is no number may be any. written: the positions of the arguments that it writes.
    device: where the results are; None: not looked at. repeats: whether it may be run again on the
    same arguments.
    """

    env: OpEnv
    name: str
    outputs: Sequence[TensorType]
    written: Sequence[int]
    device: Device | None = None
    repeats: bool = False

    def broken(self, found: str, expected: str, hint: str | None = None) -> BackendError:
        """Return the error to raise for a promise that is broken."""
        site = self.env.site
        at = "" if site is None else f", at {site}"
        return BackendError(
            f"the kernel {self.env.dialect_op or self.env.site}{at} breaks its promise",
            op=self.name,
            expected=expected,
            found=found,
            hint=hint,
        )

    def require_results(self, result: Any, given: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Return what a kernel returned as a tuple, if it is what the type function says, in memory
        of its own; ``given``: its arguments.
        """
        outs = results_of(result)
        if len(outs) != len(self.outputs):
            none = "no result" if result is None else f"{len(outs)} results"
            hint = "a kernel without a parameter out returns its results" if not outs else None
            raise self.broken(none, f"{len(self.outputs)} results", hint)
        for place, out in enumerate(outs):
            self.require_type(place, out)
            fresh = f"a fresh {self.outputs[place]}"
            hint = "a kernel returns a copy (x.clone()) of what it is given"
            for i, tensor in enumerate(given):
                if _shares_storage(out, tensor):
                    found = f"result {place} shares the memory of argument {i}"
                    raise self.broken(found, fresh, hint)
            if any(overlap(out, other) for other in outs[:place]):
                raise self.broken(f"result {place} shares the memory of another", fresh, hint)
        return outs

    def require_type(self, place: int, out: Any) -> None:
        """Raise BackendError unless a result has the type that the type function says."""
        wanted = self.outputs[place]
        if not isinstance(out, torch.Tensor):
            what = f"result {place} is a {type(out).__name__}"
            raise self.broken(what, f"a compact {wanted}, a tensor of torch")
        try:
            key = key_of(out)
        except MetaError as error:
            raise self.broken(f"result {place}: {error.what}", f"a compact {wanted}") from None
        found = array_type(key)
        dims = zip(found.shape, wanted.shape, strict=False)
        same = found.ndim == wanted.ndim and all(w in (f, None) for f, w in _known(dims))
        if not same or found.dtype != wanted.dtype or not key.compact:
            hint = None
            if same and found.dtype == wanted.dtype:
                hint = "a kernel that returns x.contiguous(), or kernel(..., strided=False), which "
                hint += "is given compact arguments"
            raise self.broken(f"{found} with strides {out.stride()}", f"a compact {wanted}", hint)
        if self.device is not None and key.device != self.device:
            raise self.broken(f"{found} on {key.device}", f"a {wanted} on {self.device}")

    def require_filled(self, outs: Sequence[torch.Tensor], places: Sequence[Any]) -> None:
        """Raise BackendError unless the results that a kernel was given are where they were."""
        for i, (out, place) in enumerate(zip(outs, places, strict=True)):
            self.require_type(i, out)
            if _location(out) != place:
                found = f"result {i} lies elsewhere"
                raise self.broken(found, "results where they were asked for")


def _known(dims: Any) -> Iterator[tuple[Any, Any]]:
    """Iterate over pairs of extents, the second None where it is no number."""
    return ((f, w if isinstance(w, int) else None) for f, w in dims)


def with_contract_checked(env: OpEnv, call: CallValues) -> Kernel:
    """Return the kernel of an eager call, which raises BackendError for a promise that it breaks.
    It takes what `OpEnv.run` takes.
    """
    return contract_checked(
        env, call.op.name, call.outputs, written_positions(call), call.out_device
    )


def contract_checked(
    env: OpEnv,
    name: str,
    outputs: Sequence[TensorType],
    written: Sequence[int],
    device: Device | None = None,
) -> Kernel:
    """Return a kernel that makes ``outputs`` and writes the arguments at the positions ``written``,
    as `with_contract_checked` does. ``name``: of its operator.
    """
    contract = KernelContract(env, name, outputs, written, device)
    state = env.state if config.get("META_CHECK_ACCESS") else None
    checks = partial(_checked_run, contract, env.run, every=True, state=state)
    return lambda *values: checks(values)


class FirstRun:
    """A kernel of somebody else, which is checked in its first run, and from then on is called.

    Attributes
    ----------
    run: what a call runs. after: functions that are given the kernel when it has kept its contract,
    so that they need not call it through this object.
    """

    __slots__ = ("after", "run")
    run: Kernel

    def __init__(self, contract: KernelContract, *after: Callable[[Kernel], None]) -> None:
        kernel, self.after = contract.env.run, list(after)

        def first(*values: Any) -> Any:
            if any(isinstance(v, torch.Tensor) and v.device.type not in KINDS for v in values):
                self.run = kernel  # a device of its own may have no operator to look with
                return kernel(*values)
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                return kernel(*values)  # nothing can be looked at; the next run is the first one
            result = _checked_run(contract, kernel, values)
            self.run = kernel
            for settle in self.after:
                settle(kernel)
            self.after.clear()
            return result

        self.run = first

    def __call__(self, *values: Any) -> Any:
        return self.run(*values)


def is_of_others(env: OpEnv) -> bool:
    """Whether a kernel was registered outside of this package, whose own are tested."""
    return env.site is not None and not env.site.is_own


def first_run(env: OpEnv, call: CallValues, *after: Callable[[Kernel], None]) -> FirstRun:
    """Return the kernel of a call, to be checked in its first run, and then given to ``after``."""
    repeats = _repeats(call.op) and env.state is None
    outputs, written = call.outputs, written_positions(call)
    return FirstRun(
        KernelContract(env, call.op.name, outputs, written, call.out_device, repeats), *after
    )


def first_fused_run(env: OpEnv, function: Function, device: Device) -> FirstRun:
    """Return the kernel of a fused function, to be checked in its first run."""
    result, written = function.result_type, set(written_parameters(function))
    types = result.fields if isinstance(result, TupleType) else (result,)
    outputs = [t for t in types if isinstance(t, TensorType)]
    # By argument, a tuple being several, whether it is written.
    flat = [i in written for i, p in enumerate(function.params) for _ in _leaves(p.type)]
    ops = [called_op(b.value) for b in bindings(function)]
    repeats = all(op is None or _repeats(op) for op in ops)
    places = tuple(i for i, is_written in enumerate(flat) if is_written)
    name = str(function.attrs.get(KERNEL, function.attrs[FUSED]))
    return FirstRun(KernelContract(env, name, outputs, places, device, repeats))


def _leaves(type_: Type | None) -> list[Type]:
    return [] if type_ is None else leaf_types(type_)


def _repeats(op: Op) -> bool:
    """Whether two calls of an operator in a row do what one does."""
    return not (op.has_effect or op.random or op.collective)


def _checked_run(
    contract: KernelContract,
    kernel: Kernel,
    values: Sequence[Any],
    *,
    every: bool = False,
    state: Any = None,
) -> Any:
    """Run a kernel; BackendError for a contract that it breaks. ``every``: all arguments are
    copied to be compared, whatever it takes. ``state``: that of the kernel, if it is looked at.
    """
    allocates = contract.env.allocates
    count = len(values) if allocates else len(values) - len(contract.outputs)
    given, outs = values[:count], values[count:]
    # What lies in memory that is written may change with it.
    changing = [values[w] for w in contract.written] + list(outs)
    unchanged = [
        (i, v, None if every else _version(v, changing), _copy(v, every))
        for i, v in enumerate(given)
        if isinstance(v, torch.Tensor) and v.numel() and not any(overlap(v, c) for c in changing)
    ]
    # In a program a result may lie where an argument is, which is needed.
    apart = [i for i, out in enumerate(outs) if not any(overlap(out, v) for v in given)]
    for i in apart:
        _spoil(outs[i])
    locations = list(map(_location, outs))
    tensors = [] if state is None else state.tensors()
    tensors_before = [t.clone() for t in tensors]
    result = kernel(*values)
    if not all(map(same_bits, tensors, tensors_before)):
        raise contract.broken("a tensor of the state was written", "a state as init made it")
    if allocates:
        contract.require_results(result, given)
    contract.require_filled(outs, locations)
    unfilled = {i: mask for i in apart if (mask := _unfilled(outs[i])) is not None}
    for i, now, version, then in unchanged:
        written = version is not None and now._version != version
        if written or (then is not None and not same_bits(now, then)):
            raise contract.broken(f"argument {i} was written", "arguments as they were")
    repeats = contract.repeats and len(apart) == len(outs)
    if unfilled and repeats:  # a kernel may mean these values
        for i in apart:
            _spoil(outs[i], again=True)
        result = kernel(*values)
        for i, before in unfilled.items():
            again = _unfilled(outs[i], again=True)
            unfilled[i] = torch.zeros_like(before) if again is None else before.logical_and_(again)
    for i, mask in unfilled.items():
        number = int(mask.sum())
        if number and (repeats or outs[i].dtype in _UNFILLED):
            raise _unfilled_error(contract, i, number, outs[i])
    return result


def _version(tensor: torch.Tensor, written: Sequence[torch.Tensor]) -> int | None:
    """Return how often torch saw a tensor written; None where that says nothing: tensors in one
    memory, as in a program's arena, are counted together.
    """
    storage = tensor.untyped_storage().data_ptr()
    if tensor.is_inference() or any(w.untyped_storage().data_ptr() == storage for w in written):
        return None
    return tensor._version


def _unfilled_error(
    contract: KernelContract, place: int, left: int, out: torch.Tensor
) -> BackendError:
    found = f"{left} of {out.numel()} elements of result {place} are as they were"
    hint = "a kernel stores every element of its results; memory that is meant to be as it was is "
    hint += "returned (torch.empty), by a kernel without a parameter out"
    return contract.broken(found, "results that are filled", hint)


def _copy(tensor: torch.Tensor, every: bool) -> torch.Tensor | None:
    return tensor.clone() if every or tensor.numel() * tensor.itemsize <= COPIED else None


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one type have the same bits, NaN included."""
    return torch.equal(_bytes(a.contiguous()), _bytes(b.contiguous()))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1)  # one element is compact, whatever its stride says
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8)


def _location(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape)


_UNFILLED = {
    torch.bool: (torch.uint8, 0x5A, 0x5C),
    torch.float16: (torch.int16, 0x7E5A, 0x7E5C),
    torch.bfloat16: (torch.int16, 0x7FDA, 0x7FDC),
    torch.float32: (torch.int32, 0x7FDA5A5A, 0x7FDC5C5C),
    torch.float64: (torch.int64, 0x7FFA5A5A5A5A5A5A, 0x7FFC5C5C5C5C5C5C),
}
"""By dtype the bits of what no kernel means, a NaN, or a bool that is neither of the two, and the
integers that have them; others for a second run."""
_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def _pattern(dtype: torch.dtype, again: bool) -> tuple[torch.dtype, int]:
    """Return the integers as which results of a dtype are seen, and what is written to them."""
    if dtype in _UNFILLED:
        bits, *numbers = _UNFILLED[dtype]
        return bits, numbers[again]
    bits = _OF_SIZE.get(dtype.itemsize, torch.int64)
    return bits, int.from_bytes((b"\x5c" if again else b"\x5a") * bits.itemsize, "little")


def _spoil(out: torch.Tensor, again: bool = False) -> None:
    """Write what no kernel means to a tensor that is about to be filled."""
    if out.numel():
        bits, number = _pattern(out.dtype, again)
        out.detach().reshape(-1).view(bits).fill_(number)


def _unfilled(out: torch.Tensor, again: bool = False) -> torch.Tensor | None:
    """Return which elements, or numbers of complex ones, are still what `_spoil` wrote, as a mask
    of one dimension; None if none are.
    """
    bits, number = _pattern(out.dtype, again)
    flat = out.detach().reshape(-1).view(bits)
    starts = range(0, flat.numel(), LOOKED_AT)
    if not any(bool((flat[at : at + LOOKED_AT] == number).any()) for at in starts):
        return None
    return flat == number


def _shares_storage(result: torch.Tensor, argument: Any) -> bool:
    """Whether a result lies anywhere in the storage of an argument."""
    span = address_span(result)
    if span is None or not isinstance(argument, torch.Tensor) or not argument.numel():
        return False
    storage = argument.untyped_storage()
    first = storage.data_ptr()
    return span[0] < first + storage.nbytes() and first < span[1]


def overlap(a: Any, b: Any) -> bool:
    """Whether the memory from a tensor's first to its last element meets another's."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    one, other = address_span(a), address_span(b)
    return bool(one and other and one[0] < other[1] and other[0] < one[1])


def results_of(result: Any) -> tuple[Any, ...]:
    """Return what a kernel returned as a tuple."""
    return result if isinstance(result, tuple) else () if result is None else (result,)
