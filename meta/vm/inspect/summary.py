"""The facts of a compiled program: its kernels, its memory, what it takes and returns."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from meta.analysis import MemoryReport, memory
from meta.base.html import Html, bytes_text, fragment, join, table, tag
from meta.ir import TensorType, type_bytes
from meta.vm.compiler.bytecode import Invoke
from meta.vm.compiler.code import Code
from meta.vm.run.compiled_program import CompiledProgram

MAX_PARAMETERS = 400
"""Rows of the table of parameters on a page."""


def kernel_counts(code: Code) -> dict[str, int]:
    """Return how many instructions launch each kernel, by its name."""
    instructions = (i for f in code.functions.values() for i in f.instructions())
    invoked = (code.kernels[i.kernel] for i in instructions if isinstance(i, Invoke))
    return dict(Counter(kernel.name for kernel in invoked))


def memory_report(executable: CompiledProgram) -> MemoryReport:
    """Return the memory of a call; see `Executable.memory`."""
    workspaces = max((env.workspace_bytes for env in executable.envs), default=0)
    states = sum(s.nbytes for s in {e.state for e in executable.envs} if s is not None)
    graphs = executable.graph_bytes()
    found = memory(executable.module)
    return replace(found, workspaces=workspaces, graphs=graphs, states=states)


def notebook_html(executable: CompiledProgram) -> str:
    """Return what a notebook shows of an executable."""
    title = tag("div", executable.convention.name, class_="code title")
    hint = tag("div", "executable.show() writes a page with all of it", class_="dim")
    known = facts(executable, memory_report(executable))
    rows = [*known, *((f"input {n}", tag("span", t, class_="code")) for n, t in inputs(executable))]
    return fragment(title, table((), rows), hint)


def facts(executable: CompiledProgram, memory: MemoryReport) -> list[tuple[str, object]]:
    """Return names and values: the device, the result, kernels by dialect, sizes."""
    launched: dict[str, int] = {}
    for name, count in kernel_counts(executable.code).items():
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


def _arrays(executable: CompiledProgram) -> str:
    prepared = executable.code.prepared
    arrays = executable.arrays
    text = f"{len(arrays)}, {bytes_text(sum(a.nbytes for a in arrays))}"
    return text + (f", and {prepared} computed of them once" if prepared else "")


def inputs(executable: CompiledProgram) -> list[tuple[str, TensorType]]:
    """Return the names and types of what a caller gives."""
    kept = len(executable.arrays) + executable.code.prepared
    return list(executable.code.params[: len(executable.code.params) - kept])


def parameters_table(executable: CompiledProgram) -> Html:
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
