"""Random PyTorch programs: a seed in, a program out.

A statement is run for every call at once as it is drawn, and kept if eager PyTorch takes it.
"""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

import torch

from tools.fuzz_models.generator import Generator, Missing
from tools.fuzz_models.torch_compile import rows
from tools.fuzz_models.torch_compile.observe import observe
from tools.fuzz_models.torch_compile.overloads import calls
from tools.fuzz_models.torch_compile.program import (
    Call,
    Extent,
    Given,
    Program,
    Step,
    line,
    name,
    namespace,
    without_unused,
)
from tools.fuzz_models.torch_compile.tokens import Tokens

LARGEST = 1000.0
"""Values beyond this are avoided."""
SHAPES: tuple[tuple[Extent, ...], ...] = (
    *[("n",), ("n", 4), ("n", 4), ("n", 3), ("n", "m"), ("n", 3, 4), (4, "n"), (2, "n", 4)],
    *[("n", 3, 6, 6), ("n", "n"), ("2 * n", 3), ("2 * n",), ("n + 1", 2), ("n", 2, "m", 4)],
    *[(), (), (6,), (3, 4), (0, 4), ("n", 0), ("n", 1), (1, "n"), ("m", 4), ("n", 2, 4, 4)],
)
FLOATS = ("float32",) * 8 + ("bfloat16", "float64")
OTHERS = ("int64", "int64", "int32", "bool")
ALIASES = (
    *("{0}", "{0}[1:]", "{0}.mT", "{0}[...]", "{0}.view(-1)", "{0}[..., :1]", "{0}[n // 2:]"),
    *("{0}[:-1]", "{0}.unsqueeze(0)", "{0}[::2]", "{0}[0]", "{0}.detach()"),
)
WEIGHTS = {
    rows.VIEWS: 5.0,
    rows.COPIES: 2.0,
    rows.WRITES: 3.0,
    rows.ELEMENTWISE: 2.0,
    rows.REDUCTIONS: 1.0,
    rows.LAYERS: 2.0,
    "overloads": 4.0,
}
"""How often a statement of each table is drawn."""
KINDS = {
    "A": lambda x: True,
    "N": lambda x: x.dtype != torch.bool,
    "F": lambda x: x.is_floating_point(),
    "I": lambda x: not x.is_floating_point() and x.dtype != torch.bool,
    "B": lambda x: x.dtype == torch.bool,
}


@dataclass(frozen=True)
class Row:
    """A line of `rows`."""

    kind: str
    least: int
    most: int
    weight: float
    text: str
    writes: bool


def _parsed(block: str) -> list[Row]:
    found = []
    for text in block.strip().splitlines():
        head, body = text.split(" ", 1)
        head, _, weight = head.partition("*")
        least, _, most = head[1:].partition("-")
        row = Row(
            head[0], int(least), int(most or 5), float(weight or 1), body, block is rows.WRITES
        )
        found.append(row)
    return found


@cache
def _table(block: str) -> list[Row]:
    if block != "overloads":
        return _parsed(block)
    return [Row("N", 0, 5, 1.0, text, False) for text in calls()]


class Draw(Generator[int]):
    """A program that grows, and what its values are in each of its calls."""

    def __init__(self, seed: int, quick: bool) -> None:
        super().__init__(seed)
        self.train = self.random.random() < 0.4
        self.dtype = self.random.choice(FLOATS)
        self.calls = _calls(self.random)
        self.inputs: dict[int, Given] = {}
        self.steps: list[Step] = []
        self.most = self.random.randint(2, 5 if quick else 8)
        # The values of each call; None after a statement that eager PyTorch refuses.
        names = {"torch": torch, "F": torch.nn.functional}
        self.values: list[dict[str, Any] | None] = [{**names, **vars(c)} for c in self.calls]

    @property
    def main(self) -> dict[str, Any]:
        """The values of the call that every statement has to run in."""
        found = self.values[0]
        assert found is not None
        return found

    # What `Tokens` asks.

    def tensor(self, value: int) -> torch.Tensor:
        """Return a value in the main call."""
        found: torch.Tensor = self.main[name(value)]
        return found

    def _shapes(self, value: int) -> list[tuple[int, ...]]:
        own = name(value)
        return [tuple(v[own].shape) for v in self.values if v is not None]

    def same(self, value: int) -> int:
        """Return a value of the same shape and dtype."""
        wanted, dtype = self._shapes(value), self.tensor(value).dtype
        fit = [v for v in self.scope if self.tensor(v).dtype == dtype and self._shapes(v) == wanted]
        return self.random.choice(fit)

    def partner(self, value: int) -> int:
        """Return a value that may broadcast with another."""
        wanted = self._shapes(value)
        fit = [v for v in self.scope if self._shapes(v) == wanted]
        if self.random.random() < 0.4:
            fit = [v for v in self.scope if _broadcast(self._shapes(v), wanted)]
        return self.random.choice(fit)

    def index(self) -> int | None:
        """Return a value of integers on one axis, if there is one."""
        fit = [v for v in self.scope if KINDS["I"](x := self.tensor(v)) and x.ndim == 1]
        return self.random.choice(fit) if fit else None

    def param(self, shape: tuple[int, ...], like: int, grad: bool) -> int:
        """Return a new argument of this shape."""
        dtype = str(self.tensor(like).dtype).removeprefix("torch.")
        trained = grad and self.train and self.tensor(like).is_floating_point()
        return self.add(Given(dtype, shape, grad="leaf" if trained else ""))

    def extent(self, value: int, axis: int) -> int:
        """Return an extent; raise Missing if it changes between calls."""
        extents = {s[axis] for s in self._shapes(value)}
        if len(extents) > 1:
            raise Missing
        return extents.pop()

    # Growing.

    def add(self, given: Given) -> int:
        """Add an argument."""
        number = self.number
        program = Program({number: given}, (), (number,), (), self.train)
        make = None if given.of else namespace(program)["inputs"]
        for values in self.values:
            if values is not None and make is None:
                values[name(number)] = eval(given.of, dict(values))
            elif values is not None and make is not None:
                (made,), _ = make(values["n"], values["m"], values["k"], values["s"])
                values[name(number)] = made
        self.inputs[number] = given
        self.scope.append(number)
        self.number += 1
        return number

    def argument(self) -> None:
        """Draw an argument."""
        random = self.random
        if self.inputs and random.random() < 0.2:
            self._alias()
            return
        dtype = self.dtype if random.random() < 0.7 else random.choice((*FLOATS, *OTHERS))
        shape = random.choice(SHAPES)
        if self.inputs and random.random() < 0.5:
            shape = next(iter(self.inputs.values())).shape
        layout = "plain"
        if random.random() < 0.4:
            layout = random.choice(("transposed", "sliced", "offset", "expanded"))
            if len(shape) == 4 and random.random() < 0.7:
                layout = "channels_last"
            if (len(shape) < 2 and layout == "transposed") or not shape:
                layout = "plain"
        grad = ""
        if self.train and dtype in FLOATS and random.random() < 0.8:
            grad = random.choice(("leaf", "made"))
        self.add(Given(dtype, shape, layout, grad))

    def _alias(self) -> None:
        of = self.random.choice([i for i, x in self.inputs.items()])
        text = self.random.choice(ALIASES).replace("{0}", name(of))
        given = self.inputs[of]
        try:
            self.add(Given(given.dtype, given.shape, grad=given.grad, of=text))
        except (RuntimeError, IndexError):
            for values in self.values:
                if values is not None:
                    values.pop(name(self.number), None)

    def value(self, key: int) -> torch.Tensor:
        """Return a value in the main call."""
        return self.tensor(key)

    def mark(self) -> tuple[int, dict[int, Given], list[int]]:
        """Return what there is."""
        return self.number, dict(self.inputs), list(self.scope)

    def forget(self, mark: tuple[int, dict[int, Given], list[int]]) -> None:
        """Forget what is new."""
        self.number, self.inputs, self.scope = mark

    def draw(self) -> bool:
        """Draw a statement; keep it if it runs."""
        (block,) = self.random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        table = _table(block)
        (row,) = self.random.choices(table, [r.weight for r in table])
        first = self.choose(KINDS[row.kind], lambda x: row.least <= x.ndim <= row.most)
        tokens = Tokens(self, first)
        try:
            text = tokens.fill(row.text)
        except IndexError:  # there is nothing of the kind
            return False
        made: tuple[int, ...] = ()
        if not row.writes:
            text = text if "r0" in text else f"r0 = {text}"
            count = len(set(re.findall(r"\br\d\b", text)))
            made = tuple(self.fresh() for _ in range(count))
        step = Step(text, tuple(tokens.args), made)
        if not self._runs(step):
            return False
        if block == "overloads" and any(self.main[name(r)] is self.tensor(a)
                                        for r in made for a in step.args):  # fmt: skip
            return False  # its schema says that it is another tensor, which AOTAutograd believes
        self.steps.append(step)
        self.scope += made
        return True

    def _runs(self, step: Step) -> bool:
        """Whether a statement runs in the main call, and in others that are to be kept."""
        statement, lost = line(step), []
        for i, values in enumerate(self.values):
            if values is None:
                continue
            try:
                with torch.set_grad_enabled(self.train):
                    exec(statement, values)
            except Exception:
                if i == 0:
                    return False
                lost.append(i)
        found = [self.main[name(r)] for r in step.results]
        written = [self.main[name(a)] for a in step.args]
        if not all(isinstance(t, torch.Tensor) and _is_moderate(t) for t in found + written):
            return False
        empty = found and not any(t.numel() for t in found) and any(t.numel() for t in written)
        if empty and self.random.random() < 0.85:
            return False
        alive = sum(v is not None for v in self.values)
        if lost and (self.random.random() < 0.85 or alive - len(lost) < 3):
            return False
        for i in lost:
            self.values[i] = None
        return True

    def results(self) -> tuple[int | str, ...]:
        """Choose what is returned: late values more often."""
        random = self.random
        made = [r for s in self.steps for r in s.results]
        found: list[int | str] = [v for v in made[-2:] if random.random() < 0.8]
        found += [v for v in self.scope if v not in found and random.random() < 0.2]
        if not found:
            found = [self.scope[-1]]
        found = found[:5]
        if random.random() < 0.1:
            found.append(random.choice(found))
        if random.random() < 0.1 and self.tensor(self.scope[-1]).ndim:
            found.append(f"{name(self.scope[-1])}.shape[0]")
        return tuple(found)


def _is_moderate(x: torch.Tensor) -> bool:
    if x.numel() > 3000 or x.is_complex():
        return False
    if not x.numel() or not x.is_floating_point():
        return True
    return math.isfinite(most := float(x.detach().abs().max())) and most < LARGEST


def _broadcast(shapes: list[tuple[int, ...]], others: list[tuple[int, ...]]) -> bool:
    try:
        for a, b in zip(shapes, others, strict=True):
            torch.broadcast_shapes(a, b)
    except RuntimeError:
        return False
    return True


def _calls(random: Random) -> tuple[Call, ...]:
    """Return five or six calls, the first of which is the main one: extents repeat, and some are 0
    or 1.
    """
    extents = [random.randint(3, 8), random.randint(2, 9), random.choice((0, 1))]
    extents += [extents[0], random.choice((0, 1, 2, random.randint(3, 20)))]
    extents += [random.randint(2, 12)] if random.random() < 0.5 else []
    return tuple(
        Call(
            n,
            random.choice((2, 3, 3, 4, 5)),
            random.choice((1, 1, 2, 2, 3)),
            random.choice((0.5, 1.5, -2.0)),
        )
        for n in extents
    )


def generate(seed: int, quick: bool = False) -> Program:
    """Return the program of a seed; its calls are those that eager PyTorch runs, at least four."""
    for attempt in range(1000):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = _attempt(Random(f"{seed} {attempt}").getrandbits(64), quick)
        if program is not None:
            return program
    raise AssertionError(f"no program of seed {seed} runs")


def _attempt(seed: int, quick: bool) -> Program | None:
    draw = Draw(seed, quick)
    for _ in range(draw.random.choice((1, 1, 2, 2, 3))):
        draw.argument()
    draw.grow(draw.most, 60)
    calls = [c for c, v in zip(draw.calls, draw.values, strict=True) if v is not None]
    random = draw.random
    program = without_unused(
        Program(
            draw.inputs,
            tuple(draw.steps),
            draw.results(),
            tuple(calls),
            draw.train,
            random.choice((None, None, True, True, False)),
        )
    )
    alive = [c for c in calls if _is_accepted(program, c)]
    if not program.steps or not program.inputs or not alive:
        return None
    if len(alive) > 2 and random.random() < 0.3:
        random.shuffle(alive)
    while len(alive) < 4:
        alive.append(random.choice(alive))
    return replace(program, calls=tuple(alive))


def _is_accepted(program: Program, call: Call) -> bool:
    try:
        observe(program, call, namespace(program))
    except Exception:
        return False
    return True
