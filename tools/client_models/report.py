"""What the command prints and writes: lines, and the table of ONNX files in a page of docs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.client_models.measure import STAGES, Outcome

TITLES = ("eager", "compiled", "grads", "c. grads", "t.comp.", "t.c.grads")
BEGIN = "<!-- python -m tools.client_models --library onnx --page: from here -->"
END = "<!-- to here -->"


def titles(width: int) -> str:
    """Return the line above those of a library's models, whose names have a width."""
    return "  ".join([f"{'model':{width}}", *(f"{title:8}" for title in TITLES)])


def line(outcome: Outcome, width: int) -> str:
    """Return a model's line."""
    cells = [f"{outcome.errors[s]:8.1e}" if s in outcome.errors else " " * 8 for s in STAGES]
    notes = [f"{s} {why}" for s, why in outcome.rounding.items()]
    notes += [f"refused at {outcome.refused}"] if outcome.refused else []
    notes += [f"not run: {outcome.missing}"] if outcome.missing else []
    notes += [f"{s} FAILS: {' '.join(why.split())[:300]}" for s, why in outcome.failed.items()]
    seconds = f"{sum(outcome.seconds.values()):6.1f}s"
    return "  ".join([f"{outcome.name:{width}}", *cells, seconds, *notes]).rstrip()


def summary(outcomes: Sequence[Outcome], skipped: Mapping[str, str]) -> str:
    """Return the counts, and what failed."""
    failed = [o.name for o in outcomes if not o.passes]
    refused = sum(o.refused is not None and o.passes for o in outcomes)
    missing = sum(o.missing is not None for o in outcomes)
    passed = len(outcomes) - len(failed) - refused - missing
    lines = [f"{library} is skipped: {why}" for library, why in skipped.items()]
    text = (
        f"{passed} of {len(outcomes)} pass, {refused} refused for known causes, {missing} not run"
    )
    lines.append(text + (f", {len(failed)} fail: {', '.join(failed)}" if failed else ""))
    return "\n".join(lines)


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the table of ONNX files as lines of Markdown."""
    from tools.client_models.onnx_table import ROWS

    rows = {row.key: row for row in ROWS}
    lines = ["| package | file | nodes | operators | result |", "| --- | --- | --- | --- | --- |"]
    for outcome in outcomes:
        if not outcome.facts:
            continue
        row, facts = rows[outcome.name], outcome.facts
        common = list(facts["operators"])[:5]
        left = len(facts["operators"]) - len(common)
        operators = ", ".join(common) + (f" and {left} others" if left else "")
        error = max(outcome.errors.values(), default=0.0)
        result = "fails" if outcome.failed else "not run" if outcome.missing else "equal"
        notes = [result, f"{error:.0e}" if error else "exact"]
        notes = ["refused"] if outcome.refused else notes
        notes += ["one size"] if len(facts["sizes"]) == 1 else []
        notes += filter(None, [row.cause if outcome.refused else row.why])
        cells = f"{row.package} {row.version}", f"`{row.path.rpartition('/')[2]}`"
        lines.append(
            f"| {' | '.join([*cells, str(facts['nodes']), operators, ', '.join(notes)])} |"
        )
    return lines


def write_page(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write the table between the marks of a page."""
    text = path.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    write_file(path, "\n".join([before + BEGIN, *table(outcomes), END + after]).encode())


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.replace(path)
