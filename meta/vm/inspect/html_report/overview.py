"""The facts of a compiled program in a table: what it takes and returns, its kernels, its sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meta.base.html import Html, bytes_text, fragment, join, table, tag
from meta.ir import TensorType, type_bytes

if TYPE_CHECKING:
    from meta.analysis import MemoryReport
    from meta.vm.executable import Executable

MAX_PARAMETERS = 400
"""Rows of the table of parameters on a page."""


def notebook_html(executable: Executable) -> str:
    """Return what a notebook shows of an executable."""
    title = tag("div", executable.convention.name, class_="code title")
    hint = tag("div", "executable.show() writes a page with all of it", class_="dim")
    known = facts(executable, executable.memory())
    rows = [*known, *((f"input {n}", tag("span", t, class_="code")) for n, t in inputs(executable))]
    return fragment(title, table((), rows), hint)


def facts(executable: Executable, memory: MemoryReport) -> list[tuple[str, object]]:
    """Return names and values: the device, the result, kernels by dialect, sizes."""
    launched: dict[str, int] = {}
    for name, count in executable.kernels().items():
        dialect = name.rpartition(".")[0] or "by the extents of a call"
        launched[dialect] = launched.get(dialect, 0) + count
    compiled = {e.artifact.file for e in executable.envs if e.artifact is not None}
    sizes = [file.stat().st_size for file in compiled if file.is_file()]
    by_dialect = ", ".join(f"{count} {name}" for name, count in sorted(launched.items()))
    found: list[tuple[str, object]] = [
        ("device", executable.device),
        ("result", tag("span", executable.code.result, class_="code")),
        ("kernels", f"{sum(launched.values())} ({by_dialect})" if launched else "none"),
        *memory.sizes(),
        ("model's arrays", _arrays(executable)),
    ]
    if sizes:
        found.append(
            (
                "compiled kernels",
                f"{bytes_text(sum(sizes))} in {len(sizes)} file{'s' * (len(sizes) > 1)}",
            )
        )
    if executable.code.dims:
        ranges = [f"{n} from {a} to {b or 'any'}" for n, a, b in executable.code.dims]
        found.append(("dimensions", ", ".join(ranges)))
    if executable.device.kind != "cpu":
        found.append(("CUDA graph", str(executable.cuda_graph).partition("\n")[0]))
    return found


def _arrays(executable: Executable) -> str:
    prepared = executable.code.prepared
    arrays = executable.arrays
    text = f"{len(arrays)}, {bytes_text(sum(a.nbytes for a in arrays))}"
    return text + (f", and {prepared} computed of them once" if prepared else "")


def inputs(executable: Executable) -> list[tuple[str, TensorType]]:
    """Return the names and types of what a caller gives."""
    kept = len(executable.arrays) + executable.code.prepared
    return list(executable.code.params[: len(executable.code.params) - kept])


def parameters_table(executable: Executable) -> Html:
    """Return all parameters of the program: inputs, the model's arrays, and what is prepared."""
    params, given = executable.code.params, len(inputs(executable))
    first_prepared = len(params) - executable.code.prepared
    rows = [
        (
            name or "",
            "input" if i < given else "array" if i < first_prepared else "prepared",
            tag("span", type_, class_="code"),
            bytes_text(type_bytes(type_)) if type_.is_static else "differs",
        )
        for i, (name, type_) in enumerate(params)
    ]
    result = executable.code.result
    rows.append(("", "result", tag("span", result, class_="code"), bytes_text(type_bytes(result))))
    head = ("name", "what", "type", "bytes")
    return table(head, rows, numbers=(3,), code=(0,), most=MAX_PARAMETERS)


def tiles(values: list[tuple[str, object]]) -> Html:
    """Return a few numbers to be seen first."""
    shown = (
        tag(
            "div", tag("div", value, class_="value"), tag("div", name, class_="name"), class_="tile"
        )
        for name, value in values
    )
    return tag("div", join(shown), class_="tiles")
