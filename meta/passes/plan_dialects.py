"""Choosing the kernels of a whole program together, by what was measured of them.

`dispatch` chooses the kernel of each call by itself. A plan also counts what a choice does to its
neighbours. `plan_model` has the model and the search; here a program becomes steps, and a plan
becomes a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from meta.base.bounded_cache import bounded_insert
from meta.base.device import Device
from meta.cost.chooser import chooses, how_in_programs, known_race
from meta.cost.plan_search import WIDTH, Link, Option, Step, Steps
from meta.cost.record import contenders, key_of
from meta.cost.roofline import Peaks, peaks_of
from meta.dialect.core import FUSED, DialectOp, answers, candidates, compiling
from meta.dialect.core.dispatch import answer, ready
from meta.dialect.core.ir_calls import has_effect, kernel_call
from meta.dialect.core.preference import DECISIONS, current
from meta.ir import (
    Binding,
    Block,
    Call,
    Expr,
    GlobalVar,
    Module,
    TensorType,
    Type,
    Var,
    operands,
    type_bytes,
)
from meta.ir.visit import uses
from meta.op.core import CallValues
from meta.passes.fusion_groups import fusion_ranks
from meta.passes.manager import Pass
from meta.passes.profitability import cheaper
from meta.passes.rewrite import map_functions, with_inner_blocks, with_value


def plan_dialects(
    module: Module, *, device: Device, width: int = WIDTH, lower: Pass | None = None
) -> Module:
    """Name the kernels of calls whose candidates were all measured, planned together.

    Against the times of the kernels stand the bytes of a result that is written and read back
    because its reader is not in the same kernel, and what it takes to leave a CUDA graph for a
    kernel that none can hold; both at the peaks of the device (`peaks`). So a kernel stays that is
    slower by itself, if a faster one would not fuse with what is around it.

    Only a candidate that beats the one that priority chooses, by the rule of `costs.choose`, takes
    part. A call of which that is not known stays as it is, and so does the whole program where
    nothing was measured, or META_TUNE is off. Of equal layers, calls of one operator with equal
    types, attributes and neighbours, all have the same kernel. No plan costs more, in this model,
    than the choices of priority, and the same costs give the same plan.

    What fusion saves is an estimate, until the kernels that fusion makes were measured: then the
    program with the choices of priority, or with what is fastest by itself, is taken instead if it
    is faster so (`cheaper`).

    width: how many unfinished plans are kept at a time; see `Steps.plan`. lower: the passes that
    follow.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> program = parse("func @main(%x: float32[2]) -> float32[2] {\\n  return %x\\n}")
    >>> meta.passes.plan_dialects(program, device=CPU) is program
    True
    """
    if not chooses(device):
        return module
    planner = Planner(device)

    def with_plan(plan: Plan) -> Module:
        return map_functions(
            module,
            lambda f: f if FUSED in f.attrs else replace(f, body=planner.block(f.body, plan)),
        )

    with compiling(False):  # most of what is asked for is not taken
        planned = with_plan(lambda steps: steps.plan(width))
        others = with_plan(Steps.first), with_plan(Steps.fastest)
    return cheaper(planned, others, device=device, lower=lower)


Plan = Callable[[Steps], Sequence[int]]
"""What chooses an option for each step."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of a call that take part, that of priority first, and what each one is as an
    option of a step. There are no ``ops`` where the call stays as it is.
    """

    call: CallValues
    options: tuple[Option, ...]
    ops: tuple[DialectOp, ...] = ()


_UNKNOWN = object()


class Planner:
    """Makes steps of the blocks of a program, and blocks of plans."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._preference, self._how = current(), how_in_programs(device)
        self._peaks: Peaks = peaks_of(device)

    def block(self, block: Block, plan: Plan) -> Block:
        """Return a block, and each block in it, with the kernels that are planned for it."""
        kernels = self.kernels(block)
        picks = dict(zip(kernels, plan(self.steps(block, kernels)), strict=True))
        made = []
        for number, binding in enumerate(block.bindings):
            if number in kernels and kernels[number].ops:
                planned = kernels[number].ops[picks[number]]
                assert isinstance(binding.value, Call)
                binding = with_value(binding, Call(planned, binding.value.args))
            made.append(with_inner_blocks(binding, lambda inner: self.block(inner, plan)))
        return Block(tuple(made), block.result)

    def kernels(self, block: Block) -> dict[int, Kernels]:
        """Return the kernels of the calls of a block, by their numbers."""
        found = ((i, self._kernels(b)) for i, b in enumerate(block.bindings))
        return {i: kernels for i, kernels in found if kernels is not None}

    def steps(self, block: Block, kernels: dict[int, Kernels]) -> Steps:
        """Return what there is to plan in a block."""
        return Steps(tuple(self._steps(block, kernels)), self._peaks.gap)

    def _steps(self, block: Block, kernels: dict[int, Kernels]) -> Iterator[Step]:
        """Yield a step for each call that has kernels."""
        places = {block.bindings[i].var: n for n, i in enumerate(kernels)}
        layers = _layers(block, kernels)
        readers = _counted(block)
        for number, known in kernels.items():
            read = dict.fromkeys(uses(block.bindings[number].value))
            links = tuple(
                Link(places[atom], self._saved(atom, readers[atom]))
                for atom in read
                if isinstance(atom, Var) and atom in places
            )
            yield Step(known.options, links, layers[number])

    def _saved(self, atom: Var, readers: int) -> float:
        """Return what it takes to read a result back, and to write it if there is one reader, and
        to launch another kernel.
        """
        moved = type_bytes(atom.type) * (2 if readers == 1 else 1)
        return self._peaks.moving(moved) + self._peaks.launch

    def _kernels(self, binding: Binding) -> Kernels | None:
        """Return the kernels of an operator call, None for what runs none, or nobody accepts."""
        value = binding.value
        call = kernel_call(value, self._device)
        if call is None or not isinstance(value, Call):
            return None
        fusable = _is_fusable(binding.var.type) and not has_effect(binding)
        stated = value.callee if isinstance(value.callee, DialectOp) else None
        # Programs are compared, and layers are alike: what was asked once is forgotten with what
        # dispatch decided, as soon as something else is measured.
        key = Kernels, key_of(call, self._device, self._how), self._how, stated, fusable
        decided = self._preference.envs
        found: Any = decided.get(key, _UNKNOWN)
        if found is _UNKNOWN:
            found = bounded_insert(decided, key, self._of_call(call, stated, fusable), DECISIONS)
        return None if found is None else cast(Kernels, found)

    def _of_call(self, call: CallValues, stated: DialectOp | None, fusable: bool) -> Kernels | None:
        """Return the kernels of a call; ``stated``: the one that the program names."""
        found = None if stated is not None else self._measured(call, fusable)
        if found is not None:
            return found
        if stated is None:
            taken = (a.env for a in answers(call, self._preference) if a.env is not None)
            env = next(taken, None)
            stated = None if env is None else env.dialect_op
        # Its time is the same in every plan; that it fuses is not.
        return None if stated is None else Kernels(call, (_option(stated, 0.0, fusable),))

    def _measured(self, call: CallValues, fusable: bool) -> Kernels | None:
        """Return the kernels that take part, None unless the race of a call is known.

        A call that keeps state is left to dispatch, which lets its gradient run where it runs.
        """
        if any(one.init is not None for one in call.op.aspects.dialect_ops):
            return None
        race = known_race(call, self._device, self._how)
        if race is None:
            return None
        able = candidates(call.op, self._preference, call.device)
        by_name = ready(able, call, self._preference)
        ops: list[DialectOp] = []
        options: list[Option] = []
        preferred = self._preference.first_of(call.op.name)
        for cost in contenders(race.costs, list(by_name), preferred):
            env = answer(by_name[cost.dialect].plain, call, self._preference, cost.config).env
            if env is None and not ops:
                return None  # what priority chose then does not take the call any more
            if env is not None and env.dialect_op is not None:
                breaks = self._how == "graph" and bool(env.not_capturable)
                ops.append(env.dialect_op)
                options.append(_option(ops[-1], cost.median, fusable, breaks))
        return Kernels(call, tuple(options), tuple(ops)) if ops else None


def _option(op: DialectOp, time: float, fusable: bool, breaks: bool = False) -> Option:
    ranks = fusion_ranks(op) if fusable else None
    family, own, read = ("", 0, 0) if ranks is None else (op.dialect.name, *ranks)
    return Option(op.name, time, family, own, read, breaks)


def _is_fusable(type_: Type | None) -> bool:
    """Whether a result may be one of a fused kernel."""
    return isinstance(type_, TensorType) and type_.is_static and type_.size > 0


def _counted(block: Block) -> dict[Expr, int]:
    """Return how many bindings read each atom; the result of the block is a reader, too."""
    counts: dict[Expr, int] = {}
    for read in (*(uses(b.value) for b in block.bindings), operands(block.result)):
        for atom in dict.fromkeys(read):
            counts[atom] = counts.get(atom, 0) + 1
    return counts


def _layers(block: Block, kernels: dict[int, Kernels]) -> dict[int, object]:
    """Return by the number of a call what it has in common with those of equal layers: itself with
    its types and attributes, and those that it reads and that read it.
    """
    texts: dict[Expr, str] = {}
    readers: dict[Expr, set[str]] = {}
    for number, binding in enumerate(block.bindings):
        text = str(kernels[number].call) if number in kernels else _named(binding)
        texts[binding.var] = text
        for atom in uses(binding.value):
            readers.setdefault(atom, set()).add(text)
    found: dict[int, object] = {}
    for number in kernels:
        binding = block.bindings[number]
        read = tuple(texts.get(atom, "") for atom in uses(binding.value))
        found[number] = texts[binding.var], read, tuple(sorted(readers.get(binding.var, ())))
    return found


def _named(binding: Binding) -> str:
    """Return what a binding is, as a neighbour."""
    value = binding.value
    callee = value.callee if isinstance(value, Call) else None
    name = getattr(callee, "name", "") if not isinstance(callee, GlobalVar) else "function"
    return f"{type(value).__name__} {name} {binding.var.type}"
