"""A server with OpenAI's routes for completions and chats, of one model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from meta.base.errors import ArgumentError
from meta.base.metrics import TEXT_FORM
from meta.language.answers import END_OF_STREAM, Answers, failure
from meta.language.api import Order, RequestError, order_of, parsed, seeds
from meta.language.chat import ChatTemplate
from meta.language.engine import Engine
from meta.language.generation import Piece
from meta.language.service import Reply, Service

BODY_SECONDS, RETRY_SECONDS = 30.0, 1
LONG_BODY = 8192
"""Texts of longer ones become tokens in another thread."""


class _Stream(StreamingResponse):
    """Events of a reply, which ends with the response, however that ends."""

    def __init__(self, reply: Reply, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self.headers["Cache-Control"] = "no-cache"
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._reply.cancel()


class Server:
    """The routes, over a service.

    name: of the model. template: of chats, None if the model has none. most_bytes: of a body.
    `app` is the application, of ASGI.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        template: ChatTemplate | None = None,
        *,
        queue: int = 64,
        seconds: float = 600.0,
        most_bytes: int = 4 << 20,
    ) -> None:
        if engine.decoder.tokenizer is None:
            raise ArgumentError(
                "a server needs the model's tokenizer", hint="a folder with tokenizer.json"
            )
        self.service = Service(engine, queue=queue, seconds=seconds)
        self._engine, self._tokenizer = engine, engine.decoder.tokenizer
        self._name, self._template, self._most = name, template, most_bytes
        self._created = int(time.time())
        self.app = self._application()

    def _application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/completions", self._completions, methods=["POST"]),
                Route("/v1/chat/completions", self._chats, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._model),
                Route("/metrics", self._metrics),
                Route("/health", self._health),
            ],
            exception_handlers={
                RequestError: self._refused,  # type: ignore[dict-item]
                HTTPException: self._no_route,  # type: ignore[dict-item]
                ClientDisconnect: self._gone,  # type: ignore[dict-item]
                Exception: self._broken,
            },
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.service.start()
        try:
            yield
        finally:
            self.service.close()

    async def _completions(self, request: HttpRequest) -> Response:
        return await self._answered(request, chat=False)

    async def _chats(self, request: HttpRequest) -> Response:
        return await self._answered(request, chat=True)

    async def _models(self, request: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def _model(self, request: HttpRequest) -> Response:
        self._require_model(request.path_params["name"])
        return JSONResponse(self._described())

    async def _metrics(self, request: HttpRequest) -> Response:
        return PlainTextResponse(self.service.metrics.text(), media_type=TEXT_FORM)

    async def _health(self, request: HttpRequest) -> Response:
        if self.service.failed is not None:
            raise RequestError("the engine does not run", status=503, kind="server_error")
        return JSONResponse({"status": "ok"})

    def _described(self) -> dict[str, Any]:
        return {"id": self._name, "object": "model", "created": self._created, "owned_by": "meta"}

    def _require_model(self, name: str) -> None:
        if name != self._name:
            raise RequestError(
                "there is no such model", status=404, param="model", code="model_not_found",
                expected=self._name, found=name[:80],
            )  # fmt: skip

    async def _answered(self, request: HttpRequest, chat: bool) -> Response:
        body = await self._body(request)
        what = order_of(parsed(body), chat)
        self._require_model(what.model)
        self.service.require_room(max(len(what.prompts), 1) * what.choices)
        if len(body) > LONG_BODY:
            prompts = await asyncio.to_thread(self._tokens, what)
        else:
            prompts = self._tokens(what)
        reply = self._begun(what, prompts)
        answers = Answers(self._tokenizer, self._name, chat, what.alternatives is not None)
        count = sum(map(len, prompts))
        if what.stream:
            self._counted(request, 200)
            return _Stream(reply, self._events(reply, answers, count if what.usage else None))
        try:
            pieces = await _until_disconnect(request, _collected(reply))
        finally:
            reply.cancel()
        self._counted(request, 200)
        return JSONResponse(answers.whole(reply.requests, pieces, count))

    async def _body(self, request: HttpRequest) -> bytes:
        """Return the body, of JSON by its type, which no page of another site can send."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestError(
                "the body is JSON, and its type says so", status=415,
                expected="Content-Type: application/json", found=kind[:80] or "none",
            )  # fmt: skip

        large = RequestError(
            "the body is too large", status=413, expected=f"{self._most} bytes at most"
        )
        if int(request.headers.get("content-length", 0)) > self._most:
            raise large

        async def read() -> bytes:
            found = bytearray()
            async for part in request.stream():
                found += part
                if len(found) > self._most:
                    raise large
            return bytes(found)

        try:
            return await asyncio.wait_for(read(), BODY_SECONDS)
        except asyncio.TimeoutError:
            raise RequestError("the body does not come", status=408) from None

    def _tokens(self, what: Order) -> list[list[int]]:
        """Return the tokens of prompts; a template writes special tokens itself."""
        prompts, special = what.prompts, True
        if what.messages:
            if self._template is None:
                raise RequestError(
                    "this model has no chat template", hint="/v1/completions", param="messages"
                )
            prompts, special = [self._template(what.messages)], False
        encode = self._tokenizer.encode
        return [
            encode(prompt, add_special_tokens=special).ids if isinstance(prompt, str) else prompt
            for prompt in prompts
        ]

    def _begun(self, what: Order, prompts: list[list[int]]) -> Reply:
        """Let the engine write all choices of a request."""
        options, several = [], []
        for prompt in prompts:
            left = self._engine.length - len(prompt)
            limit = max(left, 1) if what.limit is None else what.limit
            if limit > left:
                raise RequestError(
                    "the prompt and what is to be written are longer than the model's texts",
                    param="messages" if what.messages else "prompt",
                    code="context_length_exceeded",
                    expected=f"{self._engine.length} tokens at most",
                    found=f"{len(prompt)} of the prompt, {limit} to be written",
                )
            for seed in seeds(what.options.get("seed"), what.choices):
                several.append(prompt)
                own = {**what.options, "seed": seed, "max_new_tokens": limit}
                options.append({**own, "alternatives": what.alternatives or 0})
        return self.service.begin(several, options)

    async def _events(
        self, reply: Reply, answers: Answers, prompts: int | None
    ) -> AsyncIterator[bytes]:
        """Yield the events of a stream; prompts: the count of their tokens, if it is told."""
        try:
            yield b"".join(answers.opening(i) for i in range(len(reply.requests)))
            while found := await reply.pieces():
                yield b"".join(answers.part(i, own) for i, own in _by_index(found).items())
        except RequestError as error:
            yield failure(error.body())
            return
        if prompts is not None:
            yield answers.counts(reply.requests, prompts)
        yield END_OF_STREAM

    def _counted(self, request: HttpRequest, status: int) -> None:
        route = request.scope.get("route")
        path = getattr(route, "path", "none")
        self.service.metrics.count("requests_total", route=path, status=str(status))

    async def _refused(self, request: HttpRequest, error: RequestError) -> Response:
        self._counted(request, error.status)
        headers = {"Retry-After": str(RETRY_SECONDS)} if error.status == 429 else None
        return JSONResponse(error.body(), error.status, headers)

    async def _no_route(self, request: HttpRequest, error: HTTPException) -> Response:
        told = RequestError(
            error.detail, status=error.status_code, found=f"{request.method} {request.url.path}"
        )
        return await self._refused(request, told)

    async def _gone(self, request: HttpRequest, error: ClientDisconnect) -> Response:
        self._counted(request, 499)
        return Response(status_code=499)

    async def _broken(self, request: HttpRequest, error: Exception) -> Response:
        told = RequestError(
            "the server failed", status=500, kind="server_error", found=type(error).__name__
        )
        return await self._refused(request, told)


def _by_index(pieces: list[tuple[int, Piece]]) -> dict[int, list[Piece]]:
    found: dict[int, list[Piece]] = {}
    for index, piece in pieces:
        found.setdefault(index, []).append(piece)
    return found


async def _collected(reply: Reply) -> list[list[Piece]]:
    """Return all pieces of each choice."""
    pieces: list[list[Piece]] = [[] for _ in reply.requests]
    while found := await reply.pieces():
        for index, piece in found:
            pieces[index].append(piece)
    return pieces


async def _until_disconnect(request: HttpRequest, work: Any) -> Any:
    """Return what a coroutine returns; ClientDisconnect once nobody waits for it."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
