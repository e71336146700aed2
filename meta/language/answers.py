"""Answers in the form of OpenAI's completions and chat routes, whole and in pieces."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from typing import Any

from meta.language.api import finite
from meta.language.engine import Request
from meta.language.generation import Piece

REASONS = {"end": "stop", "stop": "stop", "length": "length", None: None}
END_OF_STREAM = b"data: [END_EVENT]\n\n"


class Answers:
    """The answers of one request, whose choices are told by their index.

    chat: whether it is one of the chat route. logprobs: whether probabilities are told.
    """

    def __init__(self, tokenizer: Any, model: str, chat: bool, logprobs: bool) -> None:
        self._tokenizer, self._chat, self._logprobs = tokenizer, chat, logprobs
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"
        kind = "chat.completion" if chat else "text_completion"
        self._head = {"id": self.id, "created": int(time.time()), "model": model}
        self._whole = {**self._head, "object": kind}
        self._part = {**self._head, "object": f"{kind}.chunk" if chat else kind}
        self._begin = f"data: {json.dumps(self._part)[:-1]}, "
        self._offsets: dict[int, int] = {}

    def whole(
        self, requests: Sequence[Request], pieces: Sequence[Sequence[Piece]], prompts: int
    ) -> dict[str, Any]:
        """Return the answer, of all choices; prompts: how many tokens these have together."""
        choices = []
        for index, (request, own) in enumerate(zip(requests, pieces, strict=True)):
            text = request.text.written
            shown: dict[str, Any] = {"index": index}
            if self._chat:
                shown["message"] = {"role": "assistant", "content": text, "refusal": None}
            else:
                shown["text"] = text
            shown["logprobs"] = self._probabilities(index, own)
            shown["finish_reason"] = REASONS[request.reason]
            choices.append(shown)
        return {**self._whole, "choices": choices, "usage": usage(requests, prompts)}

    def opening(self, index: int) -> bytes:
        """Return the first event of a choice."""
        if not self._chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        return self._event([{"index": index, "delta": delta, "finish_reason": None}])

    def part(self, index: int, pieces: Sequence[Piece]) -> bytes:
        """Return an event of what pieces add to a choice; nothing where nothing is to be seen."""
        text, reason = "".join(p.text or "" for p in pieces), REASONS[pieces[-1].reason]
        if not (text or reason or self._logprobs):
            return b""
        shown: dict[str, Any] = {"index": index}
        if self._chat:
            shown["delta"] = {"content": text} if text else {}
        else:
            shown["text"] = text
        shown["logprobs"] = self._probabilities(index, pieces)
        shown["finish_reason"] = reason
        return self._event([shown])

    def counts(self, requests: Sequence[Request], prompts: int) -> bytes:
        """Return the event that says how many tokens there were."""
        return self._event([], usage=usage(requests, prompts))

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return f"{self._begin}{json.dumps({'choices': choices, **more})[1:]}\n\n".encode()

    def _probabilities(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        """Return what is told of the tokens of pieces; that which ends a text is not told."""
        if not self._logprobs:
            return None
        told = [p for p in pieces if p.token is not None and p.reason != "end"]
        if self._chat:
            return {"content": [self._probability(p) for p in told], "refusal": None}
        tokens = [self._shown(p.token) for p in told]
        offsets = []
        for token in tokens:
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [finite(p.logprob) for p in told],
            "top_logprobs": [
                {self._shown(t): finite(x) for t, x in p.alternatives} for p in told
            ] if any(p.alternatives for p in told) else None,
            "text_offset": offsets,
        }  # fmt: skip

    def _probability(self, piece: Piece) -> dict[str, Any]:
        found = self._one(piece.token, piece.logprob)
        return {**found, "top_logprobs": [self._one(t, x) for t, x in piece.alternatives]}

    def _one(self, token: int | None, logprob: float) -> dict[str, Any]:
        text = self._shown(token)
        return {"token": text, "logprob": finite(logprob), "bytes": list(text.encode())}

    def _shown(self, token: int | None) -> str:
        found: str = self._tokenizer.decode([token], skip_special_tokens=False)
        return found


def usage(requests: Sequence[Request], prompts: int) -> dict[str, int]:
    """Return how many tokens there were."""
    written = sum(len(r.text.tokens) for r in requests)
    return {
        "prompt_tokens": prompts,
        "completion_tokens": written,
        "total_tokens": prompts + written,
    }


def failure(body: dict[str, Any]) -> bytes:
    """Return the event of an error, which ends a stream."""
    return f"data: {json.dumps(body)}\n\n".encode()
