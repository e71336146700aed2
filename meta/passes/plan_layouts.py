"""Which calls of a convolution network have the channels last, by what was measured of them.

`channels_last` has a rule for it, for whole functions. Here the layout is a part of a plan
(`plan_model`): a step takes what the fastest kernel of its layout takes, and between steps of two
layouts stands a transpose.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from meta import op
from meta.base.device import Device
from meta.cost.chooser import how_in_programs, known_race
from meta.cost.plan_search import Link, Option, Step, Steps
from meta.cost.record import choose
from meta.cost.roofline import peaks_of
from meta.dialect.core.dispatch import candidates, ready
from meta.dialect.core.ir_calls import called_op, kernel_call, named_args, new_call, tensor_of
from meta.dialect.core.preference import current
from meta.ir import (
    Binding,
    Call,
    Constant,
    Expr,
    Function,
    Module,
    TupleGetItem,
    Var,
    operands,
    type_bytes,
)
from meta.ir.visit import uses
from meta.passes.alias_analysis import AliasSets, AliasSummaries
from meta.passes.channels_last_rewriter import ChannelsLastRewriter
from meta.passes.channels_last_rules import CONVOLUTIONS, LAST, ImageCall, is_image, rewritten_call
from meta.passes.prepare import run_invariant

Chosen = Container[Var]


def plan_layouts(module: Module, device: Device) -> frozenset[Var] | None:
    """Return the results of the calls that are to have the channels last; None if no convolution
    was measured in both layouts.

    Another call takes as long in both layouts, unless it was measured in both.
    """
    summaries = AliasSummaries(module)
    chosen: set[Var] = set()
    measured = False
    fixed = run_invariant(module)
    for function in module.functions.values():
        planner = _Layouts(function, AliasSets(function, summaries), device, fixed)
        steps = planner.steps()
        if planner.measured:
            measured = True
            picks = steps.plan()[1:-1]
            made = zip(function.body.bindings, picks, strict=True)
            chosen.update(binding.var for binding, pick in made if pick)
    return frozenset(chosen) if measured else None


class _Layouts:
    """The steps of the outermost block of a function: its arguments, each binding, its result.

    measured: whether a convolution was, in both layouts.
    """

    def __init__(
        self, function: Function, buffers: AliasSets, device: Device, fixed: Container[Expr]
    ) -> None:
        self._function, self._device, self._fixed = function, device, fixed
        self._how, self._peaks = how_in_programs(device), peaks_of(device)
        # It tells what each call would be; what it makes of the function is not used.
        self._images = ChannelsLastRewriter(function, buffers, device, self)
        self.measured = False

    def __contains__(self, var: object) -> bool:
        return True

    def steps(self) -> Steps:
        """Return what there is to plan: of each step its layout."""
        places: dict[Expr, int] = {}
        steps = [_AS_IT_IS]
        for binding in self._function.body.bindings:
            value = binding.value
            places[binding.var] = len(steps)
            if isinstance(value, TupleGetItem) and value.value in places:
                places[binding.var] = places[value.value]
                steps.append(_AS_IT_IS)
            else:
                links = self._links(uses(value), places)
                steps.append(Step(self._options(binding), tuple(links)))
        ends = self._links(operands(self._function.body.result), places)
        return Steps((*steps, Step(_AS_IT_IS.options, tuple(ends))))

    def _links(self, atoms: Iterable[Expr], places: dict[Expr, int]) -> Iterator[Link]:
        """Yield whom a step reads images of; arguments and constants are of the first step."""
        for atom in dict.fromkeys(atoms):
            if isinstance(atom, Var | Constant) and is_image(atom.type):
                yield Link(places.get(atom, 0), turned=self._turned(atom))

    def _turned(self, atom: Expr) -> float:
        """Return what it takes to transpose an array: nothing if that is done before the program
        runs, or if only extents of 1 move.
        """
        type_ = tensor_of(atom)
        moved = [i for i in LAST if type_.shape[i] != 1]
        if atom in self._fixed or moved == sorted(moved):
            return 0.0
        time = self._time(new_call(op.permute_dims, atom, LAST))
        if time is not None:
            return time
        return self._peaks.moving(2 * type_bytes(type_)) + self._peaks.launch

    def _options(self, binding: Binding) -> tuple[Option, ...]:
        """Return the times of a binding with the channels first and, if it can be, last."""
        value, called = binding.value, called_op(binding.value)
        if called is None or not isinstance(value, Call):
            return _AS_IT_IS.options
        site = ImageCall(called, named_args(called, value), self._images, binding.var, None)
        changed = rewritten_call(site)
        if changed is None:
            return _AS_IT_IS.options
        first, last = self._time(value), self._time(changed)
        if first is None or last is None:
            if called in CONVOLUTIONS:
                return _AS_IT_IS.options
            first = last = 0.0
        self.measured = self.measured or called in CONVOLUTIONS
        return Option("", first), Option("", last, layout="last")

    def _time(self, value: Call) -> float | None:
        """Return what a call takes on the kernel that is chosen for it; None if it was not
        measured.
        """
        call = kernel_call(value, self._device)
        if call is None:
            return 0.0
        race = known_race(call, self._device, self._how)
        if race is None:
            return None
        preference = current()
        able = ready(candidates(call.op, preference, self._device), call, preference)
        best = choose(race.costs, list(able), preference.first_of(call.op.name))
        return None if best is None else best.median


_AS_IT_IS = Step((Option("", 0.0),))
