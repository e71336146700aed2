"""Reading TVM's JSON graphs: what each kind of node becomes, in the forms of all versions."""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from meta.frontend.relay import ast
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.graph_json import read_json, read_table
from tests.frontend.relay.graphs import Graph
from tools.relay_text.params import write_record

DATA = Path(__file__).parents[2] / "data" / "relay" / "fuzz"


def body(g: Graph, root: int) -> Any:
    return read_json(g.dump(root)).functions["main"].body


def attribute(key: str, version: str = "0.15.0", **fields: Any) -> Any:
    """Read the attributes of a call."""
    g = Graph(version)
    return body(g, g.call("some.op", attrs=g.node(key, **fields))).attrs.fields


def test_call_with_attributes() -> None:
    g = Graph()
    x = g.var("x")
    attrs = g.node(
        "relay.attrs.Conv2DAttrs",
        strides=g.ints(2, 1),
        groups="1",
        channels=0,
        data_layout=g.text("NCHW"),
        kernel_layout="OIHW",
        out_dtype="",
    )
    module = read_json(g.dump(g.call("nn.conv2d", x, x, attrs=attrs)), "file.json")
    main = module.functions["main"]
    call = main.body
    assert isinstance(call, ast.Call) and isinstance(call.op, ast.Op)
    assert call.op.name == "nn.conv2d"
    assert call.args == (main.params[0], main.params[0])  # one node is one object
    assert call.attrs is not None
    assert call.attrs.fields == {
        "strides": (2, 1),
        "groups": 1,
        "channels": None,
        "data_layout": "NCHW",
        "kernel_layout": "OIHW",
        "out_dtype": "",
    }
    assert str(call.place) == f"file.json, node {len(g.nodes) - 1}"
    assert module.version == (0, 15) and module.warnings == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0.5", 0.5), ("inf", float("inf")), ("-inf", float("-inf")), ("1e-05", 1e-5), ("0", 0.0)],
)
def test_double(text: str, expected: float) -> None:
    assert attribute("relay.attrs.ClipAttrs", a_min=text) == {"a_min": expected}


def test_zero_is_null_or_zero_or_false_by_its_field() -> None:
    assert attribute("relay.attrs.ReduceAttrs", axis=0, keepdims=0) == {
        "axis": None,
        "keepdims": False,
    }
    assert attribute("relay.attrs.SoftmaxAttrs", axis=0) == {"axis": 0}


def test_a_number_became_an_object() -> None:
    assert attribute("relay.attrs.TopkAttrs", "0.6.1", k=1) == {"k": 1}
    assert attribute("relay.attrs.TopkAttrs", "0.7.0", k=0) == {"k": None}
    counts = "relay.attrs.GetValidCountsAttrs"
    assert attribute(counts, "0.7.0", score_threshold=0) == {"score_threshold": 0.0}
    assert attribute(counts, "0.8.0", score_threshold=0) == {"score_threshold": None}


def test_an_unknown_field_is_left_out_with_a_warning() -> None:
    g = Graph()
    attrs = g.node("relay.attrs.SoftmaxAttrs", axis=1, novelty=7)
    module = read_json(g.dump(g.call("nn.softmax", g.var("x"), attrs=attrs)))
    assert module.functions["main"].body.attrs.fields == {"axis": 1}
    assert len(module.warnings) == 1 and "novelty" in module.warnings[0]


def test_metadata() -> None:
    g = Graph("0.8.dev12")
    constant = g.constant(torch.arange(3.0))
    dims = g.array(g.node("tir.Any"), g.node("tir.Var", name="n", dtype="int32"))
    root = g.map(**{"relay.Constant": g.array(constant), "Array": g.array(dims)})
    table, *_ = read_table(g.dump(root), "m")
    assert torch.equal(table["relay.Constant"][0].value, torch.arange(3.0))
    assert table["Array"] == ((ast.AnyDim(), ast.SymbolDim("n")),)


def test_unreached_nodes_may_be_anything() -> None:
    g = Graph()
    g.node("AttrFieldInfo", name="x", type_info="y")
    assert isinstance(body(g, g.var("x")), ast.Var)


def test_record_header() -> None:
    data = write_record(torch.zeros(2, 3))
    magic, _, kind, _, ndim = struct.unpack_from("<QQiii", data)
    assert (magic, kind, ndim) == (0xDD5E40F096B4A13F, 1, 2)


def file(name: str) -> ast.Module:
    return read_json((DATA / name).read_bytes(), name)


def test_function_as_root() -> None:
    g = Graph()
    x = g.var("x", g.tensor_type(2, 3))
    attrs = g.node("DictAttrs", __dict__=g.map(Primitive=g.node("IntImm", dtype="int32", value=1)))
    root = g.function(x, x, ret_type=g.tensor_type(2, 3), attrs=attrs)
    main = read_json(g.dump(root)).functions["main"]
    assert main.params[0].type == main.result_type == ast.TensorType((2, 3), "float32")
    assert main.body is main.params[0] and main.attrs == {"Primitive": 1}


def test_expression_as_root_takes_its_free_variables() -> None:
    g = Graph()
    x, y, z = g.var("x"), g.var("y"), g.var("x")
    inner = g.node("relay.Let", var=y, value=g.call("nn.relu", x), body=g.call("add", y, z))
    main = read_json(g.dump(inner)).functions["main"]
    assert [p.name for p in main.params] == ["x", "x"]
    assert isinstance(main.body, ast.Let)
    assert main.body.value.args == (main.params[0],) and main.body.body.args[1] is main.params[1]


def test_arrays_and_maps_as_root() -> None:
    g = Graph()
    x = g.var("x")
    assert isinstance(body(g, g.array(x, g.call("nn.relu", x))), ast.Tuple)
    f = g.function(x, x)
    assert list(read_json(g.dump(g.array(f))).functions) == ["main"]
    assert list(read_json(g.dump(g.map(main=f, other=g.function(x, x)))).functions) == [
        "main",
        "other",
    ]
    for root, why in [
        (g.array(f, f), "of several functions"),
        (g.map(w=g.constant(torch.zeros(1))), "it holds parameters"),
        (g.ints(1, 2), "nothing in it can be run"),
        (g.array(), "nothing in it can be run"),
        (0, "nothing in it can be run"),
    ]:
        with pytest.raises(RelayError, match=why):
            read_json(g.dump(root))


def test_every_kind_of_expression() -> None:
    g = Graph()
    x = g.var("x")
    pair = g.node("relay.Tuple", fields=g.array(x, x))
    first = g.node("relay.TupleGetItem", tuple_value=pair, index=0)
    ref = g.node("relay.RefCreate", value=first)
    write = g.node("relay.RefWrite", ref=ref, value=x)
    read = g.node("relay.RefRead", ref=ref)
    either = g.node("relay.If", cond=x, true_branch=write, false_branch=read)
    applied = g.node("relay.Call", op=g.function(x, x), args=g.array(either), attrs=0)
    found = body(g, applied)
    assert isinstance(found.op, ast.Function) and found.attrs is None
    branch = found.args[0]
    assert isinstance(branch, ast.If)
    assert isinstance(branch.then_branch, ast.RefWrite) and isinstance(
        branch.else_branch, ast.RefRead
    )
    assert branch.then_branch.ref is branch.else_branch.ref
    item = branch.then_branch.ref.value
    assert isinstance(item, ast.TupleGetItem) and item.index == 0
    assert item.value.fields == (branch.condition, branch.condition)


def test_data_types() -> None:
    module = file("adt_tree.json")
    tree, a = ast.DataType("Tree", (ast.TypeVar("A"),)), ast.TypeVar("A")
    definition = module.types["Tree"]
    assert definition.type_params == ("A",) and not definition.extern
    assert [(c.name, c.fields) for c in definition.constructors] == [
        ("Leaf", ()),
        ("Node", (a, tree, tree)),
    ]
    match = module.functions["total"].body
    assert isinstance(match, ast.Match) and match.complete
    pattern = match.clauses[1].pattern
    assert isinstance(pattern, ast.PatternConstructor) and pattern.constructor.name == "Node"
    assert [p.var.name for p in pattern.patterns] == ["v", "l", "r"]
    concrete = ast.DataType("Tree", (ast.TensorType((), "float32"),))
    assert match.value.type == concrete
    assert match.value is module.functions["total"].params[0]


def test_other_patterns() -> None:
    g = Graph()
    x, y = g.var("x"), g.var("y")
    patterns = g.array(g.node("relay.PatternWildcard"), g.node("relay.PatternVar", var=y))
    clause = g.node("relay.Clause", lhs=g.node("relay.PatternTuple", patterns=patterns), rhs=y)
    main = read_json(
        g.dump(g.node("relay.Match", data=x, clauses=g.array(clause), complete=0))
    ).functions["main"]
    assert [p.name for p in main.params] == ["x"] and not main.body.complete
    assert isinstance(main.body.clauses[0].pattern, ast.PatternTuple)


def test_types() -> None:
    g = Graph()
    a, tensor = g.node("TypeVar", name_hint=g.text("A"), kind=0), g.tensor_type(2)
    shape = g.array(g.node("tir.Any"), g.node("tir.SizeVar", name=g.text("n"), dtype="int64"))
    parts = [
        g.node("relay.TensorType", shape=shape, dtype="bool"),
        g.node("FuncType", arg_types=g.array(a, 0), ret_type=a, type_params=g.array(a)),
        g.node("relay.RefType", value=tensor),
        g.node("IncompleteType", kind=0),
        g.node("TypeCall", func=g.node("GlobalTypeVar", name_hint="List"), args=g.array(tensor)),
    ]
    root = g.var("x", g.node("TupleType", fields=g.array(*parts)))
    found = read_json(g.dump(root)).functions["main"].params[0].type
    two = ast.TensorType((2,), "float32")
    assert found == ast.TupleType(
        (
            ast.TensorType((ast.AnyDim(), ast.SymbolDim("n")), "bool"),
            ast.FuncType((ast.TypeVar("A"), ast.UnknownType()), ast.TypeVar("A"), ("A",)),
            ast.RefType(two),
            ast.UnknownType(),
            ast.DataType("List", (two,)),
        )
    )


def test_a_type_that_is_not_known_is_none() -> None:
    g = Graph()
    x = g.var("x", g.node("IncompleteType", kind=0))
    g.nodes[x]["attrs"]["_checked_type_"] = str(g.tensor_type())
    param = read_json(g.dump(x)).functions["main"].params[0]
    assert param.type is None and param.checked_type == ast.TensorType((), "float32")


def test_a_computed_dimension_is_unknown() -> None:
    g = Graph()
    n = g.node("tir.Var", name=g.text("n"), dtype="int32", type_annotation=0)
    shape = g.array(g.node("tir.Mul", dtype="int32", a=n, b=n))
    module = read_json(g.dump(g.var("x", g.node("relay.TensorType", shape=shape, dtype="int8"))))
    assert module.functions["main"].params[0].type == ast.TensorType((ast.AnyDim(),), "int8")
    assert "tir.Mul" in module.warnings[0]


def test_type_variables_of_one_name_are_told_apart() -> None:
    g = Graph()
    outer, inner = (g.node("TypeVar", name_hint=g.text("A"), kind=0) for _ in range(2))
    x, y = g.var("x", outer), g.var("y", inner)
    f = g.function(y, y, type_params=g.array(inner))
    main = read_json(g.dump(g.function(f, x, type_params=g.array(outer)))).functions["main"]
    names = (main.type_params[0], main.body.type_params[0])
    assert len(set(names)) == 2
    assert main.params[0].type == ast.TypeVar(names[0])
    assert main.body.params[0].type == ast.TypeVar(names[1])


def test_values_of_attributes() -> None:
    g = Graph()
    boxes = [("runtime.BoxInt", "3"), ("runtime.BoxFloat", "0.5"), ("runtime.BoxBool", "true")]
    items = []
    for key, text in boxes:
        g.nodes.append({"type_key": key, "repr_str": text})
        items.append(len(g.nodes) - 1)
    long_text = base64.b64encode(struct.pack("<Q", 3) + b"a\nb").decode()
    g.nodes.append({"type_key": "runtime.String", "repr_b64": long_text})
    items.append(len(g.nodes) - 1)
    shape = base64.b64encode(struct.pack("<3Q", 2, 5, 6)).decode()
    g.nodes.append({"type_key": "runtime.ShapeTuple", "repr_b64": shape})
    items.append(len(g.nodes) - 1)
    record = base64.b64encode(write_record(torch.tensor([1, 2]))).decode()
    g.nodes.append({"type_key": "runtime.NDArray", "repr_str": record})
    items.append(len(g.nodes) - 1)
    items += [
        g.node("FloatImm", dtype="float32", value="-inf"),
        g.node("IntImm", dtype="bool", value=1),
        g.node("tir.StringImm", dtype="handle", value=g.text("s")),
        0,
    ]
    table = read_table(g.dump(g.map(Array=g.array(g.array(*items)))), "m")[0]["Array"][0]
    assert table[:5] == (3, 0.5, True, "a\nb", (5, 6))
    assert table[5].value.tolist() == [1, 2]
    assert table[6:] == (float("-inf"), True, "s", None)
    assert type(table[2]) is bool and type(table[7]) is bool


def test_a_device_is_opaque() -> None:
    g = Graph()
    fields = {"device_type_int": 1, "virtual_device_id": -1, "target": 0}
    root = g.map(
        VirtualDevice=g.array(g.node("VirtualDevice", **fields, memory_scope=g.text("global")))
    )
    (device,) = read_table(g.dump(root), "m")[0]["VirtualDevice"]
    assert dict(device.fields) == {**fields, "target": None, "memory_scope": "global"}


def test_an_object_of_the_compiler_is_opaque() -> None:
    g = Graph()
    target = g.node("Target", host=0, tag=g.text("cuda"))
    assert read_table(g.dump(g.map(Target=g.array(target))), "m")[0] == {
        "Target": (ast.Opaque("Target", (("host", "0"), ("tag", "cuda"))),)
    }


def test_metadata_may_hold_what_is_not_known() -> None:
    g = Graph()
    table, *_ = read_table(g.dump(g.map(a=g.array(g.node("my.Thing", size=3)))), "m")
    assert table["a"] == (ast.Opaque("my.Thing", (("size", "3"),)),)


def test_shared_constants_share_memory() -> None:
    g = Graph()
    a = g.constant(torch.arange(4.0))
    b = g.node("relay.Constant", data=0)
    x, y = body(g, g.array(a, b)).fields
    assert x is not y and x.value is y.value


def test_dotted_names_and_places() -> None:
    module = file("dotted_names.json")
    assert "input.1" in [p.name for p in module.functions["main"].params]
    assert module.source == "dotted_names.json" and module.text_version is None


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.15.0", (0, 15)), ("0.8.dev123+gabc", (0, 8)), ("", None), ("trunk", None)],
)
def test_version(text: str, version: object) -> None:
    g = Graph(text)
    assert read_json(g.dump(g.var("x"))).version == version


@pytest.mark.parametrize("name", ["control_v0.6.json", "control_v0.7.json"])
def test_versions_of_one_program(name: str) -> None:
    """The same program, which counts upwards by recursion, as two versions of TVM wrote it."""
    module = file(name)
    assert module.version == ((0, 6) if "v0.6" in name else (0, 7))
    assert set(module.functions) == {"up", "main"} and module.warnings == []
    up = module.functions["up"]
    integer, real = ast.TensorType((), "int32"), ast.TensorType((), "float32")
    assert [(p.name, p.type) for p in up.params] == [("i", integer), ("acc", real)]
    assert isinstance(up.body, ast.If) and up.body.condition.op.name == "equal"
    assert up.checked_type == ast.FuncType((integer, real), real)


def test_a_bool_that_v06_did_not_write() -> None:
    g = Graph("0.6.0")
    record = bytearray(write_record(torch.tensor(True)))
    record[-9:] = bytes(8)
    g.arrays.append(base64.b64encode(record).decode())
    module = read_json(g.dump(g.node("relay.Constant", data=0)))
    constant = module.functions["main"].body
    assert constant.value is None and "TVM 0.6" in constant.missing
    assert len(module.warnings) == 1


def test_long_chains() -> None:
    g = Graph()
    x = current = g.var("x")
    for _ in range(20_000):
        current = g.call("nn.relu", current)
    for _ in range(20_000):
        current = g.node("relay.Let", var=g.var("v"), value=x, body=current)
    assert isinstance(body(g, current), ast.Let)
