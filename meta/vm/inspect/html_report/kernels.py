"""The instructions of a program as a table: who runs each, why, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from meta.base.errors import ArgumentError
from meta.base.html import Html, bytes_text, details, join, table, tag, time_text
from meta.ir import Function
from meta.ir.pictures import program_html
from meta.vm.compiler.code import FusedRef
from meta.vm.compiler.launch_sites import launch_sites
from meta.vm.inspect.explain import ExplainedSite, ProgramExplanation
from meta.vm.inspect.profile import Profile, ProfileRow, share_bar

if TYPE_CHECKING:
    from meta.vm.executable import Executable

MAX_KERNELS = 600
"""Rows of a page."""
MAX_SUMS = 12
"""Rows of the sums by backend and by kernel."""
MAX_ANSWERS = 200
"""Rows that open to the answers of all candidates."""


def require_profile_of(executable: Executable, profile: Profile) -> None:
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
