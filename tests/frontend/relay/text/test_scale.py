"""Long programs are read, written and compared without recursion; deep ones are refused."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from meta.frontend.relay import ast
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.text import parse_text
from tools.relay_text import equal, print_text

LONG = 100_000
HEADER = '#[version = "0.0.5"]\n'


def chain(n: int) -> str:
    lines = [f"  %{i} = add(%{i - 1}, %x.1);" for i in range(1, n)]
    return "fn (%x.1) {\n  %0 = nn.relu(%x.1);\n" + "\n".join(lines) + f"\n  %{n - 1}\n}}"


PROGRAMS: dict[str, Callable[[int], str]] = {
    "bindings": chain,
    "lets": lambda n: "fn (%x) {" + "let %x = f(%x);\n" * n + "%x }",
    "sequence": lambda n: "fn (%x) {" + "%x;" * n + "%x }",
    "operators": lambda n: "fn (%x) { %x" + " + %x" * n + " }",
    "calls": lambda n: "fn (%x) { %x" + "()" * n + " }",
    "projections": lambda n: "fn (%x) { %x" + ".0" * n + " }",
    "tuple": lambda n: "fn (%x) { (" + "%x, " * n + ") }",
    "signs": lambda n: "fn (%x) { " + "- " * n + "%x }",
    "parameters": lambda n: "fn (" + ", ".join(f"%x{i}" for i in range(n)) + ") { %x0 }",
    "attribute": lambda n: "f(a=[" + "1i64, " * n + "])",
    "type": lambda n: "fn (%x: Tensor[(" + "1, " * n + "), int8]) { %x }",
    "arms": lambda n: "fn (%x) { match (%x) {" + "_ => %x," * n + "} }",
    "bound again": lambda n: "fn (%x) { %0 = f(%x);" + "%0 = f(%0);" * n + "%0 }",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_long_program(name: str) -> None:
    length = LONG if name == "bindings" else LONG // 5
    module = parse_text(PROGRAMS[name](length))
    assert list(module.functions) == ["main"]


@pytest.mark.parametrize("name", ["bindings", "lets", "operators", "tuple"])
def test_a_long_program_is_printed_and_compared(name: str) -> None:
    module = parse_text(PROGRAMS[name](LONG // 5))
    assert equal(parse_text(print_text(module)), module)


def test_twenty_thousand_bindings_are_read_in_seconds() -> None:
    line = "nn.conv2d(%{}, %w, padding=[1, 1, 1, 1], channels=64) /* ty=Tensor[(1, 64), int8] */;"
    lines = [f"%{i} = {line.format(i - 1)}" for i in range(1, 20_000)]
    text = "fn (%x, %w) { %0 = nn.relu(%x);\n" + "\n".join(lines) + "%19999 }"
    began = time.process_time()
    parse_text(text)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("begin", "middle", "end"),
    [
        ("(", "1", ")"),
        ("{", "1", "}"),
        ("f(", "1", ")"),
        ("let %x = (", "1", "); %x"),
        ("if (True) {", "1", "} else { 1 }"),
        ("if (", "True", ") { 1 }"),
        ("fn () {", "1", "}"),
        ("match (1) { _ => {", "1", "} }"),
        ("match (", "1", ") {}"),
        ("ref(", "1", ")"),
        ("if (True) { 1 } else ", "{ 1 }", ""),
        ("-(", "1", ")"),
    ],
)
def test_nesting_is_limited(begin: str, middle: str, end: str) -> None:
    fits = ast.MAX_NESTING - 5
    module = parse_text(begin * fits + middle + end * fits)
    assert equal(parse_text(print_text(module)), module)
    with pytest.raises(RelayError) as caught:
        parse_text(begin * LONG + middle + end * LONG)
    assert caught.value.what == "this Relay text is nested too deeply"
    assert caught.value.place is not None


@pytest.mark.parametrize(
    ("begin", "part", "end"),
    [
        ("fn (%x: ", "(", ",)) { 1 }"),
        ("fn (%x: ", "fn () -> ", "_) { 1 }"),
        ("fn (%x: ", "ref(", "_)) { 1 }"),
        ("fn (%x: ", "List[", "_]) { 1 }"),
        ("f(a=", "[", "])"),
        ("match (1) { ", "(", "_) => 1 }"),
    ],
)
def test_nesting_of_types_patterns_and_attributes_is_limited(
    begin: str, part: str, end: str
) -> None:
    with pytest.raises(RelayError) as caught:
        parse_text(begin + part * LONG + end)
    assert caught.value.what == "this Relay text is nested too deeply"


@pytest.mark.parametrize(
    ("begin", "part", "middle", "close", "end"),
    [
        ("fn (%x: ", "(", "_", ",)", ") { %x }"),
        ("fn (%x: ", "fn (", "", ") -> _", ") { %x }"),
        ("fn (%x: ", "fn () -> ", "_", "", ") { %x }"),
        ("fn (%x: ", "ref(", "_", ")", ") { %x }"),
        ("fn (%x: ", "List[", "_", "]", ") { %x }"),
        ("f(a=", "[", "", "]", ")"),
        ("match (1) { ", "(", "_", ",)", " => 1 }"),
    ],
)
def test_what_nests_less_is_read_and_written(
    begin: str, part: str, middle: str, close: str, end: str
) -> None:
    fits = ast.MAX_NESTING - 5
    module = parse_text(begin + part * fits + middle + close * fits + end)
    assert equal(parse_text(print_text(module)), module)


SMALL = HEADER + (
    "type T[A] { C(A, T[A]), N }\n"
    "def @f[A](%x.1: A /* ty=A */, k=[1, 2]) -> A { %x.1 }\n"
    'def @main(%a: Tensor[(2, ?), float32], %"b c": (int32,)) {\n'
    '  %0 = nn.conv2d(%a, meta[relay.Constant][0], a=None, s="x\\n") /* ty=float32 */;\n'
    "  let %y: T[int32] = C(1i64, N);\n"
    "  if (%0 < -2.5f) { ref_write(%y, %0.1); () } else {\n"
    "    match? (%y) { C(%h, _) => %h, N => (fn (%z) { %z })(@f(%a)) } }\n"
    "}\n"
    "#[metadata]\n"
    '{"root": 1, "nodes": [{"type_key": ""}, {"type_key": "Map"}], "b64ndarrays": [],'
    ' "attrs": {}}'
)


def test_a_text_cut_anywhere() -> None:
    parse_text(SMALL)
    for end in range(len(SMALL)):
        try:
            parse_text(SMALL[:end])
        except RelayError as error:
            assert error.place is not None


def test_damaged_texts_give_clean_errors() -> None:
    rng = random.Random(5)
    pieces = [
        *SMALL,
        "%0",
        "%x.1",
        "let",
        "fn (",
        "/*",
        "*/",
        '"',
        "meta[",
        "#[",
        "-",
        "1f",
        "\x00",
    ]
    for _ in range(1500):
        text = list(SMALL)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(text))
            text[at : at + rng.randint(0, 3)] = rng.choice(pieces)
        try:
            print_text(parse_text("".join(text)))
        except RelayError as error:
            assert str(error)


@pytest.mark.parametrize(
    "text",
    [
        "/* " + " " * LONG + " */ 1",
        "/*" * LONG,
        '"' * LONG,
        "-" * LONG,
        "1" * LONG,
        "%" + "a." * LONG,
        "fn (%" + "a." * LONG + "b) { %" + "a." * LONG + "c }",
        "f(" + "a" * LONG + " " * LONG,
        "meta[" + "a" * LONG,
        "f(x" + "/**/" * LONG + ")",
        "a" + "." * LONG,
        "a" + "/" * LONG,
        "1" + "e" * LONG,
        " " * LONG + "\x00",
        "f(1" + "/* */" * LONG + "1)",
        "#[metadata" * LONG,
        "fn (%x: Tensor[(1), " + "x[" * LONG,
        f"fn ({', '.join('%' + 'a' * n for n in range(1, 600))}) {{ ({'%a.0, ' * LONG}) }}",
        f"fn ({', '.join(f'%a{n} [b: int8' for n in range(5000))}, %x) {{ ({'%x, ' * LONG}) }}",
    ],
    ids=lambda text: text[:12],
)
def test_no_scan_is_quadratic(text: str) -> None:
    began = time.process_time()
    try:
        parse_text(text)
    except RelayError as error:
        assert len(str(error)) < 2000
    assert time.process_time() - began < 5
