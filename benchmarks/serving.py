"""A server under load, beside its engine alone: requests lost or mixed up, memory, tokens a second.

    python benchmarks/serving.py [--clients 64] [--seconds 120] [--json] [--check]

A tiny model with random weights is written to a folder. By turns, ``python -m meta serve`` writes
texts for clients of HTTP on the loopback, and an engine in a process of its own writes the same
ones, as many at once as there are clients. Prompts, options and seeds are of a table of `REQUESTS`
rows. A client sends its next request when it has the answer of the last; every second one takes a
stream, and every fortieth leaves in the middle of one. An answer is *mixed up* if it is not the
text that the engine wrote for this row of the table, and *lost* if there is none. Memory is what
the server's process has (VmRSS) after each turn. Where other programs need the cores, too, seconds
of CPU a token say more than tokens a second.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import signal
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


def engine_alone(folder: Path, clients: int) -> None:
    """Be an engine: print the texts of all requests, then, for each line of seconds that comes, how
    many tokens it wrote meanwhile, and seconds of a clock and of cores.
    """
    engine = meta.language.Engine(meta.language.load(folder), rows=clients, length=LENGTH)
    requests = table()
    order = [engine.add(**own) for own in requests]
    while engine.running or engine.waiting:
        engine.step()
    print(json.dumps([request.text.written for request in order]), flush=True)
    rows = itertools.cycle(requests)
    for line in sys.stdin:
        count, begin, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - begin < float(line):
            while len(engine.running) + len(engine.waiting) < clients:
                engine.add(**next(rows))
            count += len(engine.step())
        elapsed = time.perf_counter() - begin, time.process_time() - cpu
        print(json.dumps([count, *elapsed]), flush=True)


class Client:
    """One client: it asks, waits for the answer, and asks again."""

    def __init__(self, port: int, texts: list[str], figures: dict[str, Any]) -> None:
        self._port, self.texts, self._figures = port, texts, figures

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
            self._figures["mixed"] += found != self.texts[row]

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


async def written(port: int) -> int:
    """Return how many tokens a server has written."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    found = re.search(r"^meta_generated_tokens_total (\d+)", text, re.MULTILINE)
    return 0 if found is None else int(found[1])


async def under_load(
    port: int, process: int, clients: int, seconds: float, figures: dict[str, Any]
) -> None:
    """Let clients ask for so many seconds; add what came of it, and what was written meanwhile."""
    begin, one = time.perf_counter(), Client(port, figures["texts"], figures)
    asking = [asyncio.ensure_future(one.run(i, clients, begin + seconds)) for i in range(clients)]
    await asyncio.sleep(seconds / 10)  # until all rows are full
    before = time.perf_counter(), cpu_seconds(process), await written(port)
    await asyncio.sleep(begin + seconds - time.perf_counter())
    after = time.perf_counter(), cpu_seconds(process), await written(port)
    for name, x, y in zip(("elapsed", "cpu", "tokens"), before, after, strict=True):
        figures[name].append(y - x)
    await asyncio.gather(*asking)


def started(*command: str, **pipes: Any) -> subprocess.Popen[str]:
    """Start a process of Python."""
    return subprocess.Popen([sys.executable, *command], text=True, **pipes)


def by_turns(folder: Path, clients: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Let clients ask a server, and an engine write alone, by turns; return what came of it."""
    pipe = subprocess.PIPE
    own = ("--alone", str(folder), "--clients", str(clients))
    alone = started(__file__, *own, stdin=pipe, stdout=pipe)
    more = ("--rows", str(clients), "--length", str(LENGTH), "--name", "tiny", "--device", "cpu")
    server = started("-m", "meta", "serve", str(folder), "--port", "0", *more, stderr=pipe)
    assert alone.stdin is not None and alone.stdout is not None and server.stderr is not None
    try:
        port = None
        while port is None:
            line = server.stderr.readline()
            if not line:
                raise SystemExit("the server did not start")
            port = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        found: dict[str, Any] = dict.fromkeys(("asked", "lost", "mixed", "left"), 0)
        found["texts"] = json.loads(alone.stdout.readline())
        lists = ("errors", "seconds", "first", "gaps", "memory", "alone", "elapsed", "cpu")
        for turn in range(-1, rounds):
            if turn <= 0:  # the one before was to get warm
                found |= {n: [] for n in (*lists, "tokens")}
            asyncio.run(under_load(int(port[1]), server.pid, clients, seconds / rounds, found))
            found["memory"].append(memory(server.pid))
            alone.stdin.write(f"{seconds / rounds / 2}\n")
            alone.stdin.flush()
            found["alone"].append(json.loads(alone.stdout.readline()))
        return found
    finally:
        for process, number in ((alone, signal.SIGKILL), (server, signal.SIGTERM)):
            process.send_signal(number)
            process.communicate(timeout=60)


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return the median and what few exceed, in ms."""
    return {f"p{p}": 1e3 * float(np.percentile(seconds, p)) for p in (50, 90, 99)}


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120.0, help="of the clients; default 120")
    parser.add_argument("--rounds", type=int, default=6, help="turns of both; default 6")
    parser.add_argument("--width", type=int, default=256, help="of the model; default 256")
    parser.add_argument("--layers", type=int, default=4, help="of the model; default 4")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    add_outputs(parser, page=False)
    options = parser.parse_args()
    if options.alone:
        engine_alone(options.alone, options.clients)
        return
    with tempfile.TemporaryDirectory() as name:
        write_folder(Path(name), options.width, options.layers)
        found = by_turns(Path(name), options.clients, options.seconds, options.rounds)
    count, elapsed, cpu = np.sum(found["alone"], 0).tolist()
    tokens, seconds, server_cpu = (sum(found[n]) for n in ("tokens", "elapsed", "cpu"))
    rate, engine = tokens / seconds, count / elapsed
    figures = {
        "clients": options.clients, "seconds": seconds, "tokens": tokens,
        **{n: found[n] for n in ("asked", "lost", "mixed", "left")},
        "tokens_per_s": rate, "engine_tokens_per_s": engine, "of_the_engine": rate / engine,
        "cpu_us_per_token": 1e6 * server_cpu / tokens,
        "engine_cpu_us_per_token": 1e6 * cpu / count,
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
