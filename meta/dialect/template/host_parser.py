"""The host part of source text, read: NVRTC compiles none, and a launch is a few numbers.

The part of C++ in which launches are written: declarations and assignments of numbers, pointers and
``dim3``, ``if`` and ``else``, ``for``, ``return``, calls of other host functions, and launches.
What is read is what runs, and the same text is what nvcc and hipcc compile.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from meta.base.registry import nearest
from meta.dialect.template.host_values import (
    Extents,
    HostError,
    Pointer,
    Value,
    converted,
    number,
    plain,
    size_of,
    truth,
)

_TOKEN = re.compile(
    r"\s+|(?P<float>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?|\d+[eE][+-]?\d+[fF]?)"
    r"|(?P<int>0[xX][0-9a-fA-F]+|\d+)[uUlL]*|(?P<name>[A-Za-z_]\w*(?:::\w+)*)"
    r"|(?P<op><<<|>>>|<<|>>|&&|\|\||[-+*/%<>=!]=|\+\+|--|[-+*/%<>=!?:;,(){}\[\].&|^~])"
)
_TYPES = (
    "auto bool char const constexpr dim3 double float half bfloat16 int long short signed unsigned "
    "size_t ptrdiff_t void int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t "
    "std::int64_t std::int32_t std::size_t"
)
_TYPE_WORDS = frozenset(_TYPES.split())


@dataclass
class Frame:
    """What host code sees while it runs: its variables, and what it has launched."""

    variables: dict[str, Value]
    launch: Callable[..., None]
    call: Callable[[str, list[Value], str], None]
    types: dict[str, str] = field(default_factory=dict)
    # Of the names that the innermost block declares, what they were outside: value and type.
    hidden: dict[str, tuple[Value, str | None]] = field(default_factory=dict)


class Returned(Exception):
    """``return`` was met."""


_LANGUAGE = "it is C++ of declarations, assignments, if and else, for, calls and launches"
MOST_STEPS = 1 << 12
"""Steps of a loop, at most: each may be a launch."""
Expression = Callable[[Frame], Value]
Statement = Callable[[Frame], None]


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _remainder(a: int, b: int) -> int:
    return a - b * int(_divide(a, b))


def _shifted(a: int, b: int) -> int:
    if b > 63:
        raise ValueError("a number is shifted by more than its 64 bits")
    return a << b


_BINARY: list[dict[str, Callable[[Any, Any], Any]]] = [
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
    {"<<": _shifted, ">>": operator.rshift},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _divide, "%": _remainder},
]
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "std::min": min,
    "std::max": max,
    "ceil_div": lambda a, b: _divide(a + b - 1, b),
}


class Reader:
    """Reads statements. ``title``: what errors call the text; ``line``: the number of its first."""

    def __init__(self, text: str, title: str, line: int = 1) -> None:
        self.title, self.called = title, set[str]()
        self._tokens: list[tuple[str, str, int]] = []
        self._next, at = 0, 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            here = line + text.count("\n", 0, at)
            if match is None:
                raise HostError(f"{title}, line {here}: host code has no {text[at]!r}")
            if match.lastgroup is not None:
                self._tokens.append((match.lastgroup, match[match.lastgroup], here))
            at = match.end()

    def block(self) -> Statement:
        """Read all statements."""
        found = []
        while self._next < len(self._tokens):
            found.append(self._statement())
        return _in_order(found)

    def _peek(self, ahead: int = 0) -> str:
        at = self._next + ahead
        return self._tokens[at][1] if at < len(self._tokens) else ""

    def _kind(self) -> str:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    @property
    def _where(self) -> str:
        at = min(self._next, len(self._tokens) - 1)
        return f"{self.title}, line {self._tokens[at][2]}" if self._tokens else self.title

    def _take(self, wanted: str = "") -> str:
        found = self._peek()
        if not found or (wanted and found != wanted):
            raise HostError(
                f"{self._where}: host code cannot be read",
                expected=repr(wanted) if wanted else "more",
                found=repr(found) if found else "the end",
                hint=_LANGUAGE,
            )
        self._next += 1
        return found

    def _statement(self) -> Statement:
        word = self._peek()
        if word == "{":
            self._take()
            found = []
            while self._peek() != "}":
                found.append(self._statement())
            self._take("}")
            return _scoped(_in_order(found))
        if word == ";":
            self._take()
            return _in_order([])
        if word == "if":
            return self._if()
        if word == "for":
            return self._for()
        if word == "return":
            self._take(), self._take(";")
            return _return
        if word in _TYPE_WORDS or (self._kind() == "name" and self._declares_pointer()):
            return self._declaration()
        return self._action()

    def _declares_pointer(self) -> bool:
        return self._peek(1) == "*" and self._peek(3) in ("=", ";")

    def _if(self) -> Statement:
        where = self._where
        self._take("if"), self._take("(")
        condition = self._expression()
        self._take(")")
        then = self._statement()
        other = _in_order([])
        if self._peek() == "else":
            self._take()
            other = self._statement()

        def run(frame: Frame) -> None:
            (then if truth(condition(frame), where) else other)(frame)

        return run

    def _for(self) -> Statement:
        where = self._where
        self._take("for"), self._take("(")
        begin, condition = self._statement(), self._expression()
        self._take(";")
        step = self._action(")")
        body = self._statement()

        def run(frame: Frame) -> None:
            begin(frame)
            for _ in range(MOST_STEPS):
                if not truth(condition(frame), where):
                    return
                body(frame)
                step(frame)
            raise HostError(f"{where}: a loop takes more than {MOST_STEPS} steps")

        return _scoped(run)

    def _type(self) -> str:
        words: list[str] = []
        while self._peek() in _TYPE_WORDS or (not words and self._kind() == "name"):
            words.append(self._take())
            if words == ["const"] and self._peek() not in _TYPE_WORDS:
                words.append(self._take())  # a type that is not known here
        while self._peek() == "*":
            words.append(self._take())
        return " ".join(words)

    def _declaration(self) -> Statement:
        where, type_, found = self._where, self._type(), []
        while True:
            name = self._take()
            if self._peek() == "(":
                given = self._arguments("(", ")")
                value = _extents(given, where) if plain(type_) == "dim3" else given[0]
            elif self._peek() == "=":
                self._take()
                value = self._expression()
            else:
                raise HostError(f"{where}: {name!r} has no value", hint=f"{type_} {name} = ...;")
            found.append(_declare(name, type_, value, where))
            if self._peek() != ",":
                self._take(";")
                return _in_order(found)
            self._take()

    def _action(self, end: str = ";") -> Statement:
        """Read an assignment, a call or a launch, and what ends it."""
        before = self._take() if self._peek() in ("++", "--") else ""
        where, name = self._where, self._take()
        if self._peek() == "<<<":
            how, given = self._arguments("<<<", ">>>"), self._arguments("(", ")")
            self._take(end)
            if not 2 <= len(how) <= 4:
                raise HostError(f"{where}: a launch has a grid and a block", found=f"{len(how)}")

            def launch(frame: Frame) -> None:
                frame.launch(name, [e(frame) for e in how], [e(frame) for e in given], where)

            return launch
        if self._peek() == "(":
            values = self._arguments("(", ")")
            self._take(end)
            self.called.add(name)
            return lambda frame: frame.call(name, [e(frame) for e in values], where)
        sign = before or self._take()
        if sign in ("++", "--"):
            value: Expression = _constant(1)
        elif sign in ("=", "+=", "-=", "*=", "/="):
            value = self._expression()
        else:
            raise HostError(
                f"{where}: host code cannot be read",
                found=f"{name} {sign}",
                hint=_LANGUAGE,
            )
        self._take(end)
        return _assign(name, sign[0], value, where)

    def _arguments(self, begin: str, end: str) -> list[Expression]:
        self._take(begin)
        found: list[Expression] = []
        while self._peek() != end:
            found.append(self._expression())
            if self._peek() != end:
                self._take(",")
        self._take(end)
        return found

    def _expression(self) -> Expression:
        condition = self._either()
        if self._peek() != "?":
            return condition
        where = self._where
        self._take()
        then = self._expression()
        self._take(":")
        other = self._expression()
        return lambda frame: (then if truth(condition(frame), where) else other)(frame)

    def _either(self) -> Expression:
        left = self._both()
        while self._peek() == "||":
            where, _ = self._where, self._take()
            left = _lazily(left, self._both(), True, where)
        return left

    def _both(self) -> Expression:
        left = self._binary(0)
        while self._peek() == "&&":
            where, _ = self._where, self._take()
            left = _lazily(left, self._binary(0), False, where)
        return left

    def _binary(self, level: int) -> Expression:
        if level == len(_BINARY):
            return self._unary()
        left = self._binary(level + 1)
        while self._peek() in _BINARY[level]:
            where, sign = self._where, self._take()
            left = _combined(_BINARY[level][sign], left, self._binary(level + 1), where)
        return left

    def _unary(self) -> Expression:
        where, word = self._where, self._peek()
        if word in ("-", "+", "!"):
            self._take()
            inner = self._unary()
            if word == "!":
                return lambda frame: not truth(inner(frame), where)
            sign = -1 if word == "-" else 1
            return lambda frame: sign * number(inner(frame), where)
        if word == "(" and self._peek(1) in _TYPE_WORDS:
            self._take()
            type_ = self._type()
            self._take(")")
            return _cast(type_, self._unary(), where)
        value = self._primary()
        while self._peek() == ".":
            self._take()
            axis = self._take()
            value = _axis(value, axis, where)
        return value

    def _primary(self) -> Expression:
        kind, where, word = self._kind(), self._where, self._take()
        if word == "(":
            inner = self._expression()
            self._take(")")
            return inner
        if kind == "int":
            octal = len(word) > 1 and word.isdigit() and word[0] == "0"
            return _constant(int(word, 8 if octal else 0))
        if kind == "float":
            return _constant(float(word.rstrip("fF")))
        if kind != "name":
            raise HostError(f"{where}: a value is wanted", found=repr(word))
        if word in ("true", "false"):
            return _constant(word == "true")
        if word in ("nullptr", "NULL"):
            return _constant(Pointer(-1, "void", False))
        if word == "sizeof":
            self._take("(")
            type_ = self._type()
            self._take(")")
            return _constant(size_of(type_, where))
        if word in ("static_cast", "reinterpret_cast"):
            self._take("<")
            type_ = self._type()
            self._take(">"), self._take("(")
            inner = self._expression()
            self._take(")")
            return _cast(type_, inner, where)
        if self._peek() != "(":
            return _variable(word, where)
        given = self._arguments("(", ")")
        if word == "dim3":
            return _extents(given, where)
        if word in _TYPE_WORDS:
            return _cast(word, given[0], where)
        if word not in _FUNCTIONS:
            raise HostError(
                f"{where}: host code has no function {word!r} that returns a value",
                expected=f"one of {', '.join(_FUNCTIONS)}",
            )
        function = _FUNCTIONS[word]
        return lambda frame: _applied(function, [number(e(frame), where) for e in given], where)


def _in_order(statements: list[Statement]) -> Statement:
    def run(frame: Frame) -> None:
        for statement in statements:
            statement(frame)

    return run


def _scoped(statement: Statement) -> Statement:
    """Let what a block declares end with it; what it assigns stays."""

    def run(frame: Frame) -> None:
        outer, frame.hidden = frame.hidden, {}
        try:
            statement(frame)
        finally:
            for name, before in frame.hidden.items():
                for values, value in zip((frame.variables, frame.types), before, strict=True):
                    values.pop(name, None)
                    values.update({name: value} if value is not None else {})
            frame.hidden = outer

    return run


def _return(frame: Frame) -> None:
    raise Returned


def _constant(value: Value) -> Expression:
    return lambda frame: value


def _variable(name: str, where: str) -> Expression:
    def value(frame: Frame) -> Value:
        if name in frame.variables:
            return frame.variables[name]
        raise HostError(
            f"{where}: nothing is called {name!r}",
            expected=f"one of {', '.join(frame.variables)}",
            hint=nearest(name, frame.variables),
        )

    return value


def _declare(name: str, type_: str, value: Expression, where: str) -> Statement:
    def run(frame: Frame) -> None:
        found = converted(value(frame), type_, f"{where}, {name!r}")
        frame.hidden.setdefault(name, (frame.variables.get(name), frame.types.get(name)))
        frame.variables[name], frame.types[name] = found, type_

    return run


def _assign(name: str, sign: str, value: Expression, where: str) -> Statement:
    if sign != "=":
        function = next(level[sign] for level in _BINARY if sign in level)
        value = _combined(function, _variable(name, where), value, where)
    known = _variable(name, where)

    def run(frame: Frame) -> None:
        known(frame)
        type_ = frame.types.get(name, "auto")
        frame.variables[name] = converted(value(frame), type_, f"{where}, {name!r}")

    return run


def _combined(function: Any, left: Expression, right: Expression, where: str) -> Expression:
    def value(frame: Frame) -> Value:
        a, b = left(frame), right(frame)
        if function in (operator.eq, operator.ne) and isinstance(a, Pointer):
            return function(a.place, b.place if isinstance(b, Pointer) else -1)
        return _applied(function, [number(a, where), number(b, where)], where)

    return value


def _applied(function: Callable[..., Any], given: list[Any], where: str) -> Value:
    try:
        return function(*given)
    except (ZeroDivisionError, TypeError, ValueError) as error:
        raise HostError(f"{where}: {error}", found=", ".join(map(repr, given))) from None


def _lazily(left: Expression, right: Expression, stop: bool, where: str) -> Expression:
    def value(frame: Frame) -> bool:
        return stop if truth(left(frame), where) is stop else truth(right(frame), where)

    return value


def _cast(type_: str, value: Expression, where: str) -> Expression:
    def made(frame: Frame) -> Value:
        found = value(frame)
        if isinstance(found, Pointer) and plain(type_).endswith("*"):
            return found.cast(type_)
        return converted(found, type_, where)

    return made


def _extents(given: list[Expression], where: str) -> Expression:
    def value(frame: Frame) -> Value:
        return Extents(*(converted(e(frame), "uint32_t", where) for e in given))

    return value


def _axis(value: Expression, axis: str, where: str) -> Expression:
    def extent(frame: Frame) -> Value:
        found = value(frame)
        if isinstance(found, Extents) and axis in Extents._fields:
            return getattr(found, axis)
        raise HostError(f"{where}: {found!r} has no {axis!r}")

    return extent
