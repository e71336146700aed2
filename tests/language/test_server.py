"""The server's routes, against what `generate` writes; hostile requests; a process of its own."""

from __future__ import annotations

import asyncio
import json
import math
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from meta import language
from meta.language.api import OF_CHATS, OF_TEXTS
from meta.language.chat import chat_template
from meta.language.server import Server
from meta.language.service import HELPS
from tests.conftest import ROOT, first_on_path
from tests.language.folders import of_bytes, written

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
LENGTH = 128
GREEDY = {"model": "tiny", "temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = of_bytes(tmp_path_factory.mktemp("models") / "tiny", "llama2")
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return path


@pytest.fixture(scope="module")
def decoder(folder: Path) -> language.Decoder:
    return language.load(folder)


@pytest.fixture(scope="module")
def engine(decoder: language.Decoder) -> language.Engine:
    return language.Engine(decoder, rows=3, length=LENGTH, chunk=32)


@pytest.fixture(scope="module")
def client(folder: Path, engine: language.Engine) -> Iterator[TestClient]:
    server = Server(engine, "tiny", chat_template(folder), queue=4, most_bytes=1 << 16)
    with TestClient(server.app) as found:
        yield found


def events(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream, which ends as it should."""
    parts = text.split("\n\n")
    assert parts[-2:] == ["data: [END_EVENT]", ""]
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def written_alone(decoder: language.Decoder, prompt: Any, **options: Any) -> Any:
    return language.generate(decoder, prompt, **options)


def test_completions(client: TestClient, decoder: language.Decoder) -> None:
    body = {**GREEDY, "prompt": ["abc", [100, 101]], "n": 2, "max_tokens": 9, "logprobs": 0}
    found = client.post("/v1/completions", json=body).json()
    assert [c["index"] for c in found["choices"]] == [0, 1, 2, 3]
    for choice, prompt in zip(
        found["choices"], ["abc", "abc", [100, 101], [100, 101]], strict=True
    ):
        wanted = written_alone(decoder, prompt, max_new_tokens=9)
        assert choice["text"] == wanted.text
        assert choice["finish_reason"] == ("length" if wanted.reason == "length" else "stop")
        for a, b in zip(choice["logprobs"]["token_logprobs"], wanted.logprobs, strict=True):
            assert math.isclose(a, b, abs_tol=1e-4)
    count = sum(len(c["logprobs"]["tokens"]) for c in found["choices"])
    assert found["usage"] == {
        "prompt_tokens": 5, "completion_tokens": count, "total_tokens": 5 + count,
    }  # fmt: skip
    assert found["object"] == "text_completion" and found["model"] == "tiny"


def test_chats(client: TestClient, decoder: language.Decoder) -> None:
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    prompt = "system: Be short.\nuser: Hi\n"
    body = {"model": "tiny", "messages": messages, "seed": 3, "max_completion_tokens": 20, "n": 2}
    found = client.post("/v1/chat/completions", json={**body, "logprobs": True}).json()
    wanted = [
        written_alone(decoder, prompt, max_new_tokens=20, temperature=1.0, seed=s) for s in (3, 4)
    ]
    for choice, one in zip(found["choices"], wanted, strict=True):
        assert choice["message"] == {"role": "assistant", "content": one.text, "refusal": None}
        told = choice["logprobs"]["content"]
        assert [t["bytes"] for t in told] == [list(t["token"].encode()) for t in told]
        for a, b in zip(told, one.logprobs, strict=True):
            assert math.isclose(a["logprob"], b, abs_tol=1e-4)
    tops = {**body, "logprobs": True, "top_logprobs": 2, "stream": True}
    for event in events(client.post("/v1/chat/completions", json=tops).text)[2:]:
        for told in event["choices"][0]["logprobs"]["content"]:
            assert len(told["top_logprobs"]) == 2
            assert told["top_logprobs"][0]["logprob"] >= told["logprob"] - 1e-6
    more = {"stream": True, "stream_options": {"include_usage": True}}
    stream = events(client.post("/v1/chat/completions", json={**body, **more}).text)
    assert stream[-1]["choices"] == [] and stream[-1]["usage"] == found["usage"]
    choices = [e["choices"][0] for e in stream[:-1]]
    for index, one in enumerate(wanted):
        own = [c for c in choices if c["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in own) == one.text
        assert [c["finish_reason"] for c in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1]["finish_reason"] is not None
    whole = client.post("/v1/chat/completions", json={**GREEDY, "messages": messages}).json()
    assert whole["usage"]["total_tokens"] <= LENGTH  # as many as there is room for


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7, "top_p": 0.8, "seed": -1},
        {"top_k": 7, "min_p": 0.1, "seed": 5},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5, "temperature": 0},
        {"logit_bias": {"65": 50, "66": 49.5}, "temperature": 0},
        {"repetition_penalty": 1.5, "temperature": 0, "stop": ["A", "\x00"]},
        {"stop": "e", "seed": 0},
    ],
)
def test_options(client: TestClient, decoder: language.Decoder, options: dict[str, Any]) -> None:
    body = {"model": "tiny", "prompt": "The", "max_tokens": 25, **options, "stream": True}
    stream = events(client.post("/v1/completions", json=body).text)
    ours = {"temperature": 1.0, **options}
    if "seed" in ours:
        ours["seed"] %= 1 << 63
    if "logit_bias" in ours:
        ours["logit_bias"] = {int(t): x for t, x in ours["logit_bias"].items()}
    wanted = written_alone(decoder, "The", max_new_tokens=25, **ours)
    assert "".join(e["choices"][0]["text"] for e in stream) == wanted.text
    reason = "length" if wanted.reason == "length" else "stop"
    assert stream[-1]["choices"][0]["finish_reason"] == reason


WRONG: list[tuple[str, Any, int, str | None]] = [
    ("completions", {"prompt": "a"}, 400, "model"),
    ("completions", {"model": "tiny"}, 400, "prompt"),
    ("chat/completions", {"model": "tiny"}, 400, "messages"),
    ("completions", {"model": "gpt", "prompt": "a"}, 404, "model"),
    ("completions", {"model": 7, "prompt": "a"}, 400, "model"),
    ("completions", {**GREEDY, "prompt": "a", "max_token": 4}, 400, "max_token"),
    ("completions", {**GREEDY, "prompt": ""}, 400, None),
    ("completions", {**GREEDY, "prompt": []}, 400, "prompt"),
    ("completions", {**GREEDY, "prompt": [[]]}, 400, None),
    ("completions", {**GREEDY, "prompt": {"a": 1}}, 400, "prompt"),
    ("completions", {**GREEDY, "prompt": [1, "a"]}, 400, "prompt"),
    ("completions", {**GREEDY, "prompt": [256]}, 400, None),
    ("completions", {**GREEDY, "prompt": [1 << 70]}, 400, "prompt"),
    ("completions", {**GREEDY, "prompt": [True]}, 400, "prompt"),
    ("completions", {**GREEDY, "prompt": "\ud800"}, 400, "prompt"),
    ("completions", {**GREEDY, "prompt": "a" * LENGTH}, 400, "prompt"),
    ("completions", {**GREEDY, "prompt": "a", "max_tokens": LENGTH}, 400, "prompt"),
    ("completions", {**GREEDY, "prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
    ("completions", {**GREEDY, "prompt": "a", "max_tokens": 1.5}, 400, "max_tokens"),
    ("completions", {**GREEDY, "prompt": "a", "n": 100}, 400, None),
    ("completions", {**GREEDY, "prompt": "a", "n": True}, 400, "n"),
    ("completions", {"model": "tiny", "prompt": "a", "temperature": 3}, 400, "temperature"),
    ("completions", {"model": "tiny", "prompt": "a", "temperature": "1"}, 400, "temperature"),
    ("completions", {**GREEDY, "prompt": "a", "top_p": -0.1}, 400, "top_p"),
    ("completions", {**GREEDY, "prompt": "a", "logprobs": 100}, 400, "logprobs"),
    ("completions", {**GREEDY, "prompt": "a", "stop": [""]}, 400, "stop"),
    ("completions", {**GREEDY, "prompt": "a", "stop": ["a"] * 17}, 400, "stop"),
    ("completions", {**GREEDY, "prompt": "a", "stop": 4}, 400, "stop"),
    ("completions", {**GREEDY, "prompt": "a", "logit_bias": {"a": 1}}, 400, "logit_bias"),
    ("completions", {**GREEDY, "prompt": "a", "logit_bias": {"1": 101}}, 400, "logit_bias"),
    ("completions", {**GREEDY, "prompt": "a", "logit_bias": {"999": 1}}, 400, None),
    ("completions", {**GREEDY, "prompt": "a", "seed": 1 << 64}, 400, "seed"),
    ("completions", {**GREEDY, "prompt": ["a"] * 9000}, 400, None),
    (
        "completions",
        {**GREEDY, "prompt": "a", "logit_bias": {str(i): 0 for i in range(2000)}},
        400,
        "logit_bias",
    ),
    (
        "chat/completions",
        {**GREEDY, "messages": [{"role": "u", "content": "a" * 9999}]},
        400,
        "messages",
    ),
    ("completions", {**GREEDY, "prompt": "a", "stream": 1}, 400, "stream"),
    ("completions", {**GREEDY, "prompt": "a", "stream_options": {}}, 400, "stream_options"),
    ("completions", {**GREEDY, "prompt": "a", "echo": True}, 400, "echo"),
    ("completions", {**GREEDY, "prompt": "a", "best_of": 2}, 400, "best_of"),
    ("chat/completions", {**GREEDY, "messages": []}, 400, "messages"),
    ("chat/completions", {**GREEDY, "messages": ["a"]}, 400, "messages[0]"),
    ("chat/completions", {**GREEDY, "messages": [{"role": "user"}]}, 400, "messages[0].content"),
    ("chat/completions", {**GREEDY, "messages": [{"content": "a"}]}, 400, "messages[0].role"),
    ("chat/completions", {**GREEDY, "tools": [{}]}, 400, "tools"),
    ("chat/completions", {**GREEDY, "top_logprobs": 2}, 400, "messages"),
    ("chat/completions", {**GREEDY, "response_format": {"type": "json"}}, 400, "response_format"),
    ("completions", b"", 400, None),
    ("completions", b"{", 400, None),
    ("completions", b"[]", 400, None),
    ("completions", b"\xff\xfe", 400, None),
    ("completions", b"[" * 60000, 400, None),
    ("completions", b'{"model": "tiny", "prompt": "a", "temperature": NaN}', 400, None),
    ("completions", b'{"model": "tiny", "prompt": "a", "temperature": 1e999}', 400, "temperature"),
    ("completions", b'{"n": ' + b"9" * 5000 + b"}", 400, None),
    ("completions", b" " * (1 << 17), 413, None),
    ("other", {"model": "tiny"}, 404, None),
]


@pytest.mark.parametrize(("route", "body", "status", "param"), WRONG)
def test_what_does_not_fit(
    client: TestClient, route: str, body: Any, status: int, param: str | None
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    found = client.post(f"/v1/{route}", content=content, headers=headers)
    error = found.json()["error"]
    assert (found.status_code, error["param"]) == (status, param), error
    assert set(error) == {"message", "type", "param", "code"} and len(error["message"]) < 700
    assert error["type"] == "invalid_request_error"


def test_other_routes(client: TestClient) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert model["id"] == "tiny" and client.get("/v1/models/tiny").json() == model
    assert client.get("/v1/models/a/b").status_code == 404
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/v1/completions").status_code == 405
    form = client.post("/v1/completions", data={"model": "tiny"})
    assert form.status_code == 415 and "application/json" in form.json()["error"]["message"]
    client.post("/v1/completions", json={**GREEDY, "prompt": "abc", "max_tokens": 2})
    lines = client.get("/metrics").text.splitlines()
    shown = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert shown['meta_requests_total{route="/v1/completions",status="415"}'] == "1"
    assert shown["meta_requests_running"] == shown["meta_requests_waiting"] == "0"
    infinite = int(shown['meta_request_seconds_bucket{le="+Inf"}'])
    assert infinite == int(shown["meta_request_seconds_count"]) > 0
    assert float(shown["meta_request_seconds_sum"]) > 0


def test_a_full_queue_and_the_limit_of_time(decoder: language.Decoder) -> None:
    """The engine does not move until all have asked."""
    engine = language.Engine(decoder, rows=1, length=LENGTH, chunk=32)
    engine.add([97], max_new_tokens=2, logit_bias={2: -100})
    while engine.running or engine.waiting:
        engine.step()  # compile
    gate, step = threading.Event(), engine.step

    def slow() -> list[language.Piece]:
        gate.wait()
        return step()

    engine.step = slow  # type: ignore[method-assign]
    server = Server(engine, "tiny", queue=2, seconds=0.3)
    body = {**GREEDY, "prompt": "a", "max_tokens": 100, "logit_bias": {"2": -100}}
    with TestClient(server.app) as client:
        found: list[httpx.Response] = []

        def ask(**more: Any) -> threading.Thread:
            def run() -> None:
                found.append(client.post("/v1/completions", json={**body, **more}))

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        first = ask(n=2)
        while len(engine.waiting) < 2:
            time.sleep(0.01)
        refused = client.post("/v1/completions", json={**body, "n": 2})
        assert refused.status_code == 429 and refused.headers["Retry-After"] == "1"
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        first.join()
        assert found[0].status_code == 504 and found[0].json()["error"]["code"] == "timeout"
        late = ask(stream=True)
        late.join()
        error = json.loads(found[1].text.split("\n\n")[-2].removeprefix("data: "))["error"]
        assert found[1].status_code == 200 and error["code"] == "timeout"
        gate.set()
        while engine.waiting or engine.running:
            time.sleep(0.01)
        again = client.post("/v1/completions", json={**body, "max_tokens": 2})
        assert again.status_code == 200
        assert "cancelled_total 3" in client.get("/metrics").text


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves(decoder: language.Decoder, stream: bool) -> None:
    """Its text is given up at once, though it would be written for long."""
    engine = language.Engine(decoder, rows=1, length=LENGTH, chunk=32)
    server = Server(engine, "tiny")
    body = {**GREEDY, "prompt": "a", "max_tokens": 100, "logit_bias": {"2": -100}, "stream": stream}
    sent: list[dict[str, Any]] = []
    left = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not sent and not left.is_set():
            left.set()
            return {"type": "http.request", "body": json.dumps(body).encode()}
        while len(engine.running) == 0 or len(engine.running[0].text.tokens) < 3:
            await asyncio.sleep(0.001)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def run() -> None:
        step = engine.step

        def slow() -> list[language.Piece]:
            time.sleep(0.02)
            return step()

        engine.step = slow  # type: ignore[method-assign]
        server.service.start()
        scope = {
            "type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"",
            "headers": [(b"content-type", b"application/json")], "asgi": {"spec_version": "2.3"},
        }  # fmt: skip
        await asyncio.wait_for(server.app(scope, receive, send), 60)
        while engine.running:
            await asyncio.sleep(0.01)
        server.service.close()

    asyncio.run(run())
    text = "".join(m.get("body", b"").decode() for m in sent)
    assert 'finish_reason": "' not in text and "[END_EVENT]" not in text
    assert "cancelled_total 1" in server.service.metrics.text()
    assert engine.pool.available >= engine.pool.blocks_of(LENGTH) - 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_fails(decoder: language.Decoder) -> None:
    engine = language.Engine(decoder, rows=1, length=LENGTH, chunk=32)

    def broken() -> list[language.Piece]:
        raise ZeroDivisionError

    engine.step = broken  # type: ignore[method-assign]
    with TestClient(Server(engine, "tiny").app) as client:
        found = client.post("/v1/completions", json={**GREEDY, "prompt": "a"})
        assert found.status_code == 500 and "ZeroDivisionError" in found.json()["error"]["message"]
        assert client.post("/v1/completions", json={**GREEDY, "prompt": "a"}).status_code == 503
        assert client.get("/health").status_code == 503


def test_models_without_a_template_or_a_tokenizer(engine: language.Engine, tmp_path: Path) -> None:
    server = Server(engine, "tiny")
    with TestClient(server.app) as client:
        body = {**GREEDY, "messages": [{"role": "user", "content": "a"}]}
        found = client.post("/v1/chat/completions", json=body)
        assert found.status_code == 400 and "no chat template" in found.json()["error"]["message"]
    written(tmp_path, "llama2")
    bare = language.Engine(language.load(tmp_path), rows=1, length=8)
    with pytest.raises(language.server.ArgumentError, match="needs the model's tokenizer"):
        Server(bare, "tiny")


def test_a_process(folder: Path, decoder: language.Decoder) -> None:
    """Many clients, some of which leave; then a signal ends it."""
    command = [sys.executable, "-m", "meta", "serve", str(folder), "--port", "0"]
    command += ["--rows", "4", "--length", "64", "--device", "cpu", "--name", "fox"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=first_on_path(ROOT))
    assert process.stderr is not None
    try:
        url = None
        while url is None:
            line = process.stderr.readline()
            assert line, "the server ended"
            match = re.search(r"http://127\.0\.0\.1:\d+", line)
            url = match and match[0]
        asyncio.run(_clients(url, decoder))
        _follow_the_page(url)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM), process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def _follow_the_page(url: str) -> None:
    """What the page tells to ask is answered, and its tables name what there is."""
    page = (ROOT / "docs" / "serving.md").read_text("utf-8")
    asked = [block for block in re.findall(r"```bash\n(.*?)```", page, re.S) if "curl" in block]
    for command in asked:
        local = f"curl -sSf {command.removeprefix('curl')}".replace("http://127.0.0.1:8000", url)
        found = subprocess.run(["bash", "-c", local], capture_output=True, text=True, check=True)
        if '"stream": true' in command:
            (last,) = events(found.stdout)[-1]["choices"]  # a slow reader gets fewer, longer events
            assert last["finish_reason"] == "length"
        else:
            assert json.loads(found.stdout)["usage"]["prompt_tokens"] == 9
    assert len(asked) == 2
    metrics = {f"meta_{name}" for name in HELPS}
    assert set(re.findall(r"`(meta_\w+)`", page)) == metrics
    missing = [key for key in {**OF_TEXTS, **OF_CHATS} if f"`{key}`" not in page]
    assert missing == ["user", "best_of", "echo", "suffix", "tool_choice", "response_format"]


async def _clients(url: str, decoder: language.Decoder) -> None:
    prompts = [f"prompt {i}" for i in range(16)]
    wanted = [language.generate(decoder, p, max_new_tokens=12).text for p in prompts]

    async def ask(client: httpx.AsyncClient, number: int) -> None:
        body = {**GREEDY, "model": "fox", "prompt": prompts[number], "max_tokens": 12}
        found = await client.post("/v1/completions", json=body)
        assert found.json()["choices"][0]["text"] == wanted[number]
        async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as s:
            text = ""
            async for line in s.aiter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                    if number % 4 == 0:
                        return  # and leave
        assert text == wanted[number]

    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        await asyncio.gather(*(ask(client, i) for i in range(len(prompts))))
        for _ in range(200):
            shown = (await client.get("/metrics")).text
            if "meta_requests_running 0" in shown and "meta_requests_waiting 0" in shown:
                break
            await asyncio.sleep(0.05)
        assert "meta_requests_running 0" in shown and "meta_requests_waiting 0" in shown
