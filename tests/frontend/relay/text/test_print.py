"""How programs are written."""

from __future__ import annotations

import json

import pytest
import torch

from meta.frontend.relay import ast
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.text import parse_text
from tools.relay_text import print_text

HEADER = '#[version = "0.0.5"]\n'


def printed(text: str) -> str:
    return print_text(parse_text(text)).removeprefix(HEADER).rstrip("\n")


def test_a_module() -> None:
    text = HEADER + (
        "type List[A] {\n"
        "  Cons(A, List[A]),\n"
        "  Nil,\n"
        "}\n"
        "\n"
        "extern type Handle\n"
        "\n"
        "def @main[A](%x.1: Tensor[(2, ?), float32] /* ty=Tensor[(2, ?), float32] */, %y: List[A], "
        'Primitive=1, relay.reshape_only=True, k="a\\"b\\n") -> (int32,) {\n'
        "  let %g: fn (A) -> _ = fn (%a) {\n"
        "    %0 = @main(%a, 1i64);\n"
        "    (%0,)\n"
        "  };\n"
        "  %3 = (\n"
        "    free_var %z: ref(A);\n"
        "    %1 = f(%x.1, 0.1f /* ty=float32 */, axis=[0, -1], p=0.5f, n=None);\n"
        "    let %_ = ref_write(%z, %1);\n"
        "    %2 = Nil;\n"
        "    %g(%2)\n"
        "  );\n"
        "  if (%3) {\n"
        "    match? (%y) {\n"
        "      Cons(%h: A /* ty=A */, _) => {\n"
        "        %h\n"
        "      },\n"
        "      (%p, Nil) => {\n"
        "        %3.0\n"
        "      },\n"
        "    }\n"
        "  } else {\n"
        "    ref_read(%z) /* ty=A */\n"
        "  }\n"
        "}\n"
    )
    assert print_text(parse_text(text)) == text


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("f(g(1), h())", "  %0 = g(1);\n  %1 = h();\n  f(%0, %1)"),
        ("%0 = g(1); (%0, %0)", "  %0 = g(1);\n  (%0, %0)"),
        ("%0 = g(1); let %x = %0; %0", "  %0 = g(1);\n  let %x = %0;\n  %0"),
        ("1 + 2 * 3", "  %0 = multiply(2, 3);\n  add(1, %0)"),
        ("let %x = let_(1); %x", "  let %x = let_(1);\n  %x"),
        ("(f(1), 2).1.0", "  %0 = f(1);\n  %1 = (%0, 2);\n  %2 = %1.1;\n  %2.0"),
        (
            "{ let %x = f({ let %x = 1; %x }); %x }",
            "  %0 = (\n    let %x1 = 1;\n    %x1\n  );\n  let %x = f(%0);\n  %x",
        ),
        (
            "let %x = f(fn () { %x }); %x",
            "  let %x = {\n    %0 = fn () {\n      %x\n    };\n    f(%0)\n  };\n  %x",
        ),
    ],
)
def test_bindings(text: str, body: str) -> None:
    assert printed(text) == f"def @main() {{\n{body}\n}}"


@pytest.mark.parametrize(
    ("tensor", "literal"),
    [
        (torch.tensor(0.1), "0.1f"),
        (torch.tensor(1 / 3), "0.33333334f"),
        (torch.tensor(16777216.0), "16777216f"),
        (torch.tensor(1e-45), "1e-45f"),
        (torch.finfo(torch.float32).max, "3.4028235e+38f"),
        (torch.tensor(-0.0), "-0f"),
        (torch.tensor(float("nan")), "nanf"),
        (torch.tensor(-float("inf"), dtype=torch.float64), "-inff64"),
        (torch.tensor(0.1, dtype=torch.float64), "0.1f64"),
        (torch.tensor(0.1, dtype=torch.float16), "0.1f16"),
        (torch.tensor(65504.0, dtype=torch.float16), "6.55e+04f16"),
        (torch.tensor(7, dtype=torch.int16), "7i16"),
        (torch.tensor(-7, dtype=torch.int32), "-7"),
        (torch.tensor(-(2**63)), "-9223372036854775808i64"),
        (torch.tensor(True), "True"),
        (torch.tensor(1, dtype=torch.int8), "meta[relay.Constant][0]"),
        (torch.tensor([1.5]), "meta[relay.Constant][0]"),
    ],
)
def test_constants(tensor: torch.Tensor | float, literal: str) -> None:
    value = tensor if isinstance(tensor, torch.Tensor) else torch.tensor(tensor)
    module = ast.Module({"main": ast.Function((), ast.Constant(value))})
    text = print_text(module)
    assert f"\n  {literal}\n}}" in text
    body = parse_text(text).functions["main"].body
    assert isinstance(body, ast.Constant)
    assert body.value is not None
    torch.testing.assert_close(body.value, value, rtol=0, atol=0, equal_nan=True)


def test_an_array_of_several_constants_is_written_once() -> None:
    shared = torch.arange(3)
    body = ast.Tuple((ast.Constant(shared), ast.Constant(shared), ast.Constant(torch.arange(3))))
    text = print_text(ast.Module({"main": ast.Function((), body)}))
    section = json.loads(text.partition("#[metadata]")[2])
    assert len(section["b64ndarrays"]) == 2
    found = parse_text(text).functions["main"].body
    assert isinstance(found, ast.Tuple) and len(found.fields) == 3


@pytest.mark.parametrize("key", ["a/*b", "a]b", "a b", "a" * 300])
def test_an_attribute_of_a_type_with_an_odd_name(key: str) -> None:
    value = ast.Opaque(key, (("size", "3"),))
    body = ast.Call(ast.Op("f"), (), ast.Attrs({"a": value}))
    found = parse_text(print_text(ast.Module({"main": ast.Function((), body)})))
    call = found.functions["main"].body
    assert isinstance(call, ast.Call) and call.attrs is not None
    assert call.attrs.fields == {"a": value}


def test_a_comment_that_contradicts_a_literal_does_not_change_it() -> None:
    constant = ast.Constant(torch.tensor(1, dtype=torch.int32))
    constant.checked_type = ast.TensorType((), "int64")
    text = print_text(ast.Module({"main": ast.Function((), constant)}))
    assert "  1i32 /* ty=int64 */\n" in text


@pytest.mark.parametrize(
    ("names", "written"),
    [
        (["x", "x", "x"], ["%x", "%x1", "%x2"]),
        (["x1", "x", "x"], ["%x1", "%x", "%x2"]),
        (["conv1.weight", "input:0", "a/b-c"], ["%conv1.weight", "%input:0", "%a/b-c"]),
        (["1", "", "a b", "a*"], ['%"1"', '%""', '%"a b"', '%"a*"']),
        (["let", "_", 'a"\n'], ["%let", "%_", '%"a\\"\\n"']),
    ],
)
def test_names(names: list[str], written: list[str]) -> None:
    params = tuple(ast.Var(n) for n in names)
    text = print_text(ast.Module({"main": ast.Function(params, ast.Tuple(params))}))
    assert f"({', '.join(written)}) {{" in text
    again = parse_text(text).functions["main"].params
    assert [p.name for p in again] == [w.lstrip("%") for w in written] or '"' in str(written)


def test_a_projection_that_would_be_a_variable() -> None:
    x, other = ast.Var("x"), ast.Var("x.0")
    body = ast.Tuple((ast.TupleGetItem(x, 0), ast.TupleGetItem(x, 1), other))
    text = print_text(ast.Module({"main": ast.Function((x, other), body)}))
    assert "  %0 = (%x).0;\n  %1 = %x.1;\n  (%0, %1, %x.0)\n" in text


def test_the_version_and_the_attributes_of_a_module_are_kept() -> None:
    module = ast.Module({"main": ast.Function((), ast.Tuple(()))})
    assert print_text(module) == HEADER + "def @main() {\n  ()\n}\n"
    module.version, module.attrs = (0, 7), {"executor": "graph", "k": (1, None)}
    again = parse_text(print_text(module))
    assert again.version == (0, 7)
    assert again.attrs == module.attrs


def test_missing_items_keep_their_numbers() -> None:
    text = (
        "def @main(%x: Tensor[(meta[tir.Var][1]), int8]) {\n"
        "  f(meta[relay.Constant][0], d=meta[VirtualDevice][2])\n}"
    )
    module = parse_text(text)
    assert printed(text) == text
    call = module.functions["main"].body
    assert isinstance(call, ast.Call)
    call.args += (ast.Constant(torch.zeros(2)),)
    text = print_text(module)
    assert "f(meta[relay.Constant][0], meta[relay.Constant][1], d=meta[VirtualDevice][2])" in text
    again = parse_text(text).functions["main"].body
    assert isinstance(again, ast.Call)
    missing, zeros = again.args
    assert isinstance(missing, ast.Constant)
    assert isinstance(zeros, ast.Constant)
    assert missing.value is None
    torch.testing.assert_close(zeros.value, torch.zeros(2))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ast.Constructor("Cons", "List"), "constructors that the module defines"),
        (ast.Op("Nil"), "operators and constructors with different names"),
        (ast.Call(ast.Op("f"), (), ast.Attrs({"a": {1: 2}})), "maps from strings"),
        (ast.Constant(torch.zeros(2, dtype=torch.float8_e4m3fnuz)), "TVM has no dtype"),
    ],
)
def test_what_no_text_says(body: ast.Expr, expected: str) -> None:
    types = {"T": ast.TypeDefinition("T", (), (ast.ConstructorDefinition("Nil"),))}
    with pytest.raises(RelayError) as caught:
        print_text(ast.Module({"main": ast.Function((), body)}, types))
    assert expected in str(caught.value.expected)
