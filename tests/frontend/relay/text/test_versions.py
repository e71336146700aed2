"""Headers, the dialect of 0.0.1 to 0.0.4, texts without a header, and what follows the program."""

from __future__ import annotations

import pytest
import torch

from meta.frontend.relay import ast
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.text import parse_text
from tools.relay_text import difference

HEADER = '#[version = "0.0.5"]\n'


def body(text: str) -> ast.Expr:
    return parse_text(text).functions["main"].body


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (HEADER + "1", "0.0.5"),
        ('\ufeff// a comment\n#[ version="0.0.5" ]\n1', "0.0.5"),
        ("v0.0.4\n1", "0.0.4"),
        ("v0.0.1 1", "0.0.1"),
        ("1", None),
        ("/* comment */ fn () { 1 }", None),
    ],
)
def test_the_header(text: str, version: str | None) -> None:
    module = parse_text(text)
    assert module.text_version == version
    assert module.version == ((0, 6) if version and version < "0.0.5" else None)
    assert list(module.functions) == ["main"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fn (%x) { ref_write(%x, 1) ;; 2 }", "fn (%x) { ref_write(%x, 1); 2 }"),
        ("fn (%x) { %x -1f }", "fn (%x) { %x - 1f }"),
        ("fn (%x) { %x-1 - -%x }", "fn (%x) { %x - 1 - negative(%x) }"),
        ("fn (%x) { [%x, 1] }", "fn (%x) { (%x, 1) }"),
        ("fn (%x) { [] }", "fn (%x) { () }"),
        ("free_var %x: int32 add(%x, 1)", "free_var %x: int32; add(%x, 1)"),
        ("fn (%x) { cast(%x, dtype='int8') }".replace("'", '"'),) * 2,
        ("fn (%x: (int32), %y: (int32,)) { %x }", "fn (%x: int32, %y: (int32,)) { %x }"),
        ("fn (%x: Tensor[3, int32]) { %x }", "fn (%x: Tensor[(3), int32]) { %x }"),
        ("let mut %x = 1; %x", "let %x = 1; %x"),
        ("fn (%a.b) { match (%a.b) { _ => %a.b } }", "fn (%x) { match (%x) { _ => { %x } } }"),
    ],
)
def test_the_old_dialect(old: str, new: str) -> None:
    assert difference(parse_text(f"v0.0.4\n{old}"), parse_text(HEADER + new)) is None


def test_old_metadata() -> None:
    text = (
        "v0.0.4\n"
        "def @main(%x: Tensor[(meta[Variable][0], 2), float32]) {\n"
        "  add(%x, meta[relay.Constant][0] /* ty=int8 */ /* ty=int8 */) /* ty=int8 */\n"
        "}\n\n"
        "METADATA:\n"
        '{"root": 1, "nodes": [{"type_key": ""},'
        '{"type_key": "StrMap", "keys": ["relay.Constant", "Variable"], "data": [2, 4]},'
        '{"type_key": "Array", "data": [3]},'
        '{"type_key": "relay.Constant", "attrs": {"data": "0", "span": "0"}},'
        '{"type_key": "Array", "data": [5]},'
        '{"type_key": "Variable", "attrs": {"dtype": "int32", "name": "n"}}],'
        '"b64ndarrays": ["P6G0lvBAXt0AAAAAAAAAAAEAAAAAAAAAAAAAAAAIAQABAAAAAAAAAAM="],'
        '"attrs": {"tvm_version": "0.6.0"}}'
    )
    module = parse_text(text)
    assert module.version == (0, 6)
    main = module.functions["main"]
    assert main.params[0].type == ast.TensorType((ast.SymbolDim("n"), 2), "float32")
    assert isinstance(main.body, ast.Call)
    three = main.body.args[1]
    assert isinstance(three, ast.Constant)
    assert three.checked_type == ast.TensorType((), "int8")
    torch.testing.assert_close(three.value, torch.tensor(3, dtype=torch.int8))


def test_a_text_without_its_metadata() -> None:
    module = parse_text(
        "def @main(%x: Tensor[(meta[tir.Var][0]), float32]) {\n"
        "  %0 = add(%x, meta[relay.Constant][3] /* ty=float32 */);\n"
        "  on_device(%0, meta[relay.Constant][3], virtual_device=meta[VirtualDevice][0])\n"
        "}\n\n"
        "/* For debugging purposes the metadata section has been omitted.\n"
        " * If you would like to see the full metadata section you can set the \n"
        " * option to `True` when invoking `astext`. \n */\n"
    )
    assert module.text_version is None
    main = module.functions["main"]
    assert main.params[0].type == ast.TensorType((ast.SymbolDim("meta[tir.Var][0]"),), "float32")
    call = main.body
    assert isinstance(call, ast.Call)
    added, constant = call.args
    assert isinstance(added, ast.Call)
    assert added.args[1] is constant
    assert isinstance(constant, ast.Constant)
    assert constant.value is None
    assert constant.missing == "meta[relay.Constant][3]"
    assert call.attrs is not None
    device = ast.Opaque("VirtualDevice", (("missing", "meta[VirtualDevice][0]"),))
    assert call.attrs.fields == {"virtual_device": device}


def test_attributes_from_metadata() -> None:
    text = HEADER + (
        "def @main(%x, %y, dev=meta[VirtualDevice][0]) {\n"
        "  %0 = nn.dilate(%x, meta[relay.attrs.DilateAttrs][0]);\n"
        "  split(%0, indices_or_sections=meta[runtime.BoxInt][0], x=[meta[runtime.BoxFloat][0]],"
        " b=meta[runtime.BoxBool][0])\n"
        "}\n"
        "#[metadata]\n"
        '{"root": 1, "nodes": [{"type_key": ""},'
        '{"type_key": "Map", "keys": ["relay.attrs.DilateAttrs", "runtime.BoxInt",'
        ' "runtime.BoxFloat", "runtime.BoxBool", "VirtualDevice"], "data": [2, 4, 6, 8, 10]},'
        '{"type_key": "Array", "data": [3]},'
        '{"type_key": "relay.attrs.DilateAttrs",'
        ' "attrs": {"dilation_value": "1.5", "strides": "0"}},'
        '{"type_key": "Array", "data": [5]}, {"type_key": "runtime.BoxInt", "repr_str": "3"},'
        '{"type_key": "Array", "data": [7]}, {"type_key": "runtime.BoxFloat", "repr_str": "0.5"},'
        '{"type_key": "Array", "data": [9]}, {"type_key": "runtime.BoxBool", "repr_str": "true"},'
        '{"type_key": "Array", "data": [11]},'
        '{"type_key": "VirtualDevice", "attrs": {"device_type_int": "1", "memory_scope": "12",'
        ' "target": "0", "virtual_device_id": "0"}}, {"type_key": "runtime.String"}],'
        '"b64ndarrays": [], "attrs": {"tvm_version": "0.18.0"}}'
    )
    module = parse_text(text)
    assert module.version == (0, 18)
    main = module.functions["main"]
    assert main.attrs["dev"].type_key == "VirtualDevice"
    split = main.body
    assert isinstance(split, ast.Call)
    assert split.attrs is not None
    assert split.attrs.fields == {"indices_or_sections": 3, "x": (0.5,), "b": True}
    dilate = split.args[0]
    assert isinstance(dilate, ast.Call)
    assert dilate.attrs is not None
    assert dilate.attrs.type_key == "relay.attrs.DilateAttrs"
    assert dilate.attrs.fields["dilation_value"] == 1.5


def test_numbers_have_no_scope() -> None:
    branch = body("fn (%c, %x) { if (%c) { %0 = f(%x); %0 } else { g(%0) } }")
    assert isinstance(branch, ast.If)
    assert isinstance(branch.else_branch, ast.Call)
    assert branch.else_branch.args[0] is branch.then_branch


def test_a_number_bound_again() -> None:
    module = parse_text(
        "def @f(%x) {\n  %0 = f(%x);\n  %1 = { %0 = g(%x); %0 };\n  (%0, %1)\n}\n"
        "def @g(%x) {\n  %0 = h(%x);\n  %0\n}\n",
        "a.txt",
    )
    pair = module.functions["f"].body
    assert isinstance(pair, ast.Tuple)
    names = [f.op.name for f in pair.fields if isinstance(f, ast.Call) and isinstance(f.op, ast.Op)]
    assert names == ["f", "g"]
    other = module.functions["g"].body
    assert isinstance(other, ast.Call)
    assert isinstance(other.op, ast.Op)
    assert other.op.name == "h"
    assert module.warnings == [
        "a.txt:3:10: a number of a graph binding is bound again, here and at 1 more places; it"
        " means the latest expression in its scope, TVM takes the first of the file"
    ]


def test_a_function_defined_twice() -> None:
    module = parse_text(HEADER + "def @f() { 1 }\ndef @f() { 2 }\n", "a.txt")
    constant = module.functions["f"].body
    assert isinstance(constant, ast.Constant)
    assert constant.value is not None
    assert constant.value.item() == 2
    assert module.warnings == [
        "a.txt:3:1: @f is defined more than once; the last definition counts"
    ]


def test_types_constructors_and_what_follows_an_extern_type() -> None:
    module = parse_text(
        HEADER
        + """
extern type Handle[A]
type List[A] { Cons(A, List[A]), Nil, }
type add { nn.relu(int32) }
def @id[A](%x: A) -> A { %x }
def @main(%l: List[bfloat16], %h: Handle, %f: fn [B](B, ref(B)) -> _) {
  match? (%l) {
    Cons(%x: bfloat16 /* ty=bfloat16 */, Cons(_, (%y, %z))) => nn.relu(%x),
    Nil => { Nil() },
    Nil() => Cons(Nil, Nil),
  }
}
"""
    )
    assert module.types["Handle"].extern
    assert module.types["List"].constructors[0].fields == (
        ast.TypeVar("A"),
        ast.DataType("List", (ast.TypeVar("A"),)),
    )
    assert module.functions["id"].result_type == ast.TypeVar("A")
    main = module.functions["main"]
    assert [p.type for p in main.params] == [
        ast.DataType("List", (ast.TensorType((), "bfloat16"),)),
        ast.DataType("Handle"),
        ast.FuncType((ast.TypeVar("B"), ast.RefType(ast.TypeVar("B"))), ast.UnknownType(), ("B",)),
    ]
    match = main.body
    assert isinstance(match, ast.Match)
    assert not match.complete
    first, second, third = (c.body for c in match.clauses)
    assert isinstance(first, ast.Call)
    assert isinstance(first.op, ast.Constructor)
    assert first.op.data_type == "add"
    assert isinstance(second, ast.Call)
    assert isinstance(second.op, ast.Constructor)
    assert isinstance(third, ast.Call)
    assert all(isinstance(a, ast.Call) for a in third.args)


def test_an_expression_is_a_function_of_its_free_variables() -> None:
    module = parse_text("free_var %a: int32; free_var %b; free_var %c; let %d = %b; (%d, %a)")
    main = module.functions["main"]
    assert [p.name for p in main.params] == ["b", "a"]
    assert main.params[1].type == ast.TensorType((), "int32")


def test_a_let_is_in_scope_in_its_own_value_and_an_inner_one_hides_it() -> None:
    let = body("let %x = { let %x = %x; %x }; %x")
    assert isinstance(let, ast.Let)
    inner = let.value
    assert isinstance(inner, ast.Let)
    assert inner.value is inner.var
    assert inner.body is inner.var
    assert let.body is let.var
    with pytest.raises(RelayError):
        parse_text("({ let %x = 1; %x }, %x)")


def test_virtual_devices_of_parameters_are_left_out() -> None:
    module = parse_text("fn (%x {virtual_device=meta[VirtualDevice][0]}: int32, %y) { %x }")
    assert module.functions["main"].params[0].type == ast.TensorType((), "int32")
    assert module.warnings == ["virtual devices of parameters are left out"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r'"a\"b\\c\nd\te"', 'a"b\\c\nd\te'),
        (r'"\xE4\xB8\xAD\344\270\255"', "中中"),
        (r'"C:\dir"', r"C:\dir"),
        ('"two\nlines"', "two\nlines"),
        (r'"\u{1f600}"', "😀"),
        (r'"\xFF"', "\ufffd"),
        ('"#[metadata] /* no comment */"', "#[metadata] /* no comment */"),
    ],
)
def test_strings(written: str, meant: str) -> None:
    call = body(f"f(a={written}, b=nanf, c=-inff, d=nullptr, relay.x-y=1)")
    assert isinstance(call, ast.Call)
    assert call.attrs is not None
    fields = call.attrs.fields
    assert fields["a"] == meant
    assert fields["b"] != fields["b"]
    assert fields["c"] == -float("inf")
    assert fields["d"] is None
    assert fields["relay.x-y"] == 1
