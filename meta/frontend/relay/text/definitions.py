"""Reads a whole text: its header, data types, functions, or the one expression that it is."""

from __future__ import annotations

import re

from meta.frontend.relay import ast
from meta.frontend.relay.free_variables import free_variables
from meta.frontend.relay.text.atoms import global_name
from meta.frontend.relay.text.control import function
from meta.frontend.relay.text.expressions import expression
from meta.frontend.relay.text.quoting import unquote
from meta.frontend.relay.text.reader import ConstructorFacts, Reader, run
from meta.frontend.relay.text.types import read_name, read_type_params, read_types, take_comment

_OLD = re.compile(r"v(0\.0\.[0-9]+)(?![\w.])")
_HEADER = re.compile(r"#\[[ \t]*(\w*)[^\]\n]*\]")
VERSION = "0.0.5"
OLD_VERSIONS = ("0.0.1", "0.0.2", "0.0.3", "0.0.4")


def read_header(r: Reader) -> str | None:
    """Read the version of the text, None if it states none."""
    lex = r.lex
    old = _OLD.match(lex.source, lex.start)
    if old is not None:
        if old[1] not in OLD_VERSIONS:
            lex.fail(f"a version that is known, v{OLD_VERSIONS[0]} to v{OLD_VERSIONS[-1]}", old[0])
        lex.end = old.end()
        lex.advance()
        r.old = True
        return old[1]
    if lex.kind != "directive":
        return None
    lex.advance()
    lex.expect_name("version")
    lex.expect("=")
    if lex.kind != "string" or unquote(lex.text).strip() != VERSION:
        lex.fail(f'the version "{VERSION}"')
    lex.advance()
    lex.expect("]")
    return VERSION


def read_module(r: Reader, module: ast.Module) -> None:
    """Read data types and functions, or one expression, which becomes ``main``."""
    lex = r.lex
    at = lex.place(lex.start)
    while lex.kind != "end":
        if lex.kind == "name" and lex.text == "def":
            _definition(r, module)
        elif lex.kind == "name" and lex.text in ("type", "extern"):
            _type_definition(r, module)
        elif lex.kind == "directive":
            lex.fail("a definition or '#[metadata]'", f"{lex.source[lex.start : lex.start + 20]!r}")
        elif module.functions or (module.types and lex.kind == "global"):
            lex.fail("'def', 'type', '#[metadata]' or the end of the text")
        else:
            _expression(r, module, at)
        r.progress(lex.start)
    if module.text_version is None and not module.functions and not module.types:
        lex.fail("a function, 'def @main(...) { ... }', or an expression")


def _expression(r: Reader, module: ast.Module, at: ast.Place) -> None:
    lex = r.lex
    if lex.kind == "global" and re.match(r"\s*=\s*\w+fn\b", lex.source[lex.end : lex.end + 40]):
        lex.fail("a function of Relay", hint="this is a program after lowering, no Relay model")
    value = run(expression(r))
    if lex.kind != "end":
        lex.fail("an operator, ';' or the end of the text")
    if not isinstance(value, ast.Function):
        value = ast.Function(free_variables(value), value, place=at)
    module.functions["main"] = value


def _definition(r: Reader, module: ast.Module) -> None:
    lex = r.lex
    start = lex.start
    lex.advance()
    name = global_name(r)
    if lex.kind == "=":
        lex.fail(
            "the parameters of a function", hint="a function that is no Relay function is refused"
        )
    if name in module.functions:
        r.warnings.append(
            f"{lex.place(start)}: @{name} is defined more than once; the last definition counts"
        )
    value = run(function(r, start))
    value.checked_type = take_comment(r)
    module.functions[name] = value


def _type_definition(r: Reader, module: ast.Module) -> None:
    lex = r.lex
    extern = lex.accept_name("extern")
    lex.expect_name("type")
    start = lex.start
    name = read_name(r, "the name of a data type")
    if name in module.types:
        lex.fail("a data type that is not defined yet", repr(name), at=start)
    params = read_type_params(r)
    r.type_vars = frozenset(params)
    constructors: list[ast.ConstructorDefinition] = []
    if not extern and lex.accept("{"):
        while lex.kind != "}":
            constructors.append(_constructor(r, name))
            if not lex.accept(","):
                break
        lex.expect("}", "',' or '}'")
    r.type_vars = frozenset()
    module.types[name] = ast.TypeDefinition(name, params, tuple(constructors), extern)


def _constructor(r: Reader, data_type: str) -> ast.ConstructorDefinition:
    lex = r.lex
    start = lex.start
    name = read_name(r, "the name of a constructor")
    if name in r.constructors:
        lex.fail("a constructor that is not defined yet", repr(name), at=start)
    if name in r.operators:
        lex.fail(
            "a constructor that is not used before",
            f"{name!r}, used in line {lex.place(r.operators[name]).line}",
            hint="data types stand before the functions that use them",
            at=start,
        )
    fields = read_types(r, ")") if lex.accept("(") else ()
    r.constructors[name] = ConstructorFacts(data_type, len(fields))
    return ast.ConstructorDefinition(name, fields)
