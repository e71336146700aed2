"""``python -m meta compile``: compile a model or a program, and say what became of it."""

from __future__ import annotations

import argparse
from typing import Any

from meta.cli.table import section, show
from meta.cli.target import module
from meta.vm import Executable


def run(options: argparse.Namespace) -> int:
    """Print the record."""
    made, types = module(options, options.workdir)
    executable = made.executable
    if options.output:
        executable.save(options.output)
    if options.html:
        executable.show(options.html)
    found = {"target": options.target, "inputs": list(map(str, types)), **record(executable)}
    show(options, found, text)
    return 0


def record(executable: Executable) -> dict[str, Any]:
    """Return what is known of a compiled program, as values that JSON has."""
    memory = executable.memory()
    return {
        "device": str(executable.device),
        "cuda_graph": str(executable.cuda_graph),
        "passes": [{"name": r.name, "seconds": r.seconds} for r in executable.passes()[1:]],
        "kernels": executable.kernels(),
        "arena_bytes": executable.arena_bytes,
        "peak_bytes": memory.peak,
        "workspace_bytes": memory.workspaces,
        "instructions": executable.explain().records(),
    }


def text(found: dict[str, Any]) -> str:
    """Return the record for a terminal."""
    title = f"{found['target']}({', '.join(found['inputs'])}) on {found['device']}"
    passes = [[p["name"], f"{p['seconds'] * 1e3:8.2f} ms"] for p in found["passes"]]
    instructions = [
        [i["instruction"], ".".join(filter(None, (i["dialect"], i["operator"]))), i["line"] or ""]
        for i in found["instructions"]
    ]
    lines = [title, *section("passes", passes), *section("instructions", instructions)]
    graph = [] if found["device"] == "cpu" else [found["cuda_graph"]]
    memory = (
        f"memory for intermediates: {found['arena_bytes']} bytes, with what is allocated beside "
        f"{found['peak_bytes']}; a kernel takes up to {found['workspace_bytes']} more"
    )
    return "\n".join([*lines, "", *graph, memory])
