"""What the parser says of a text it refuses: the place, what it wanted, what to try."""

from __future__ import annotations

import pytest

from meta.base.errors import IRError
from meta.ir import parse, parse_function, parse_type
from meta.ir.literals import MAX_NESTING


def error_of(text: str) -> IRError:
    with pytest.raises(IRError) as caught:
        parse(text, "model.txt")
    return caught.value


def body(line: str) -> str:
    return f"func @main(%x: float32[2]) {{\n  {line}\n  return %x\n}}"


def test_the_whole_message() -> None:
    error = error_of(body("%0 = test_add(%x, )  # a.py:1\n  %1 = test_sum(%y)"))
    assert str(error) == (
        "line 2, column 16: this program text cannot be read\n"
        "      %0 = test_add(%x, )  # a.py:1\n"
        "                   ^\n"
        "  expected: an argument for the slot 'y'\n"
        "  found:    none\n"
        "  at:       model.txt:2"
    )


@pytest.mark.parametrize(
    ("line", "column", "expected", "hint"),
    [
        ("%0 = test_add(%x, %y)", 21, "a variable in scope", "'%x'"),
        ("%0 = test_ad(%x, %x)", 8, "an operator", "'test_add'"),
        ("%0 = fake.softmix(%x)", 8, "an operator", "'softmax'"),
        ("%0 = fike.softmax(%x)", 8, "an operator", "'fake.softmax'"),
        ("%0 = test_sum(%x, axes=1)", 21, "the name of a slot without argument", "'axis'"),
        ("%0 = test_sum(%x, axis=1, axis=1)", 29, "the name of a slot", ""),
        ("%0 = test_sum(%x, x=1)", 21, "the name of a slot", ""),
        ("%0 = test_sum(%x, axis=1, True)", 29, "'name=value'", ""),
        ("%0 = test_sum(%x, 1, True, 3)", 30, "at most 3 arguments", ""),
        ("%0 = test_bare(x=1)", 18, "the name of a slot", ""),
        ("%0 = test_add(%x, @nobody)", 21, "a function of this module", ""),
        ("%0 = test_add(%x, (%x, 1))", 21, "a tuple of atoms or a tuple of literals", ""),
        ("%0 = 1", 8, "an atom", "const int64[] 1"),
        ("%0 = %x.a", 11, "an integer", ""),
        ("%0: float33[2] = %x", 7, "a dtype", "'float32'"),
        ("%0: float32[-1] = %x", 15, "a dimension from 0 to 2**63 - 1", ""),
        (f"%0: float32[{1 << 63}] = %x", 15, "a dimension from 0 to 2**63 - 1", ""),
        ("%0: float32[2 = %x", 17, "',' or ']'", ""),
        ("%0 float32 = %x", 6, "':' or '='", ""),
        ("%x = %x", 3, "a new name", ""),
        ("%0 = %0", 8, "a variable in scope", ""),
        ("%0 = if %x { yield %x }", 3, "'else'", ""),
        ("%0 = if %x { return %x } else { yield %x }", 16, "'yield'", ""),
        ("x = 1", 3, "a binding, '%name = value', or 'return'", ""),
        ("%0 = const float32[2] [1.0]", 14, "a constant of type float32[2]", ""),
        ("%0 = const uint8[] 256", 14, "a constant of type uint8[]", ""),
        ("%0 = const float32[n] []", 14, "a type without unknown dimensions", ""),
        ("%0 = const int64[] 1.5", 22, "an integer", ""),
        ("%0 = const bool[] 1", 21, "True or False", ""),
        ("%0 = @data.7", 8, "a constant with a data line", ""),
        ('%0 = test_bare("a)', 18, "a string that ends on its line", ""),
        ('%0 = test_bare("\\q")', 18, "a string", ""),
        ('%0 = test_bare("\\u{110000}")', 18, "a string", ""),
        ("%0 = test_bare(;)", 18, "program text", ""),
        (f"%0 = test_bare({'9' * 5000})", 18, "a number of at most", ""),
        ("%0 = fn(%a, %a) { return %a }", 15, "a new name", ""),
    ],
)
def test_place_and_expectation(line: str, column: int, expected: str, hint: str) -> None:
    error = error_of(body(line))
    where, shown, caret = error.what.split("\n")
    number = 3 if "'else'" in expected else 2
    assert where.startswith(f"line {number}, column {column}:"), str(error)
    assert expected in str(error.expected)
    assert hint in (error.hint or "")
    if len(line) < 80:
        assert caret.index("^") == 4 + column - 1
        assert shown.strip() == ("return %x" if number == 3 else line)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fun @main() { return (,) }", "'func', 'type' or 'data'"),
        ("func main() { return (,) }", "a global name"),
        ("func @main() { return (,) ", "'}'"),
        ("func @m() { return (,) } func @m() { return (,) }", "one function of each name"),
        ("func @m() attrs(a=1, a=2) { return (,) }", "attributes with different names"),
        ("func @m() attrs(a=@n) { return (,) }", "a function of this module"),
        ("func @m() attrs(%a=1) { return (,) }", "an attribute's name"),
        ('data @data.0 = float32[2] "AAAA"', "the bytes of a float32[2]"),
        ('data @data.0 = float32[99999999999999999] ""', "the bytes"),
        ('data @data.0 = float32[0, 9999999999, 9999999999] ""', "the bytes"),
        ('data @data.0 = bool[1] "Ag=="', "the bytes of a bool[1]"),
        ('data @data.0 = uint8[3] "****"', "the bytes"),
        ('data @data.0 = uint8[1] "AA=="\ndata @data.0 = uint8[1] "AA=="', "once"),
        ("data @main = uint8[1]", "@data.0"),
    ],
)
def test_top_level(text: str, expected: str) -> None:
    assert expected in str(error_of(text))


def test_nesting_is_limited() -> None:
    deep = MAX_NESTING + 2
    blocks = "%0 = if %x { " * deep + "yield %x" + "} else { yield %x }" * deep
    assert "nested at most" in str(error_of(body(blocks)))
    assert "nested at most" in str(error_of(body(f"%0 = {'(' * 50_000}")))
    with pytest.raises(IRError, match="nested"):
        parse_type("(" * 50_000)
    with pytest.raises(IRError, match="nested"):
        parse_type("fn() -> " * 50_000)


def test_a_long_line_is_clipped() -> None:
    error = error_of(body("%0 = test_bare(" + "1, " * 1000 + "%y)"))
    shown, caret = error.what.split("\n")[1:]
    assert len(shown) <= 104
    assert shown[caret.index("^") :].startswith("%y")


def test_parse_function_wants_one_function() -> None:
    assert parse_function("func @f(%x) { return %x }").params[0].name == "x"
    with pytest.raises(IRError, match="line 1, column 23"):
        parse_function("fn(%x) { return %x }  fn")
    with pytest.raises(IRError, match="line 1, column 1:"):
        parse_function("%x")


def test_comments_and_layout_are_free() -> None:
    module = parse(
        "# a comment\nfunc @main(%x,) { # another: with 3\n\n"
        "%a=test_add(%x,%x) # f.py:3\n%b = test_sum(%a,\n axis=0, # why\n)return %b}"
    )
    spans = [b.span for b in module.main.body.bindings]
    assert [str(s) for s in spans] == ["f.py:3", "None"]
