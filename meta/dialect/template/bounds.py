"""Bounds of what a template computes while it is filled in: steps of loops and calls, lengths of
texts. A few characters, ``{% for i in range(10**9) %}``, ask for more than there is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.sandbox import SandboxedEnvironment
from jinja2.visitor import NodeTransformer

from meta.base.call_context import overriding

MOST_STEPS = 1 << 16
"""Steps of loops and calls in one filling, at most."""
MOST_LENGTH = 1 << 22
"""Characters of a text, elements of a list, bits of a number."""
_WIDTH = re.compile(r"[0-9]{6,}")
_PADDED = ("center", "ljust", "rjust", "zfill", "expandtabs")
_left: ContextVar[list[int] | None] = ContextVar("meta_template_steps", default=None)


class TooMuch(ValueError):
    """A template that computes more than any source text needs."""


@contextmanager
def bounded() -> Iterator[None]:
    """Count the steps of templates in a ``with`` block from the start."""
    with overriding(_left, lambda _: [MOST_STEPS]):
        yield


def _step() -> None:
    left = _left.get()
    if left is not None:
        left[0] -= 1
        if left[0] < 0:
            raise TooMuch(f"the template takes more than {MOST_STEPS:,} steps")


def fitting(length: int) -> None:
    """Raise TooMuch for a length beyond `MOST_LENGTH`."""
    if length > MOST_LENGTH:
        raise TooMuch(f"the template makes a text or a list longer than {MOST_LENGTH:,}")


def _each(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _step()
        yield value


def _joined(parts: list[Any]) -> str:
    texts = [str(part) for part in parts]
    fitting(sum(map(len, texts)))
    return "".join(texts)


class _Bounding(NodeTransformer):
    """Lets loops count their steps, and texts that are joined by ``~`` have a bound."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "each_step", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "joined_texts", [], [], None, None, lineno=node.lineno)


class BoundedEnvironment(SandboxedEnvironment):
    """Jinja's environment with these bounds, and without attributes that are Python's own."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.filters |= {"each_step": _each, "joined_texts": _joined}
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Bounding().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    def call(self, context: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call what a template calls: a macro, a method, a function."""
        _step()
        receiver, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        if isinstance(receiver, str):
            if name in _PADDED:
                fitting(max((a for a in args if isinstance(a, int)), default=0))
            if name.startswith("format") and _WIDTH.search(receiver):
                raise TooMuch("a format of the template is too wide")
        found = super().call(context, called, *args, **kwargs)
        if isinstance(found, str):
            fitting(len(found))
        return found

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute what an operator of a template means."""
        if operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
            fitting(len(left) + len(right))
        elif operator == "*":
            for one, times in ((left, right), (right, left)):
                if isinstance(one, Sized) and isinstance(times, int):
                    fitting(len(one) * times)
        elif operator == "%" and isinstance(left, str) and _WIDTH.search(left):
            raise TooMuch("a format of the template is too wide")
        if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            size = left.bit_length() + right.bit_length()
            bits = size if operator == "*" else left.bit_length() * max(right, 0)
            if bits > 1 << 10:
                raise TooMuch("a number of the template has more than 1,024 bits")
        return super().call_binop(context, operator, left, right)


def filled(template: jinja2.Template, names: Any) -> str:
    """Return a template filled in; TooMuch where that is beyond the bounds."""
    parts, length = [], 0
    with bounded():
        for part in template.generate(names):
            length += len(part)
            fitting(length)
            parts.append(part)
    return "".join(parts)
