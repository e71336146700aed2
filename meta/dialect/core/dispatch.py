"""The dispatcher: from a call to the OpEnv that runs it.

The decision, in order:

1. dialects that the user prefers, in the order given; then, for an eager call, those that need no
   compiling before those that compile (`Dialect.compiles_anew`), whatever is cached; then by
   plevel on the call's device, larger first; then by the dialects' order of registration; of
   one dialect's, those for the architecture and the vendor of the chip before others (`scope.py`);
2. skip a dialect that the user excluded, that does not run on the device, or that its probe finds
   unusable;
3. ask the maker; `Unsupported` is a refusal with a reason, any other error is a bug and is raised,
   as BackendError if it is not one of `meta`;
4. the first OpEnv wins, unless the chooser in force knows better (`chooser.py`): then the one that
   it says, among those that the user prefers if any of these accepts;
5. if nobody accepts, DispatchError has one line per candidate.

A call is eager if it runs as soon as it is made: a user's, the interpreter's, the tape's. It runs
once, so compiling would take longer than it saves. Calls of compiled programs are not eager. A
dialect that compiles is loaded only if no other accepts the eager call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from meta.base import config
from meta.base.bounded_cache import bounded_insert
from meta.base.device import Device
from meta.base.errors import DispatchError
from meta.base.log import LOG
from meta.dialect.core.catalog import dialects
from meta.dialect.core.chooser import Chosen, current_chooser
from meta.dialect.core.dialect import Dialect
from meta.dialect.core.dialect_op import DialectOp
from meta.dialect.core.openv import OpEnv
from meta.dialect.core.plevel import FUSED_ONLY
from meta.dialect.core.preference import DECISIONS, Config, Preference, current
from meta.dialect.core.scope import GENERIC, in_force, marks
from meta.op.core.call import CallValues, cache_key
from meta.op.core.op import Op
from meta.op.core.slot import NUMBERS, Slot


@dataclass(frozen=True, slots=True)
class Candidate:
    """One dialect operator's answer to a call: an OpEnv, or the reason for its refusal.

    ``plevel`` is its level on the call's device.
    """

    dialect_op: DialectOp
    plevel: int
    env: OpEnv | None
    reason: str

    def __str__(self) -> str:
        op = self.dialect_op
        verdict = "accepts" if self.env is not None else f"refuses: {self.reason}"
        scope = "" if op.scope == GENERIC else f"{op.scope} "
        return f"{op.dialect.name:8s} plevel {self.plevel:<3d} {op.site}  {scope}{verdict}"


def candidates(
    op: Op,
    preference: Preference,
    device: Device,
    *,
    eager: bool = False,
    call: CallValues | None = None,
) -> Iterator[DialectOp]:
    """Yield the operator's implementations in the order in which they are asked on a device, by an
    eager call or a compiled program; for one call if it is given. Dialects are loaded when it is
    their turn.
    """
    chips = in_force(device)  # the kernels of a vendor are registered when it is first asked for
    place = {dialect.name: i for i, dialect in enumerate(dialects())}

    def turn(dialect: Dialect, compiles_anew: bool) -> tuple[int, bool]:
        return preference.place(dialect.name, op.name), eager and compiles_anew

    turns = {dialect: turn(dialect, dialect.compiles_anew(op)) for dialect in dialects()}
    # The functions of a vendor need no compiling for each call.
    of_vendors = [turn(dialect, False) for dialect in turns] if len(chips) > 1 else []
    for now in sorted({*turns.values(), *of_vendors}):
        for dialect in (d for d in turns if turns[d] == now and device.kind in d.devices):
            if preference.refusal(dialect.name) is None:
                exact = preference.config is not None  # it was named, so it is there
                dialect.load_for(op) if eager or exact else dialect.load()
        parts = (part for one in op.aspects.dialect_ops for part in one.parts(device))
        yield from sorted(
            (p for p in parts if p.dialect in turns and turn(p.dialect, p.compiles_anew) == now),
            key=lambda one: (-one.plevel(device, call), place[one.dialect.name], -one.scope.rank),
        )


def answers(
    call: CallValues, preference: Preference, *, eager: bool = False
) -> Iterator[Candidate]:
    """Ask the candidates one after the other, lazily."""
    for dialect_op in candidates(call.op, preference, call.device, eager=eager, call=call):
        yield answer(dialect_op, call, preference, preference.config or (), eager=eager)


def answer(
    dialect_op: DialectOp,
    call: CallValues,
    preference: Preference,
    config: Config = (),
    *,
    eager: bool = False,
) -> Candidate:
    """Ask one candidate for its kernel in a configuration; of one that has parts for the chips of
    vendors, these, the most specific first.
    """
    refusals = []
    for part in dialect_op.parts(call.device) or [dialect_op]:
        runs = partial(dispatch, eager=eager)
        reason = part.refusal(call, preference) or part.pinned(call, preference, runs)
        kernel = part.kernel(call, config) if reason is None else reason
        if isinstance(kernel, OpEnv):
            return Candidate(part, part.plevel(call.device, call), kernel, "")
        refusals.append(kernel if part is dialect_op else f"{part.scope}: {kernel}")
    level = dialect_op.plevel(call.device, call)
    return Candidate(dialect_op, level, None, "; ".join(refusals))


def dispatch(call: CallValues, *, eager: bool = False) -> OpEnv:
    """Return the OpEnv that runs a call; cached by op, types and device."""
    preference = current()
    switches = current_chooser().key(), config.get("META_TRITON_INTERPRET"), marks(call.device)
    key = (call.op, call.device, eager, *switches, *map(_slot_key, call.op.slots, call.args))
    found: OpEnv | None = preference.envs.get(key)
    if found is None:
        found = _decided(call, preference, eager)
        LOG.debug("%s runs on %s", call, found.dialect_op)
        # What is measured on the way drops what was decided before.
        bounded_insert(preference.envs, key, found, DECISIONS)
    return found


def _decided(call: CallValues, preference: Preference, eager: bool) -> OpEnv:
    """Return the kernel that is chosen, else that of the first candidate that accepts, in the
    configuration that is known to be the best for such calls.
    """
    order, chosen = choice(call, preference, eager=eager)
    if chosen is not None:
        for one in (one for one in order if one.dialect.name == chosen.dialect):
            env = answer(one, call, preference, chosen.config, eager=eager).env
            if env is not None:  # else it was measured, and does not take the call any more
                return env
    chooser, stated, refusals = current_chooser(), preference.config, []
    for one in order:
        first = answer(one, call, preference, stated or (), eager=eager)
        if first.env is not None:
            if stated is None and (best := chooser.configuration(one, call, eager=eager)):
                return answer(one, call, preference, best, eager=eager).env or first.env
            return first.env
        refusals.append(str(first))
    listed = "\n    ".join(["one of", *refusals])
    raise DispatchError(
        "no dialect accepts this call",
        op=call.op.name,
        found=call,
        expected=listed if refusals else "a dialect operator; none is registered",
        hint="see meta.explain(op, *args); relax only() or exclude(), or change device or dtype",
    )


def choice(
    call: CallValues, preference: Preference, *, eager: bool = False
) -> tuple[Iterable[DialectOp], Chosen | None]:
    """Return the candidates of a call, all of them loaded if more is known of them than priority,
    and the one that is chosen by that; None where nobody knows, or the configuration is stated.
    """
    order = candidates(call.op, preference, call.device, eager=eager, call=call)
    chooser = current_chooser()
    known = None if preference.config is not None else chooser.known(call, eager=eager)
    if known is None:
        return order, None
    listed = list(order)
    able = ready(listed, call, preference, compiles=chooser.compiles() or not eager)
    return listed, chooser.choose(known, list(able), preference.first_of(call.op.name))


def ready(
    order: Iterable[DialectOp], call: CallValues, preference: Preference, *, compiles: bool = True
) -> dict[str, DialectOp]:
    """Return, by dialect, those of the candidates that may run a call by themselves, in this order.
    ``compiles``: also those that compile a kernel for it.
    """
    able = (
        one
        for one in order
        if one.plevel(call.device) > FUSED_ONLY
        and preference.refusal(one.dialect.name) is None
        and (compiles or not one.compiles_anew)
    )
    return {one.dialect.name: one for one in able}


def _slot_key(slot: Slot, argument: Any) -> Any:
    """Return what distinguishes an argument: of a run-time number its type only."""
    if slot.kind != "attribute" and isinstance(argument, NUMBERS):
        return argument.__class__
    return cache_key(argument)
