"""META_VERIFY: a compiled program's values, compared with the interpreter's at its first call.

The interpreter runs the program as it was traced, one operator after the other, on copies of the
arguments and with the random keys that the compiled program drew. What differs by more than
rounding, as it moves the results of this program, is an error that names the first instruction
whose kernel is wrong on what it was given, else the pass after which the program means something
else, else the instruction whose argument was overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from meta.base import config
from meta.base.call_context import use
from meta.base.dtype import FLOATS, TO_TORCH
from meta.base.errors import ArgumentError, IRError
from meta.base.registry import OPERATORS
from meta.dialect import prefer
from meta.dialect.core import IN_PLACE
from meta.ir import Dim, Module, TensorType, bindings
from meta.op.core import tree
from meta.op.core.op import Op, by_schema
from meta.passes import PassRecord
from meta.runtime import random
from meta.runtime.ndarray import ndarray
from meta.runtime.no_gradient import no_grad
from meta.vm.compiler.code import KernelRef
from meta.vm.compiler.kernels import BoundProgram, concrete_args
from meta.vm.compiler.launch_sites import LaunchSite
from meta.vm.compiler.static_sizes import with_extents
from meta.vm.eager.kernel_contracts import overlap, same_bits
from meta.vm.run.interpreter import run_module
from meta.vm.run.observers import observed, operands

CLOSE = {"float16": 1e-2, "bfloat16": 8e-2, "float32": 1e-4, "float64": 1e-11}
"""How far results may be apart, relative to the number and to most of those beside it."""
MOVED = 32
"""How many times as far as rounding the arguments moves them, if that is farther."""


@dataclass(frozen=True, slots=True)
class ComparedProgram:
    """What is compared: the program as it runs, and what it was made of.

    history: its passes; the first record is the traced program. Empty: the final module is all that
    is known of it. extents: by name, of this call's symbolic dimensions.
    """

    bound: BoundProgram
    history: Sequence[PassRecord]
    extents: Mapping[str, Dim]


def verified(
    program: ComparedProgram,
    arguments: Sequence[torch.Tensor],
    prepared: Sequence[torch.Tensor],
    written: Collection[int],
    run: Callable[[], Any],
) -> Any:
    """Return ``run()``, the result of the compiled program on ``arguments`` (inputs and arrays);
    IRError if it, or what is in the arguments afterwards, is not what the interpreter has.

    prepared: what was computed of the arrays beforehand. written: the arguments that are written.
    """
    before = copies(arguments)
    with random.record_keys() as keys:
        result = run()
    traced = program.history[0].module if program.history else program.bound.module()
    reference = _Reference(program.extents, before, list(prepared), keys)
    try:
        expected = reference.run(traced)
    except ArgumentError:
        if not keys:
            raise
        # A pass removed a draw that nobody needs: the others have these keys in the final program.
        traced = program.bound.module()
        expected = reference.run(traced)
    found = [a.tensor for a in _arrays(result)] + [arguments[i] for i in written]
    count = len(expected) - len(arguments)
    places = [*range(count), *(count + i for i in written)]
    wanted = [expected[i] for i in places]

    def moved() -> list[list[torch.Tensor]]:
        return [[again[i] for i in places] for again in reference.moved(traced)]

    reason = difference(found, wanted, moved)
    if reason is None:
        return result
    observed_run(program, [*copies(before), *prepared], keys)
    raise IRError(
        "the values of a compiled program differ from the interpreter's",
        expected="equal values, but for rounding",
        found=f"{reason}; each kernel is right on what it was given",
        hint=_blamed(program, reference, places, wanted)
        or "no pass and no kernel differs: a fault of the memory plan, or of linking",
    )


@dataclass(frozen=True, slots=True)
class _Reference:
    """Runs modules in the interpreter, on the same arguments and keys each time."""

    extents: Mapping[str, Dim]
    arguments: Sequence[torch.Tensor]
    prepared: list[torch.Tensor]
    keys: list[int]

    def run(self, module: Module, seed: int | None = None) -> list[torch.Tensor]:
        """Return results and arguments; ``seed``: the arguments are first moved by a rounding."""
        given = copies(self.arguments)
        if seed is not None:
            _move(given, seed, _narrowest(module))
        extra = len(module.main.params) - len(given)
        arrays = [ndarray(t) for t in (*given, *self.prepared[:extra])]
        result = interpreted(with_extents(module, self.extents), arrays, self.keys)
        return [*(a.tensor for a in _arrays(result)), *given]

    def moved(self, module: Module) -> Iterator[list[torch.Tensor]]:
        """Yield what `run` returns for arguments moved by a rounding, several times."""
        for seed in range(3):
            yield self.run(module, seed)


def interpreted(module: Module, arrays: Sequence[Any], keys: Sequence[int]) -> Any:
    """Return what the interpreter makes of a module, with these random keys."""
    with no_grad(), use(None), random.replay_keys(keys), config.override(META_VERIFY=False):
        return run_module(module, arrays)


def observed_run(
    program: ComparedProgram, arguments: list[torch.Tensor], keys: Sequence[int]
) -> None:
    """Run a program with each kernel compared with its operators one by one; IRError at the first
    that differs, or that is given what another value has overwritten.
    """
    made: dict[tuple[str, int], tuple[torch.Tensor, LaunchSite]] = {}

    def observe(site: LaunchSite, run: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        i = site.instruction
        for register, value in zip(i.args, values, strict=False):
            known = made.get((site.function, register))
            if known is not None and _overwritten(known[0], value):
                raise IRError(
                    f"an argument of {_name(site)} was overwritten before it was read",
                    op=site.operator,
                    found=f"register {register}, which {_name(known[1])} made",
                    hint="this is a fault of the memory plan; compile with opt_level=0, or within "
                    "PassContext(disabled=['inplace_update'])",
                    span=site.span,
                )
        _require_apart(program, site, values)
        given = [v.clone() if isinstance(v, torch.Tensor) else v for v in values[: len(i.args)]]
        extents = list(values[len(i.args) :]) if not i.fills else []
        with random.record_keys() as drawn:
            result = run(*values)
        outs = operands(site, values, result)[1]
        _require_right(program, site, given, extents, list(outs), drawn)
        own = (*i.outs, *(r for r in i.args if r in i.written))
        for register, out in zip(own, outs, strict=True):
            made[site.function, register] = out.clone(), site
        return result

    with random.replay_keys(keys):
        observed(program.bound, observe).run(arguments)


def _require_apart(program: ComparedProgram, site: LaunchSite, values: Sequence[Any]) -> None:
    """Raise IRError if a kernel that may not is to write its result over an argument."""
    i = site.instruction
    is_fused = not isinstance(site.kernel, KernelRef)
    fused = program.bound.module().functions[site.operator] if is_fused else None
    if fused is not None and IN_PLACE in fused.attrs:
        return
    for register, value in zip(i.args, values, strict=False):
        if register not in i.written and any(overlap(value, o) for o in values[len(i.args) :]):
            raise IRError(
                f"{_name(site)} is to write its result over an argument",
                op=site.operator,
                found=f"register {register}",
                hint="this is a fault of the memory plan; compile with opt_level=0",
                span=site.span,
            )


def _require_right(
    program: ComparedProgram,
    site: LaunchSite,
    given: list[Any],
    extents: list[Any],
    outs: list[torch.Tensor],
    keys: list[int],
) -> None:
    """Raise IRError if a kernel made something else of what it was given than its operators."""

    def expected(seed: int | None = None) -> list[torch.Tensor]:
        values = [v.clone() if isinstance(v, torch.Tensor) else v for v in given]
        if seed is not None:
            _move([v for v in values if isinstance(v, torch.Tensor)], seed, None)
        arrays = [ndarray(v) if isinstance(v, torch.Tensor) else v for v in values]
        written = [a.tensor for r, a in zip(i.args, arrays, strict=True) if r in i.written]
        if isinstance(site.kernel, KernelRef):
            op = OPERATORS[site.operator]
            args = _arguments(site.kernel, op, arrays, extents)
            # Alone, an operator's kernel is the interpreter's: another backend is independent.
            with no_grad(), use(None), random.replay_keys(keys), prefer("torch"):
                result = by_schema(op)(*args)
        else:
            module = program.bound.module()
            main = module.functions[site.operator]
            inner = module.with_functions({**module.functions, "main": main})
            result = interpreted(with_extents(inner, program.extents), arrays, keys)
        return [*(a.tensor for a in _arrays(result)[: len(i.outs)]), *written]

    i = site.instruction
    reason = difference(outs, expected(), lambda: (expected(seed) for seed in range(3)))
    if reason is not None:
        raise IRError(
            f"the kernel {site.kernel.name} of a compiled program is wrong: its operators, one by "
            "one, have other values",
            op=site.operator,
            expected="equal values, but for rounding",
            found=f"{reason}, in instruction {site.number} of @{site.function}",
            hint="this is a fault of the kernel: prefer another dialect (meta.dialect.prefer), or "
            "compile with a lower opt_level",
            span=site.span,
        )


def _blamed(
    program: ComparedProgram, reference: _Reference, places: list[int], wanted: list[torch.Tensor]
) -> str | None:
    """Return which pass made another program of it, by its values; None if none did."""
    for record in program.history[1:]:
        found = reference.run(record.module)
        if difference([found[p] for p in places], wanted, lambda: ()) is not None:
            return (
                f"the pass {record.name} made a program of other values: compile within "
                f"PassContext(disabled=[{record.name!r}])"
            )
    return None


def difference(
    found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], moved: Callable[[], Any]
) -> str | None:
    """Return how results differ by more than rounding explains; None if they do not.

    moved: returns what is expected of arguments that were moved by a rounding, several times.
    """
    again: list[list[torch.Tensor]] | None = None
    for place, (a, b) in enumerate(zip(found, expected, strict=True)):
        a, b = a.detach().cpu(), b.detach().cpu()
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {place} is {tuple(a.shape)} {a.dtype}, not {tuple(b.shape)} {b.dtype}"
        wrong = _apart(a, b)
        if not wrong.any():
            continue
        again = list(moved()) if again is None else again
        others = [other[place].detach().cpu() for other in again]
        if others and _explained(a, b, wrong, others):
            continue
        at = tuple(wrong.nonzero()[0].tolist())
        return (
            f"{int(wrong.sum())} of {a.numel()} elements of result {place} differ, "
            f"{a[at].item()} and not {b[at].item()} at {list(at)}"
        )
    return None


def _apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return which elements of two tensors of one type differ by more than a dtype's rounding."""
    if not a.is_floating_point():
        return a != b
    x, y = a.double(), b.double()
    same = (x == y) | (x.isnan() & y.isnan())
    close = CLOSE.get(str(a.dtype).removeprefix("torch."), 0.5)
    return ~(same | (y.isfinite() & ((x - y).abs() <= close * (y.abs() + _usual(y)))))


def _usual(values: torch.Tensor) -> float:
    """Return the size of most of the finite numbers."""
    finite = values[values.isfinite()].abs()
    return float(finite.median()) if finite.numel() else 0.0


def _explained(
    a: torch.Tensor, b: torch.Tensor, wrong: torch.Tensor, others: list[torch.Tensor]
) -> bool:
    """Whether rounding the arguments moves the result about as far."""
    if not a.is_floating_point():
        return int(wrong.sum()) <= 4 * max(int((o != b).sum()) for o in others)
    found = (a.double() - b.double()).abs()[wrong]
    far = torch.stack([(o.double() - b.double()).abs() for o in others]).amax(0)
    # An element that becomes infinite by a rounding may be anything.
    far = far.nan_to_num(torch.inf, torch.inf).clamp(min=_usual(far))[wrong]
    return bool((found.nan_to_num(torch.inf) <= MOVED * far).all())


def _move(tensors: Sequence[torch.Tensor], seed: int, narrowest: torch.dtype | None) -> None:
    """Move floats by the rounding of their dtype, or of a narrower one."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in tensors:
        if not tensor.is_floating_point() or tensor.itemsize == 1:
            continue
        epsilon = torch.finfo(tensor.dtype).eps
        if narrowest is not None:
            epsilon = max(epsilon, torch.finfo(narrowest).eps)
        signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
        tensor.mul_(1 + signs.to(tensor.device, tensor.dtype) * epsilon)


def _narrowest(module: Module) -> torch.dtype | None:
    """Return the float dtype of the fewest digits in which a program computes."""
    dtypes = {
        b.var.type.dtype
        for f in module.functions.values()
        for b in bindings(f)
        if isinstance(b.var.type, TensorType) and b.var.type.dtype in FLOATS
    }
    found = [TO_TORCH[d] for d in dtypes]
    return max(found, key=lambda d: torch.finfo(d).eps, default=None)


def copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return copies, of which those share memory that do so among the tensors."""
    storages: dict[int, Any] = {}
    result = []
    for tensor in tensors:
        storage: Any = tensor.untyped_storage()
        own = storages.setdefault(storage.data_ptr(), storage.clone()) if len(storage) else storage
        place = tensor.storage_offset(), tensor.shape, tensor.stride()
        result.append(torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(own, *place))
    return result


def _arguments(kernel: KernelRef, op: Op, values: list[Any], extents: list[Any]) -> list[Any]:
    """Return the arguments of an operator call from what its kernel is given."""
    rest = iter(values)
    shapes = (*(v.shape for v in values if isinstance(v, ndarray)), *extents)
    args: list[Any] = []
    for slot, value in zip(op.schema.slots, concrete_args(op, kernel, shapes), strict=True):
        if slot.kind == "attribute" or value is None:
            args.append(value)
        elif slot.kind == "tensors":
            args.append(tuple(next(rest) for _ in value))
        else:
            args.append(next(rest))
    return args


def _overwritten(then: torch.Tensor, now: Any) -> bool:
    fits = isinstance(now, torch.Tensor) and now.shape == then.shape and now.dtype == then.dtype
    return fits and not same_bits(now, then)


def _name(site: LaunchSite) -> str:
    where = f" at {site.span}" if site.span else ""
    return f"instruction {site.number} ({site.kernel.name}{where})"


def _arrays(value: Any) -> list[ndarray]:
    return [a for a in tree.flatten(value)[0] if isinstance(a, ndarray)]
