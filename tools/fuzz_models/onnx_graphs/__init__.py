"""The face of ONNX: random graphs through `from_onnx`, against onnx's reference evaluator."""

from __future__ import annotations

from argparse import Namespace
from functools import partial

from tools.fuzz_models.face import Case, Face, Record, examine, smallest
from tools.fuzz_models.onnx_graphs.draw import generate
from tools.fuzz_models.onnx_graphs.minimise import CANDIDATES, is_sound
from tools.fuzz_models.onnx_graphs.program import Program
from tools.fuzz_models.onnx_graphs.run import EXECUTORS, Way, check
from tools.fuzz_models.onnx_graphs.script import script
from tools.fuzz_models.onnx_graphs.script import text as text_of

DIALECTS = ("torch", "torch", "tvm")
"""Kernels of TVM are built for every size, which takes seconds."""


def ways(options: Namespace) -> list[Way]:
    """Return the ways to run graphs. The options for models choose among their own."""
    return [
        Way(executor, dialect, options.device) for dialect in DIALECTS for executor in EXECUTORS
    ]


def run_case(case: Case, seconds: float = 60.0) -> Record:
    """Run a case; make it smaller, for so many seconds, if it fails."""
    program = generate(case.seed, case.quick, case.only)
    run = partial(check, way=case.way)

    def smaller(program: Program, fails: object, seconds: float) -> Program:
        return smallest(program, fails, CANDIDATES, is_sound, seconds)  # type: ignore[arg-type]

    return examine(
        case, program, run, smaller, lambda p, f: script(p, case.way, f), lambda p: p.size, seconds
    )


def text(case: Case) -> str:
    """Return the graph of a case."""
    return text_of(generate(case.seed, case.quick, case.only))


FACE = Face(ways, run_case, text)
