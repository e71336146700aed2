"""Writes expressions, as `mod.astext()` of TVM does.

Operands are atoms: what else is an argument, and what is used more than once, is bound to a number
in a line of its own before. So a chain of calls is a list of lines, and nothing here recurses over
it. What opens a scope (functions, branches, arms, a let that is an operand) is written by
generators, see `run` of the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from meta.frontend.relay import ast
from meta.frontend.relay.ast import attribute_expressions, operands, subexpressions
from meta.frontend.relay.registry import operators
from meta.frontend.relay.text.reader import Step
from tools.relay_text.literals import (
    attribute_name,
    bare_name,
    global_name,
    literal_of,
    local_name,
    quote,
)
from tools.relay_text.metadata import MetadataWriter, cannot_write
from tools.relay_text.types import TypeWriter, attribute_value, type_params

_INDENT = "  "


class Shared:
    """State of writing one module.

    Attributes
    ----------
    metadata: collects the metadata section. types: writes types. reserved: names of free variables.
    """

    def __init__(self, module: ast.Module) -> None:
        self.metadata = MetadataWriter()
        self.types = TypeWriter(self.metadata)
        self.reserved: set[str] = set()
        self._arity = {
            c.name: (t.name, len(c.fields)) for t in module.types.values() for c in t.constructors
        }
        self._numbers = 0

    def next_number(self) -> int:
        """Return the next number of a graph binding; they are unique in the text."""
        self._numbers += 1
        return self._numbers - 1

    def operator(self, name: str) -> str:
        """Return an operator's name. Raises RelayError if it would be read as a constructor."""
        if name in self._arity:
            raise cannot_write(name, "operators and constructors with different names")
        return bare_name(name)

    def constructor(self, constructor: ast.Constructor) -> str:
        """Return a constructor's name. Raises RelayError if the module does not define it."""
        known = self._arity.get(constructor.name)
        if known is None or known[0] != constructor.data_type:
            raise cannot_write(constructor.name, "constructors that the module defines")
        return bare_name(constructor.name)

    def is_nullary(self, constructor: ast.Constructor) -> bool:
        """Tell whether a constructor has no fields: its name is its value then."""
        return self._arity[constructor.name][1] == 0


class _NameWriter:
    """Names of variables in one function; those of free variables hold in the whole file."""

    def __init__(self, reserved: set[str]) -> None:
        self._reserved = reserved
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._names: dict[ast.Var, str] = {}
        self._used: set[ast.Var] = set()

    def bind(self, var: ast.Var) -> str:
        """Return a variable's name where it is bound; it has no other in the function."""
        name = self._unique(var.name)
        self._taken.add(name)
        self._names[var] = name
        return local_name(name)

    def unbind(self, variables: Iterable[ast.Var]) -> None:
        """End the scope of variables."""
        for var in variables:
            self._names.pop(var, None)

    def free(self, var: ast.Var) -> str:
        """Return the name of a variable that nothing binds, where it is declared."""
        text = self.bind(var)
        self._reserved.add(self._names[var])
        return text

    def find(self, var: ast.Var) -> str | None:
        """Return the name of a variable that is in scope."""
        name = self._names.get(var)
        if name is None:
            return None
        self._used.add(var)
        return local_name(name)

    def is_used(self, var: ast.Var) -> bool:
        """Tell whether a variable has been written since it was bound."""
        return var in self._used

    def hides_field(self, var: ast.Var, index: int) -> bool:
        """Tell whether ``%x.0`` would be read as another variable."""
        name = f"{self._names.get(var)}.{index}"
        return name in self._taken or name in self._reserved

    def _unique(self, name: str) -> str:
        unique = name
        number = self._numbers.get(name, 0)
        while unique in self._taken or unique in self._reserved:
            number += 1
            unique = f"{name}{number}"
        self._numbers[name] = number
        return unique


def _count_uses(root: ast.Expr) -> dict[ast.Expr, int]:
    """Return by expression in how many places it stands; the root stands in one.

    What is used more than once gets a number.
    """
    uses = {root: 1}
    work = [root]
    while work:
        for part in subexpressions(work.pop()):
            if part not in uses:
                uses[part] = 0
                work.append(part)
            uses[part] += 1
    return uses


def _needed(value: ast.Expr) -> list[ast.Expr]:
    """Return what is written before an expression. A let writes what it needs itself."""
    if isinstance(value, ast.Let):
        return []
    return [*operands(value), *attribute_expressions(value)]


class FunctionWriter:
    """Writes one function of the module into ``lines``."""

    def __init__(self, shared: Shared, root: ast.Function) -> None:
        self._shared = shared
        self._metadata = shared.metadata
        self._types: TypeWriter = shared.types
        self._names = _NameWriter(shared.reserved)
        self._uses = _count_uses(root)
        self._numbers: dict[ast.Expr, str] = {}
        self._indent = ""
        self._lines: list[str] = []

    def definition(self, name: str, function: ast.Function) -> Step:
        """Return the definition of a function of the module."""
        for value in attribute_expressions(function):
            if not isinstance(value, ast.GlobalVar | ast.Op | ast.Constructor):
                raise cannot_write(value, "attributes of functions that compute nothing")
        text = yield self._function_behind(f"def {global_name(name)}", function)
        return f"{text}{self._types.comment(function.checked_type)}"

    def _function_behind(self, head: str, function: ast.Function) -> Step:
        """Return a function behind ``head``, "fn " or "def @main"."""
        params = [self._declared(p) for p in function.params]
        params += self._attributes(function.attrs)
        result = f" -> {self._types.text(function.result_type)}" if function.result_type else ""
        body = yield self._block(function.body)
        self._names.unbind(function.params)
        names = type_params(function.type_params)
        return f"{head}{names}({', '.join(params)}){result} {body}"

    def _declared(self, var: ast.Var, bind: Callable[[ast.Var], str] | None = None) -> str:
        name = (bind or self._names.bind)(var)
        return f"{name}{self._types.declared(var.type)}{self._types.comment(var.checked_type)}"

    def _line(self, text: str) -> None:
        self._lines.append(f"{self._indent}{text}")

    def _block(self, body: ast.Expr, brackets: str = "{}") -> Step:
        """Return an expression in brackets, on lines of its own."""
        lines, indent = self._lines, self._indent
        self._lines, self._indent = [], indent + _INDENT
        yield self._scope(body, opened=brackets == "()")
        text = "\n".join(self._lines)
        self._lines, self._indent = lines, indent
        return f"{brackets[0]}\n{text}\n{indent}{brackets[1]}"

    def _scope(self, body: ast.Expr, opened: bool) -> Step:
        """Write bindings and the value they are for. A let that is used elsewhere too ends them,
        unless the scope was opened for it.
        """
        bound: list[ast.Var] = []
        while isinstance(body, ast.Let) and (opened or self._uses[body] == 1):
            opened = False
            bound.append(body.var)
            name, before = self._declared(body.var), len(self._lines)
            value = yield self._inline(body.value)
            if self._names.is_used(body.var):
                value = self._with_bindings(before, value)
            self._line(f"let {name} = {value};")
            body = body.body
        self._line((yield self._inline(body)))
        self._names.unbind(bound)

    def _with_bindings(self, start: int, value: str) -> str:
        """Return the value of a let that its own bindings use with the lines it needs, in a block:
        before the let the variable is not in scope.
        """
        lines = self._lines[start:]
        if not lines:
            return value
        del self._lines[start:]
        inner = "\n".join([*lines, f"{self._indent}{value}"]).replace("\n", f"\n{_INDENT}")
        return f"{{\n{_INDENT}{inner}\n{self._indent}}}"

    def _inline(self, root: ast.Expr) -> Step:
        """Return the last step of an expression; write those that come before as bindings."""
        if self._atom(root) is not None or self._uses[root] > 1:
            yield self._bind_numbers(root)
            return self._known(root)
        yield self._bind_operands(root)
        return (yield self._step(root))

    def _bind_operands(self, root: ast.Expr) -> Step:
        for operand in _needed(root):
            if self._atom(operand) is None:
                yield self._bind_numbers(operand)

    def _bind_numbers(self, root: ast.Expr) -> Step:
        """Bind an expression to a number, after those it needs, as far as they have none."""
        stack: list[tuple[ast.Expr, Iterator[ast.Expr]]] = []
        if self._atom(root) is None:
            stack.append((root, iter(_needed(root))))
        while stack:
            current, rest = stack[-1]
            needed = next((o for o in rest if self._atom(o) is None), None)
            if needed is not None:
                stack.append((needed, iter(_needed(needed))))
                continue
            stack.pop()
            text = yield self._step(current)
            number = f"%{self._shared.next_number()}"
            self._line(f"{number} = {text};")
            self._numbers[current] = number

    def _known(self, value: ast.Expr) -> str:
        text = self._atom(value)
        assert text is not None, "operands are bound before they are used"
        return text

    def _atom(self, value: ast.Expr) -> str | None:
        """Return what is written in place; None for what needs a number and has none yet."""
        number = self._numbers.get(value)
        if number is not None:
            return number
        match value:
            case ast.Var():
                return self._names.find(value) or self._free(value)
            case ast.Constant():
                text = self._numbers[value] = self._constant(value)
                return text
            case ast.GlobalVar(name=name):
                return global_name(name)
            case ast.Op(name=name):
                return self._shared.operator(name)
            case ast.Constructor():
                return self._shared.constructor(value)
        return None

    def _free(self, var: ast.Var) -> str:
        declared = self._declared(var, self._names.free)
        self._line(f"free_var {declared};")
        return self._known(var)

    def _constant(self, constant: ast.Constant) -> str:
        stated = constant.checked_type
        text = None if constant.value is None else literal_of(constant.value)
        if text is None:
            return f"{self._metadata.constant(constant)}{self._types.comment(stated)}"
        plain = text[-1].isdigit() and not any(c in text for c in "fi")
        if plain and stated is not None and stated != ast.TensorType((), "int32"):
            text += "i32"  # the comment would be taken for the literal's dtype
        return f"{text}{self._types.comment(stated)}"

    def _step(self, value: ast.Expr) -> Step:
        """Return an expression whose operands are written already."""
        form = _FORMS[type(value)]
        if isinstance(form, str):
            text: Any = form.format(*map(self._known, operands(value)))
        else:
            text = form(self, value)
        if not isinstance(text, str):
            text = yield text
        return f"{text}{self._types.comment(value.checked_type)}"

    def _call(self, call: ast.Call) -> str:
        head = self._known(call.op)
        args = [self._known(a) for a in call.args]
        if call.attrs is not None:
            args += self._attributes(call.attrs.fields)
            if not _says(call, call.attrs.type_key):
                args.append(f"attrs_type_key={quote(str(call.attrs.type_key))}")
        if not args and isinstance(call.op, ast.Constructor) and self._shared.is_nullary(call.op):
            return head
        return f"{head}({', '.join(args)})"

    def _attributes(self, fields: dict[str, Any]) -> list[str]:
        return [
            f"{attribute_name(key)}={attribute_value(value, self._metadata, self._known)}"
            for key, value in fields.items()
        ]

    def _tuple(self, value: ast.Tuple) -> str:
        fields = [self._known(f) for f in value.fields]
        return f"({fields[0]},)" if len(fields) == 1 else f"({', '.join(fields)})"

    def _field(self, value: ast.TupleGetItem) -> str:
        inner = self._known(value.value)
        plain = isinstance(value.value, ast.Var) or inner[0] == "%"
        if isinstance(value.value, ast.Var) and self._names.hides_field(value.value, value.index):
            plain = False
        return f"{inner}.{value.index}" if plain else f"({inner}).{value.index}"

    def _if(self, value: ast.If) -> Step:
        condition = self._known(value.condition)
        then = yield self._block(value.then_branch)
        other = yield self._block(value.else_branch)
        return f"if ({condition}) {then} else {other}"

    def _match(self, value: ast.Match) -> Step:
        word = "match" if value.complete else "match?"
        head = f"{word} ({self._known(value.value)}) {{"
        arms: list[str] = []
        indent = self._indent
        self._indent += _INDENT
        for clause in value.clauses:
            bound: list[ast.Var] = []
            pattern = self._pattern(clause.pattern, bound)
            body = yield self._block(clause.body)
            self._names.unbind(bound)
            arms.append(f"{self._indent}{pattern} => {body},\n")
        self._indent = indent
        return f"{head}\n{''.join(arms)}{indent}}}"

    def _pattern(self, pattern: ast.Pattern, bound: list[ast.Var]) -> str:
        match pattern:
            case ast.PatternVar(var=var):
                bound.append(var)
                return self._declared(var)
            case ast.PatternConstructor(constructor=constructor, patterns=patterns):
                head = self._shared.constructor(constructor)
                inner = [self._pattern(p, bound) for p in patterns]
                return f"{head}({', '.join(inner)})" if inner else head
            case ast.PatternTuple(patterns=patterns):
                inner = [self._pattern(p, bound) for p in patterns]
                return f"({', '.join(inner)})"
        return "_"


def _says(call: ast.Call, type_key: str | None) -> bool:
    """Tell whether the operator says what attributes it has."""
    facts = operators().get(call.op.name) if isinstance(call.op, ast.Op) else None
    return type_key is None or (facts is not None and type_key in (facts.attrs_type, *facts.former))


_FORMS: dict[type, str | Callable[[FunctionWriter, Any], str | Step]] = {
    ast.Call: FunctionWriter._call,
    ast.Tuple: FunctionWriter._tuple,
    ast.TupleGetItem: FunctionWriter._field,
    ast.Function: lambda writer, value: writer._function_behind("fn ", value),
    ast.If: FunctionWriter._if,
    # A let that is an operand stands in parentheses; its chain is written in one go.
    ast.Let: lambda writer, value: writer._block(value, "()"),
    ast.Match: FunctionWriter._match,
    ast.RefCreate: "ref({})",
    ast.RefRead: "ref_read({})",
    ast.RefWrite: "ref_write({}, {})",
}
"""How an expression is written: its operands in a text, or what returns the text, or a step that
does.
"""
