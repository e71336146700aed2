"""The face `training_step`, as the campaign asks for it."""

from __future__ import annotations

from argparse import Namespace

from tools.fuzz_models.face import Case, Face, Failure, Record, examine
from tools.fuzz_models.training_step import layers, loop
from tools.fuzz_models.training_step.check import Way, check
from tools.fuzz_models.training_step.draw import generate
from tools.fuzz_models.training_step.program import HEADER, Program, source, text_of
from tools.fuzz_models.training_step.smaller import minimise

RUN = """
runs = []
for make in (step_of_torch, step_of_meta):
    torch.manual_seed(0)
    runs.append(train(globals(), make))
for (what, expected), (_, found) in zip(*runs):
    if not isinstance(expected, Tensor):
        print(what, expected == found)
    elif not torch.allclose(expected, found, 1e-4, 1e-5, True):
        print(what, expected, found, sep="\\n")
""".strip()


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
        return len(program.layers) * len(program.rounds)

    return examine(case, generate(case.seed, case.quick), run, minimise, written, size, seconds)


def script(program: Program, device: str, failure: Failure) -> str:
    """Return a script that stands alone and prints what differs."""
    blocks = [HEADER, text_of(layers), text_of(loop), source(program, device), RUN]
    notes = [f"# {failure.kind}", *(f"# {line}" for line in failure.text.splitlines()[:40])]
    return "\n\n\n".join(blocks) + "\n" + "\n".join(notes) + "\n"


def text(case: Case) -> str:
    """Return the program of a case."""
    return source(generate(case.seed, case.quick), case.way.device)


FACE = Face(ways, run_case, text, counts_tensors=False)  # torch.export keeps tensors
