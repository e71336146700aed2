"""Making a failing program smaller, as long as it fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tools.fuzz_models.face import smallest
from tools.fuzz_models.torch_compile.observe import observe
from tools.fuzz_models.torch_compile.program import (
    Program,
    Step,
    name,
    namespace,
    without_unused,
)


def minimise(program: Program, fails: Callable[[Program], bool], seconds: float) -> Program:
    """Return the smallest program found for which ``fails`` is true."""
    candidates = (_fewer_calls, _fewer_results, _shorter, _fewer_steps, _simpler, _simpler_text)
    return smallest(program, fails, candidates, _sound, seconds)


def _sound(program: Program) -> bool:
    """Whether eager PyTorch runs it."""
    if not program.inputs or not program.calls or not program.results:
        return False
    try:
        names = namespace(program)
        for call in program.calls:
            observe(program, call, names)
    except Exception:
        return False
    return True


def _fewer_calls(program: Program) -> Iterator[Program]:
    calls = program.calls
    if len(calls) > 1:
        yield from (replace(program, calls=(c,)) for c in calls)
        for k in range(len(calls)):
            yield replace(program, calls=calls[:k] + calls[k + 1 :])


def _fewer_results(program: Program) -> Iterator[Program]:
    if len(program.results) > 1:
        for r in program.results:
            yield without_unused(replace(program, results=(r,)))
        for k in range(len(program.results)):
            left = program.results[:k] + program.results[k + 1 :]
            yield without_unused(replace(program, results=left))


def _shorter(program: Program) -> Iterator[Program]:
    for k, step in enumerate(program.steps):
        for result in step.results or step.args[:1]:
            shorter = replace(program, steps=program.steps[: k + 1], results=(result,))
            if shorter != program:
                yield without_unused(shorter)


def _fewer_steps(program: Program) -> Iterator[Program]:
    """Leave a step out, and use one of its operands in place of what it made."""
    for k, step in enumerate(program.steps):
        left = replace(program, steps=program.steps[:k] + program.steps[k + 1 :])
        if not step.results:
            yield without_unused(left)
            continue
        for argument in dict.fromkeys(step.args):
            yield without_unused(_renamed(left, step.results, argument))


def _renamed(program: Program, gone: tuple[int, ...], by: int) -> Program:
    def number(v: int) -> int:
        return by if v in gone else v

    def result(r: int | str) -> int | str:
        if isinstance(r, int):
            return number(r)
        return re.sub(r"\bv(\d+)\b", lambda m: name(number(int(m[1]))), r)

    steps = tuple(replace(s, args=tuple(map(number, s.args))) for s in program.steps)
    return replace(program, steps=steps, results=tuple(map(result, program.results)))


def _simpler(program: Program) -> Iterator[Program]:
    """Simpler arguments and calls."""
    if program.dynamic is not None:
        yield replace(program, dynamic=None)
    if program.train:
        yield replace(program, train=False)
    for number, given in program.inputs.items():
        simpler = [replace(given, of=""), replace(given, layout="plain"), replace(given, grad="")]
        simpler.append(replace(given, dtype="float32"))
        for i in range(len(given.shape)):
            simpler.append(replace(given, shape=given.shape[:i] + given.shape[i + 1 :]))
            if given.shape[i] not in ("n", 1, 0):
                for extent in ("n", 2, 3):
                    shape = (*given.shape[:i], extent, *given.shape[i + 1 :])
                    simpler.append(replace(given, shape=shape))
        for new in simpler:
            if new != given and not (new.of and new.of == given.of):
                yield replace(program, inputs={**program.inputs, number: new})
    for k, call in enumerate(program.calls):
        for new in (
            replace(call, m=3, k=1, s=0.5),
            *(replace(call, n=n) for n in (2, 3, 4, 5) if n < call.n),
        ):
            if new != call:
                yield replace(program, calls=(*program.calls[:k], new, *program.calls[k + 1 :]))


SIMPLER = (
    (r"\[[^\[\]]*, ([^\[\],]*)\]", r"[\1]"),
    (r"\[([^\[\],]*), [^\[\]]*\]", r"[\1]"),
    (r":[^:,\[\]]+\]", ":]"),
    (r"\[[^:,\[\]]+:", "[:"),
    (r"\[[^:,\[\]]+:", "[1:"),
    (r"\(\{0\}\.shape\[(\d)\] - 1\)", "1"),
    (r"\bs\b", "2"),
    (r"\bk\b", "1"),
)
"""Simpler text of a statement."""


def _simpler_text(program: Program) -> Iterator[Program]:
    for k, step in enumerate(program.steps):
        for old, new in SIMPLER:
            text = re.sub(old, new, step.text)
            if text != step.text:
                simpler = Step(text, step.args, step.results)
                yield replace(program, steps=(*program.steps[:k], simpler, *program.steps[k + 1 :]))
