"""Makes a graph that fails smaller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tools.fuzz_models.onnx_graphs.program import Program, values_of


def fewer_outputs(program: Program) -> Iterator[Program]:
    """Yield the program with one of its outputs."""
    if len(program.outputs) > 1:
        for name in program.outputs:
            yield replace(program, outputs=(name,)).pruned()


def fewer_runs(program: Program) -> Iterator[Program]:
    """Yield the program with one of its runs less."""
    if len(program.runs) > 1:
        for i in range(len(program.runs)):
            yield replace(program, runs=program.runs[:i] + program.runs[i + 1 :])


def earlier_outputs(program: Program) -> Iterator[Program]:
    """Yield the program that ends at another value."""
    for node in program.nodes[:-1]:
        yield replace(program, outputs=tuple(o for o in node.output if o)).pruned()


def given_values(program: Program) -> Iterator[Program]:
    """Yield the program with the results of a node as inputs."""
    for i, node in enumerate(program.nodes):
        outputs = [o for o in node.output if o]
        if set(outputs) & set(program.outputs):
            continue
        runs: list[dict[str, Any]] = []
        for run in program.runs:
            given = {**program.constants, **run}
            (found,) = values_of(program.nodes[: i + 1], program.opset, [given], outputs)
            runs.append({**run, **dict(zip(outputs, map(np.asarray, found), strict=True))})
        dims = {
            **program.dims,
            **{o: _dims([r[o] for r in runs], o) for o in outputs},
        }
        nodes = (*program.nodes[:i], *program.nodes[i + 1 :])
        yield replace(program, nodes=nodes, dims=dims, runs=tuple(runs)).pruned()


def _dims(values: list[Any], name: str) -> tuple[int | str, ...]:
    extents = zip(*(v.shape for v in values), strict=True)
    return tuple(e[0] if len(set(e)) == 1 else f"{name}_{i}" for i, e in enumerate(extents))


CANDIDATES = (fewer_outputs, earlier_outputs, given_values, fewer_runs)


def is_sound(program: Program) -> bool:
    """Whether a graph means something: it has nodes, and the reference evaluator takes it."""
    if not program.nodes or not all(program.runs):
        return False
    try:
        given = [{**program.constants, **run} for run in program.runs]
        values_of(program.nodes, program.opset, given, list(program.outputs))
    except Exception:  # the evaluator's are of many kinds
        return False
    return True
