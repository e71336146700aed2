"""The page of a compiled program: one file of HTML."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meta.base.files import replacing
from meta.base.html import Html, bytes_text, details, join, table, tag, time_text
from meta.ir.pictures import STYLE as PROGRAM_STYLE
from meta.ir.pictures import program_html
from meta.passes import PassRecord
from meta.vm.inspect.html_report.changes import changes, changes_html
from meta.vm.inspect.html_report.graph import graph_svg
from meta.vm.inspect.html_report.kernels import kernels_html, require_profile_of
from meta.vm.inspect.html_report.overview import facts, parameters_table, tiles
from meta.vm.inspect.html_report.style import STYLE
from meta.vm.inspect.profile import Profile

if TYPE_CHECKING:
    from meta.analysis import MemoryReport
    from meta.vm.executable import Executable

NOT_KEPT = (
    "The passes are not kept: this program was loaded from a folder, which holds the program as it "
    "is run. Compile the model and show that executable to see them."
)
NOT_MEASURED = (
    "No times: nothing was measured. executable.show(path, profile=executable.profile(*inputs)) "
    "adds them, and so does python -m meta profile ... --html PAGE."
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""A browser that knows of it loads nothing for the page, whatever stands in it."""


def write_page(
    executable: Executable, path: str | os.PathLike[str] | None, profile: Profile | None
) -> Path:
    """Write the page to a file, all or nothing; return its path. See `Executable.show`."""
    content = page(executable, profile)
    if path is None:
        descriptor, name = tempfile.mkstemp(prefix="meta-", suffix=".html")
        os.close(descriptor)
        target = Path(name)
    else:
        target = Path(path)
    with replacing(target) as part:
        part.write_text(content, encoding="utf-8")
    return target


def page(executable: Executable, profile: Profile | None = None) -> Html:
    """Return the page. ArgumentError for a ``profile`` of another program."""
    if profile is not None:
        require_profile_of(executable, profile)
    name, history, memory = executable.convention.name, executable.passes(), executable.memory()
    sections = {
        "Overview": _overview(executable, memory, history, profile),
        "Graph": graph_svg(executable),
        "Passes": _passes(history, replayed=not executable.history),
        "Kernels": _kernels(executable, profile),
        "Memory": _memory(memory),
        "Program": _program(executable),
    }
    links = (tag("a", title, href=f"#{title.lower()}") for title in sections)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{name} on {executable.device}"),
        tag("style", Html(PROGRAM_STYLE + STYLE)),
    )
    parts = (
        tag("section", tag("h2", title), content, id=title.lower())
        for title, content in sections.items()
    )
    top = tag("header", tag("h1", name), tag("nav", *links))
    body = tag("body", top, tag("main", *parts, class_="meta-view"))
    return join((Html("<!doctype html>\n"), tag("html", head, body, lang="en")))


def _overview(
    executable: Executable,
    memory: MemoryReport,
    history: Sequence[PassRecord],
    profile: Profile | None,
) -> Html:
    values: list[tuple[str, object]] = [
        ("device", executable.device),
        ("kernels of a call", sum(executable.kernels().values())),
        ("peak memory", bytes_text(memory.peak)),
        ("arguments", bytes_text(memory.arguments)),
    ]
    if profile is not None:
        values.insert(1, ("in kernels", time_text(profile.seconds)))
    if history:
        values.append(("in passes", time_text(sum(r.seconds for r in history))))
    parameters = details(
        f"{len(executable.code.params)} parameters and the result",
        parameters_table(executable),
        open_=len(executable.code.params) <= 12,
    )
    left, right = tag("div", table((), facts(executable, memory))), tag("div", parameters)
    return join((tiles(values), tag("div", left, right, class_="columns")))


def _passes(history: Sequence[PassRecord], replayed: bool) -> Html:
    if not history:
        return tag("p", NOT_KEPT, class_="note")
    before = details(
        "The program that the passes were given", _text(program_html(history[0].module))
    )
    found = changes(history)
    count = sum(bool(p.added or p.removed or p.rewritten) for p in found)
    note = tag(
        "p",
        f"{count} of {len(found)} passes changed the program. + lines added, − removed, ~ "
        "rewritten. A variable has one name in all of them."
        + " The program was in the cache; the passes were run once more to show them."
        * replayed,
        class_="dim",
    )
    return join((before, note, changes_html(found)))


def _kernels(executable: Executable, profile: Profile | None) -> Html:
    note = tag("p", NOT_MEASURED, class_="note")
    if profile is not None:
        note = tag("p", f"{profile.title}.", class_="dim")
    found = executable.explain()
    shown = kernels_html(found, executable.module.functions, profile)
    graph = tag("p", found.cuda_graph, class_="dim")
    return join((note, shown, graph))


def _memory(memory: MemoryReport) -> Html:
    at_peak = tag("h3", f"In use at the peak, binding {memory.worst}")
    return join((memory.picture(), at_peak, tag("div", memory.peak_table(), class_="wide")))


def _program(executable: Executable) -> Html:
    return join(
        (
            details("The program as it is run", _text(program_html(executable.module)), open_=True),
            details("The instructions", _text(executable.code)),
        )
    )


def _text(content: object) -> Html:
    return tag("div", content, class_="meta-ir box")
