"""What the parser says of a text it refuses: the place, the line, what it wanted, what to try."""

from __future__ import annotations

import pytest

from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.text import parse_text

HEADER = '#[version = "0.0.5"]\n'


def error_of(text: str) -> RelayError:
    with pytest.raises(RelayError) as caught:
        parse_text(text, "model.relay")
    return caught.value


def shown(error: RelayError) -> str:
    """Return the message without the line of this file."""
    return "\n".join(line for line in str(error).splitlines() if "  at: " not in line)


def test_the_whole_message() -> None:
    error = error_of(HEADER + "def @main(%data: float32) {\n  add(%data, %date)\n}\n")
    assert shown(error) == (
        "this Relay text cannot be read\n"
        "  expected: a variable in scope\n"
        "  found:    '%date'\n"
        "  try:      did you mean 'data'?\n"
        "  in:       model.relay:3:14\n"
        "      add(%data, %date)\n"
        "                 ^"
    )
    assert error.place == "model.relay:3:14"


@pytest.mark.parametrize(
    ("line", "column", "expected", "hint"),
    [
        # Commas are never left out, though TVM's parser takes that.
        ("(%x, %x %x)", 9, "',' or ')'", ""),
        ("add(%x %x)", 8, "',' or ')'", ""),
        ("f(%x, a=1 b=2)", 11, "',' or ')'", ""),
        ("f(%x, a=[1 2])", 12, "',' or ']'", ""),
        ("fn (%a %b) { 1 }", 8, "',' or ')'", ""),
        ("fn (%a: Tensor[(2 3), int8]) { 1 }", 19, "',' or ')'", ""),
        ("f(%x, a=1, %x)", 12, "an attribute, 'name=value': they come last", ""),
        ("f(%x, a=1, a=2)", 12, "an attribute that is not there yet", ""),
        ("f(%x, a=)", 9, "the value of an attribute", ""),
        ("%x -1f", 4, "an operator or the end", "a blank behind '-'"),
        ("%x <= ", 7, "an expression", ""),
        ("%x < = 1", 6, "an expression", ""),
        ("%x; ", 5, "an expression", ""),
        ("let %y 1; %y", 8, "'=' and the value", ""),
        ("let %y = 1 %y", 12, "';' after a binding", ""),
        ("let y = 1; y", 5, "the name of a variable", ""),
        ("let %1y = 1; %1y", 5, "does not begin with a digit", ""),
        ("%0 = 1, 2", 7, "';' after a binding", ""),
        ("%1", 1, "a number that a graph binding", ""),
        ("1if", 3, "';' or '}'", ""),
        ("32768i16", 1, "an integer that fits int16", ""),
        ("65505f16", 1, "a number that fits float16", ""),
        ("1e39f", 1, "a number that fits float32", ""),
        ("1e400f64", 1, "a number that fits float64", ""),
        ("9223372036854775808", 1, "a number that fits int64", ""),
        ("1f8", 1, "a width of 16, 32 or 64 bits", ""),
        (f"{'9' * 500}f", 1, "a number of at most 400 characters", ""),
        ("%x.99999999999", 3, "an index up to 2147483647", ""),
        ('"text"', 1, "an expression", "strings stand in attributes"),
        ('f(%x, a="text)', 9, "a string that ends", ""),
        ("/* open", 1, "'*/'", ""),
        ("/* open /* closed */", 1, "'*/'", ""),
        ("let", 4, "the name of a variable", ""),
        ("True(1", 7, "',' or ')'", ""),
        ("if (%x) { 1 } else 2", 20, "'{'", ""),
        ("if %x { 1 } else { 2 }", 4, "'('", ""),
        ("match (%x) { Cons(%a) => 1 }", 14, "a constructor of a data type", ""),
        ("match (%x) { %a = 1 }", 17, "'=>'", ""),
        ("match (%x) { 1 => 1 }", 14, "a pattern", ""),
        ("ref(%x, %x)", 9, "')'", ""),
        ("ref_write(%x)", 13, "','", ""),
        ("meta[relay.Constant]", 1, "a reference into the metadata section", ""),
        ("fn (%a: Tensor[2, int8]) { 1 }", 16, "a shape, '('", ""),
        ("fn (%a: Tensor[(-1), int8]) { 1 }", 17, "a dimension: '?' or an integer", ""),
        ("fn (%a: Tensor[(9223372036854775808), int8]) { 1 }", 17, "a dimension", ""),
        ("fn (%a: ) { 1 }", 9, "a type", ""),
        ("fn (%a) -> { 1 }", 12, "a type", ""),
        ("fn (%a) 1", 9, "'{'", ""),
        ("fn %a { 1 }", 4, "'('", ""),
        ("@", 1, "the name of a function of the module", ""),
        ("%", 1, "a variable in scope", ""),
        ("%x # 1", 4, "Relay text", ""),
        ("f(%x, a=meta[runtime.BoxInt][0])", 9, "", "mod.astext()"),
        ("f(%x, meta[relay.attrs.DilateAttrs][0])", 7, "", "mod.astext()"),
        ("meta[relay.Var][0]", 1, "", "mod.astext()"),
    ],
)
def test_place_and_expectation(line: str, column: int, expected: str, hint: str) -> None:
    error = error_of(f"{HEADER}def @main(%x) {{\n{line}\n}}")
    assert error.place is not None
    assert expected in str(error.expected)
    assert hint in str(error.hint)
    row = 4 if column > len(line) or not line[column - 1 :].strip() else 3
    assert error.place == (f"model.relay:{row}:1" if row == 4 else f"model.relay:3:{column}")


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("", "1:1", "a function, 'def @main(...) { ... }', or an expression"),
        ("\n\n", "3:1", "a function"),
        ('#[version = "0.0.6"]\n1', "1:13", 'the version "0.0.5"'),
        ("#[versions]\n1", "1:3", "'version'"),
        ("v0.0.9\n1", "1:1", "a version that is known, v0.0.1 to v0.0.4"),
        (HEADER + "#[other]\n1", "2:1", "a definition or '#[metadata]'"),
        (HEADER + "1 2", "2:3", "an operator, ';' or the end of the text"),
        (HEADER + "def @main() { 1 } 2", "2:19", "'def', 'type', '#[metadata]' or the end"),
        (HEADER + "def main() { 1 }", "2:5", "the name of a function of the module"),
        (HEADER + "def @f = meta[X][0]", "2:8", "the parameters of a function"),
        ("@main = primfn(x: handle) -> ()", "1:1", "a function of Relay"),
        (HEADER + "type A { B, B }", "2:13", "a constructor that is not defined yet"),
        (HEADER + "type A {}\ntype A {}", "3:6", "a data type that is not defined yet"),
        (HEADER + "type A { B C }", "2:12", "',' or '}'"),
        (
            HEADER + "def @f() { B() }\ntype A { B }",
            "3:10",
            "a constructor that is not used before",
        ),
    ],
)
def test_definitions(text: str, place: str, expected: str) -> None:
    error = error_of(text)
    assert error.place == f"model.relay:{place}"
    assert expected in str(error.expected)


def test_a_long_line_is_clipped_around_the_place() -> None:
    error = error_of(HEADER + f"({'%x, ' * 1000})")
    assert error.place == "model.relay:2:2"
    error = error_of(HEADER + f"({'1, ' * 1000}\x00)")
    line, caret = str(error).splitlines()[-2:]
    assert len(line) <= 104
    assert caret.endswith("^")
    assert error.place == "model.relay:2:3002"


def test_damaged_metadata() -> None:
    error = error_of(HEADER + "meta[relay.Constant][0]\n#[metadata]\n{")
    assert "model.relay" in str(error.place)
