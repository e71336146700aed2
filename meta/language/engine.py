"""Continuous batching: texts enter and leave a batch while others are written.

Orca (Yu et al., OSDI 2022): what is scheduled is one step of the batch, not a request. One program
reads a token of each row, another one reads prompts in chunks, and a third chooses tokens. Keys and
values are in blocks of a pool, which texts take while they grow.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from meta import op
from meta.base.errors import ArgumentError
from meta.language.block_pool import BlockPool
from meta.language.cache import Cache
from meta.language.decoder import Decoder
from meta.language.generation import Piece, begun, tokens_of
from meta.language.prefixes import Prefixes
from meta.language.sampling import PENALTIES, Chooser, Sampling, takes_sampling
from meta.language.steps import BUCKET, Choices, Rows, Runner, Step, bucket
from meta.language.text import Text
from meta.model.zoo.rotary import steady_length
from meta.runtime.host_copies import HostCopy
from meta.runtime.ndarray import ndarray

GREEDY = Sampling()
MOST_ALTERNATIVES = 20
"""One program tells so many, whatever is asked for."""


class EngineStep(Step):
    """A step that tells, too, which tokens were most probable."""

    def choose_of(self, scores: Any, rows: Rows, most: int) -> tuple[Any, ...]:
        """Return what `choose` does, then the most probable tokens [n, most] and the logarithms of
        their probabilities.
        """
        found = self.choose(scores, rows)
        if not most:
            return found
        return (*found, *op.topk(op.log_softmax(scores, -1), most, -1)[::-1])


class Request:
    """A text that an engine writes.

    Attributes
    ----------
    number: of the request; pieces have it as their ``row``. prompt: its tokens. text: what was
    written (`tokens`, `logprobs`, `written`). reason: why the text ended, as `Completion` says it,
    "cancelled", or "failed" where scores are no numbers, as of weights that overflow; None before.

    >>> rope = {"rope_type": "default", "rope_theta": 1e4}
    >>> model = meta.language.Decoder(meta.language.DecoderConfig(
    ...     vocab_size=11, hidden_size=8, inner=12, heads=2, key_value_heads=1, head_width=4,
    ...     windows=(None,), rotary=(rope,), experts=(None,), rotary_width=4, scale=0.5, eps=1e-6,
    ...     max_positions=32))
    >>> request = meta.language.Engine(model, rows=1, length=32).add([1, 2, 3], max_new_tokens=4)
    >>> request.prompt, request.tokens, request.reason  # no step has been done
    ([1, 2, 3], [1, 2, 3], None)
    """

    def __init__(
        self,
        number: int,
        prompt: list[int],
        text: Text,
        numbers: dict[str, np.ndarray],
        bias: np.ndarray | None,
        limit: int,
        alternatives: int,
    ) -> None:
        self.number, self.prompt, self.text = number, prompt, text
        self.numbers, self.bias, self.limit = numbers, bias, limit
        self.alternatives = alternatives
        self.row: int | None = None
        self.begin: list[int] = []  # what is to be read before the next token
        self.blocks: list[int] = []
        self.read = 0  # how many of its tokens the cache has
        self.asked = 0  # how many of its tokens were asked of the device
        self.stays = 0  # how often it got a row

    @property
    def tokens(self) -> list[int]:
        """The prompt and what was written."""
        return self.prompt + self.text.tokens

    @property
    def writes(self) -> bool:
        """Whether its prompt is read, and the token behind it chosen, but not the last one."""
        return self.row is not None and 0 < self.asked < self.limit

    @property
    def reason(self) -> str | None:
        """Return why it ended."""
        return self.text.reason


def longest_text(decoder: Decoder) -> int | None:
    """Return how long a text may be in an engine; None for no limit."""
    ropes = [rope for rope in decoder.config.rotary if rope is not None]
    limits = [decoder.config.positions, *(steady_length(rope) for rope in ropes)]
    return min((n for n in limits if n), default=None)


class Engine:
    """Writes many texts at once, which come and go.

    decoder: of `load`. rows: how many texts are written at once; others wait. length: of the
    longest text, with its prompt; 2048 unless given, or what there are positions for. Positions
    that are stretched by a text's length ("dynamic", "longrope") have a limit: what is read in
    chunks, and shared, must not change when a text grows. blocks, block_size: of the `BlockPool`
    that keeps what was read; enough for ``rows`` texts of ``length`` unless given. Where it is
    full, the text that came last waits again. What texts begin with is read once as long as there
    is room. chunk: prompts are read by so many tokens between two tokens of the others.

    A text is what `generate` writes with the same options and seed alone, whatever else is written.
    All programs are compiled once: for the rows, for each of a few lengths of chunks, and for each
    of a few ways to choose. An engine is used by one thread at a time.

    Attributes
    ----------
    waiting, running: the requests that wait for a row, and those that have one. late: whether a
    step returns the pieces of the one before, so that a GPU never waits for the host.

    >>> from meta.language import Decoder, DecoderConfig, Engine
    >>> rope = {"rope_type": "default", "rope_theta": 1e4}
    >>> engine = Engine(Decoder(DecoderConfig(
    ...     vocab_size=11, hidden_size=8, inner=12, heads=2, key_value_heads=1, head_width=4,
    ...     windows=(None,), rotary=(rope,), experts=(None,), rotary_width=4, scale=0.5, eps=1e-6,
    ...     max_positions=32)), rows=2, length=32)
    >>> requests = [engine.add([1, 2, 3], max_new_tokens=n) for n in (4, 2, 3)]
    >>> while engine.running or engine.waiting:
    ...     pieces = engine.step()
    >>> [len(request.text.tokens) for request in requests]
    [4, 2, 3]
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        rows: int = 8,
        length: int | None = None,
        blocks: int | None = None,
        block_size: int = 16,
        chunk: int = 256,
    ) -> None:
        longest = longest_text(decoder)
        length = min(2048, longest or 2048) if length is None else length
        if min(rows, length) < 1 or length > (longest or length):
            raise ArgumentError(
                "an engine has rows, and a length for which a model's positions are fixed",
                expected=f"rows >= 1, 1 <= length <= {longest or 'any'}",
                found=f"rows={rows}, length={length}",
            )
        if chunk != bucket(chunk) or chunk == 1:
            raise ArgumentError(
                "chunk is a length that programs are made for",
                expected=f"{bucket(max(chunk, BUCKET))}, say",
                found=chunk,
            )
        each = -(-length // max(block_size, 1))
        if blocks is not None and blocks < each:
            raise ArgumentError(
                "the longest text has more blocks than there are", expected=each, found=blocks
            )
        self.decoder, self.rows, self.length, self.chunk = decoder, rows, length, chunk
        self.pool = BlockPool(decoder, rows * each if blocks is None else blocks, block_size)
        self._prefixes = Prefixes(self.pool)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._count, self._vocabulary = 0, decoder.config.vocab_size
        self._free = list(range(rows))[::-1]
        self._cache, row = Cache(rows, self.pool), Cache(1, self.pool)
        for cache in (self._cache, row):
            cache.reserve(decoder, length, [0] * len(cache.tokens))
        self._table = self.pool.table([[]] * rows, length)
        numbers = GREEDY.rows(rows, self._vocabulary)
        plain = Chooser.of(numbers, self._vocabulary)
        self._decode = Runner(decoder, self._cache, replace(plain, penalties=True), Step)
        self._read = Runner(decoder, row, plain, Step)
        self._choosers: dict[Chooser, Runner] = {}
        self._device = self._cache.arrays[0].device
        self.late = self._device.type != "cpu"
        self._values = {name: self._array(x) for name, x in numbers.items()}
        self._bias = self._array(np.zeros((rows, self._vocabulary), np.float32))
        self._tokens = self._array(np.zeros((rows, 1), np.int64))
        self._scores = self._array(np.zeros((rows, self._vocabulary), np.float32))
        self._asked: list[Request] = []  # by the last step
        self._writing, self._one, self._changed = list[Request](), self._tokens, True
        self._behind: tuple[list[tuple[Request, int, int]], HostCopy] | None = None

    @takes_sampling
    def add(
        self,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int = 128,
        stop: str | Sequence[str] = (),
        end_tokens: Sequence[int] | None = None,
        alternatives: int = 0,
        **sampling: Any,
    ) -> Request:
        """Let a text be written; options as those of `generate`, each of one value. alternatives:
        how many of the most probable tokens pieces have, at most `MOST_ALTERNATIVES`.

        It waits for a row, in the order of the calls. Another thread may add while one calls
        `step`. ArgumentError for what does not fit.
        """
        tokens = tokens_of(self.decoder, prompt)
        text = begun(self.decoder, max_new_tokens, stop, end_tokens)
        if not tokens:
            raise ArgumentError("a prompt is empty", expected="at least one token to go on from")
        if max_new_tokens < 1 or len(tokens) + max_new_tokens > self.length:
            raise ArgumentError(
                "a prompt and what is to be written do not fit in the engine's texts",
                expected=f"at least one new token, and at most {self.length} in all",
                found=f"{len(tokens)} of the prompt, max_new_tokens={max_new_tokens}",
            )
        most = min(MOST_ALTERNATIVES, self._vocabulary)
        if not 0 <= alternatives <= most:
            raise ArgumentError("alternatives is out of range", expected=most, found=alternatives)
        chosen = Sampling(**sampling)
        numbers = chosen.rows(1, self._vocabulary)
        bias = numbers.pop("bias", None)
        self._count += 1
        request = Request(self._count, tokens, text, numbers, bias, max_new_tokens, alternatives)
        self.waiting.append(request)
        return request

    def compile(self) -> None:
        """Compile now what most requests need, which else their first ones wait for: all but
        penalties, biases and alternatives. Nothing may be written meanwhile.
        """
        longest, none = min(self.chunk, bucket(self.length)), self._array(np.zeros(1, np.int64))
        for steps in sorted({bucket(n) for n in range(BUCKET, longest + 1, BUCKET)}):
            tokens = self._array(np.zeros((1, steps), np.int64))
            for fresh in (True, False):
                self._read("scores", tokens, none, fresh=fresh)
        self._decode("scores", self._tokens, self._array(np.zeros(self.rows, np.int64)))
        for sampling in (GREEDY, Sampling(1.0), Sampling(1.0, top_p=0.5), Sampling(1.0, top_k=1)):
            numbers = sampling.rows(1, self._vocabulary)
            runner = self._chooser(Chooser.of(numbers, self._vocabulary))
            runner("choose_of", self._scores, self._values, most=0)

    def cancel(self, request: Request) -> None:
        """End a text; nothing more comes of it. One that has ended stays as it is."""
        if request.reason is None:
            request.text.reason = "cancelled"
            if request.row is None:
                self.waiting.remove(request)
            else:
                self._leave(request)

    def step(self) -> list[Piece]:
        """Read a chunk of a prompt, choose a token for each row, and return the pieces.

        Those of the step before, if `late`.
        """
        self._enter()
        scores, writing = self._scores, self._growing()
        if writing:
            self._bind(writing)
            scores = self._decode("scores", self._tokens, self._one)
            for request in writing:
                request.read += 1
        asked = writing + self._read_prompts(scores)
        found = None
        if asked:
            found = self._chosen(asked, scores)
            self._tokens = ndarray(found[0].tensor.reshape(-1, 1))
            for request in asked:
                request.asked += 1
        values = HostCopy(x.tensor for x in found or ())
        launched = [(r, r.row or 0, r.stays) for r in asked], values
        if not self.late:
            return self._handed(*launched)
        behind, self._behind = self._behind, launched if asked else None
        return [] if behind is None else self._handed(*behind)

    def _array(self, values: Any) -> ndarray:
        return ndarray(torch.from_numpy(values).to(self._device))

    def _bind(self, writing: list[Request]) -> None:
        """Say on the device which rows read a token, and what blocks they have."""
        table = self._decode.state.table
        assert table is not None
        if self._changed:
            table.tensor.copy_(self._table)
            self._changed = False
        if writing != self._writing:
            rows = np.zeros(self.rows, np.int64)
            rows[[r.row or 0 for r in writing]] = 1
            self._writing, self._one = writing, self._array(rows)

    def _enter(self) -> None:
        """Give free rows to those who wait, while there are blocks for what they begin with."""
        while self._free and self.waiting:
            request = self.waiting[0]
            begin = request.tokens
            request.blocks = self._prefixes.find(begin)
            read = len(request.blocks) * self.pool.block_size
            if not self._took(request, len(begin) + 1):
                self.pool.free(request.blocks)
                return
            self.waiting.popleft()
            request.row, request.begin = self._free.pop(), begin
            request.read, request.asked = read, 0
            request.stays += 1
            self._show(request)
            self.running.append(request)

    def _took(self, request: Request, tokens: int) -> bool:
        """Whether there are blocks for so many tokens of a request, which it takes."""
        count = self.pool.blocks_of(min(tokens, self.length)) - len(request.blocks)
        if count > 0:
            if not self._prefixes.give_up(count):
                return False
            request.blocks += self.pool.allocate(count)
        return True

    def _show(self, request: Request) -> None:
        """Write the blocks of a request to the table."""
        self._table[request.row, : len(request.blocks)] = torch.tensor(request.blocks)
        self._changed = True

    def _growing(self) -> list[Request]:
        """Return the requests whose next token is to be read, each with a block for it. Where none
        is left, the last ones that came wait again.
        """
        for request in [r for r in self.running if r.writes]:
            count = len(request.blocks)
            while request.row is not None and not self._took(request, request.read + 1):
                last = self.running[-1]
                self._leave(last)
                self.waiting.appendleft(last)
            if request.row is not None and len(request.blocks) > count:
                self._show(request)
        return [r for r in self.running if r.writes]

    def _leave(self, request: Request) -> None:
        """Free the row and the blocks of a request."""
        assert request.row is not None
        read = request.tokens[: request.read]
        self._prefixes.keep(read, request.blocks)
        self.pool.free(request.blocks)
        self._free.append(request.row)
        self.running.remove(request)
        request.row, request.blocks = None, []

    def _read_prompts(self, scores: ndarray) -> list[Request]:
        """Read on in prompts, by one chunk or as many whole ones as are not longer together; return
        the requests whose prompts end here, with the scores in their rows.
        """
        ended, left = [], self.chunk
        for request in [r for r in self.running if r.read < len(r.begin)]:
            part = request.begin[request.read : request.read + self.chunk]
            steps = max(BUCKET, bucket(len(part)))
            if steps > left:
                break
            left -= steps
            found = self._read_part(request, part, steps)
            request.read += len(part)
            if request.read == len(request.begin):
                scores.tensor[request.row] = found.tensor[0]
                self._prefixes.keep(request.begin, request.blocks)
                self._begin(request)
                ended.append(request)
        return ended

    def _read_part(self, request: Request, part: list[int], steps: int) -> ndarray:
        """Read tokens of a prompt, padded to ``steps``; return the scores behind them."""
        state, row = self._read.state, request.row
        assert row is not None and state.table is not None
        tokens = np.zeros((1, steps), np.int64)
        tokens[0, : len(part)] = part
        read = self._array(np.array([len(part)]))
        state.table.tensor.copy_(self._table[row : row + 1])
        state.lengths.tensor.fill_(request.read)
        found: ndarray = self._read("scores", self._array(tokens), read, fresh=request.read == 0)
        return found

    def _begin(self, request: Request) -> None:
        """Let a row choose as a request asks, behind what it begins with."""
        state, row = self._decode.state, request.row
        assert state.known is not None and state.counts is not None
        request.asked = len(request.begin) - len(request.prompt)
        state.lengths.tensor[row] = request.read
        for name, values in request.numbers.items():
            self._values[name].tensor[row] = values[0].item()
        if any(request.numbers[name] != none for name, none in PENALTIES.items()):
            written = torch.tensor(request.begin[len(request.prompt) :], dtype=torch.int64)
            counts = torch.bincount(written, minlength=self._vocabulary)
            state.known.tensor[row] = False
            state.known.tensor[row, request.prompt] = True
            state.counts.tensor[row] = counts.to(self._device, torch.int32)
        self._bias.tensor[row] = 0.0 if request.bias is None else torch.from_numpy(request.bias[0])

    def _chosen(self, requests: list[Request], scores: ndarray) -> Choices:
        """Return the next tokens of all rows, as the requests want them."""
        if requests != self._asked:
            numbers = {n: np.concatenate([r.numbers[n] for r in requests]) for n in self._values}
            biases = [r.bias for r in requests if r.bias is not None]
            rows = {**numbers, "bias": biases[0]} if biases else numbers
            self._choose = self._chooser(Chooser.of(rows, self._vocabulary))
            self._asked = requests
            self._rows = {**self._values, "bias": self._bias} if biases else self._values
        most = min(MOST_ALTERNATIVES, self._vocabulary) * any(r.alternatives for r in requests)
        found: Choices = self._choose("choose_of", scores, self._rows, most=most)
        return found

    def _chooser(self, chooser: Chooser) -> Runner:
        """Return what chooses so, for all rows."""
        if chooser not in self._choosers:
            state = self._decode.state
            made = Runner(self.decoder, self._cache, chooser, EngineStep, state)
            self._choosers[chooser] = made
        return self._choosers[chooser]

    def _handed(self, asked: list[tuple[Request, int, int]], values: HostCopy) -> list[Piece]:
        """Return what tokens add to texts."""
        if not asked:
            return []
        tokens, logprobs, *most = values.values()
        pieces = []
        for request, row, stay in asked:
            if request.row is None or request.stays != stay:
                continue  # it left while this was computed
            pieces.append(self._piece(request, tokens[row], logprobs[row], [x[row] for x in most]))
            if request.reason is not None:
                self._leave(request)
        return pieces

    def _piece(self, request: Request, token: int, logprob: float, most: list[Any]) -> Piece:
        """Return what a token adds to a text."""
        if math.isnan(logprob):
            request.text.reason = "failed"
            return Piece(request.number, None, None, logprob, request.reason)
        added = request.text.add(token, logprob)
        shown = None if self.decoder.tokenizer is None else added
        others = tuple(zip(*(x[: request.alternatives] for x in most), strict=True))
        return Piece(request.number, token, shown, logprob, request.reason, False, others)
