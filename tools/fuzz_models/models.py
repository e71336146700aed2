"""The face of models: programs of `meta`'s own operators, in every way that they can be run."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from random import Random

from tools.fuzz_models.draw import Style, generate
from tools.fuzz_models.face import Case, Face, Failure, Record, examine
from tools.fuzz_models.minimise import minimise
from tools.fuzz_models.program import Program, source
from tools.fuzz_models.run import DIALECTS, EXECUTORS, Way, check
from tools.fuzz_models.script import script


def style_of(case: Case) -> Style:
    """Return what kind of program a case has, which follows from the case alone."""
    random = Random(case.seed ^ 0x5EED)
    gradient = case.way.gradient
    smooth, only = gradient, case.only
    writes = not gradient and case.way.executor not in ("autocast", "dynamic")
    # Under autocast what a branch or a loop carries changes its dtype, which is an error.
    control = case.way.executor not in ("autocast", "dynamic")
    if case.quick:
        return Style(5, 9, 400, smooth, control=control, writes=writes, only=only)
    most = random.choices((8, 14, 24, 40), (5, 3, 1.5, 0.5))[0]
    kind = random.random()
    floats = ("float64", "float32") if smooth else Style.floats
    return Style(
        5,
        most,
        3000,
        smooth,
        special=kind < 0.05 and not smooth,
        large=0.05 <= kind < 0.08,
        control=control,
        writes=writes,
        floats=floats,
        only=only,
    )


def ways(options: Namespace) -> list[Way]:
    """Return the executors and dialects that the options name."""
    executors = options.executor.split(",") if options.executor else EXECUTORS
    dialects = options.dialect.split(",") if options.dialect else DIALECTS
    unknown = [e for e in executors if e not in EXECUTORS]
    unknown += [d for d in dialects if d not in DIALECTS]
    if unknown:
        raise ValueError(", ".join(unknown))
    return [Way(e, d, options.device) for d in dialects for e in executors]


def run_case(case: Case, seconds: float = 60.0) -> Record:
    """Run a case; make it smaller, for so many seconds, if it fails."""

    def written(program: Program, failure: Failure) -> str:
        return script(program, case.way, failure)

    program = generate(case.seed, style_of(case))
    run = partial(check, way=case.way)
    return examine(case, program, run, minimise, written, lambda p: p.size, seconds)


def text(case: Case) -> str:
    """Return the program of a case."""
    return source(generate(case.seed, style_of(case)))


FACE = Face(ways, run_case, text)
