"""The template language: Jinja, with errors that name the template, the line and the known names.

A value that is written into the source is written as C has it: ``true``, ``INFINITY``. A name that
nobody defined is an error, when the kernel is registered if the template names it plainly.

Bounds of what a template computes while it is filled in: steps of loops and calls, lengths of
texts. A few characters, ``{% for i in range(10**9) %}``, ask for more than there is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sized
from functools import cache
from typing import Any

import jinja2
from jinja2 import meta as inspection
from jinja2 import nodes
from jinja2.sandbox import SandboxedEnvironment
from jinja2.visitor import NodeTransformer

from meta.base.errors import MetaError, RegistrationError
from meta.base.registry import nearest
from meta.base.source import Span
from meta.dialect.core import Unsupported

MOST_STEPS = 1 << 16
"""Steps of loops and calls in one filling, at most."""
MOST_LENGTH = 1 << 22
"""Characters of a text, elements of a list, bits of a number."""
_WIDTH = re.compile(r"[0-9]{6,}")
_PADDED = ("center", "ljust", "rjust", "zfill", "expandtabs")
_STEPS = "steps that are left"
"""What a filling's context counts down under: no template can name it."""


class TooMuch(ValueError):
    """A template that computes more than any source text needs."""


def _step(context: Any) -> None:
    remaining: list[int] = context.resolve(_STEPS)
    remaining[0] -= 1
    if remaining[0] < 0:
        raise TooMuch(f"the template takes more than {MOST_STEPS:,} steps")


def fitting(length: int) -> None:
    """Raise TooMuch for a length beyond `MOST_LENGTH`."""
    if length > MOST_LENGTH:
        raise TooMuch(f"the template makes a text or a list longer than {MOST_LENGTH:,}")


@jinja2.pass_context
def _counted(context: Any, values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _step(context)
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
        self.filters |= {"each_step": _counted, "joined_texts": _joined}
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Bounding().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    def call(self, context: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call what a template calls: a macro, a method, a function."""
        _step(context)
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
    for part in template.generate(names, **{_STEPS: [MOST_STEPS]}):
        length += len(part)
        fitting(length)
        parts.append(part)
    return "".join(parts)


def as_c(value: Any) -> Any:
    """Return a value as it is written in C."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isnan(value):
            return "NAN"
        return repr(value) if math.isfinite(value) else f"({'-' * (value < 0)}INFINITY)"
    if value is None:
        raise Unsupported("the template writes an argument that this call does not have (None)")
    if isinstance(value, tuple | list):
        return ", ".join(str(as_c(v)) for v in value)
    return value


@cache
def environment() -> jinja2.Environment:
    """Return what compiles templates."""
    return BoundedEnvironment(
        undefined=jinja2.StrictUndefined,
        finalize=as_c,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
    )


class Text:
    """A template.

    Attributes
    ----------
    title: what error messages call it. source: its text. site: where it was registered.
    """

    def __init__(self, title: str, source: str, site: Span) -> None:
        self.title, self.source, self.site = title, source, site
        try:
            self._tree = environment().parse(source)
            self._code = environment().from_string(self._tree)
        except jinja2.TemplateSyntaxError as error:
            raise RegistrationError(
                f"{title}, line {error.lineno}: {error.message}",
                found=self.line(error.lineno),
                span=site,
                hint='braces of C are written with a space, "{ {"; raw text in {% raw %}',
            ) from None

    def line(self, number: int) -> str:
        """Return a line of the text."""
        lines = self.source.splitlines()
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""

    def check(self, known: Collection[str]) -> None:
        """Raise RegistrationError for a name that nothing defines."""
        missing = inspection.find_undeclared_variables(self._tree) - set(known)
        if not missing:
            return
        places = {n.name: n.lineno for n in reversed([*self._tree.find_all(nodes.Name)])}
        name = min(missing, key=lambda n: places[n])
        raise RegistrationError(
            f"{self.title}, line {places[name]}: nothing is called {name!r}",
            found=self.line(places[name]),
            expected=f"some of {', '.join(sorted(known))}",
            hint=nearest(name, known),
            span=self.site,
        )

    def render(self, names: Mapping[str, Any]) -> str:
        """Return the text with its names filled in.

        A name that is not defined, in a way that `check` does not see, is a RegistrationError with
        the line; what a name's value refuses (`Unsupported`) passes.
        """
        try:
            return filled(self._code, names)
        except Unsupported:
            raise
        except MetaError as error:
            error.note(f"in {self._place(error)}")
            error.span = self.site
            raise
        except (
            *(jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError),
            *(ArithmeticError, RecursionError, MemoryError),
        ) as error:
            raise RegistrationError(
                f"{self._place(error)}: {str(error) or type(error).__name__}",
                expected=f"names among {', '.join(sorted(names))}",
                span=self.site,
            ) from error

    def _place(self, error: BaseException) -> str:
        """Return the template and the line in which an error came up."""
        trace, found = error.__traceback__, 0
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "<template>":
                found = trace.tb_lineno
            trace = trace.tb_next
        return f"{self.title}, line {found}: {self.line(found)!r}" if found else self.title
