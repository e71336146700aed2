"""What the command prints and writes: lines, and the table of a page of docs."""

from __future__ import annotations

from pathlib import Path

from tools.onnx_files.measure import NOT_THERE, PASSED, REFUSED, Outcome
from tools.onnx_files.table import File

BEGIN = "<!-- python -m tools.onnx_files --page: from here -->"
END = "<!-- to here -->"


def passes(file: File, outcome: Outcome) -> bool:
    """Whether a file gives what the table says of it."""
    if file.refused is not None and outcome.result == REFUSED:
        return file.refused in outcome.reason
    return outcome.result in PASSED


def line(file: File, outcome: Outcome) -> str:
    """Return a file's line."""
    error = max(outcome.errors.values(), default=0.0)
    seconds = sum(outcome.seconds.values())
    state = "" if passes(file, outcome) else "  FAILS"
    text = f"{file.key:64}  {outcome.nodes:5} nodes  {error:8.1e}  {seconds:6.1f}s"
    return f"{text}  {outcome.result}{state}  {' '.join(outcome.reason.split())[:400]}".rstrip()


def table(found: list[tuple[File, Outcome]]) -> list[str]:
    """Return the table of files as lines of Markdown."""
    lines = ["| package | file | nodes | operators | result |", "| --- | --- | --- | --- | --- |"]
    for file, outcome in found:
        if outcome.result == NOT_THERE:
            continue
        common = list(outcome.operators)[:5]
        left = len(outcome.operators) - len(common)
        operators = ", ".join(common) + (f" and {left} others" if left else "")
        package = f"{file.package} {file.version}"
        name = file.path.rpartition("/")[2]
        lines.append(
            f"| {package} | `{name}` | {outcome.nodes} | {operators} | {_said(file, outcome)} |"
        )
    return lines


def _said(file: File, outcome: Outcome) -> str:
    """Return the result of a file in words."""
    error = max(outcome.errors.values(), default=0.0)
    why = file.refused if outcome.result == REFUSED else file.why
    sizes = "one size" if len(outcome.sizes) == 1 else ""
    number = f"{error:.0e}" if error else "exact"
    parts = [outcome.result, number if outcome.result not in (REFUSED,) else "", sizes, why or ""]
    return ", ".join(p for p in parts if p)


def page(path: Path, found: list[tuple[File, Outcome]]) -> None:
    """Write the table between the marks of a page."""
    text = path.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    written(path, "\n".join([before + BEGIN, *table(found), END + after]))


def written(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)
