"""How fast Relay programs are read: a JSON of 50 MB and a text of 20,000 bindings, made here.

    python benchmarks/relay_reading.py [--megabytes 50] [--bindings 20000] [--json]

The JSON is that of a deep chain of layers with types and places on every node, as TVM writes it,
and has a constant per hundred layers. Times are of one reading in a process of its own, elapsed and
of the processor; memory is the growth of the process's peak. The goals are 15 s and 5 s.
"""

from __future__ import annotations

import base64
import json
import math
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from command import parser_of

from meta.frontend.relay.graph_json import read_json
from meta.frontend.relay.text import parse_text
from meta.testing.workers import Lost, answer_all, in_processes
from tools.relay_text.params import write_record

READERS, GOALS = {"JSON": read_json, "text": parse_text}, {"JSON": 15.0, "text": 5.0}
_TYPE = "Tensor[(1, 64, 56, 56), float32]"


class _Chain:
    """Writes nodes of a JSON graph: a convolution's chain with a constant from time to time."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = [{"type_key": ""}]
        self.arrays: list[str] = []

    def add(self, key: str, **fields: Any) -> int:
        self.nodes.append({"type_key": key, "attrs": {k: str(v) for k, v in fields.items()}})
        return len(self.nodes) - 1

    def array(self, items: list[int]) -> int:
        self.nodes.append({"type_key": "Array", "data": items})
        return len(self.nodes) - 1

    def expression(self, key: str, **fields: Any) -> int:
        span = self.add(
            "Span",
            source_name=self.source,
            line=len(self.nodes),
            column=1,
            end_line=1,
            end_column=9,
        )
        return self.add(
            key, **fields, span=span, virtual_device_=self.device, _checked_type_=self.type
        )

    def write(self, layers: int) -> str:
        """Return the JSON of a function of so many layers."""
        self.nodes.append({"type_key": "SourceName", "repr_str": "model.py"})
        self.source = 1
        self.device = self.add(
            "VirtualDevice", device_type_int=-1, virtual_device_id=-1, target=0, memory_scope=""
        )
        dims = [self.add("IntImm", dtype="int32", value=n, span=0) for n in (1, 64, 56, 56)]
        self.type = self.add("relay.TensorType", dtype="float32", shape=self.array(dims), span=0)
        self.nodes.append({"type_key": "Op", "repr_str": "nn.bias_add"})
        op = len(self.nodes) - 1
        name = self.add("relay.Id", name_hint="data")
        parameter = current = self.expression("relay.Var", vid=name, type_annotation=self.type)
        bias = 0
        for layer in range(layers):
            if layer % 100 == 0:
                self.arrays.append(base64.b64encode(write_record(torch.randn(256))).decode())
                bias = self.expression("relay.Constant", data=len(self.arrays) - 1)
            attrs = self.add("relay.attrs.BiasAddAttrs", axis=1)
            args = self.array([current, bias])
            kinds = self.array([self.type, self.type])
            current = self.expression("relay.Call", op=op, args=args, attrs=attrs, type_args=kinds)
        params = self.array([parameter])
        root = self.expression(
            "relay.Function", params=params, body=current, ret_type=0, type_params=0, attrs=0
        )
        document = {
            "root": root,
            "nodes": self.nodes,
            "b64ndarrays": self.arrays,
            "attrs": {"tvm_version": "0.15.0"},
        }
        return json.dumps(document, indent=2)


def json_of(megabytes: int) -> str:
    """Return a JSON graph of about so many megabytes."""
    per_layer = len(_Chain().write(1000)) / 1000
    return _Chain().write(int(megabytes * 1e6 / per_layer))


def text_of(bindings: int) -> str:
    """Return a program text of so many bindings."""
    lines = ['#[version = "0.0.5"]', f"def @main(%data: {_TYPE}, %w: {_TYPE}) -> {_TYPE} {{"]
    last = "%data"
    for i in range(bindings):
        lines.append(f"  %{i} = add({last}, %w) /* ty={_TYPE} span=model.py:{i}:1 */;")
        last = f"%{i}"
    return "\n".join([*lines, f"  nn.leaky_relu({last}, alpha=0.1f) /* ty={_TYPE} */", "}", ""])


def _peak() -> float:
    """Return the peak memory of this process in MB (that of getrusage counts its parent's)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _serve(connection: Connection) -> None:
    """Answer one name by the figures of its reading, in a process of its own."""

    def answer(unit: tuple[str, str]) -> tuple[dict[str, float], bool]:
        name, text = unit
        before, start, busy = _peak(), time.perf_counter(), time.process_time()
        READERS[name](text, "benchmark")
        figures = {
            "size": len(text) / 1e6,
            "seconds": time.perf_counter() - start,
            "processor": time.process_time() - busy,
            "memory": _peak() - before,
        }
        return figures, False

    answer_all(connection, answer)


def measure(texts: dict[str, str]) -> dict[str, dict[str, float]]:
    """Return size (MB), times (s) and memory (MB) of one reading of each text."""
    found = {}
    for (name, _), figures in in_processes(list(texts.items()), _serve, (), 1, math.inf):
        if isinstance(figures, Lost):
            raise SystemExit(f"{name}: {figures.why}")
        found[name] = figures
    return found


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--megabytes", type=int, default=50, help="size of the JSON (default: 50)")
    parser.add_argument("--bindings", type=int, default=20_000, help="of the text (default: 20000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    figures = measure({"JSON": json_of(options.megabytes), "text": text_of(options.bindings)})
    if options.json:
        print(json.dumps(figures))
        return
    for name, row in figures.items():
        size, busy = f"{row['size']:8.1f} MB", f"({row['processor']:.2f} s of the processor)"
        print(
            f"{name:<6}{size}{row['seconds']:8.2f} s {busy}{row['memory']:8.0f} MB more memory"
            f"   goal: {GOALS[name]:.0f} s"
        )


if __name__ == "__main__":
    main()
