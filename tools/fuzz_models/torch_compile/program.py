"""A PyTorch program as data: inputs, statements, results, calls; and as Python text."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

NUMBERS = ("k", "s")
"""Arguments that are Python numbers, an integer and a float; passed where the text has them."""
Extent = int | str


@dataclass(frozen=True)
class Call:
    """What changes between calls: the extents n and m, the integer k and the float s."""

    n: int
    m: int
    k: int
    s: float

    def __str__(self) -> str:
        return f"dict(n={self.n}, m={self.m}, k={self.k}, s={self.s})"


@dataclass(frozen=True)
class Given:
    """An argument that is a tensor.

    shape: of integers, and of expressions of n and m. layout: a key of LAYOUTS. grad: "" for no
    gradient, "leaf", or "made" for a result of a leaf, which a program may write. of: text of a
    view of another argument, in place of all that.
    """

    dtype: str
    shape: tuple[Extent, ...]
    layout: str = "plain"
    grad: str = ""
    of: str = ""


@dataclass(frozen=True)
class Step:
    """A statement. text: with {0}, {1}, ... for ``args`` and r0, r1 for ``results``."""

    text: str
    args: tuple[int, ...]
    results: tuple[int, ...] = ()


@dataclass(frozen=True)
class Program:
    """A program and its calls.

    inputs: by the numbers of their values. results: values, or text of a Python number. train:
    whether gradients are taken; else it runs under ``no_grad``. dynamic: of `torch.compile`.
    """

    inputs: Mapping[int, Given]
    steps: tuple[Step, ...]
    results: tuple[int | str, ...]
    calls: tuple[Call, ...]
    train: bool = False
    dynamic: bool | None = None

    @property
    def numbers(self) -> list[str]:
        """The Python numbers that the program reads."""
        lines = [*map(line, self.steps), *(r for r in self.results if isinstance(r, str))]
        return [n for n in NUMBERS if any(re.search(rf"\b{n}\b", text) for text in lines)]


LAYOUTS: dict[str, tuple[Callable[[tuple[str, ...]], tuple[str, ...]], str]] = {
    "plain": (lambda s: s, ""),
    "transposed": (lambda s: (*s[:-2], s[-1], s[-2]), ".mT"),
    "sliced": (lambda s: (*s[:-1], f"2 * ({s[-1]})"), "[..., ::2]"),
    "offset": (lambda s: (f"{s[0]} + 1", *s[1:]), "[1:]"),
    "expanded": (lambda s: ("1", *s[1:]), ".expand({0})"),
    "channels_last": (lambda s: s, ".contiguous(memory_format=torch.channels_last)"),
}
"""Of what shape the memory of a layout is, and what makes the tensor of it."""


def values(shape: tuple[int, ...], dtype: torch.dtype, salt: int = 0) -> torch.Tensor:
    """Return different numbers, which all floating point dtypes hold exactly."""
    x = torch.arange(math.prod(shape)) * 101 + salt * 31
    if dtype == torch.bool:
        x = x % 3 == 0
    elif not dtype.is_floating_point:
        x = x % 11 - 3
    else:
        x = (x % 257 - 128) / 64
    return x.to(dtype).reshape(shape)


def name(value: int) -> str:
    """Return the name of a value."""
    return f"v{value}"


def line(step: Step) -> str:
    """Return a statement."""
    text = step.text.format(*map(name, step.args))
    for i, result in enumerate(step.results):
        text = re.sub(rf"\br{i}\b", name(result), text)
    return text


def source(program: Program) -> str:
    """Return the program as a Python function."""
    arguments = ", ".join([*map(name, program.inputs), *program.numbers])
    results = [r if isinstance(r, str) else name(r) for r in program.results]
    lines = [f"def f({arguments}):", *(f"    {line(s)}" for s in program.steps)]
    return "\n".join([*lines, f"    return {', '.join(results)}{',' * (len(results) == 1)}"])


def given_source(program: Program, device: str = "cpu") -> str:
    """Return a function that makes the arguments, and the leaves for gradients, as text."""
    lines = ["def inputs(n, m, k, s):"]
    leaves = []
    for number, given in program.inputs.items():
        own = name(number)
        if given.of:
            lines.append(f"    {own} = {given.of}")
            continue
        shape = tuple(map(str, given.shape))
        memory, tail = LAYOUTS[given.layout]
        text = f"values({_tuple(memory(shape))}, torch.{given.dtype}, {number})"
        if device != "cpu":
            text += f'.to("{device}")'
        text += tail.format(_tuple(shape))
        if given.grad and program.train:
            leaf = own if given.grad == "leaf" else f"leaf{number}"
            leaves.append(leaf)
            lines.append(f"    {leaf} = {text}.requires_grad_()")
            if leaf != own:
                lines.append(f"    {own} = {leaf}.clone()")
        else:
            lines.append(f"    {own} = {text}")
    arguments = ", ".join([*map(name, program.inputs), *program.numbers])
    return "\n".join([*lines, f"    return [{arguments}], [{', '.join(leaves)}]"])


def _tuple(items: tuple[str, ...]) -> str:
    return f"({', '.join(items)}{',' * (len(items) == 1)})"


def namespace(program: Program, device: str = "cpu") -> dict[str, Any]:
    """Return the functions ``f`` and ``inputs`` of a program."""
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "values": values}
    exec(compile(given_source(program, device), "<inputs>", "exec"), names)
    exec(compile(source(program), "<program>", "exec"), names)
    return names


def values_source() -> str:
    """Return the text of `values`."""
    return inspect.getsource(values)


def without_unused(program: Program) -> Program:
    """Return the program without steps and inputs that nothing depends on.

    A step without results writes what it is given; it stays if that is read, or an input.
    """
    wanted = {r for r in program.results if isinstance(r, int)}
    wanted |= {int(v) for r in program.results if isinstance(r, str) for v in _names(r)}
    kept = []
    for step in reversed(program.steps):
        if not step.results or wanted & set(step.results):
            kept.append(step)
            wanted |= set(step.args)
    for number in sorted(program.inputs, reverse=True):
        if number in wanted:
            wanted |= {int(v) for v in _names(program.inputs[number].of)}
    inputs = {i: x for i, x in program.inputs.items() if i in wanted}
    return replace(program, inputs=inputs, steps=tuple(reversed(kept)))


def _names(text: str) -> list[str]:
    return re.findall(r"\bv(\d+)\b", text)
