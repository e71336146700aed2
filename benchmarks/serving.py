"""A server under load, beside its engine alone: requests lost or mixed up, memory, tokens a second.

    python benchmarks/serving.py [--clients 64] [--seconds 120] [--json] [--check]

A tiny model with random weights is written to a folder. First an engine in a process of its own
writes texts, as many at once as there are clients; each has its prompt, its options and its seed
from a table of `REQUESTS` rows. Then ``python -m meta serve`` writes the same ones for clients of
HTTP on the loopback, each of which sends its next request when it has the answer of the last; every
second one takes a stream, and every fortieth leaves in the middle of one. Then the engine again.
An answer is *mixed up* if it is not the text that the engine wrote for this row of the table, and
*lost* if there is none. Memory is what the server's process has (VmRSS), from a quarter of the time
on. The tokens of those who left do not count. Where other programs need the cores, too, seconds of
CPU a token say more than tokens a second.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from command import add_outputs, parser_of

import meta
from meta.model import save_weights
from meta.model.zoo import LlamaConfig, LlamaForCausalLM

REQUESTS, LENGTH = 200, 192
GOAL, MOST_GROWTH = 0.9, 16 << 20
LEAVES = 40


def write_folder(folder: Path, width: int, layers: int) -> None:
    """Write a model whose tokens are bytes."""
    config = LlamaConfig(
        vocab_size=256, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
        num_attention_heads=width // 32, num_key_value_heads=max(width // 64, 1),
        max_position_embeddings=LENGTH,
    )  # fmt: skip
    meta.random.seed(0)
    save_weights(LlamaForCausalLM(config), str(folder / "model.safetensors"))
    sizes = {n: getattr(config, n) for n in config.__dataclass_fields__}
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}))
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    letters = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    model = tokenizers.models.BPE({letters[b]: b for b in range(256)}, [])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def table() -> list[dict[str, Any]]:
    """Return the requests, as the engine takes them."""
    rng = random.Random(0)
    return [
        {
            "prompt": "".join(chr(rng.randint(97, 122)) for _ in range(rng.randint(4, 64))),
            "max_new_tokens": rng.randint(16, 96),
            "temperature": rng.choice([0.0, 1.0]),
            "seed": rng.randint(0, 1 << 30),
        }
        for _ in range(REQUESTS)
    ]


def engine_alone(folder: Path, clients: int, seconds: float) -> dict[str, Any]:
    """Return the tokens a second of an engine, and the texts of all requests."""
    engine = meta.language.Engine(meta.language.load(folder), rows=clients, length=LENGTH)
    requests, texts = table(), {}
    for own in requests:  # compile, and write each once
        engine.add(**own)
    order = [*engine.waiting]
    while engine.running or engine.waiting:
        engine.step()
    texts = [request.text.written for request in order]
    rows, count, begin, cpu = itertools.cycle(requests), 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < seconds:
        while len(engine.running) + len(engine.waiting) < clients:
            engine.add(**next(rows))
        count += len(engine.step())
    rate = count / (time.perf_counter() - begin)
    cpu = time.process_time() - cpu
    return {"tokens_per_s": rate, "cpu_us": 1e6 * cpu / count, "texts": texts}


class Client:
    """One client: it asks, waits for the answer, and asks again."""

    def __init__(self, port: int, texts: list[str], figures: dict[str, Any]) -> None:
        self._port, self._texts, self._figures = port, texts, figures

    async def run(self, number: int, clients: int, end: float) -> None:
        """Ask until the time is over."""
        requests = table()
        for turn in itertools.count():
            row = (number + turn * clients) % REQUESTS
            if time.perf_counter() > end:
                return
            stream, own = (number + turn) % 2 == 1, requests[row]
            leaves = stream and (number + turn * clients) % LEAVES == 1
            body = {**own, "max_tokens": own["max_new_tokens"], "model": "tiny", "stream": stream}
            del body["max_new_tokens"]
            self._figures["asked"] += 1
            begin = time.perf_counter()
            try:
                found = await self._answer(json.dumps(body).encode(), stream, leaves)
            except (OSError, ValueError, LookupError, asyncio.IncompleteReadError) as error:
                self._figures["lost"] += 1
                self._figures["errors"].append(f"{type(error).__name__}: {error}"[:200])
                continue
            if leaves:
                self._figures["left"] += 1
                continue
            self._figures["seconds"].append(time.perf_counter() - begin)
            self._figures["tokens"] += own["max_new_tokens"]
            self._figures["mixed"] += found != self._texts[row]

    async def _answer(self, body: bytes, stream: bool, leaves: bool) -> str:
        """Return the text of an answer, on a connection of its own."""
        begin = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise ValueError((head + await reader.read()).decode(errors="replace"))
            if not stream:
                found = json.loads(await reader.read())
                text: str = found["choices"][0]["text"]
                return text
            text, gaps = "", [begin]
            async for line in reader:
                if line.startswith(b"data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
                    gaps.append(time.perf_counter())
                    if leaves and len(gaps) > 5:
                        return text
                elif line.startswith(b"data: [DONE]"):
                    self._figures["first"].append(gaps[1] - begin)
                    self._figures["gaps"] += np.diff(gaps[1:]).tolist()
                    return text
            raise ValueError("the stream ended before its end")
        finally:
            writer.close()


def memory(process: int) -> int:
    """Return the bytes that a process has in memory."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def cpu_seconds(process: int) -> float:
    """Return how long cores worked for a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def under_load(
    port: int, process: int, texts: list[str], clients: int, seconds: float
) -> dict[str, Any]:
    """Let clients ask for so many seconds; return what came of it."""
    figures: dict[str, Any] = {"asked": 0, "lost": 0, "mixed": 0, "left": 0, "tokens": 0}
    figures |= {"errors": [], "seconds": [], "first": [], "gaps": [], "memory": []}

    async def watch() -> None:
        await asyncio.sleep(seconds / 4)
        while True:
            figures["memory"].append(memory(process))
            await asyncio.sleep(min(seconds / 20, 1.0))

    warm = [Client(port, texts, {**figures, "seconds": [], "first": [], "gaps": []})]
    await warm[0].run(0, 1, time.perf_counter() + 5)
    begin, cpu = time.perf_counter(), cpu_seconds(process)
    watcher = asyncio.ensure_future(watch())
    one = Client(port, texts, figures)
    await asyncio.gather(*(one.run(i, clients, begin + seconds) for i in range(clients)))
    figures["elapsed"], figures["cpu"] = time.perf_counter() - begin, cpu_seconds(process) - cpu
    watcher.cancel()
    return figures


def served(folder: Path, texts: list[str], clients: int, seconds: float) -> dict[str, Any]:
    """Start a server, let clients ask, and stop it."""
    command = [sys.executable, "-m", "meta", "serve", str(folder), "--port", "0", "--name", "tiny"]
    command += ["--rows", str(clients), "--length", str(LENGTH), "--device", "cpu"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        port = None
        while port is None:
            line = process.stderr.readline()
            if not line:
                raise SystemExit("the server did not start")
            port = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        return asyncio.run(under_load(int(port[1]), process.pid, texts, clients, seconds))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return the median and what few exceed, in ms."""
    return {f"p{p}": 1e3 * float(np.percentile(seconds, p)) for p in (50, 90, 99)}


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0, help="of the clients; default 120")
    parser.add_argument("--width", type=int, default=256, help="of the model; default 256")
    parser.add_argument("--layers", type=int, default=4, help="of the model; default 4")
    parser.add_argument("--alone", type=Path, help="internal: measure the engine in a folder")
    add_outputs(parser, page=False)
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(engine_alone(options.alone, options.clients, options.seconds)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_folder(folder, options.width, options.layers)

        def alone() -> dict[str, Any]:
            command = [sys.executable, __file__, "--alone", name, "--clients", str(options.clients)]
            command += ["--seconds", str(options.seconds / 4)]
            found: dict[str, Any] = json.loads(subprocess.check_output(command, text=True))
            return found

        before = alone()
        found = served(folder, before["texts"], options.clients, options.seconds)
        both = [before, alone()]
    rates, rate = [one["tokens_per_s"] for one in both], found["tokens"] / found["elapsed"]
    figures = {
        "clients": options.clients, "seconds": found["elapsed"],
        **{n: found[n] for n in ("asked", "lost", "mixed", "left", "tokens")},
        "tokens_per_s": rate, "engine_tokens_per_s": rates,
        "of_the_engine": rate / statistics.mean(rates),
        "cpu_us_per_token": 1e6 * found["cpu"] / found["tokens"],
        "engine_cpu_us_per_token": [one["cpu_us"] for one in both],
        "memory": found["memory"][-1], "growth": found["memory"][-1] - found["memory"][0],
        "request_ms": percentiles(found["seconds"]),
        "first_token_ms": percentiles(found["first"]), "token_ms": percentiles(found["gaps"]),
        "errors": found["errors"][:5],
    }  # fmt: skip
    if options.json:
        print(json.dumps(figures))
    else:
        for key, value in figures.items():
            print(f"{key}: {value}")
    fine = figures["lost"] == figures["mixed"] == 0 and figures["growth"] < MOST_GROWTH
    if options.check and not (fine and figures["of_the_engine"] >= GOAL):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
