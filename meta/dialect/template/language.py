"""The template language: Jinja, with errors that name the template, the line and the known names.

A value that is written into the source is written as C has it: ``true``, ``INFINITY``. A name that
nobody defined is an error, when the kernel is registered if the template names it plainly.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import jinja2
from jinja2 import meta as inspection
from jinja2 import nodes

from meta.base.errors import MetaError, RegistrationError
from meta.base.registry import nearest
from meta.base.source import Span
from meta.dialect.core import Unsupported
from meta.dialect.template.bounds import BoundedEnvironment, filled


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
