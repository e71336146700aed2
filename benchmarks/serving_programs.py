"""examples/serve.py under load: requests lost or answered wrongly, memory, requests a CPU second.

    python benchmarks/serving_programs.py [--clients 64] [--seconds 60] [--json] [--check]

A small CNN (two 3x3 convolutions with batch norm and ReLU, pooling, two linear layers; images of
32x32) with a symbolic batch is saved, and served on the loopback. A client sends its next image
when it has the answer of the last, half of the time as .npy and half of it as JSON, by turns. An
answer is *wrong* if it is not, but for rounding, what the program gives for this image alone, and
*lost* if there is none. Memory is what the server's process has (VmRSS) after each turn but the
first. Seconds of CPU are those of the server's process.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from command import add_outputs, parser_of
from serving import MOST_GROWTH, cpu_seconds, memory, percentiles, started

import meta
from meta import model

SERVER = Path(__file__).parents[1] / "examples" / "serve.py"
TURNS = 4
JSON, NPY = "application/json", "application/x-npy"


def save(folder: Path) -> meta.vm.Executable:
    """Save the program; return it."""
    meta.random.seed(0)
    network = model.Sequential(
        *(model.Conv2d(3, 32, 3, padding=1), model.BatchNorm(32), model.ReLU()),
        *(model.Conv2d(32, 64, 3, padding=1), model.BatchNorm(64), model.ReLU()),
        *(model.MaxPool2d(2), model.Flatten(), model.Linear(64 * 16 * 16, 64), model.ReLU()),
        model.Linear(64, 10),
    )
    network.eval()
    image = meta.ir.parse_type("float32[b, 3, 32, 32]")
    executable = meta.vm.compile(network, image, dims={"b": (1, 64)})
    executable.save(folder)
    return executable


def requests(executable: meta.vm.Executable, kind: str) -> list[tuple[bytes, Any]]:
    """Return requests as bytes, and what their answers are to be."""
    found = []
    for image in np.random.default_rng(0).standard_normal((16, 1, 3, 32, 32)).astype("float32"):
        file = io.BytesIO()
        np.save(file, image)
        text = json.dumps({"inputs": [image.tolist()]}).encode()
        body = file.getvalue() if kind == NPY else text
        head = f"POST /run HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n"
        whole = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        found.append((whole, executable(meta.array(image)).numpy()))
    return found


async def client(
    port: int, own: list[tuple[bytes, Any]], kind: str, end: float, figures: dict[str, Any]
) -> None:
    """Ask until the time is over."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    turn = 0
    while time.perf_counter() < end:
        request, want = own[turn % len(own)]
        turn, begin = turn + 1, time.perf_counter()
        figures["asked"] += 1
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(re.findall(rb"(?i)content-length: (\d+)", head)[0])
            body = await reader.readexactly(size)
        except (OSError, LookupError, asyncio.IncompleteReadError) as error:
            figures["lost"] += 1
            figures["errors"].append(repr(error)[:200])
            return
        figures["seconds"].append(time.perf_counter() - begin)
        if not head.startswith(b"HTTP/1.1 200"):
            figures["lost"] += 1
            figures["errors"].append(body.decode()[:200])
            continue
        found = np.load(io.BytesIO(body)) if kind == NPY else json.loads(body)["outputs"][0]
        figures["wrong"] += not np.allclose(found, want, rtol=1e-3, atol=1e-4)
    writer.close()


async def under_load(port: int, own: list[tuple[bytes, Any]], kind: str, options: Any) -> Any:
    """Let clients ask for a part of the time; return what came of it."""
    figures: dict[str, Any] = {"asked": 0, "lost": 0, "wrong": 0, "errors": [], "seconds": []}
    end = time.perf_counter() + options.seconds / (2 * TURNS)
    clients = (client(port, own, kind, end, figures) for _ in range(options.clients))
    await asyncio.gather(*clients)
    return figures


def measured(folder: Path, options: Any) -> dict[str, Any]:
    """Serve a program, and ask; return figures by kind of body."""
    executable = save(folder)
    own = {kind: requests(executable, kind) for kind in (NPY, JSON)}
    server = started(str(SERVER), str(folder), "--port", "0", stdout=subprocess.PIPE)
    assert server.stdout is not None
    try:
        port = re.search(r"127\.0\.0\.1:(\d+)", server.stdout.readline())
        if port is None:
            raise SystemExit("the server did not start")
        rows: dict[str, list[Any]] = {kind: [] for kind in own}
        sizes = []
        for turn in range(-1, TURNS):
            for kind, bodies in own.items():
                before = cpu_seconds(server.pid), time.perf_counter()
                found = asyncio.run(under_load(int(port[1]), bodies, kind, options))
                found["cpu"] = cpu_seconds(server.pid) - before[0]
                found["elapsed"] = time.perf_counter() - before[1]
                rows[kind] += [found] if turn >= 0 else []
            sizes += [memory(server.pid)] if turn >= 0 else []
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    figures: dict[str, Any] = {"memory": sizes[-1], "growth": sizes[-1] - sizes[0]}
    for kind, turns in rows.items():
        total = {n: sum(t[n] for t in turns) for n in ("asked", "lost", "wrong", "cpu", "elapsed")}
        figures[kind] = {
            **{n: total[n] for n in ("asked", "lost", "wrong")},
            "requests_per_s": total["asked"] / total["elapsed"],
            "requests_per_cpu_s": total["asked"] / total["cpu"],
            "request_ms": percentiles([s for t in turns for s in t["seconds"]]),
            "errors": [e for t in turns for e in t["errors"]][:5],
        }
    return figures


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the clients; default 60")
    add_outputs(parser, page=False)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(Path(folder) / "cnn", options)
    print(json.dumps(figures) if options.json else json.dumps(figures, indent=1))
    lost = sum(figures[kind][n] for kind in (NPY, JSON) for n in ("lost", "wrong"))
    if options.check and (lost or figures["growth"] >= MOST_GROWTH):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
