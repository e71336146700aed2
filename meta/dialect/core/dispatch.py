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
4. the first OpEnv wins, unless the costs of all candidates are known: then the one that
   `costs.choose` says, among those that the user prefers if any of these accepts;
5. if nobody accepts, DispatchError has one line per candidate.

A call is eager if it runs as soon as it is made: a user's, one of the interpreter, one of the tape.
It runs once, so compiling would take longer than it saves. Calls of compiled programs are not
eager. A dialect that compiles is loaded only if no other accepts the eager call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from meta.base import config
from meta.base.bounded_cache import bounded_insert
from meta.base.device import Device
from meta.base.errors import DispatchError
from meta.dialect.core.catalog import dialects
from meta.dialect.core.costs import Cost, Race
from meta.dialect.core.dialect import Dialect
from meta.dialect.core.dialect_op import DialectOp
from meta.dialect.core.openv import OpEnv
from meta.dialect.core.plevel import FUSED_ONLY
from meta.dialect.core.preference import DECISIONS, Config, Preference, current, tuning
from meta.dialect.core.scope import GENERIC, in_force, marks
from meta.dialect.core.tuning import choice, configuration, race_of
from meta.op.core.call import CallValues, cache_key
from meta.op.core.op import Op
from meta.op.core.schema import NUMBERS, Slot


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
    op: Op, preference: Preference, device: Device, *, eager: bool = False
) -> Iterator[DialectOp]:
    """Yield the operator's implementations in the order in which they are asked on a device, by an
    eager call or a compiled program. Dialects are loaded when it is their turn.
    """
    chips = in_force(device)  # the kernels of a vendor are registered when it is first asked for
    rank = {name: i for i, name in enumerate(preference.first)}
    known = dialects()
    place = {dialect.name: i for i, dialect in enumerate(known)}
    turns: dict[tuple[int, bool], list[Dialect]] = {}
    for dialect in known:
        first = rank.get(dialect.name, len(rank))
        turns.setdefault((first, eager and dialect.compiles_anew(op)), []).append(dialect)
        if len(chips) > 1:  # the functions of a vendor need no compiling for each call
            turns.setdefault((first, False), [])
    for turn, asked in sorted(turns.items()):
        for dialect in asked:
            if preference.refusal(dialect.name) is None and device.kind in dialect.devices:
                if eager:
                    dialect.load_for(op)
                else:
                    dialect.load()
        parts = (part for one in op.aspects.dialect_ops for part in one.parts(device))
        yield from sorted(
            (
                part
                for part in parts
                if part.dialect.name in place
                and turn == (rank.get(part.dialect.name, len(rank)), eager and part.compiles_anew)
            ),
            key=lambda one: (-one.plevel(device), place[one.dialect.name], -one.scope.rank),
        )


def answers(
    call: CallValues, preference: Preference, *, eager: bool = False
) -> Iterator[Candidate]:
    """Ask the candidates one after the other, lazily."""
    for dialect_op in candidates(call.op, preference, call.device, eager=eager):
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
        reason = part.refusal(call, preference) or _pinned(part, call, preference, eager)
        kernel = part.kernel(call, config) if reason is None else reason
        if isinstance(kernel, OpEnv):
            return Candidate(part, part.plevel(call.device), kernel, "")
        refusals.append(kernel if part is dialect_op else f"{part.scope}: {kernel}")
    return Candidate(dialect_op, dialect_op.plevel(call.device), None, "; ".join(refusals))


def _pinned(
    dialect_op: DialectOp, call: CallValues, preference: Preference, eager: bool
) -> str | None:
    """Return why an implementation of a gradient is not the one for a call: another dialect runs
    the forward call, and so has the state. None if it may run, as one that is named alone.
    """
    if preference.only == (dialect_op.dialect.name,):
        return None
    users = {o.dialect: o.uses for o in call.op.aspects.dialect_ops if o.uses is not None}
    if not users:
        return None
    init = dialect_op.uses or next(iter(users.values()))
    forward = init.forward_call(call)
    if forward is None:
        return None if dialect_op.uses is None else f"it is not told all arguments of {init.base}"
    try:
        ran = dispatch(forward, eager=eager).dialect_op
    except DispatchError:
        return None if dialect_op.uses is None else f"no dialect runs {init.base.name}"
    assert ran is not None
    if dialect_op.uses is not None:
        return None if ran.dialect is dialect_op.dialect else f"{ran.name} runs the forward call"
    return f"it uses the state of {ran.name}" if ran.dialect in users else None


def dispatch(call: CallValues, *, eager: bool = False) -> OpEnv:
    """Return the OpEnv that runs a call; cached by op, types and device."""
    preference = current()
    switches = tuning(), config.get("META_TRITON_INTERPRET"), marks(call.device)
    key = (call.op, call.device, eager, *switches, *map(_slot_key, call.op.slots, call.args))
    found: OpEnv | None = preference.envs.get(key)
    if found is None:
        found = _decided(call, preference, eager)
        # What is measured on the way drops what was decided before.
        bounded_insert(preference.envs, key, found, DECISIONS)
    return found


def _decided(call: CallValues, preference: Preference, eager: bool) -> OpEnv:
    """Return the kernel that costs choose, else that of the first candidate that accepts, in the
    configuration that is known to be the best for such calls.
    """
    asked: Iterable[DialectOp] = candidates(call.op, preference, call.device, eager=eager)
    race = _race(call, preference, eager)
    if race is not None:
        asked = list(asked)
        cost = _choice(race, asked, call, preference, eager)
        for one in asked:
            if cost is not None and one.dialect.name == cost.dialect:
                env = answer(one, call, preference, cost.config, eager=eager).env
                if env is not None:  # else it was measured, and does not take the call any more
                    return env
    refusals = []
    for one in asked:
        made = answer(one, call, preference, preference.config or (), eager=eager)
        if made.env is None:
            refusals.append(str(made))
            continue
        stated = () if preference.config is not None else configuration(one, call, eager=eager)
        other = answer(one, call, preference, stated, eager=eager).env if stated else None
        return other or made.env
    raise DispatchError(
        "no dialect accepts this call",
        op=call.op.name,
        found=call,
        expected="one of\n    " + "\n    ".join(refusals)
        if refusals
        else "a dialect operator; none is registered",
        hint="see meta.explain(op, *args); relax only() or exclude(), or change device or dtype",
    )


def cheapest(call: CallValues, preference: Preference, *, eager: bool = False) -> Cost | None:
    """Return what measuring chooses for a call; None where nothing is known of it, or where the
    configuration is stated. An eager call compiles nothing for it, unless it measures itself.
    """
    race = _race(call, preference, eager)
    if race is None:
        return None
    asked = candidates(call.op, preference, call.device, eager=eager)
    return _choice(race, asked, call, preference, eager)


def _race(call: CallValues, preference: Preference, eager: bool) -> Race | None:
    return None if preference.config is not None else race_of(call, call.device, eager=eager)


def _choice(
    race: Race, asked: Iterable[DialectOp], call: CallValues, preference: Preference, eager: bool
) -> Cost | None:
    order = {
        one.dialect.name: None
        for one in asked
        if one.plevel(call.device) > FUSED_ONLY
        and preference.refusal(one.dialect.name) is None
        and not (eager and tuning() != "on" and one.compiles_anew)
    }
    return choice(race, list(order), preference.first)


def is_first(dialect_op: DialectOp, call: CallValues) -> bool:
    """Whether an implementation is the first that an eager call asks, so that none before it might
    accept the call with other shapes.
    """
    first = next(candidates(call.op, current(), call.device, eager=True), None)
    return first is dialect_op


def _slot_key(slot: Slot, argument: Any) -> Any:
    """Return what distinguishes an argument: of a run-time number its type only."""
    if slot.kind != "attribute" and isinstance(argument, NUMBERS):
        return argument.__class__
    return cache_key(argument)
