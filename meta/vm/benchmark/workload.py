"""What is benchmarked, and on what: `Workload`, a call of an operator or a fused function in the
terms that measuring needs, its arguments, and copies of them.

Floats are normal; where the kernel that priority chooses makes something of them that is not
finite, or refuses them, numbers between 0.1 and 0.9 are tried, then between 1.1 and 2 (`FLOATS`).
Integers that index are in range, others are from 1 to 7. An operator that takes only some values,
as `cholesky` does, is given arrays by the caller, whose values count.

**Copies.** A kernel that is called again and again on the same memory finds it in the cache, which
it does not in a program. So the calls of a batch take copies of all arguments and results in turn.
On CUDA there are so many that together they are at least twice as large as the second-level cache,
but at most `MOST_COPIES`: what is so small that these fit lies in the cache in a program, too, as
it was written just before. On the CPU there are copies of what takes a quarter of `CPU_CACHE`
or more; smaller arguments stay in the cache, where a program finds what it has just written. (To
take turns from 1 MiB on was tried on a shared machine: races took ten times as long, 3 s, and an
addition's times spread by 40 % instead of 7.) What a kernel writes in place has a copy for each
call of a batch, and its values are put back between batches, which is not timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from meta.base.device import Device
from meta.base.dtype import FROM_TORCH, TO_TORCH
from meta.base.errors import ArgumentError
from meta.dialect.core import FUSED, IN_PLACE
from meta.dialect.core.ir_calls import arg_types, base_op
from meta.ir import Call, Function, Module, TensorType, Tuple, TupleType, Var, type_bytes
from meta.op.core.call import CallValues, runtime_args, written_positions
from meta.passes.alias_analysis import AliasSummaries
from meta.runtime.ndarray import ndarray
from meta.runtime.out_of_memory import free_bytes
from meta.vm.eager.example_calls import ExampleCall
from meta.vm.eager.launch_checks import Bounds, bounds_of, looker

FLOATS = ("normal", "below one", "above one")
"""Kinds of random floats, in the order in which they are tried."""
MOST_COPIES = 64
CPU_CACHE = 32 << 20
"""Bytes that count as the share which one program has of the CPU's last cache."""
MOST_BYTES = 1 << 30
"""Bytes of all copies, unless one takes more; nor do they take more than a quarter of what is
free."""
_SEED = 20  # any: the same arguments in each process


@dataclass(frozen=True, slots=True)
class Workload:
    """What is measured.

    Attributes
    ----------
    what: a `CallValues` or a `Function`. given: of a call, its arguments as `ExampleCall` has them.
    name, title: of the operator, or of the dialect that runs the function; and with its types.
    values: what a kernel is given, as `OpEnv.run` takes it: an `ndarray` or a number, or the type
    of a tensor that is to be made. outputs: what it makes.
    written: the positions of what it writes. bounds: by position, what integers there index.
    random: whether equal arguments may give other results. bytes: of tensors, by their role.
    """

    what: CallValues | Function
    given: tuple[Any, ...]
    name: str
    title: str
    device: Device
    values: tuple[Any, ...]
    outputs: tuple[TensorType, ...]
    written: tuple[int, ...]
    bounds: tuple[tuple[int, Bounds], ...]
    random: bool
    bytes: dict[str, int]


def call_workload(example: ExampleCall) -> Workload:
    """Return the workload that a call of an operator is; ArgumentError unless its extents are
    numbers.
    """
    call = example.call
    op = call.op
    _require_static(list(call.tensors()), str(call))
    values = tuple(runtime_args(op, example.given))
    sizes = {"inputs": 0, "weights": 0}
    for slot, argument in zip(op.schema.slots, call.args, strict=True):
        for type_ in argument if isinstance(argument, tuple) else (argument,):
            if slot.kind != "attribute" and isinstance(type_, TensorType):
                sizes["weights" if slot.role == "weight" else "inputs"] += type_bytes(type_)
    outputs = call.outputs
    sizes["outputs"] = sum(type_bytes(t) for t in outputs if t.is_static)
    ranges = op.index_ranges(call.args)
    return Workload(
        call,
        example.given,
        op.name,
        f"{call} -> {call.out}",
        call.device,
        values,
        outputs,
        written_positions(call),
        tuple((place, bounds_of(op.name, found)) for place, found in ranges),
        op.random,
        sizes,
    )


def function_workload(function: Function, device: Device) -> Workload:
    """Return the workload that a function is which one kernel of a dialect runs."""
    types = [p.type for p in function.params]
    places = {p: i for i, p in enumerate(function.params)}
    tensors = [t for t in types if isinstance(t, TensorType)]
    result = function.result_type
    fields = result.fields if isinstance(result, TupleType) else (result,)
    outputs = tuple(f for f in fields if isinstance(f, TensorType))
    operators, bounds = [], []
    for binding in function.body.bindings:
        call = binding.value
        op = base_op(call.callee) if isinstance(call, Call) else None
        if op is None:
            continue
        assert isinstance(call, Call)
        operators.append(op)
        atoms = runtime_args(op, tuple(map(_fields, call.args)))
        for place, found in op.index_ranges(arg_types(op, call)):
            if isinstance(atoms[place], Var) and atoms[place] in places:
                bounds.append((places[atoms[place]], bounds_of(op.name, found)))
    title = f"{'+'.join(op.name for op in operators)}({', '.join(map(str, types))}) -> {result}"
    _require_static([*tensors, *outputs], title)
    attrs = {k: v for k, v in function.attrs.items() if k != IN_PLACE}
    alone = Function(function.params, function.body, result, attrs)
    written = AliasSummaries(Module({"main": alone}))["main"].written
    return Workload(
        function,
        (),
        function.attrs[FUSED],
        f"{title} on {device}",
        device,
        tuple(types),
        outputs,
        tuple(sorted(written)),
        tuple(bounds),
        any(op.random for op in operators),
        {
            "inputs": sum(map(type_bytes, tensors)),
            "weights": 0,
            "outputs": sum(map(type_bytes, outputs)),
        },
    )


def _fields(argument: Any) -> Any:
    return argument.fields if isinstance(argument, Tuple) else argument


def _require_static(types: list[TensorType], title: str) -> None:
    if not all(t.is_static for t in types):
        raise ArgumentError(
            "what is measured has extents that are numbers",
            found=title,
            hint="measure it once for each of the extents that matter",
        )


def random_arguments(workload: Workload, floats: str = FLOATS[0]) -> list[Any]:
    """Return what a kernel of the workload is given: compact tensors, and numbers.

    Arrays that the caller gave are copied as they are. Raises IndexOutOfRange for one whose
    integers index nothing.
    """
    generator = torch.Generator(str(workload.device)).manual_seed(_SEED)
    by_place: dict[int, list[Bounds]] = {}
    for place, bounds in workload.bounds:
        by_place.setdefault(place, []).append(bounds)
    values: list[Any] = []
    for place, value in enumerate(workload.values):
        if isinstance(value, ndarray):
            tensor = value.tensor.detach().clone(memory_format=torch.contiguous_format)
            for bounds in by_place.get(place, ()):
                looker(bounds)(tensor)
            values.append(tensor)
        elif isinstance(value, TensorType):
            values.append(_tensor(value, by_place.get(place, ()), floats, generator))
        else:
            values.append(value)
    return values


def gradients_like(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return what may be the gradients of results: normal; zeros for integers."""
    found = []
    for tensor in tensors:
        type_ = TensorType(tuple(tensor.shape), FROM_TORCH[tensor.dtype])
        generator = torch.Generator(tensor.device).manual_seed(_SEED + 1)
        is_real = tensor.is_floating_point() or tensor.is_complex()
        made_ = _tensor(type_, (), FLOATS[0], generator) if is_real else torch.zeros_like(tensor)
        found.append(made_)
    return found


def _tensor(
    type_: TensorType, bounds: Sequence[Bounds], floats: str, generator: torch.Generator
) -> torch.Tensor:
    """Return random values of a type."""
    dtype, shape, device = TO_TORCH[type_.dtype], type_.static_shape, generator.device
    if dtype.is_complex:
        part = torch.float64 if dtype is torch.complex128 else torch.float32
        parts = _floats((*shape, 2), part, floats, generator)
        return torch.view_as_complex(parts).to(dtype)
    if dtype.is_floating_point:
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        return _floats(shape, wide, floats, generator).to(dtype)
    low, high = (0, 2) if dtype is torch.bool else (1, 8)
    indices = torch.randint(low, high, shape, generator=generator, device=device)
    for one in (b for b in bounds if not b.nonzero):
        chosen = indices if one.axis is None else indices.select(one.axis, one.position)
        high = max(one.high, 1)
        drawn = torch.randint(0, high, chosen.shape, generator=generator, device=device)
        chosen.copy_(drawn.sort().values if one.ordered else drawn)
    return indices.to(dtype)


def _floats(
    shape: tuple[int, ...], dtype: torch.dtype, kind: str, generator: torch.Generator
) -> torch.Tensor:
    values = torch.empty(shape, dtype=dtype, device=generator.device)
    if kind == "normal":
        return values.normal_(generator=generator).clamp_(-3, 3)
    low, high = (0.1, 0.9) if kind == "below one" else (1.1, 2.0)
    return values.uniform_(low, high, generator=generator)


class Copies:
    """Copies of the arguments of one workload, and memory for its results, that calls take in turn.

    Attributes
    ----------
    values: the arguments, by copy. outs: tensors to be filled, by copy; those of a result whose
    extents are not known are left out. held: by copy, the last result; of all contenders, so that
    they need no more memory than one. count: how many copies there are.
    """

    def __init__(self, workload: Workload, values: Sequence[Any]) -> None:
        self._values, self._written = list(values), workload.written
        static = [t for t in workload.outputs if t.is_static]
        size = sum(v.nbytes for v in values if isinstance(v, torch.Tensor))
        size += sum(t.size * TO_TORCH[t.dtype].itemsize for t in static)
        self.count = copies_of(size, workload.device, writes=bool(workload.written))
        self.values = [self._copy() for _ in range(self.count)]
        self.held: list[Any] = [None] * self.count
        self.outs = [
            [
                torch.empty(t.static_shape, dtype=TO_TORCH[t.dtype], device=str(workload.device))
                for t in static
            ]
            for _ in range(self.count)
        ]

    def _copy(self) -> list[Any]:
        return [v.clone() if isinstance(v, torch.Tensor) else v for v in self._values]

    def restore(self) -> None:
        """Put back what kernels have written in place."""
        for values in self.values if self._written else ():
            for place in self._written:
                values[place].copy_(self._values[place])

    def pairs(self) -> Iterator[tuple[list[Any], list[torch.Tensor]]]:
        """Iterate over arguments and results of one copy after the other."""
        return zip(self.values, self.outs, strict=True)


def copies_of(size: int, device: Device, *, writes: bool) -> int:
    """Return how many copies of ``size`` bytes are taken in turn; see the head of this file."""
    if device.kind == "cuda":
        cache = torch.cuda.get_device_properties(device.ordinal).L2_cache_size
        count = -(-2 * cache // max(size, 1))
    else:
        count = -(-2 * CPU_CACHE // max(size, 1)) if size >= CPU_CACHE // 4 else 1
    if writes:
        count = max(count, MOST_COPIES)
    free = free_bytes(device) if count > 1 else None
    most = MOST_BYTES if free is None else min(MOST_BYTES, free // 4)
    return max(1, min(count, MOST_COPIES, most // max(size, 1)))
