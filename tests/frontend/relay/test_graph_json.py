"""Reading TVM's JSON graphs: what each kind of node becomes, in the forms of all versions."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest
import torch

from meta.frontend.relay import ast
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.graph_json import read_json, read_metadata
from meta.frontend.relay.ndarray_record import write_record


class Graph:
    """Writes a JSON graph by hand; methods return indices of nodes."""

    def __init__(self, version: str = "0.15.0") -> None:
        self.nodes: list[dict[str, Any]] = [{"type_key": ""}]
        self.arrays: list[str] = []
        self.version = version

    def node(self, key: str, **attrs: Any) -> int:
        self.nodes.append({"type_key": key, "attrs": {k: str(v) for k, v in attrs.items()}})
        return len(self.nodes) - 1

    def array(self, *items: int) -> int:
        self.nodes.append({"type_key": "Array", "data": list(items)})
        return len(self.nodes) - 1

    def text(self, value: str) -> int:
        self.nodes.append({"type_key": "runtime.String", "repr_str": value})
        return len(self.nodes) - 1

    def map(self, **entries: int) -> int:
        self.nodes.append(
            {"type_key": "Map", "keys": list(entries), "data": list(entries.values())}
        )
        return len(self.nodes) - 1

    def var(self, name: str, type_annotation: int = 0) -> int:
        vid = self.node("relay.Id", name_hint=self.text(name))
        return self.node("relay.Var", vid=vid, type_annotation=type_annotation)

    def op(self, name: str) -> int:
        self.nodes.append({"type_key": "Op", "repr_str": name})
        return len(self.nodes) - 1

    def call(self, op: str, *args: int, attrs: int = 0) -> int:
        return self.node("relay.Call", op=self.op(op), args=self.array(*args), attrs=attrs)

    def constant(self, tensor: torch.Tensor) -> int:
        self.arrays.append(base64.b64encode(write_record(tensor)).decode())
        return self.node("relay.Constant", data=len(self.arrays) - 1)

    def ints(self, *values: int) -> int:
        return self.array(*(self.node("IntImm", dtype="int32", value=v) for v in values))

    def dump(self, root: int) -> str:
        return json.dumps(
            {
                "root": root,
                "nodes": self.nodes,
                "b64ndarrays": self.arrays,
                "attrs": {"tvm_version": self.version},
            }
        )


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
    assert call.attrs is not None and call.attrs.whole
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
    table = read_metadata(g.dump(root), "m")
    assert torch.equal(table["relay.Constant"][0].value, torch.arange(3.0))
    assert table["Array"] == ((ast.AnyDim(), ast.SymbolDim("n")),)


def test_unknown_type_key_is_named() -> None:
    g = Graph()
    root = g.call("nn.relu", g.node("my.Thing"))
    with pytest.raises(RelayError, match=r"my\.Thing") as info:
        read_json(g.dump(root), "f.json")
    assert info.value.place == "f.json, node 1"


def test_unreached_nodes_may_be_anything() -> None:
    g = Graph()
    g.node("AttrFieldInfo", name="x", type_info="y")
    assert isinstance(body(g, g.var("x")), ast.Var)


def test_a_cycle_is_an_error() -> None:
    g = Graph()
    call = g.call("nn.relu", 0)
    g.nodes[2]["data"] = [call]
    with pytest.raises(RelayError, match="contains itself"):
        read_json(g.dump(call))


def test_record_header() -> None:
    data = write_record(torch.zeros(2, 3))
    magic, _, kind, _, ndim = struct.unpack_from("<QQiii", data)
    assert (magic, kind, ndim) == (0xDD5E40F096B4A13F, 1, 2)
