"""The face `torch.compile`, as the campaign asks for it."""

from __future__ import annotations

from argparse import Namespace

from tools.fuzz_models.face import Case, Face, Failure, Record, examine
from tools.fuzz_models.torch_compile.check import Way, check
from tools.fuzz_models.torch_compile.draw import generate
from tools.fuzz_models.torch_compile.program import Program, given_source, source
from tools.fuzz_models.torch_compile.script import script
from tools.fuzz_models.torch_compile.smaller import minimise


def ways(options: Namespace) -> list[Way]:
    """Return the one way on the device that the options name."""
    return [Way(options.device)]


def run_case(case: Case, seconds: float = 60.0) -> Record:
    """Run a case; make it smaller, for so many seconds, if it fails."""

    def run(program: Program) -> Failure | None:
        return check(program, case.way.device)

    def written(program: Program, failure: Failure) -> str:
        return script(program, case.way.device, failure)

    def size(program: Program) -> int:
        return len(program.steps)

    return examine(case, generate(case.seed, case.quick), run, minimise, written, size, seconds)


def text(case: Case) -> str:
    """Return the program of a case, its arguments and its calls."""
    program = generate(case.seed, case.quick)
    calls = [f"# {c}" for c in program.calls]
    head = f"# dynamic={program.dynamic}, {'training' if program.train else 'inference'}"
    return "\n\n".join([head, source(program), given_source(program), "\n".join(calls)])


# AOTAutograd keeps tensors for good, those of a write to a view of what is no leaf among them.
FACE = Face(ways, run_case, text, counts_tensors=False)
