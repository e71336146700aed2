"""The server of `examples/serve.py` on a frozen program beside the same server on ONNX Runtime.

    python benchmarks/server_cpu.py [--models cnn,minilm] [--clients 64] [--seconds 10]
    python benchmarks/server_cpu.py --json | --check

It needs onnxruntime, and torchvision for some models. Both servers run the same PyTorch module, of
`serving_cpu.py`, with a symbolic batch, a thread each; only the class that runs a batch differs.
Clients ask for one row each in a process of their own, and compare each answer with PyTorch's.

The servers take turns. The figures: requests a second of the server's CPU time (the median of the
turns). The goal, which ``--check`` holds: at least 0.9 of those of the server on ONNX Runtime, and
none lost.
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command import add_names, add_outputs, parser_of
from report import conditions
from serving_cpu import LARGEST, MODELS, exported, session

import meta

LEAST = 0.9
SERVER = Path(__file__).parents[1] / "examples" / "serve.py"
NPY = {"Content-Type": "application/x-npy"}
TICKS = os.sysconf("SC_CLK_TCK")


def serve_onnx(file: str, given: list[str]) -> None:
    """Run the server with ONNX Runtime in the place of `meta`."""
    spec = importlib.util.spec_from_file_location("serve", SERVER)
    assert spec is not None and spec.loader is not None
    serve: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serve)

    class OnnxProgram(serve.Program):  # type: ignore[misc]
        def __init__(self, folder: str) -> None:
            self.session = session(folder, 1)
            (own,) = self.session.get_inputs()
            dtype = {"tensor(float)": "float32", "tensor(int64)": "int64"}[own.type]
            shape = ", ".join(["batch", *map(str, own.shape[1:])])
            self.names, self.types = [own.name], [meta.ir.parse_type(f"{dtype}[{shape}]")]
            self.fixed, self.most = None, LARGEST

        def run(self, inputs: list[Any]) -> list[Any]:
            found: list[Any] = self.session.run(None, dict(zip(self.names, inputs, strict=True)))
            return found

    serve.Program = OnnxProgram
    sys.argv = [str(SERVER), file, *given]
    serve.main()


@contextmanager
def served(who: str, model: str, rows: int) -> Iterator[tuple[int, int]]:
    """Run a server; yield its process and its port."""
    options = ["--port", "0", "--rows", str(rows), "--queue", "1024"]
    script = [str(SERVER), model] if who == "meta" else [__file__, "--onnx", model]
    process = subprocess.Popen(
        [sys.executable, *script, *options], stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)$", process.stdout.readline().strip())
        if found is None:
            raise RuntimeError(f"the server on {who} did not start")
        yield process.pid, int(found[1])
    finally:
        process.terminate()
        process.wait(60)


def cpu_seconds(process: int) -> float:
    """Return the CPU time that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def load(port: int, folder: str, clients: int, seconds: float) -> dict[str, Any]:
    """Ask a server by many clients; return how many answers came, and what was wrong with them."""
    x, wanted = (np.load(Path(folder) / f"{name}.npy") for name in ("x", "y"))
    bodies = []
    for row in x:
        file = io.BytesIO()
        np.save(file, row[None])
        bodies.append(file.getvalue())
    tolerance = 1e-3 * float(np.abs(wanted).max())
    wrong = list[str]()
    end = time.monotonic() + seconds

    def client(number: int) -> int:
        at, answers = number % len(x), 0
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while time.monotonic() < end:
            connection.request("POST", "/run", bodies[at], NPY)
            answer = connection.getresponse()
            body = answer.read()
            begin = 10 + int.from_bytes(body[8:10], "little")  # of the numbers in .npy
            if answer.status != 200:
                wrong.append(body.decode())
            elif not np.allclose(
                np.frombuffer(body, "<f4", offset=begin), wanted[at], rtol=0, atol=tolerance
            ):
                wrong.append("another row's numbers")
            answers += 1
        connection.close()
        return answers

    with ThreadPoolExecutor(clients) as threads:  # an error of a client is one of the load
        return {"requests": sum(threads.map(client, range(clients))), "wrong": wrong}


def turn(who: str, model: str, folder: str, options: argparse.Namespace) -> float:
    """Start a server, load it, and return the requests a second of its CPU time."""
    with served(who, model, options.rows) as (process, port):
        begin = cpu_seconds(process)
        asked = ["--load", str(port), folder, str(options.clients), str(options.seconds)]
        found = subprocess.run(
            [sys.executable, __file__, *asked], stdout=subprocess.PIPE, check=True, text=True
        )
        answers = json.loads(found.stdout)
        if answers["wrong"]:
            raise RuntimeError(f"{who}: {len(answers['wrong'])} wrong, {answers['wrong'][0]}")
        return float(answers["requests"] / (cpu_seconds(process) - begin))


def record(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the row of a model."""
    build, inputs = MODELS[name]
    torch.manual_seed(0)
    module, example = build().eval(), inputs(2)
    found: dict[str, list[float]] = {"meta": [], "onnxruntime": []}
    with tempfile.TemporaryDirectory() as folder:
        x = inputs(8)
        np.save(Path(folder) / "x.npy", x.numpy())
        with torch.no_grad():
            np.save(Path(folder) / "y.npy", module(x).flatten(1).numpy())
        batch = torch.export.Dim("batch", min=1, max=LARGEST)
        model = meta.frontend.from_torch(module, (example,), dynamic_shapes=({0: batch},))
        shape = ", ".join(map(str, example.shape[1:]))
        type_ = meta.ir.parse_type(f"{str(example.dtype).removeprefix('torch.')}[batch, {shape}]")
        program = str(Path(folder) / "program")
        meta.vm.compile(model, type_, dims={"batch": (1, LARGEST)}, freeze=True).save(program)
        models = {"meta": program, "onnxruntime": exported(module, example, folder)}
        for _ in range(options.rounds):
            for who, rows in found.items():
                rows.append(turn(who, models[who], folder, options))
    medians = {who: statistics.median(rates) for who, rates in found.items()}
    return {"model": name, **medians, "ratio": medians["meta"] / medians["onnxruntime"]}


def line(row: dict[str, Any]) -> str:
    """Return a row as text."""
    figures = ", ".join(f"{who} {row[who]:.0f}" for who in ("meta", "onnxruntime"))
    return f"{row['model']}: requests a CPU second: {figures}; {row['ratio']:.2f}x"


def main() -> int:
    """Measure and print; return 1 if ``--check`` finds the goal missed."""
    if sys.argv[1:2] == ["--onnx"]:
        serve_onnx(sys.argv[2], sys.argv[3:])
        return 0
    if sys.argv[1:2] == ["--load"]:
        port, folder, clients, seconds = sys.argv[2:]
        print(json.dumps(load(int(port), folder, int(clients), float(seconds))))
        return 0
    parser = parser_of(__doc__)
    add_names(parser, "--models", MODELS)
    parser.add_argument("--clients", type=int, default=64, help="at a time; default 64")
    parser.add_argument("--rows", type=int, default=16, help="of a run, at most; default 16")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a turn; default 10")
    parser.add_argument("--rounds", type=int, default=3, help="turns; default 3")
    add_outputs(parser, page=False)
    options = parser.parse_args()
    rows = []
    for name in options.models:
        rows.append(record(name, options))
        print(line(rows[-1]), file=sys.stderr, flush=True)
    found = [row["model"] for row in rows if row["ratio"] < LEAST]
    if options.json:
        print(json.dumps({**conditions(), "rows": rows, "missed": found}))
    else:
        print("\n".join(map(line, rows)))
        print("missed:", "; ".join(found) or "nothing")
    return 1 if options.check and found else 0


if __name__ == "__main__":
    sys.exit(main())
