"""An engine in a thread of its own, for coroutines that wait for its texts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from meta.base.errors import ArgumentError, MetaError
from meta.base.metrics import Metrics
from meta.language.api import RequestError
from meta.language.engine import Engine, Request
from meta.language.generation import Piece

HELPS = {
    "requests_total": "Requests by route and status.",
    "prompt_tokens_total": "Tokens of prompts that were taken.",
    "generated_tokens_total": "Tokens that were written.",
    "cancelled_total": "Texts that a client, a limit or the end of the server ended.",
    "requests_running": "Texts that are written.",
    "requests_waiting": "Texts that wait for a row.",
    "blocks_free": "Blocks of the cache that hold nothing.",
    "first_token_seconds": "From a request to its first token.",
    "token_seconds": "Between two tokens of a text.",
    "request_seconds": "From a request to the end of its text.",
}


class Reply:
    """The texts of one request of a client, while they are written.

    Attributes
    ----------
    requests: of the engine, one for each choice.
    """

    def __init__(self, service: Service, requests: list[Request]) -> None:
        self._service, self.requests = service, requests
        self._pieces: list[tuple[int, Piece]] = []
        self._changed, self._open = asyncio.Event(), len(requests)
        self._error: RequestError | None = None
        self.begin = time.monotonic()
        self.last = [self.begin] * len(requests)
        took = f"{service.seconds:g} s"
        late = _failure("the time for a request is over", 504, code="timeout", expected=took)
        self.timer = asyncio.get_running_loop().call_later(service.seconds, self.fail, late)

    async def pieces(self) -> list[tuple[int, Piece]]:
        """Return what came since the last call, with the index of the choice; [] after the end.

        RequestError if the texts end otherwise.
        """
        if self._open or self._pieces:
            await self._changed.wait()
        self._changed.clear()
        if self._error is not None:
            raise self._error
        found, self._pieces = self._pieces, []
        self._open -= sum(piece.reason is not None for _, piece in found)
        return found

    def give(self, index: int, piece: Piece) -> None:
        """Add a piece of a choice."""
        self._pieces.append((index, piece))
        self._changed.set()

    def fail(self, error: RequestError) -> None:
        """End it with an error."""
        self._error = error
        self._changed.set()
        self.cancel()

    def cancel(self) -> None:
        """End what is still written."""
        self._service.cancel(self)


class Service:
    """Lets an engine write in a thread while there is something to write.

    queue: how many texts may wait for a row. seconds: how long a reply may take. Its methods are
    for the thread of the event loop. ArgumentError for a decoder that is divided among ranks.
    """

    def __init__(self, engine: Engine, *, queue: int = 64, seconds: float = 600.0) -> None:
        splits = engine.decoder.cache_placement(1, 1).splits
        if splits:  # the others would wait for a request for ever
            raise ArgumentError(
                "a server has a decoder of one rank",
                found=f"ranks along {splits[0].over!r} have parts of it",
                hint="an Engine on each of them, to which all add the same",
            )
        self.engine, self.queue, self.seconds = engine, queue, seconds
        self.metrics = Metrics(HELPS)
        self.metrics.gauge("requests_running", lambda: len(engine.running))
        self.metrics.gauge("requests_waiting", lambda: len(engine.waiting))
        self.metrics.gauge("blocks_free", lambda: engine.pool.available)
        self.failed: BaseException | None = None
        self._replies: dict[int, tuple[Reply, int]] = {}
        self._cancelled: deque[Request] = deque()
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="meta engine", daemon=True)

    def start(self) -> None:
        """Begin, in the event loop that calls."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def close(self) -> None:
        """End all texts and the thread."""
        self._fail_all(_failure("the server is shutting down", 503))
        self._closing = True
        self._wake.set()
        self._thread.join()

    def require_room(self, count: int) -> None:
        """Raise RequestError if so many texts cannot wait now."""
        engine, most = self.engine, self.queue + self.engine.rows
        if self.failed is not None or self._closing:
            raise _failure("the engine does not run", 503)
        if count > most:
            raise RequestError("too many texts at once", expected=most, found=count)
        if count > most - len(engine.running) - len(engine.waiting):
            raise RequestError(
                "too many texts wait", status=429, kind="rate_limit_error",
                code="rate_limit_exceeded", hint="again, later",
            )  # fmt: skip

    def begin(self, prompts: Sequence[list[int]], options: Sequence[dict[str, Any]]) -> Reply:
        """Let texts be written after tokens; options: of `Engine.add`, of each.

        RequestError if there is no room to wait, or for what does not fit.
        """
        self.require_room(len(prompts))
        added: list[Request] = []
        try:
            for prompt, own in zip(prompts, options, strict=True):
                added.append(self.engine.add(prompt, **own))
        except MetaError as error:
            self._cancelled.extend(added)
            self._wake.set()
            raise RequestError.of(error) from error
        reply = Reply(self, added)
        for index, request in enumerate(added):
            self._replies[request.number] = reply, index
        self.metrics.count("prompt_tokens_total", sum(map(len, prompts)))
        self._wake.set()
        return reply

    def cancel(self, reply: Reply) -> None:
        """End what is left of a reply."""
        reply.timer.cancel()
        left = [r for r in reply.requests if self._replies.pop(r.number, None) is not None]
        if left:
            self.metrics.count("cancelled_total", len(left))
            self._cancelled.extend(left)
            self._wake.set()

    def _run(self) -> None:
        """Run the engine; what it raises ends all replies."""
        engine = self.engine
        try:
            while not self._closing:
                self._wake.clear()
                while self._cancelled:
                    engine.cancel(self._cancelled.popleft())
                if not (engine.running or engine.waiting):
                    self._wake.wait()
                    continue
                pieces = engine.step()
                if pieces:
                    self._loop.call_soon_threadsafe(self._deliver, pieces)
        except BaseException as error:
            self._loop.call_soon_threadsafe(self._fail, error)
            raise

    def _deliver(self, pieces: list[Piece]) -> None:
        now = time.monotonic()
        self.metrics.count("generated_tokens_total", len(pieces))
        for piece in pieces:
            known = self._replies.get(piece.row)
            if known is None:
                continue  # it was cancelled in the meantime
            reply, index = known
            first = reply.last[index] == reply.begin
            name = "first_token_seconds" if first else "token_seconds"
            self.metrics.observe(name, now - reply.last[index])
            reply.last[index] = now
            if piece.reason == "failed":
                reply.fail(_failure("the scores of a text are no numbers", 500))
                continue
            reply.give(index, piece)
            if piece.reason is not None:
                del self._replies[piece.row]
                self.metrics.observe("request_seconds", now - reply.begin)

    def _fail(self, error: BaseException) -> None:
        self.failed = error
        self._fail_all(_failure("the engine failed", 500, found=type(error).__name__))

    def _fail_all(self, error: RequestError) -> None:
        for reply, _ in list(self._replies.values()):
            reply.fail(error)


def _failure(what: str, status: int, **details: Any) -> RequestError:
    """Return an error that is no fault of the client."""
    return RequestError(what, status=status, kind="server_error", **details)
