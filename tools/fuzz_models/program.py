"""A model as data: inputs, steps that call operators or control flow, results; and as Python text.

Values are numbered over the whole program, those of blocks included. A part of a program that is
left out leaves a program, so that a failing one can be made smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from meta.base.dtype import TO_TORCH
from meta.base.registry import OPERATORS
from meta.op.core.op import ComposedOp
from meta.testing.layout import LAYOUTS

CONTROL = ("cond", "while_loop", "scan")
"""Steps with blocks; all others are names of operators."""


@dataclass(frozen=True)
class Ref:
    """A value of the program, by its number."""

    index: int

    def __repr__(self) -> str:
        return f"x{self.index}"


@dataclass(frozen=True)
class Input:
    """An argument of the model.

    values: its elements in float64, or int64, in row-major order and exact in ``dtype``.
    layout: "compact", "transposed", "sliced" or "expanded" (one element, whatever ``values``).
    """

    dtype: str
    shape: tuple[int, ...]
    values: torch.Tensor
    layout: str = "compact"


@dataclass(frozen=True)
class Block:
    """The body of a control flow step."""

    params: tuple[int, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """A call: ``results = op(*args, **kwargs)``.

    results: the numbers of the values it makes. blocks: those of control flow. A ``while_loop``
    has the number of turns as its first argument, and carries the others. unpack: whether the
    results are the first of what the operator returns, in a tuple. case: which of the operator's
    records says what the call means.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    results: tuple[int, ...] = ()
    blocks: tuple[Block, ...] = ()
    unpack: bool = False
    case: int = 0


@dataclass(frozen=True)
class Program:
    """A model. inputs: by value number. results: what it returns."""

    inputs: Mapping[int, Input]
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of steps, those of blocks included."""
        return sum(1 for _ in all_steps(self.steps))


def all_steps(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Iterate over steps and those of their blocks."""
    for step in steps:
        yield step
        for block in step.blocks:
            yield from all_steps(block.steps)


def substitute(value: Any, change: Callable[[Ref], Any]) -> Any:
    """Return an argument with every reference, in tuples too, changed."""
    if isinstance(value, Ref):
        return change(value)
    if isinstance(value, tuple | list):
        return type(value)(substitute(v, change) for v in value)
    return value


def refs_in(value: Any) -> list[Ref]:
    """Return the references in an argument, or in a tuple of them, in order."""
    if isinstance(value, Ref):
        return [value]
    return [r for v in value for r in refs_in(v)] if isinstance(value, tuple | list) else []


def operands(step: Step) -> list[Ref]:
    """Return the values that a step is given, in order."""
    return refs_in((*step.args, *step.kwargs.values()))


def references(step: Step) -> set[int]:
    """Return the numbers of the values that a step reads or writes, its blocks included."""
    found = {r.index for r in operands(step)}
    for block in step.blocks:
        inner = set(block.results).union(*(references(s) for s in block.steps))
        inside = set(block.params).union(*(s.results for s in block.steps))
        found |= inner - inside
    return found


def without_unused(program: Program, writers: Callable[[Step], bool]) -> Program:
    """Return the program without steps and inputs that nothing depends on."""
    wanted, kept = set(program.results), []
    for step in reversed(program.steps):
        if writers(step) or wanted & set(step.results):
            kept.append(step)
            wanted |= references(step)
    inputs = {i: x for i, x in program.inputs.items() if i in wanted}
    return replace(program, inputs=inputs, steps=tuple(reversed(kept)))


# Text.


def source(program: Program, device: str = "cpu") -> str:
    """Return the program as a Python function of its inputs, which are on ``device``, in order."""
    names = ", ".join(f"x{i}" for i in program.inputs)
    steps = program.steps if device == "cpu" else _on(program.steps, device)
    lines = [f"def model({names}):", *_lines(steps, program.results, "    ")]
    return "\n".join(lines)


def _on(steps: tuple[Step, ...], device: str) -> tuple[Step, ...]:
    """Return steps whose results are on a device: operators that make tensors take it."""
    found = []
    for step in steps:
        blocks = tuple(replace(b, steps=_on(b.steps, device)) for b in step.blocks)
        takes = step.op not in CONTROL and "device" in OPERATORS[step.op].schema.index
        kwargs = {**step.kwargs, "device": device} if takes else step.kwargs
        found.append(replace(step, kwargs=kwargs, blocks=blocks))
    return tuple(found)


def _lines(steps: tuple[Step, ...], results: tuple[int, ...], indent: str) -> list[str]:
    lines = [indent + line for step in steps for line in _step_lines(step)]
    return [*lines, f"{indent}return {_tuple(results)}"]


def _tuple(results: tuple[int, ...]) -> str:
    return "(" + "".join(f"x{i}, " for i in results).rstrip(" ") + ")"


def _step_lines(step: Step) -> list[str]:
    names = [f"x{i}" for i in step.results]
    target = f"({', '.join([*names, '*_'])}) = " if names and step.unpack else ""
    if names and not step.unpack:
        target = f"{_tuple(step.results)} = " if names[1:] else f"{names[0]} = "
    if step.op in CONTROL:
        return _CONTROL_LINES[step.op](step, target)
    arguments = [repr(a) for a in step.args] + [f"{k}={v!r}" for k, v in step.kwargs.items()]
    op = OPERATORS[step.op]
    by_schema = isinstance(op, ComposedOp) and not op.takes_schema
    called = f"{step.op}.plain" if by_schema else step.op
    return [f"{target}op.{called}({', '.join(arguments)})"]


def _block_lines(block: Block, name: str, params: str) -> list[str]:
    return [f"def {name}({params}):", *_lines(block.steps, block.results, "    ")]


def _names(numbers: tuple[int, ...]) -> str:
    return ", ".join(f"x{i}" for i in numbers)


def _cond_lines(step: Step, target: str) -> list[str]:
    then, other = step.blocks
    number = step.results[0]
    return [
        *_block_lines(then, f"then{number}", _names(then.params)),
        *_block_lines(other, f"else{number}", _names(other.params)),
        f"{_tuple(step.results)} = meta.cond({step.args[0]!r}, then{number}, else{number}, "
        f"{', '.join(map(repr, step.args[1:]))})",
    ]


def _while_lines(step: Step, target: str) -> list[str]:
    (body,) = step.blocks
    number, turns = step.results[0], step.args[0]
    return [
        *_block_lines(body, f"body{number}", _names(body.params)),
        f"_, {_tuple(step.results)} = meta.while_loop(lambda s: s[0] < {turns}, "
        f"lambda s: (s[0] + 1, body{number}(*s[1])), "
        f"(0, ({''.join(f'{a!r}, ' for a in step.args[1:])})))",
    ]


def _scan_lines(step: Step, target: str) -> list[str]:
    (body,) = step.blocks
    number = step.results[0]
    state, row = step.args
    return [
        *_block_lines(body, f"body{number}", _names(body.params)),
        f"{_tuple(step.results)} = meta.scan(body{number}, {state!r}, {row!r}, "
        f"reverse={step.kwargs.get('reverse', False)})",
    ]


_CONTROL_LINES: dict[str, Callable[[Step, str], list[str]]] = {
    "cond": _cond_lines,
    "while_loop": _while_lines,
    "scan": _scan_lines,
}


# Arrays.


def tensor_of(given: Input, device: str = "cpu") -> torch.Tensor:
    """Return a fresh tensor of an input."""
    values = given.values.reshape(given.shape)
    found = values.to(TO_TORCH[given.dtype]).to(device).clone()
    return LAYOUTS[given.layout](found) if given.layout in LAYOUTS else found
