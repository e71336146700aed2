"""Who runs each instruction of a compiled program, and why not the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meta.base.device import Device
from meta.dialect.core import DialectOp, answers
from meta.dialect.core.preference import Preference
from meta.ir import Call, Function
from meta.ir.operators import resolve_op
from meta.op.core import CallValues, Op
from meta.passes.dispatch import prepared
from meta.vm.code import Code, FusedRef
from meta.vm.explain import Explanation
from meta.vm.graphs import GraphReport
from meta.vm.watch import Site, sites


@dataclass(frozen=True, slots=True)
class ExplainedSite:
    """An instruction, and per operator call that its kernel computes (a fused one: several) the
    answers of all candidates. There is none if extents are not known before the program runs.
    """

    site: Site
    calls: tuple[Explanation, ...]

    def record(self) -> dict[str, Any]:
        """Return this as values that JSON has."""
        return {
            "instruction": self.site.number,
            "function": self.site.function,
            "dialect": self.site.dialect,
            "operator": self.site.operator,
            "line": None if self.site.span is None else str(self.site.span),
            "calls": [{"call": c.title, "candidates": c.records()} for c in self.calls],
        }

    def __str__(self) -> str:
        site = self.site
        who = site.dialect or "whoever accepts the extents met"
        line = f"  # {site.span}" if site.span else ""
        lines = [f"{site.number}: {site.operator} by {who}{line}"]
        lines += [f"    {row}" for call in self.calls for row in str(call).splitlines()]
        return "\n".join(lines)


class ProgramExplanation(Sequence[ExplainedSite]):
    """One entry per instruction that launches a kernel; prints as a listing.

    ``cuda_graph`` says whether they are recorded as CUDA graphs.
    """

    def __init__(self, found: Sequence[ExplainedSite], cuda_graph: GraphReport) -> None:
        self._found, self.cuda_graph = tuple(found), cuda_graph

    def __getitem__(self, index: Any) -> Any:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def records(self) -> list[dict[str, Any]]:
        """Return one plain record per instruction."""
        return [entry.record() for entry in self._found]

    def __str__(self) -> str:
        return "\n".join([*map(str, self._found), str(self.cuda_graph)])

    __repr__ = __str__


def explain_program(
    code: Code,
    functions: Mapping[str, Function],
    device: Device,
    preference: Preference,
    cuda_graph: GraphReport,
) -> ProgramExplanation:
    """Ask all candidates of every call of a program for their answers, without running it.

    ``functions`` are the fused ones; ``preference`` is that under which the program was compiled.
    """
    found = []
    for site in sites(code):
        calls = _calls(site, functions, device)
        found.append(ExplainedSite(site, tuple(_explained(c, preference) for c in calls)))
    return ProgramExplanation(found, cuda_graph)


def _calls(site: Site, functions: Mapping[str, Function], device: Device) -> Iterator[CallValues]:
    if isinstance(site.kernel, FusedRef):
        for binding in functions[site.kernel.function].body.bindings:
            call = binding.value
            assert isinstance(call, Call) and isinstance(call.callee, DialectOp | Op)
            # A dialect's pattern stands for calls that nobody was chosen for.
            base = call.callee.base if isinstance(call.callee, DialectOp) else call.callee
            yield prepared(base, call, device)
    elif site.kernel.is_static:
        op = resolve_op(site.kernel.operator)
        base = op.base if isinstance(op, DialectOp) else op
        assert isinstance(base, Op)
        yield base.call_values(site.kernel.args, device)


def _explained(call: CallValues, preference: Preference) -> Explanation:
    return Explanation(f"{call} -> {call.out}", answers(call, preference))
