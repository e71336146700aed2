"""examples/serve.py, as a process: what it answers, under load, at its limits, and how it ends."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import meta
from meta.model import Linear, ReLU, Sequential
from tests.conftest import run_python

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

ROOT = Path(__file__).parents[1]
JSON, NPY, SAFETENSORS = "application/json", "application/x-npy", "application/x-safetensors"


NETWORK = Sequential(Linear(6, 8), ReLU(), Linear(8, 3)).eval()
STATE = {name: array.numpy().astype("float64") for name, array in NETWORK.state().items()}


def expected(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    hidden = np.maximum(x @ STATE["0.weight"].T + STATE["0.bias"], 0.0)
    result: np.ndarray[Any, Any] = hidden @ STATE["2.weight"].T + STATE["2.bias"]
    return result


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("served")
    types = {"any": "float32[b, 6]", "four": "float32[4, 6]"}
    with meta.dialect.only("torch", "tvm"):
        for name, type_ in types.items():
            dims = {"b": (1, 16)} if name == "any" else None
            meta.vm.compile(NETWORK, meta.ir.parse_type(type_), dims=dims).save(where / name)

        @meta.model.trace
        def rows_of(table: meta.ndarray, i: meta.ndarray) -> Any:
            return meta.take(table[0], i, axis=0), i + 1

        two = (meta.ones((1, 5, 2)), meta.zeros((1,), dtype="int64"))
        meta.vm.compile(rows_of, *two).save(where / "two")
    return where


@contextmanager
def served(folder: Path, *options: object) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the server; the process, and its port."""
    command = [sys.executable, "examples/serve.py", folder, "--port", 0, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        list(map(str, command)), cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        if found is None:
            raise AssertionError(line + process.communicate(timeout=30)[1])
        yield process, int(found[1])
    finally:
        process.terminate()
        process.communicate(timeout=60)


def ask(
    port: int, body: bytes = b"", kind: str = "", path: str = "/run"
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Content-Type": kind} if kind else {}
    connection.request("POST" if kind else "GET", path, body or None, headers)
    answer = connection.getresponse()
    found = answer.status, answer.read(), answer.headers
    connection.close()
    return found


def npy(x: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, x)
    return file.getvalue()


def numbers_of(body: bytes) -> np.ndarray[Any, Any]:
    """Return the float32 numbers of an .npy file. np.load parses its header as Python's syntax,
    which CPython before 3.11.8 cannot do in several threads (python/cpython#106905).
    """
    begin = 10 + int.from_bytes(body[8:10], "little")
    return np.frombuffer(body, "<f4", offset=begin)


def rows(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((count, 6)).astype("float32")


@pytest.fixture(scope="module")
def server(folders: Path) -> Iterator[int]:
    with served(folders / "any", "--wait-ms", 1, "--body", 4096) as (_, port):
        yield port


@pytest.mark.parametrize("count", [1, 3, 16])
def test_bodies(server: int, count: int) -> None:
    x = rows(count)
    status, body, headers = ask(server, npy(x), NPY)
    assert status == 200 and headers["Content-Type"] == NPY
    np.testing.assert_allclose(np.load(io.BytesIO(body)), expected(x), rtol=1e-4, atol=1e-5)
    status, body, _ = ask(server, safetensors.numpy.save({"args_0": x}), SAFETENSORS)
    names = json.loads(body)["error"] if status == 400 else ""
    name = names.rpartition(" ")[2] or "args_0"  # it says what its input is called
    status, body, _ = ask(server, safetensors.numpy.save({name: x}), SAFETENSORS)
    found = safetensors.numpy.load(body)["0"]
    np.testing.assert_allclose(found, expected(x), rtol=1e-4, atol=1e-5)
    for inputs in ([x.tolist()], {name: x.tolist()}):
        status, body, _ = ask(server, json.dumps({"inputs": inputs}).encode(), JSON)
        (found,) = json.loads(body)["outputs"]
        np.testing.assert_allclose(found, expected(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "kind", "status", "says"),
    [
        (b"{}", JSON, 400, "cannot be read"),
        (b"[1", JSON, 400, "cannot be read"),
        (b'{"inputs": 3}', JSON, 400, "a list of arrays"),
        (b'{"inputs": []}', JSON, 400, "the inputs are"),
        (b'{"inputs": [[["a"]]]}', JSON, 400, "float32"),
        (b'{"inputs": [[[1, 2], [3]]]}', JSON, 400, "float32"),
        (b'{"inputs": [[[1, 2]]]}', JSON, 400, "not of shape (1, 2)"),
        (b'{"inputs": [[1, 2, 3, 4, 5, 6]]}', JSON, 400, "not of shape (6,)"),
        (npy(rows(0)), NPY, 400, "1 to 16 rows"),
        (npy(rows(17)), NPY, 400, "1 to 16 rows"),
        (npy(rows(1).astype("complex64")), NPY, 400, "float32"),
        (npy(rows(1))[:-3], NPY, 400, "cannot be read"),
        (b"\x93NUMPY", NPY, 400, "cannot be read"),
        (b"12345678", SAFETENSORS, 400, "cannot be read"),
        (b"1", "text/plain", 415, "application/json"),
        (b"1" * 5000, JSON, 413, "4096 bytes"),
    ],
)
def test_what_is_refused(server: int, body: bytes, kind: str, status: int, says: str) -> None:
    found, answer, _ = ask(server, body, kind)
    assert found == status and says in json.loads(answer)["error"]


def test_health_and_metrics(server: int) -> None:
    assert json.loads(ask(server, path="/health")[1]) == {"status": "ok"}
    before = numbers(server)
    ask(server, npy(rows(2)), NPY)
    ask(server, b"", "text/plain")
    after = numbers(server)
    added = {name: after[name] - before.get(name, 0) for name in after}
    assert added['meta_requests_total{status="200"}'] == 1
    assert added['meta_requests_total{status="415"}'] == 1
    assert added["meta_rows_total"] == 2 and added["meta_batches_total"] == 1
    assert added["meta_run_seconds_count"] == added["meta_wait_seconds_count"] == 1
    assert after["meta_waiting_requests"] == 0


def numbers(port: int) -> dict[str, float]:
    lines = ask(port, path="/metrics")[1].decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def test_programs_of_one_batch_and_of_several_arrays(folders: Path) -> None:
    with served(folders / "four", "--cold") as (_, port):
        x = rows(3)
        found = np.load(io.BytesIO(ask(port, npy(x), NPY)[1]))
        np.testing.assert_allclose(found, expected(x), rtol=1e-4, atol=1e-5)
        assert ask(port, npy(rows(5)), NPY)[0] == 400
    with served(folders / "two") as (_, port):
        table = np.arange(10, dtype="float32").reshape(1, 5, 2)
        given = {"table": table.tolist(), "i": [3]}
        answer = ask(port, json.dumps({"inputs": given}).encode(), JSON)[1]
        assert json.loads(answer) == {"outputs": [[[6.0, 7.0]], [4]]}
        raw = {"table": table, "i": np.array([4])}
        found = safetensors.numpy.load(ask(port, safetensors.numpy.save(raw), SAFETENSORS)[1])
        assert found["0"].tolist() == [[8.0, 9.0]] and found["1"].tolist() == [5]
        status, answer, _ = ask(port, json.dumps({"inputs": {**given, "i": [9]}}).encode(), JSON)
        assert status == 400 and "out of range" in json.loads(answer)["error"]
        status, answer, _ = ask(port, json.dumps({"inputs": {**given, "i": [0.5]}}).encode(), JSON)
        assert status == 400, "no part of a number is dropped"


def test_load_of_64_clients_and_the_end(folders: Path) -> None:
    """None is lost, rows are those that were asked for, batches are shared, and SIGTERM lets what
    waits end.
    """
    options = ("--wait-ms", 5, "--rows", 16, "--queue", 64, "--runs", 2)
    with served(folders / "any", *options) as (process, port):
        errors: list[str] = []
        asked = [0] * 64
        ending = threading.Event()

        def client(number: int) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            x = rows(1 + number % 3, number)
            body, want = npy(x), expected(x)
            try:
                while not ending.is_set():
                    connection.request("POST", "/run", body, {"Content-Type": NPY})
                    answer = connection.getresponse()
                    found = answer.read()
                    if answer.status != 200:
                        errors.append(found.decode())
                    elif not np.allclose(numbers_of(found), want.ravel(), rtol=1e-4, atol=1e-5):
                        errors.append(f"client {number} got another's rows")
                    asked[number] += 1
            except (OSError, http.client.HTTPException) as error:
                if not ending.is_set():
                    errors.append(repr(error))
            finally:
                connection.close()

        threads = [threading.Thread(target=client, args=(i,)) for i in range(64)]
        for thread in threads:
            thread.start()
        time.sleep(1.5)
        begin = resident(process.pid)
        time.sleep(1.5)
        ending.set()
        for thread in threads:
            thread.join(60)
        assert not errors and min(asked) > 0
        found = numbers(port)
        assert found['meta_requests_total{status="200"}'] == sum(asked)
        assert found["meta_batches_total"] < 0.5 * sum(asked)
        assert resident(process.pid) - begin < 8 << 20
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
        assert "Application shutdown complete" in said


def resident(process: int) -> int:
    text = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", text)
    assert found is not None
    return int(found[1]) << 10


def test_the_queue_is_bounded_and_requests_have_a_time(folders: Path) -> None:
    options = ("--queue", 2, "--wait-ms", 60_000, "--rows", 16, "--seconds", 1.0)
    with served(folders / "any", *options) as (_, port):
        found: list[tuple[int, float]] = []

        def one() -> None:
            begin = time.perf_counter()
            status, _, headers = ask(port, npy(rows(1)), NPY)
            assert (status == 503) == ("Retry-After" in headers)
            found.append((status, time.perf_counter() - begin))

        threads = [threading.Thread(target=one) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(status for status, _ in found) == [503, 503, 503, 504, 504]
        assert all(seconds > 0.9 for status, seconds in found if status == 504)
        assert ask(port, npy(rows(16)), NPY)[0] == 200, "as many rows as a run has do not wait"


def test_workers_share_a_port_and_are_replaced(folders: Path) -> None:
    with served(folders / "any", "--workers", 2) as (process, port):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        for number in (1, 2):
            until = time.monotonic() + 60
            while True:
                try:
                    if json.loads(ask(port + number, path="/health")[1])["status"] == "ok":
                        break
                except OSError:
                    assert time.monotonic() < until
                    time.sleep(0.1)
        x = rows(2)
        for _ in range(4):
            found = np.load(io.BytesIO(ask(port, npy(x), NPY)[1]))
            np.testing.assert_allclose(found, expected(x), rtol=1e-4, atol=1e-5)
        assert sum(numbers(port + i).get("meta_rows_total", 0) for i in (1, 2)) == 8
        first, *_ = before = set(map(int, children.read_text().split()))
        os.kill(first, signal.SIGKILL)
        until = time.monotonic() + 60
        while len(now := set(map(int, children.read_text().split()))) < 2 or now == before:
            assert time.monotonic() < until
            time.sleep(0.1)
        assert ask(port, npy(x), NPY)[0] == 200
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
        assert not any(Path(f"/proc/{child}").exists() for child in now)


def test_following_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "howto" / "serve.md").read_text("utf-8")
    save, log = re.findall(r"```python\n(.*?)```", page, re.S)
    run_python("-c", save, cwd=tmp_path, tvm=True)
    run_python("-c", log)
    with served(tmp_path / "net") as (_, port):
        (asked,) = re.findall(r"```bash\n(.*?)```", page, re.S)
        local = asked.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
        found = subprocess.run(["bash", "-c", local], capture_output=True, text=True, check=True)
        assert np.shape(json.loads(found.stdout)["outputs"]) == (1, 2, 2)
        (client,) = re.findall(r"```python client\n(.*?)```", page, re.S)
        assert run_python("-c", client.replace("8000", str(port))).strip() == "(3, 2)"
        shown = {name.partition("{")[0] for name in numbers(port)}
    told = set(re.findall(r"`(meta_\w+)`", page))
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in shown} == told
