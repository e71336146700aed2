"""Programs of text, and what they call, for the tests of several folders."""

from __future__ import annotations

from meta.ir import Call, Module, parse, verify


def module(text: str) -> Module:
    """Return the program of a text, whose types are all right."""
    found = parse(text)
    verify(found, typed=True)
    return found


def names(program: Module) -> list[str]:
    """Return the names of what the bindings of a program call, in order."""
    values = [b.value for b in program.main.body.bindings]
    return [v.callee.name for v in values if isinstance(v, Call)]
