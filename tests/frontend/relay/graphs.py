"""`Graph`: JSON graphs written by hand, for the tests of their reader."""

from __future__ import annotations

import base64
import json
from typing import Any

import torch

from tools.relay_text.params import write_record


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

    def function(self, body: int, *params: int, **fields: int) -> int:
        return self.node("relay.Function", params=self.array(*params), body=body, **fields)

    def tensor_type(self, *shape: int, dtype: str = "float32") -> int:
        return self.node("relay.TensorType", shape=self.ints(*shape), dtype=dtype)

    def dump(self, root: int) -> str:
        return json.dumps(
            {
                "root": root,
                "nodes": self.nodes,
                "b64ndarrays": self.arrays,
                "attrs": {"tvm_version": self.version},
            }
        )
