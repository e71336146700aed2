"""A text while it is written: tokens to characters, and where it ends."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

INCOMPLETE = "\ufffd"
"""What tokenizers write for the first bytes of a character."""


class Text:
    """What was written after one prompt.

    Attributes
    ----------
    tokens, logprobs: of what was written. guessed: how many of the tokens a draft had. written: the
    characters that were handed out. reason: why it ended, None before. end_tokens: what ends it.
    """

    def __init__(
        self, tokenizer: Any, limit: int, end_tokens: Sequence[int], stop: Sequence[str]
    ) -> None:
        self._tokenizer, self._limit = tokenizer, limit
        self.end_tokens, self._stop = frozenset(end_tokens), tuple(stop)
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.guessed = 0
        self.written, self._pending = "", ""
        self._begin = self._decoded = 0  # of the tokens that are decoded together
        self.reason: str | None = "length" if limit == 0 else None

    def fork(self) -> Text:
        """Return a copy, to go on otherwise."""
        found = copy.copy(self)
        found.tokens, found.logprobs = list(self.tokens), list(self.logprobs)
        return found

    def add(self, token: int, logprob: float, guessed: bool = False) -> str:
        """Add a token; return the characters that are now known to belong to the text."""
        if token in self.end_tokens:
            self.reason = "end"
            return self._flushed()
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.guessed += guessed
        self._pending += self._new_characters()
        found = self._cut()
        if self.reason is None and len(self.tokens) == self._limit:
            self.reason = "length"
            return found + self._flushed()
        return found

    def _new_characters(self) -> str:
        """Return the characters of tokens that were not decoded yet, once they are complete.

        A token's characters depend on those before it, so that some of these are decoded again.
        """
        if self._tokenizer is None:
            return ""
        decode, tokens = self._tokenizer.decode, self.tokens
        before: str = decode(tokens[self._begin : self._decoded])
        now: str = decode(tokens[self._begin :])
        if now.endswith(INCOMPLETE) or len(now) <= len(before):
            return ""
        self._begin, self._decoded = self._decoded, len(tokens)
        return now[len(before) :]

    def _cut(self) -> str:
        """Hand out what cannot be the beginning of a stop; end before one."""
        at = min((i for i in map(self._pending.find, self._stop) if i >= 0), default=-1)
        if at >= 0:
            self.reason, self._pending = "stop", self._pending[:at]
            return self._handed(len(self._pending))
        longest = min(len(self._pending), max(map(len, self._stop), default=1) - 1)
        held = next((n for n in range(longest, 0, -1) if self._may_stop(self._pending[-n:])), 0)
        return self._handed(len(self._pending) - held)

    def _may_stop(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self._stop)

    def _flushed(self) -> str:
        """Hand out what is left, which is followed by nothing."""
        if self._tokenizer is not None and self._decoded < len(self.tokens):
            decode = self._tokenizer.decode
            before = decode(self.tokens[self._begin : self._decoded])
            self._pending += decode(self.tokens[self._begin :])[len(before) :]
            self._decoded = len(self.tokens)
        return self._handed(len(self._pending))

    def _handed(self, count: int) -> str:
        found, self._pending = self._pending[:count], self._pending[count:]
        self.written += found
        return found
