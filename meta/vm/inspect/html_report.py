"""The page of a compiled program: its graph, what the passes did, its kernels, memory and sizes.

A page is one file that refers to no other and has no script: what is long opens at a click. It is
written by `Executable.show` and by the commands ``compile`` and ``profile`` with ``--html``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from meta.analysis import MemoryReport
from meta.base.errors import ArgumentError
from meta.base.files import replacing
from meta.base.html import STYLE as TABLES_STYLE
from meta.base.html import Html, bytes_text, details, join, table, tag, time_text
from meta.ir import Function
from meta.ir.pictures import STYLE as PROGRAM_STYLE
from meta.ir.pictures import program_html
from meta.passes import PassRecord
from meta.vm.compiler.code import FusedRef
from meta.vm.compiler.launch_sites import launch_sites
from meta.vm.inspect.explain import ExplainedSite, ProgramExplanation, explain_program
from meta.vm.inspect.graph_svg import graph_svg
from meta.vm.inspect.pass_changes import changes, changes_html
from meta.vm.inspect.profile import Profile, ProfileRow, share_bar
from meta.vm.inspect.summary import facts, kernel_counts, memory_report, parameters_table, tiles
from meta.vm.run.compiled_program import CompiledProgram

NO_PASSES = (
    "The passes are not kept: this program was loaded from a folder, which holds the program as it "
    "is run. Compile the model and show that executable to see them."
)
NO_TIMES = (
    "No times: nothing was measured. executable.show(path, profile=executable.profile(*inputs)) "
    "adds them, and so does python -m meta profile ... --html PAGE."
)
MAX_KERNELS = 600
"""Rows of a page."""
MAX_SUMS = 12
"""Rows of the sums by backend and by kernel."""
MAX_ANSWERS = 200
"""Rows that open to the answers of all candidates."""


_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""A browser that knows of it loads nothing for the page, whatever stands in it."""


def write_page(
    executable: CompiledProgram, path: str | os.PathLike[str] | None, profile: Profile | None
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


def page(executable: CompiledProgram, profile: Profile | None = None) -> Html:
    """Return the page. ArgumentError for a ``profile`` of another program."""
    if profile is not None:
        require_profile_of(executable, profile)
    name, memory = executable.convention.name, memory_report(executable)
    history = executable.passes()
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
        tag("style", Html(STYLE)),
    )
    parts = (
        tag("section", tag("h2", title), content, id=title.lower())
        for title, content in sections.items()
    )
    top = tag("header", tag("h1", name), tag("nav", *links))
    body = tag("body", top, tag("main", *parts, class_="meta-view"))
    return join((Html("<!doctype html>\n"), tag("html", head, body, lang="en")))


def _overview(
    executable: CompiledProgram,
    memory: MemoryReport,
    history: Sequence[PassRecord],
    profile: Profile | None,
) -> Html:
    values: list[tuple[str, object]] = [
        ("device", executable.device),
        ("kernels of a call", sum(kernel_counts(executable.code).values())),
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
        return tag("p", NO_PASSES, class_="note")
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


def _kernels(executable: CompiledProgram, profile: Profile | None) -> Html:
    note = tag("p", NO_TIMES, class_="note")
    if profile is not None:
        note = tag("p", f"{profile.title}.", class_="dim")
    found = explain_program(executable)
    shown = kernels_html(found, executable.module.functions, profile)
    graph = tag("p", found.cuda_graph, class_="dim")
    return join((note, shown, graph))


def _memory(memory: MemoryReport) -> Html:
    at_peak = tag("h3", f"In use at the peak, binding {memory.worst}")
    return join((memory.picture(), at_peak, tag("div", memory.peak_table(), class_="wide")))


def _program(executable: CompiledProgram) -> Html:
    return join(
        (
            details("The program as it is run", _text(program_html(executable.module)), open_=True),
            details("The instructions", _text(executable.code)),
        )
    )


def _text(content: object) -> Html:
    return tag("div", content, class_="meta-ir box")


# Kernels: who runs each instruction, why, and for how long.


def require_profile_of(executable: CompiledProgram, profile: Profile) -> None:
    """Raise ArgumentError for a profile of another program."""
    found = {site.number: site.kernel for site in launch_sites(executable.code)}
    for row in profile.rows:
        if found.get(row.site.number) != row.site.kernel:
            raise ArgumentError(
                "this is the profile of another program",
                expected="executable.profile(...) of the same executable",
                found=f"instruction {row.site.number} is {row.site.operator}",
            )


def kernels_html(
    explained: ProgramExplanation, functions: Mapping[str, Function], profile: Profile | None
) -> Html:
    """Return sums by backend and by kernel, and a table with a row per instruction."""
    times = {row.site.number: row for row in profile.rows} if profile is not None else {}
    rows = [
        _row(entry, functions, times, place < MAX_ANSWERS)
        for place, entry in enumerate(explained[:MAX_KERNELS])
    ]
    timed = ("time", "share", "read", "written", "GB/s") if times else ()
    head = ("", "kernel", *timed, "why this backend", "line")
    numbers = (0, 2, 4, 5, 6) if times else (0,)
    shown = table(head, rows, numbers=numbers, code=(1, len(head) - 1), most=None)
    left = len(explained) - len(rows)
    more = tag("p", f"… and {left:,} more instructions", class_="dim") if left else ""
    sums = (
        _sums(explained, times, "backend", lambda entry: entry.who),
        _sums(explained, times, "kernel", lambda entry: entry.site.operator),
    )
    rows_html = tag("div", shown, class_="wide")
    return join((tag("div", *sums, class_="columns"), rows_html, more))


def _row(
    entry: ExplainedSite,
    functions: Mapping[str, Function],
    times: Mapping[int, ProfileRow],
    answers: bool,
) -> tuple[object, ...]:
    site = entry.site
    name: object = join((tag("span", f"{entry.who}.", class_="dim"), tag("b", site.operator)))
    if isinstance(site.kernel, FusedRef) and answers:
        body = program_html(functions[site.kernel.function])
        name = details(name, tag("div", body, class_="meta-ir"))
    measured: tuple[object, ...] = ()
    if times:
        row = times.get(site.number)
        measured = ("", tag("span", "did not run", class_="dim"), "", "", "")
        if row is not None:
            moved = (row.read + row.written) / row.seconds / 1e9 if row.seconds else 0.0
            calls = f" in {row.calls} calls" if row.calls > 1 else ""
            measured = (
                f"{time_text(row.seconds)}{calls}",
                share_bar(row.share),
                bytes_text(row.read),
                bytes_text(row.written),
                f"{moved:.1f}",
            )
    line = "" if site.span is None else str(site.span)
    place = tag("span", line.rpartition("/")[2], title=line, class_="dim")
    return (site.number, name, *measured, entry.why_html() if answers else entry.why(), place)


def _sums(
    explained: ProgramExplanation,
    times: Mapping[int, ProfileRow],
    what: str,
    name: Callable[[ExplainedSite], str],
) -> Html:
    """Return a table of instructions and times by a name, the most first."""
    counts: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for entry in explained:
        key, row = name(entry), times.get(entry.site.number)
        counts[key] = counts.get(key, 0) + 1
        seconds[key] = seconds.get(key, 0.0) + (0.0 if row is None else row.seconds)
    total = sum(seconds.values())
    rows = []
    for key in sorted(counts, key=lambda key: (-seconds[key], -counts[key])):
        measured = (time_text(seconds[key]), share_bar(seconds[key] / total)) if total else ()
        rows.append((tag("b", key), counts[key], *measured))
    head = (what, "instructions", *(("time", "share") if total else ()))
    return table(head, rows, numbers=(1, 2), most=MAX_SUMS)


# The style of a page, for light and dark.

STYLE = (
    PROGRAM_STYLE
    + TABLES_STYLE
    + """
:root{color-scheme:light dark;--back:#fff;--text:#1c2126;--soft:#f5f6f8;--line:#dfe3e8;
--accent:#1a66c2;--new:#d9f3de;--old:#fbe0e0}
.meta-ir .var{color:#155c96}.meta-ir .global,.meta-ir .data{color:#7a3fb0}
.meta-ir .keyword{color:#a02a6a}.meta-ir .dtype{color:#0e6a4f}.meta-ir .op{color:#94490c}
.meta-ir .number,.meta-ir .string{color:#416a17}.meta-ir a,.meta-ir .comment{color:#646b73}
@media(prefers-color-scheme:dark){:root{--back:#15181c;--text:#dde2e8;--soft:#1e2329;--line:#333a43;
--accent:#6db3ff;--new:#173d24;--old:#4a2024}
.meta-ir .var{color:#6db3ff}.meta-ir .global,.meta-ir .data{color:#c69cf0}
.meta-ir .keyword{color:#f08bbd}.meta-ir .dtype{color:#5fcfae}.meta-ir .op{color:#f0a35e}
.meta-ir .number,.meta-ir .string{color:#a5cf6a}.meta-ir a,.meta-ir .comment{color:#98a1ab}}
*{box-sizing:border-box}
html{scroll-padding-top:3.4rem}
body{margin:0;background:var(--back);color:var(--text);font:14px/1.5 system-ui,sans-serif}
header{position:sticky;top:0;z-index:1;display:flex;gap:1.5rem;align-items:baseline;
padding:.6rem 1.5rem;background:var(--soft);border-bottom:1px solid var(--line)}
h1{font:600 1.05rem ui-monospace,monospace;margin:0;overflow:hidden;text-overflow:ellipsis;
white-space:nowrap}
nav{display:flex;gap:1rem;flex-wrap:wrap}
a{color:var(--accent);text-decoration:none}a:hover{text-decoration:underline}
main{max-width:1280px;margin:0 auto;padding:0 1.5rem 4rem}
main.meta-view{font-size:13px;max-width:1280px;overflow:visible}
section{padding-top:.4rem}
.columns{display:flex;gap:.5rem 3rem;flex-wrap:wrap;align-items:flex-start}
.wide{overflow-x:auto}
h2{font-size:1.25rem;margin:1.6rem 0 .7rem;padding-bottom:.25rem;
border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.7rem;
margin:.7rem 0 1rem}
.tile{background:var(--soft);border:1px solid var(--line);border-radius:6px;padding:.55rem .8rem}
.value{font-size:1.35rem;font-weight:600;white-space:nowrap}.name{opacity:.7}
.note{background:var(--soft);border-left:3px solid #d9822b;padding:.5rem .8rem;margin:.6rem 0}
summary{padding:.12rem 0}
summary:hover{color:var(--accent)}
td>details>summary{padding:0}
.box{background:var(--soft);border:1px solid var(--line);border-radius:6px;padding:.7rem .9rem;
margin:.3rem 0 .8rem;font-size:12px;max-height:70vh;overflow:auto}
.passes{border:1px solid var(--line);border-radius:6px;overflow:hidden}
.passes>*{border-top:1px solid var(--line);padding:.1rem .8rem}
.passes>:first-child{border-top:0}
.passes>details>summary,.idle{display:grid;align-items:baseline;gap:.8rem;
grid-template-columns:16.5rem 6rem 5rem 6.2rem 1fr}
.passes>details>summary::before{content:"▸";position:absolute;margin-left:-.75rem;font-size:.8em;
opacity:.7}
.passes>details[open]>summary::before{content:"▾"}
.passes>details>summary{list-style:none}.passes>details{padding-left:.8rem}
.pass{font-family:ui-monospace,monospace;overflow:hidden;text-overflow:ellipsis}
.passes>details .pass{font-weight:600}
.idle{opacity:.6}
.count,.time{font-variant-numeric:tabular-nums;white-space:nowrap}.time{text-align:right}
.bar>span{display:block;height:.6em;background:#d9822b;border-radius:2px}
.about{opacity:.7;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.diff{margin:.3rem 0 .7rem;padding:.5rem 0;background:var(--soft);border:1px solid var(--line);
border-radius:6px;font-size:12px;content-visibility:auto;contain-intrinsic-size:auto 20rem}
.diff div{white-space:pre-wrap;overflow-wrap:anywhere;padding:0 .8rem 0 3.6rem;text-indent:-2rem}
.diff details>div,.diff .far+div{padding-left:0}
.diff details>div{padding-right:0}
.diff .old{background:var(--old)}.diff .new{background:var(--new)}
.diff .edit{background:color-mix(in srgb,var(--soft),var(--accent) 8%)}
.diff .old,.diff .new,.diff .edit{position:relative}
.diff .old::before,.diff .new::before,.diff .edit::before{position:absolute;left:2.8rem;opacity:.7}
.diff .old::before{content:"−"}.diff .new::before{content:"+"}.diff .edit::before{content:"~"}
.diff del{background:var(--old);text-decoration:line-through;text-decoration-color:#c4484880}
.diff ins{background:var(--new);text-decoration:none;font-weight:600}.diff del+ins{margin-left:3px}
.diff div:empty{height:.9em}
.diff summary,.diff .far{opacity:.65;padding:0 .8rem;text-indent:0;font-family:system-ui,sans-serif}
.meta-view td .meta-ir{margin:.3em 0}
td details[open]{max-width:30rem}td details>div.code{overflow-wrap:anywhere}
td details td{font-size:.92em}
.graph{font:10.5px ui-monospace,monospace;display:block;margin:0 auto}
.graph path{fill:none;stroke:currentColor;opacity:.35}
.graph text{text-anchor:middle;fill:currentColor}.graph .title{font-weight:600}
.graph rect{fill-opacity:.28}
.graph .layer{fill:none;stroke:currentColor;stroke-dasharray:4 4;opacity:.6}
.graph .given{fill:none;stroke:currentColor}
.graph .result{stroke:currentColor;stroke-width:2.5}
td .meta-ir{max-width:25rem;font-size:.9em}
"""
)
