"""What stands in <> in a row: axes, bounds, indices, slices, other operands, new arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import torch

from tools.fuzz_models.generator import Missing


class Scope(Protocol):
    """The values that there are."""

    random: Random

    def tensor(self, value: int) -> torch.Tensor:
        """Return a value in the main call."""

    def same(self, value: int) -> int:
        """Return a value of the same shape and dtype."""

    def partner(self, value: int) -> int:
        """Return a value that may broadcast with another."""

    def index(self) -> int | None:
        """Return a value of integers on one axis, if there is one."""

    def param(self, shape: tuple[int, ...], like: int, grad: bool) -> int:
        """Return a new argument of this shape."""

    def extent(self, value: int, axis: int) -> int:
        """Return an extent; raise Missing if it changes between calls."""


TOKEN = re.compile(r"<(\w[\w ]*)>")


class Tokens:
    """The operands and the text of one statement."""

    def __init__(self, scope: Scope, first: int) -> None:
        self._scope, self._random = scope, scope.random
        self.args = [first]
        self._ndim = scope.tensor(first).ndim
        self._axis = self._random.randrange(self._ndim) if self._ndim else 0
        self._start: str | None = None

    def fill(self, text: str) -> str:
        """Return the text of a row with its tokens replaced."""
        return TOKEN.sub(self._replace, text)

    def _replace(self, found: re.Match[str]) -> str:
        word, *rest = found[1].split()
        if word in ("p", "r"):
            return self._param(rest, word == "p")
        makers: dict[str, Callable[[], Any]] = {
            "A": self._axis_text,
            "A0": lambda: self._axis,
            "n": self._extent,
            "new": lambda: self._random.randint(-self._ndim - 1, self._ndim),
            "perm": self._permutation,
            "i": self._index,
            "start": self._begin,
            "k": lambda: self._random.choice(("k", "k", "1", "2", "3")),
            "c": self._constant,
            "y": lambda: self._operand(self._scope.partner(self.args[0])),
            "same": lambda: self._operand(self._scope.same(self.args[0])),
            "dtype": lambda: f"torch.{self._random.choice(DTYPES)}",
            "slice": self._slices,
            "slice0": lambda: self._slice("{0}.shape[0]") if self._ndim else "...",
            "list": lambda: self._random.choice(("[0, -1]", "[0]", "[-1, 0, 0]", "[1, 0]")),
            "index": self._indices,
        }
        return str(makers[word]())

    def _operand(self, value: int) -> str:
        self.args.append(value)
        return f"{{{len(self.args) - 1}}}"

    def _axis_text(self) -> int:
        return self._axis - self._ndim * (self._random.random() < 0.4)

    def _extent(self) -> str:
        if not self._ndim:
            raise Missing
        return f"{{0}}.shape[{self._axis}]"

    def _permutation(self) -> str:
        axes = list(range(self._ndim))
        self._random.shuffle(axes)
        return str(tuple(axes))

    def _index(self) -> str:
        n = self._extent()
        return self._random.choice(
            ("0", "-1", "1", "k", "-k", f"{n} - 1", f"{n} // 2", "k - 1", f"{n} - k", f"-{n}")
        )

    def _begin(self) -> str:
        """The same in all of a statement."""
        if self._start is None:
            n = self._extent()
            self._start = self._random.choice(("1", "k", f"{n} // 2", f"({n} - 1)", "0"))
        return self._start

    def _constant(self) -> str:
        choices = ("2", "0.5", "-1.5", "3", "0.25", "1", "k", "s", "s", "-k")
        return self._random.choice(choices)

    def _bound(self, n: str) -> str:
        return self._random.choice(
            (
                *("", "", "1", "2", "-1", "-2", "k", "-k", "-k - 1", "k + 1", "100", "-100", "0"),
                *(f"{n} // 2", f"-({n} // 2)", f"{n} - 1", f"{n} - k", f"-{n} + 1", f"{n} - 2"),
            )
        )

    def _slice(self, n: str) -> str:
        text = f"{self._bound(n)}:{self._bound(n)}"
        return text + (f":{self._random.choice('23')}" if self._random.random() < 0.15 else "")

    def _slices(self) -> str:
        """One for each of the first axes, or of the last."""
        if not self._ndim:
            raise Missing
        count = self._random.randint(1, self._ndim)
        last = self._random.random() < 0.2
        axes = range(self._ndim - count, self._ndim) if last else range(count)
        items = [self._item(axis) for axis in axes]
        return ", ".join(["..."] * last + items)

    def _item(self, axis: int) -> str:
        n, chance = f"{{0}}.shape[{axis}]", self._random.random()
        if chance < 0.2:
            return self._random.choice(("0", "-1", "k", "-k", f"{n} - 1", f"{n} // 2", "1"))
        if chance < 0.35:
            return ":"
        return self._slice(n)

    def _indices(self) -> str:
        n, index = self._extent(), self._scope.index()
        choices = [f"torch.arange({n} // 2, device={{0}}.device)"]
        choices.append(f"torch.arange({n} - 1, -1, -1, device={{0}}.device)")
        choices.append("torch.tensor([0, 0], device={0}.device)")
        if index is not None:
            at = self._operand(index)
            choices += [f"({at} % max({{0}}.shape[{self._axis}], 1)).long()"] * 4
        return self._random.choice(choices)

    def _param(self, words: list[str], grad: bool) -> str:
        named = {"last": self._ndim - 1, "one": 1}
        shape = tuple(
            self._scope.extent(self.args[0], named[w]) if w in named else int(w) for w in words
        )
        return self._operand(self._scope.param(shape, self.args[0], grad))


DTYPES = ("float32", "float32", "bfloat16", "float64", "int64", "int32", "bool")
