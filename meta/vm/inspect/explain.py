"""`explain`: who would run a call, or runs each instruction of a compiled program, and why not the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from meta.base.device import Device
from meta.base.html import MAX_ROWS, Html, details, fragment, join, table, tag
from meta.base.source import short_site
from meta.cost.chooser import how_of, known_race, tuned
from meta.cost.record import Cost, Race, contenders
from meta.dialect.core import Candidate, DialectOp, dialects, only
from meta.dialect.core.dispatch import answer, choice
from meta.dialect.core.ir_calls import base_op, declared_call
from meta.dialect.core.openv import config_text
from meta.dialect.core.plevel import level_text
from meta.dialect.core.preference import Preference, current
from meta.dialect.core.scope import GENERIC
from meta.ir import Call, Function
from meta.ir.operators import resolve_op
from meta.op.core import CallValues, Op, View
from meta.vm.compiler.code import FusedRef, KernelRef
from meta.vm.compiler.launch_sites import LaunchSite, launch_sites
from meta.vm.eager.example_calls import example_calls
from meta.vm.graphs.capture import GraphReport
from meta.vm.run.compiled_program import CompiledProgram


class Explanation(list[Candidate]):
    """The candidates of one call in the order in which they are asked; prints as a table.

    Attributes
    ----------
    title: the call. absent: the backends that are not usable on this machine, with the reason.
    race: what was measured of the candidates, None if nothing was. choice: the one that measuring
    chooses, None where priority decides.
    """

    def __init__(
        self,
        title: str,
        candidates: Iterable[Candidate],
        absent: dict[str, str] | None = None,
        race: Race | None = None,
        choice: Cost | None = None,
    ) -> None:
        super().__init__(candidates)
        self.title, self.absent = title, absent or {}
        self.race, self.choice = race, choice

    @property
    def chosen(self) -> Candidate | None:
        """The candidate that measuring chooses, else the first that accepts."""
        accepted = [c for c in self if c.env is not None]
        name = None if self.choice is None else self.choice.dialect
        fastest = (c for c in accepted if c.dialect_op.dialect.name == name)
        return next(fastest, accepted[0] if accepted else None)

    def costs(self, candidate: Candidate) -> list[Cost]:
        """Return what was measured of a candidate, one entry for each configuration."""
        name = candidate.dialect_op.dialect.name
        return [] if self.race is None else [c for c in self.race.costs if c.dialect == name]

    def _fastest(self, candidate: Candidate) -> Cost | None:
        """Return of what was measured of a candidate what it is chosen or left for."""
        if self.choice is not None and candidate is self.chosen:
            return self.choice
        return min(self.costs(candidate), key=lambda cost: cost.median, default=None)

    def records(self) -> list[dict[str, Any]]:
        """Return one plain record per candidate. Its configurations are asked for, which takes some
        milliseconds.
        """
        return [{**self._record(c), "configs": _count(c)} for c in self]

    def _record(self, c: Candidate) -> dict[str, Any]:
        return {
            "dialect": c.dialect_op.dialect.name,
            "plevel": int(c.plevel),
            "site": str(c.dialect_op.site),
            "accepts": c.env is not None,
            "chosen": c is self.chosen,
            "reason": c.reason,
            "scope": str(c.dialect_op.scope),
            "configured_by": str(GENERIC if c.env is None else c.env.launch_scope),
            "costs": [cost.record() for cost in self.costs(c)],
        }

    def _answer(self, candidate: Candidate) -> str:
        """Return a candidate's answer, and its time where it was measured."""
        scope, env = candidate.dialect_op.scope, candidate.env
        of = "" if scope == GENERIC else f", kernel of the {scope}"
        if env is None:
            return f"refuses{of}: {candidate.reason}"
        if env.launch_scope != GENERIC:
            of += f", configured by the {env.launch_scope}"
        fastest = self._fastest(candidate)
        if fastest is None or fastest.forward is None:
            return f"accepts{of}"
        config = f", {config_text(fastest.config)}" if fastest.config else ""
        return f"accepts{of}, {fastest.forward}{config}"

    @property
    def measured(self) -> str:
        """When and for which calls times were measured, and where they are kept; "" without any."""
        if self.race is None:
            return ""
        when = datetime.fromtimestamp(self.race.when).astimezone().isoformat(" ", "seconds")
        about = f"; of {self.race.key.call}" if self.race.bucket else ""
        place = "in memory" if self.race.place is None else str(self.race.place)
        return f"measured {when}{about}, {place}"

    def __str__(self) -> str:
        rows = [
            (
                "->" if r["chosen"] else "  ",
                r["dialect"],
                f"plevel {r['plevel']}",
                self._answer(c),
                short_site(r["site"]),
            )
            for c, r in ((c, self._record(c)) for c in self)
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [self.title]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append("  ".join(cells).rstrip())
        lines += [f"    {name}  unavailable: {why}" for name, why in self.absent.items()]
        lines += [f"    {self.measured}"] if self.race else []
        if rows and self.chosen is None:
            lines.append(_NOBODY)
        return "\n".join(lines)

    __repr__ = __str__

    def html_table(self) -> Html:
        """Return the candidates as a table of HTML."""
        rows = [
            (
                "→" if r["chosen"] else "",
                tag("b", r["dialect"]) if r["chosen"] else r["dialect"],
                level_text({"": r["plevel"]}),
                self._answer(c),
                tag("span", short_site(r["site"]), class_="code dim"),
            )
            for c, r in ((c, self._record(c)) for c in self)
        ]
        absent = [("", n, "", f"unavailable: {why}", "") for n, why in self.absent.items()]
        found = table(("", "backend", "level", "answer", "where"), [*rows, *absent])
        nobody = tag("div", _NOBODY) if rows and self.chosen is None else ""
        return join((found, tag("div", self.measured, class_="dim") if self.race else "", nobody))

    def _repr_html_(self) -> str:
        return fragment(tag("div", self.title, class_="code"), self.html_table())


def _count(candidate: Candidate) -> int:
    """Return how many configurations besides the default one a candidate lists."""
    env = candidate.env
    return 0 if env is None or env.configs is None else len(env.configs.listed())


_NOBODY = "nobody accepts: the call raises DispatchError"


class FunctionExplanation(list[Explanation]):
    """One entry for each operator call that a function is composed of, in order; prints as a
    listing.
    """

    def records(self) -> list[dict[str, Any]]:
        """Return one plain record per call."""
        return [{"call": c.title, "candidates": c.records()} for c in self]

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no operator is called"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        calls = [
            join((tag("div", c.title, class_="code"), c.html_table())) for c in self[:MAX_ROWS]
        ]
        left = len(self) - len(calls)
        return fragment(*calls, tag("div", f"… and {left:,} more calls") if left else "")


def explain(
    op: Op | DialectOp | Callable[..., Any], *args: Any, **kwargs: Any
) -> Explanation | FunctionExplanation:
    """Ask every dialect for its answer to an eager call, without running it; print the result to
    see why. (A compiled program asks in another order: see its own ``explain``.)

    The arguments are those of the call; a `TensorType` may stand for an array (then the device is
    the CPU, unless another argument says otherwise). Preferences (`prefer`, `only`, `exclude`) in
    force count. Of a dialect operator (``meta.op.tvm.softmax``) only that dialect is asked. A call
    that needs no kernel (a view, a value known now) has no candidates, and the title says so.

    For a function that is composed of operators, of `meta` or of the user, and for an operator
    whose call takes more than its schema, there is a list with an entry for each operator call;
    where it is a single call, its entry alone.

    Raises what the call itself would raise for wrong arguments, ArgumentError if ``op`` is neither,
    and TraceError for a function that needs the values of its arguments.

    >>> with meta.dialect.only("torch"):
    ...     meta.explain(meta.exp, meta.ones(3)).chosen.dialect_op.name
    'torch.exp'
    """
    if isinstance(op, DialectOp):
        choice, op = only(op.dialect.name), op.base
    else:
        choice = nullcontext()
    with choice:
        calls = example_calls("explain", op, args, kwargs)
        found = FunctionExplanation(_explain_call(example.call) for example in calls)
        one = isinstance(op, Op) or isinstance(getattr(op, "__self__", None), Op)
        return found[0] if len(found) == 1 and one else found


def _explain_call(call: CallValues) -> Explanation:
    """Ask every dialect for its answer to an eager call."""
    if call.callee is None:
        return Explanation(f"{call}\n    is known now: {call.out}; no kernel runs", [])
    if isinstance(call.out, View):
        return Explanation(f"{call}\n    is a view of its argument; no kernel runs", [])
    absent = {d.name: d.unavailable for d in dialects() if d.unavailable is not None}
    return _explained(call, current(), absent, eager=True)


def _explained(
    call: CallValues,
    preference: Preference,
    absent: dict[str, str] | None = None,
    *,
    eager: bool = False,
) -> Explanation:
    """Return the answers of all candidates of a call with what was measured of them."""
    config = preference.config or ()
    with tuned(measures=False):
        order, chosen = choice(call, preference, eager=eager)
        found = [answer(one, call, preference, config, eager=eager) for one in order]
        race = known_race(call, call.device, how_of(call.device, eager=eager))
    title = f"{call} -> {call.out}"
    return Explanation(title, found, absent, race, cast(Cost | None, chosen))


@dataclass(frozen=True, slots=True)
class ExplainedSite:
    """An instruction, and per operator call that its kernel computes (a fused one: several) the
    answers of all candidates. There is none if extents are not known before the program runs.
    """

    site: LaunchSite
    calls: tuple[Explanation, ...]

    def record(self) -> dict[str, Any]:
        """Return this as values that JSON has."""
        calls = [{"call": c.title, "candidates": c.records()} for c in self.calls]
        return {**self.site.record(), "calls": calls}

    @property
    def who(self) -> str:
        """The dialect, or that it is decided when the program runs."""
        return self.site.dialect or "whoever accepts the extents met"

    def why(self) -> str:
        """Return in a few words why this kernel runs the instruction."""
        site = self.site
        if isinstance(site.kernel, FusedRef):
            names = [c.title.partition("(")[0] for c in self.calls]
            return f"one kernel for {', '.join(names)}"
        if not site.dialect:
            return "decided for the extents of each call"
        if not self.calls:
            return "chosen for all extents that a call may have"
        found = self.calls[0]
        own = (c for c in found if c.dialect_op.dialect.name == site.dialect and c.env is not None)
        chosen = next(own, None)
        if chosen is None or chosen.env is None:
            return "chosen where it was compiled; not usable here"
        others = [c for c in found if c.env is not None and c is not chosen]
        if not others:
            return "the only one that accepts"
        choice = found.choice
        if self.planned:
            return self.planned
        if choice is not None and choice.forward is not None and found.chosen is chosen:
            config = f" in the configuration {config_text(choice.config)}" if choice.config else ""
            return f"measured: {choice.forward}{config}"
        if found.chosen is not chosen:
            return "chosen where it was compiled; another one would be chosen here"
        level = level_text({"": chosen.plevel})
        most = max(c.plevel for c in others)
        if most > chosen.plevel:
            return "preferred by meta.dialect.prefer"
        rest = ", ".join(f"{c.dialect_op.dialect.name} {c.plevel}" for c in others)
        equal = "asked first among equals" if most == chosen.plevel else "the highest that accepts"
        return f"{level}, {equal} (also: {rest})"

    @property
    def planned(self) -> str:
        """What the plan of the whole program did to this call, "" if nothing: it took another
        kernel than priority, or left one that is faster by itself.
        """
        if not isinstance(self.site.kernel, KernelRef) or not self.calls or not self.site.dialect:
            return ""
        found, op = self.calls[0], resolve_op(self.site.kernel.operator)
        order = list(dict.fromkeys(c.dialect_op.dialect.name for c in found if c.env is not None))
        race = found.race
        contending = [] if race is None else contenders(race.costs, order, current().first)
        if race is None or not contending or not isinstance(op, DialectOp):
            return ""
        own, first = race.of(op.dialect.name, op.config or ()), contending[0]
        if own is None or own.forward is None:
            return ""
        text, choice = f"planned: {own.median:.1f} us", found.choice
        if own != first:
            return f"{text}, priority choice {first.median:.1f} us"
        if choice is None or choice == first:
            return ""
        other = f"{choice.name}, {choice.median:.1f} us by itself"
        return f"{text}; with its neighbours faster than {other}"

    def why_html(self) -> Html:
        """Return why, as HTML that opens to the answers of all candidates."""
        calls = (join((tag("div", c.title, class_="code"), c.html_table())) for c in self.calls)
        return details(self.why(), *calls) if self.calls else join((self.why(),))

    def __str__(self) -> str:
        site, who = self.site, self.who
        line = f"  # {site.span}" if site.span else ""
        lines = [f"{site.number}: {site.operator} by {who}{line}"]
        lines += [f"    {self.planned}"] if self.planned else []
        lines += [f"    {row}" for call in self.calls for row in str(call).splitlines()]
        return "\n".join(lines)


class ProgramExplanation(list[ExplainedSite]):
    """One entry per instruction that launches a kernel; prints as a listing.

    ``cuda_graph`` says whether they are recorded as CUDA graphs.
    """

    def __init__(self, found: Sequence[ExplainedSite], cuda_graph: GraphReport) -> None:
        super().__init__(found)
        self.cuda_graph = cuda_graph

    def records(self) -> list[dict[str, Any]]:
        """Return one plain record per instruction."""
        return [entry.record() for entry in self]

    def __str__(self) -> str:
        return "\n".join([*map(str, self), str(self.cuda_graph)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [
            (e.site.number, e.site.operator, e.who, e.why_html(), e.site.span or "") for e in self
        ]
        head = ("", "operator", "backend", "why", "line")
        found = table(head, rows, numbers=(0,), code=(1, 4))
        return fragment(found, tag("div", self.cuda_graph, class_="dim"))


def explain_program(executable: CompiledProgram) -> ProgramExplanation:
    """Ask the candidates of every call of a program, under the preference it was compiled with; see
    `Executable.explain`.
    """
    program, preference = executable.program, executable.preference
    functions = program.module().functions
    found = []
    for site in launch_sites(program.code):
        calls = _calls(site, functions, program.device)
        told = (_explained(c, preference) for c in calls)
        found.append(ExplainedSite(site, tuple(told)))
    return ProgramExplanation(found, executable.cuda_graph)


def _calls(
    site: LaunchSite, functions: Mapping[str, Function], device: Device
) -> Iterator[CallValues]:
    if isinstance(site.kernel, FusedRef):
        for binding in functions[site.kernel.function].body.bindings:
            call = binding.value
            if not isinstance(call, Call):
                continue  # one of several results, taken or put together
            base = base_op(call.callee)
            assert base is not None
            yield declared_call(base, call, device)
    elif site.kernel.is_static:
        op = base_op(resolve_op(site.kernel.operator))
        assert op is not None
        yield op.call_values(site.kernel.args, device)
