"""JSON graphs that are damaged or made to harm: a clean error each, and where it is."""

from __future__ import annotations

import base64
import json
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


def refused(text: str | bytes, message: str) -> RelayError:
    with pytest.raises(RelayError, match=message) as info:
        read_json(text, "f.json")
    assert info.value.place is not None and info.value.place.startswith("f.json")
    return info.value


def test_every_prefix_of_a_file() -> None:
    text = (DATA / "dotted_names.json").read_text().rstrip()
    for length in range(0, len(text), 5):
        refused(text[:length], "JSON cannot be read")


def test_unknown_type_key_is_named() -> None:
    g = Graph()
    root = g.call("nn.relu", g.node("my.Thing"))
    assert refused(g.dump(root), r"my\.Thing").place == "f.json, node 1"


def test_a_cycle() -> None:
    g = Graph()
    call = g.call("nn.relu", 0)
    g.nodes[2]["data"] = [call]
    refused(g.dump(call), "contains itself")


OUTER = [
    ("", "it ends here"),
    ("[1]", "unexpected character"),
    ('{"root": 1, "root": 1}', "'root' occurs twice"),
    ('{"root": 0, "nodes": [{"type_key": "", "type_key": "a"}]}', "'type_key' occurs twice"),
    ('{"root": NaN}', "NaN is no JSON"),
    ('{"root": -Infinity}', "-Infinity is no JSON"),
    ('{"root": ' + "9" * 5000 + "}", "5000 digits"),
    ('{"root": 1.5}', "'root' is no number"),
    ('{"root": true}', "'root' is no number"),
    ('{"root": 0, "nodes": []}', "root is node 0 of 0"),
    ('{"root": -1, "nodes": [{"type_key": ""}]}', "root is node -1 of 1"),
    ('{"root": 0}', "no 'nodes'"),
    ("{}", "an empty object"),
    ('{"a": 1}', "no 'nodes'"),
    ('{"root": 0, "nodes": [3]}', "node 0 is no node"),
    ('{"root": 0, "nodes": [{}]}', "no 'type_key'"),
    ('{"root": 0, "nodes": [{"type_key": "", "attrs": 1}]}', "'attrs' is no object"),
    ('{"root": 0, "nodes": [{"type_key": "", "attrs": {"a": 1}}]}', "attribute that is no string"),
    ('{"root": 0, "nodes": [{"type_key": "", "data": 1}]}', "'data' is no list"),
    ('{"root": 0, "nodes": [{"type_key": "", "data": [true]}]}', "what is no number"),
    ('{"root": 0, "nodes": [{"type_key": "", "keys": [1]}]}', "a key that is no string"),
    ('{"root": 0, "nodes": [{"type_key": "", "repr_str": 1}]}', "a text that is no string"),
    ('{"root": 0, "nodes": [{"type_key": "\\ud800"}]}', "half a character"),
    ('{"root": 0, "nodes": [{"type_key": ""}]} x', "text after its end"),
    ('{"root": 0, "nodes": [{"type_key": "a\nb"}]}', "control character"),
    ('{"b64ndarrays": [1]}', "'b64ndarrays' is not a list"),
    ('{"root": ' + "[" * 100_000, "nested too deeply"),
    ('{"nodes": [' + '{"a":' * 100_000, "nested too deeply"),
    ('{"nodes": [{"op": "null", "inputs": []}]}', "graph executor"),
    ('{"arg_nodes": []}', "graph executor"),
    ('{"root_index": 3}', "no Relay any more"),
    ("\ud800", "half a character"),
    (b'{"root": "\xff"}', "not valid UTF-8"),
]


@pytest.mark.parametrize(("text", "message"), OUTER, ids=range(len(OUTER)))
def test_outer_form(text: str | bytes, message: str) -> None:
    with pytest.raises(RelayError) as info:
        read_json(text, "f.json")
    assert message.lower() in str(info.value).lower()


def test_line_and_column() -> None:
    assert refused('{\n "root": 1,\n "nodes": [}\n', "Expecting value").place == "f.json:3:12"


def call(g: Graph, **changes: Any) -> int:
    """A call of nn.softmax with some fields changed."""
    root = g.call("nn.softmax", g.var("x"), attrs=g.node("relay.attrs.SoftmaxAttrs", axis=1))
    g.nodes[root]["attrs"].update({k: str(v) for k, v in changes.items()})
    return root


FIELDS = [
    ({"op": "99"}, "refers to node 99"),
    ({"op": "-1"}, "'-1' where a node's index belongs"),
    ({"op": "9" * 30}, "where a node's index belongs"),
    ({"op": "x"}, "'x' where a node's index belongs"),
    ({"op": "0"}, "what it calls is nothing"),
    ({"args": "1"}, "list of arguments is a Op"),
    ({"attrs": "1"}, "what stands for its attributes is a Op"),
    ({"_checked_type_": "1"}, "its type is a Op"),
    ({"type_args": "1"}, "list of type arguments is a Op"),
]


@pytest.mark.parametrize(("changes", "message"), FIELDS, ids=[m for _, m in FIELDS])
def test_fields(changes: dict[str, str], message: str) -> None:
    g = Graph()
    g.op("first")
    refused(g.dump(call(g, **changes)), message)


VALUES = [
    ("relay.attrs.SoftmaxAttrs", {"axis": "1.5"}, "no integer"),
    ("relay.attrs.SoftmaxAttrs", {"axis": ""}, "no integer"),
    ("relay.attrs.SoftmaxAttrs", {"axis": "1_0"}, "no integer"),
    ("relay.attrs.SoftmaxAttrs", {"axis": "٣"}, "no integer"),
    ("relay.attrs.SoftmaxAttrs", {"axis": str(2**64)}, "more than 64 bits"),
    ("relay.attrs.ReduceAttrs", {"keepdims": "2"}, "no boolean"),
    ("relay.attrs.ClipAttrs", {"a_min": "1e"}, "no number"),
    ("relay.attrs.ClipAttrs", {"a_min": "0x10"}, "no number"),
    ("relay.attrs.ClipAttrs", {"a_min": "1" * 500}, "no number"),
    ("relay.attrs.CastAttrs", {"dtype": "float 32"}, "no dtype"),
    ("IntImm", {"dtype": "int32"}, "without a value"),
    ("relay.Constant", {"data": "7"}, "array 7 of 0"),
    ("relay.Constant", {"data": "-1"}, "array -1 of 0"),
    ("relay.Constant", {}, "without data"),
    ("relay.TensorType", {"dtype": ""}, "without a dtype"),
    ("relay.Var", {"vid": "0"}, "its name is nothing"),
    ("relax.expr.Call", {}, "Relax program"),
    ("tir.PrimFunc", {}, "tensor level"),
]


@pytest.mark.parametrize(("key", "fields", "message"), VALUES, ids=[m for *_, m in VALUES])
def test_values(key: str, fields: dict[str, str], message: str) -> None:
    g = Graph()
    refused(g.dump(g.array(g.node(key, **fields))), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!!!!", "no base64"),
        ("AAAA\nAAAA", "no base64"),
        ("AAA", "no base64"),
        ("\u00e9AAA", "no base64"),
        ("AAAA", "array's header"),
        (base64.b64encode(write_record(torch.zeros(2))[:-1]).decode(), "8 bytes of data where 7"),
        (base64.b64encode(write_record(torch.zeros(2)) + b"x").decode(), "1 bytes too many"),
    ],
)
def test_arrays(text: str, message: str) -> None:
    g = Graph()
    g.arrays.append(text)
    refused(g.dump(g.node("relay.Constant", data=0)), message)


def test_maps() -> None:
    g = Graph()
    x = g.var("x")
    for node, message in [
        ({"keys": ["a"], "data": [x, x]}, "1 keys and 2 values"),
        ({"keys": ["a", "a"], "data": [x, x]}, "'a' occurs twice"),
        ({"data": [x]}, "key that has no value"),
        ({"data": [x, x]}, "key is a Var"),
        ({"keys": ["a"], "data": [10**9]}, "refers to node 1000000000"),
    ]:
        g.nodes.append({"type_key": "Map", **node})
        refused(g.dump(len(g.nodes) - 1), message)


def test_functions() -> None:
    g = Graph()
    x = g.var("x")
    refused(g.dump(g.function(x, x, x)), "one variable is two of its parameters")
    functions = g.map(main=x)
    refused(g.dump(g.node("IRModule", functions=functions)), "what the module has as 'main'")


def test_nesting_is_limited() -> None:
    g = Graph()
    current = g.var("x")
    for _ in range(ast.MAX_NESTING):
        current = g.function(current)
    read_json(g.dump(current))
    refused(g.dump(g.function(g.function(current))), "levels deep")
    types = g.tensor_type()
    for _ in range(ast.MAX_NESTING + 2):
        types = g.node("TupleType", fields=g.array(types))
    refused(g.dump(g.var("x", types)), "levels deep")
    values = g.array()
    for _ in range(ast.MAX_NESTING + 2):
        values = g.array(values)
    refused(g.dump(values), "levels deep")


def test_lets_in_the_values_of_lets_are_nested() -> None:
    g = Graph()
    x = current = g.var("x")
    for _ in range(ast.MAX_NESTING + 2):
        current = g.node("relay.Let", var=g.var("v"), value=current, body=x)
    refused(g.dump(current), "levels deep")


def test_types_that_double_are_limited() -> None:
    g = Graph()
    types = g.tensor_type()
    for _ in range(60):
        types = g.node("TupleType", fields=g.array(types, types))
    refused(g.dump(g.var("x", types)), "written out it would have more than")


def test_types_that_double_are_limited_in_all_places_together() -> None:
    g = Graph()
    types = g.tensor_type()
    for _ in range(15):
        types = g.node("TupleType", fields=g.array(types, types))
    one = g.var("x", types)
    read_json(g.dump(one))
    refused(g.dump(g.function(one, *(g.var("x", types) for _ in range(20)))), "written out")


def test_metadata_that_is_no_table() -> None:
    g = Graph()
    with pytest.raises(RelayError, match="no map of lists"):
        read_table(g.dump(g.var("x")), "m")
    with pytest.raises(RelayError, match="no map of lists"):
        read_table(g.dump(g.map(a=g.var("x"))), "m")


def test_half_of_an_escaped_pair() -> None:
    g = Graph()
    name = g.text("\U0001f642")
    text = json.dumps(json.loads(g.dump(g.node("relay.Var", vid=name))))
    assert "\\ud83d\\ude42" in text
    vid = f'"vid": "{name}"'
    assert vid in text
    assert read_json(text).functions["main"].params[0].name == "\U0001f642"
    refused(text.replace("\\ude42", ""), "half a character")
