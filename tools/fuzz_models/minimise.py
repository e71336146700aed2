"""Making a failing program smaller, as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from tools.fuzz_models.draw import is_writer
from tools.fuzz_models.evaluate import REFUSED, Evaluation, Value, evaluate
from tools.fuzz_models.face import smallest
from tools.fuzz_models.precision import is_float, rounded
from tools.fuzz_models.program import (
    Block,
    Input,
    Program,
    Ref,
    Step,
    all_steps,
    without_unused,
)

Fails = Callable[[Program], bool]


def minimise(program: Program, fails: Fails, seconds: float = 60.0) -> Program:
    """Return the smallest program found for which ``fails`` is true, as it is for the one given.

    Results, steps and inputs are left out, steps become inputs of the values that they made, a
    block the end of the program, extents and elements become simpler. ``fails`` is not called after
    so many seconds.
    """
    candidates = (
        _fewer_results,
        _shorter,
        _inside,
        _fewer_steps,
        _simpler_inputs,
        _smaller_extents,
    )
    return smallest(program, fails, candidates, _sound, seconds)


def _sound(program: Program) -> bool:
    """Whether the references can evaluate a program: a smaller extent may fit no more."""
    try:
        evaluate(program)
    except (*REFUSED, TypeError):
        return False
    return True


def _tidy(program: Program) -> Program:
    return without_unused(program, is_writer)


def _fewer_results(program: Program) -> Iterator[Program]:
    if len(program.results) > 1:
        for i in program.results:
            yield _tidy(replace(program, results=(i,)))
        for k in range(len(program.results)):
            yield _tidy(replace(program, results=program.results[:k] + program.results[k + 1 :]))


def _shorter(program: Program) -> Iterator[Program]:
    """End early, and return what a step in the middle made."""
    for k in range(1, len(program.steps)):
        results = program.steps[k - 1].results
        if results:
            shorter = replace(program, steps=program.steps[:k], results=results)
            yield _tidy(shorter)


def _inside(program: Program) -> Iterator[Program]:
    """End with what a block does, in place of its control flow."""
    if not any(step.blocks for step in program.steps):
        return
    found = evaluate(program)
    for k, step in enumerate(program.steps):
        for block in step.blocks:
            if all(i in found.values for i in block.params):
                inputs = {**program.inputs, **{i: _as_input(found.values[i]) for i in block.params}}
                made = [r for inner in block.steps for r in inner.results]
                results = tuple(dict.fromkeys((*block.results, *made)))
                steps = program.steps[:k] + block.steps
                yield _tidy(replace(program, inputs=inputs, steps=steps, results=results))


def _as_input(value: Value) -> Input:
    """Return the input that has a value."""
    data = value.cell.data.detach()
    data = rounded(data, value.dtype) if is_float(value.dtype) else data
    return Input(value.dtype, value.shape, data.clone())


def _fewer_steps(program: Program) -> Iterator[Program]:
    found = evaluate(program)
    count = len(program.steps)
    size = count // 2
    while size >= 1:
        for start in range(0, count, size):
            yield _cut(program, program.steps[start : start + size], found)
        size //= 2
    for step in program.steps:
        for block in step.blocks:
            for inner in block.steps:
                yield _cut(program, (inner,), found)
        if step.blocks and not all(b.results == b.params[: len(b.results)] for b in step.blocks):
            yield _tidy(_replaced(program, step, _identities(step)))
        yield from _bypassed(program, step, found)


def _identities(step: Step) -> Step:
    blocks = tuple(replace(b, results=b.params[: len(b.results)]) for b in step.blocks)
    return replace(step, blocks=blocks)


def _bypassed(program: Program, step: Step, found: Evaluation) -> Iterator[Program]:
    """Use an operand of the same type in place of a step's result."""
    if len(step.results) != 1 or step.results[0] not in found.values:
        return
    own = found.values[step.results[0]]
    for argument in step.args:
        if isinstance(argument, Ref) and argument.index in found.values:
            value = found.values[argument.index]
            if value.shape == own.shape and value.dtype == own.dtype:
                yield _tidy(
                    _renamed(_replaced(program, step, None), {own_number(step): argument.index})
                )


def own_number(step: Step) -> int:
    """Return the number of the one value that a step makes."""
    return step.results[0]


def _cut(program: Program, gone: tuple[Step, ...], found: Evaluation) -> Program:
    """Leave steps out; what they made becomes inputs."""
    inputs = dict(program.inputs)
    for step in gone:
        for number in step.results:
            if number in found.values:
                inputs[number] = _as_input(found.values[number])
    cut = replace(program, inputs=inputs)
    for step in gone:
        cut = _replaced(cut, step, None)
    return _tidy(cut)


def _replaced(program: Program, old: Step, new: Step | None) -> Program:
    return replace(program, steps=_exchange(program.steps, old, new))


def _exchange(steps: tuple[Step, ...], old: Step, new: Step | None) -> tuple[Step, ...]:
    result = []
    for step in steps:
        if step is old:
            result += [] if new is None else [new]
        elif step.blocks:
            blocks = tuple(replace(b, steps=_exchange(b.steps, old, new)) for b in step.blocks)
            same = all(a.steps == b.steps for a, b in zip(blocks, step.blocks, strict=True))
            result.append(step if same else replace(step, blocks=blocks))
        else:
            result.append(step)
    return tuple(result)


def _renamed(program: Program, names: dict[int, int]) -> Program:
    def number(i: int) -> int:
        return names.get(i, i)

    def value(v: Any) -> Any:
        if isinstance(v, Ref):
            return Ref(number(v.index))
        return tuple(map(value, v)) if isinstance(v, tuple) else v

    def step(s: Step) -> Step:
        return replace(
            s,
            args=value(s.args),
            kwargs={k: value(v) for k, v in s.kwargs.items()},
            blocks=tuple(
                Block(b.params, tuple(map(step, b.steps)), tuple(map(number, b.results)))
                for b in s.blocks
            ),
        )

    steps = tuple(map(step, program.steps))
    return replace(program, steps=steps, results=tuple(map(number, program.results)))


def _simpler_inputs(program: Program) -> Iterator[Program]:
    def with_input(number: int, new: Input) -> Program:
        return replace(program, inputs={**program.inputs, number: new})

    for number, given in program.inputs.items():
        if given.layout != "compact":
            yield with_input(number, replace(given, layout="compact"))
        kinds = [torch.zeros_like(given.values), torch.ones_like(given.values)]
        if is_float(given.dtype):
            kinds += [pattern(given.values.numel()), given.values.mul(8).round().div(8)]
            kinds.append(given.values.round())
        for values in kinds[: _simplicity(given)]:
            if not torch.equal(values, given.values):
                yield with_input(number, replace(given, values=values))
    for number, given in program.inputs.items():
        for other, same in program.inputs.items():
            if other < number and (same.dtype, same.shape) == (given.dtype, given.shape):
                left = {k: v for k, v in program.inputs.items() if k != number}
                yield _renamed(replace(program, inputs=left), {number: other})


def pattern(count: int) -> torch.Tensor:
    """Return elements that are different and exact, and can be written down briefly."""
    return (torch.arange(count, dtype=torch.float64) * 7 % 33 - 16) / 8


def _simplicity(given: Input) -> int:
    """Return how many kinds of elements are simpler than those of an input."""
    x = given.values
    if not bool((x != 0).any()):
        return 0
    if bool((x == 1).all()):
        return 1
    if is_float(given.dtype) and torch.equal(x, pattern(x.numel())):
        return 2
    return 5


def _smaller_extents(program: Program) -> Iterator[Program]:
    extents = sorted({n for x in program.inputs.values() for n in x.shape if n > 1}, reverse=True)
    for extent in extents:
        for smaller in dict.fromkeys((1, 2, 3, extent // 2, 17, 16, extent - 1)):
            if 0 < smaller < extent:
                yield _resized(program, extent, smaller)
    for step in all_steps(program.steps):
        if step.op == "while_loop" and step.args[0] > 1:
            yield _replaced(program, step, replace(step, args=(1, *step.args[1:])))


def _resized(program: Program, extent: int, smaller: int) -> Program:
    def number(v: Any) -> Any:
        if isinstance(v, bool) or not isinstance(v, int | tuple):
            return v
        if isinstance(v, tuple):
            return tuple(map(number, v))
        return smaller if v == extent else v

    def step(s: Step) -> Step:
        blocks = tuple(replace(b, steps=tuple(map(step, b.steps))) for b in s.blocks)
        kwargs = {k: number(v) for k, v in s.kwargs.items()}
        return replace(s, args=number(s.args), kwargs=kwargs, blocks=blocks)

    inputs = {i: _cropped(x, extent, smaller) for i, x in program.inputs.items()}
    return replace(program, inputs=inputs, steps=tuple(map(step, program.steps)))


def _cropped(given: Input, extent: int, smaller: int) -> Input:
    shape = tuple(smaller if n == extent else n for n in given.shape)
    values = given.values.reshape(given.shape)[tuple(slice(0, n) for n in shape)]
    return replace(given, shape=shape, values=values.reshape(-1).clone())
