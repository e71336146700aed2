"""From Relay text to the tree: all versions of the text, and what TVM's printer writes though its
parser refuses it.
"""

from __future__ import annotations

import re

from meta.base.progress import bar
from meta.frontend.relay import ast
from meta.frontend.relay.ast import free_variables
from meta.frontend.relay.graph_json import read_table
from meta.frontend.relay.text.atoms import global_name
from meta.frontend.relay.text.expressions import expression, function
from meta.frontend.relay.text.lexer import Lexer, unquote
from meta.frontend.relay.text.reader import (
    MODULE_ATTRIBUTES,
    Metadata,
    Reader,
    read_name,
    read_type_params,
    read_types,
    run,
    split_metadata,
    take_comment,
)

_OLD = re.compile(r"v(0\.0\.[0-9]+)(?![\w.])")
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


def _expression(r: Reader, module: ast.Module, at: ast.Location) -> None:
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
        constructors = [_constructor(r, name) for _ in lex.items("}")]
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
    r.constructors[name] = data_type, len(fields)
    return ast.ConstructorDefinition(name, fields)


_REPORT = 1 << 16
"""Characters between two reports of progress."""


def parse_text(text: str, source: str = "<text>") -> ast.Module:
    """Read a Relay program.

    Parameters
    ----------
    text: of version 0.0.1 to 0.0.5 or without a version (``print(mod)``); a module, a function or
        an expression, which becomes ``main``, a function of its free variables.
    source: the file's name, for errors and for the places of expressions.

    Raises RelayError with the place, the line and what was expected there.
    """
    program, section = split_metadata(text.removeprefix("\ufeff"))
    table, stated, warnings = Metadata(), None, list[str]()
    if section is not None:
        found, stated, warnings = read_table(section, source)
        table = Metadata(found)
    module = ast.Module({}, source=source)
    with bar(len(program), "reading Relay", delay=1.0) as progress:

        def report(offset: int) -> None:
            if offset - progress.n >= _REPORT:
                progress.update(offset - progress.n)

        r = Reader(Lexer(program, source), table, progress=report)
        module.text_version = read_header(r)
        read_module(r, module)
    module.version = (0, 6) if stated is None and r.old else stated
    items = table.items.get(MODULE_ATTRIBUTES, ())
    module.attrs = dict(items[0]) if items and isinstance(items[0], dict) else {}
    module.warnings = [*warnings, *r.warnings]
    if r.rebound:
        more = f" and at {len(r.rebound) - 1} more places" if len(r.rebound) > 1 else ""
        module.warnings.append(
            f"{r.rebound[0]}: a number of a graph binding is bound again, here{more}; it means the"
            " latest expression in its scope, TVM takes the first of the file"
        )
    return module
