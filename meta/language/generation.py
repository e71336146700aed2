"""Writing on: prompts are read in one program, then tokens are drawn one by one in another.

Both are the same step, of many tokens of each text or of one: it reads tokens, writes the cache and
chooses what is next, all on the device. The host looks at a token while the next one is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from meta import op
from meta.base.errors import ArgumentError
from meta.language.cache import Cache
from meta.language.decoder import Decoder
from meta.language.sampling import Chooser, Sampling
from meta.language.text import Text
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core.function import device_of
from meta.runtime import random
from meta.runtime.buffer_replacement import replace_buffer
from meta.runtime.ndarray import as_array, ndarray
from meta.vm import compile as compile_program

Constraint = Callable[[ndarray, list[list[int]]], Any]
"""Changes scores [n, vocabulary], for the tokens that each text has, its prompt first."""
BUCKET, LARGEST_BUCKET = 16, 512
"""Prompts are padded to powers of two between these lengths, then to multiples of the latter."""
SLOTS = 256
"""Caches grow by so many tokens."""


@dataclass(frozen=True)
class Piece:
    """A token of a text that is written.

    row: of the prompts. token: its number, None where the text ended with what is held back.
    text: what is new of the text, empty while a character is incomplete, None without a tokenizer.
    logprob: the logarithm of the token's probability, before penalties and temperature. reason: why
    the text ends here, as `Completion` says it, else None.
    """

    row: int
    token: int | None
    text: str | None
    logprob: float
    reason: str | None


@dataclass(frozen=True)
class Completion:
    """What was written after a prompt.

    tokens: int64, without the token that ended it. text: None without a tokenizer. logprobs:
    float32, of each token. reason: "end" behind a token that ends texts, "stop" before a text of
    ``stop``, "length" for as many tokens as were asked for.
    """

    tokens: np.ndarray
    text: str | None
    logprobs: np.ndarray
    reason: str


class _State:
    """The arrays that programs for so many rows and slots read and write.

    caches: of each layer, keys and values. table: of their blocks, if there are. lengths: int64
    [n], how many tokens of a row are read. key: int64 [1], of the next draw. known, counts: [n,
    vocabulary], the tokens of prompts, and how often each was generated. bias: [vocabulary].
    """

    def __init__(self, decoder: Decoder, cache: Cache, chooser: Chooser) -> None:
        rows, where = len(cache.tokens), cache.arrays[0].device
        shape = rows, decoder.config.vocab_size
        self.caches = [ndarray(x) for x in cache.arrays]
        self.table = None if cache.table is None else ndarray(cache.table.clone())
        self.lengths = ndarray(torch.zeros(rows, dtype=torch.int64, device=where))
        self.key = ndarray(torch.zeros(1, dtype=torch.int64, device=where))
        self.known = self.counts = self.bias = None
        if chooser.penalties:
            self.known = ndarray(torch.zeros(shape, dtype=torch.bool, device=where))
            self.counts = ndarray(torch.zeros(shape, dtype=torch.int32, device=where))
        if chooser.biased:
            self.bias = ndarray(torch.zeros(shape[1], device=where))

    def begin(self, cache: Cache, texts: list[list[int]], sampling: Sampling, seed: int) -> None:
        """Start from a cache, with the tokens of prompts."""
        for array, tensor in zip(self.caches, cache.arrays, strict=True):
            if array.tensor is not tensor:
                replace_buffer(array, tensor)
        if self.table is not None and cache.table is not None:
            self.table.tensor.copy_(cache.table)
        self.lengths.tensor.copy_(torch.tensor(cache.lengths))
        self.key.tensor.fill_(seed)
        if self.known is not None and self.counts is not None:
            known = torch.zeros(self.known.shape, dtype=torch.bool)
            for row, text in zip(known, texts, strict=True):
                row[text] = True
            self.known.tensor.copy_(known)
            self.counts.tensor.zero_()
        if self.bias is not None:
            bias = torch.zeros(self.bias.shape)
            for token, number in sampling.logit_bias.items():
                bias[token] = number
            self.bias.tensor.copy_(bias)


class _Step(Model):
    """Reads tokens, and chooses the next one of each row."""

    records = False

    def build(self, decoder: Decoder, state: _State, chooser: Chooser, fresh: bool) -> None:
        """Bind the arrays of a state."""
        self.decoder, self.chooser, self.fresh = decoder, chooser, fresh
        self.keys, self.values = state.caches[::2], state.caches[1::2]
        self.lengths, self.key, self.table = state.lengths, state.key, state.table
        self.known, self.counts, self.bias = state.known, state.counts, state.bias

    def scores(self, tokens: Any, read: Any) -> Any:
        """Return the scores [n, vocabulary] behind the first ``read`` [n] of tokens [n, steps]."""
        start, cache = self.lengths, list(zip(self.keys, self.values, strict=True))
        found = self.decoder.scores(tokens, start, read, cache, self.fresh, self.table)
        op.assign(self.lengths, op.add(start, read))
        return found

    def choose(self, scores: Any, rows: dict[str, Any]) -> tuple[Any, Any]:
        """Return tokens [n], and the logarithms of their probabilities."""
        chosen_of = scores
        if self.chooser.biased:
            chosen_of = op.add(chosen_of, self.bias)
        if self.chooser.penalties:
            chosen_of = self.chooser.penalized(chosen_of, rows, self.known, self.counts)
        token = self.chooser.chosen(chosen_of, rows, self.key)
        if self.chooser.draws:
            op.assign(self.key, op.add(self.key, 1))
        if self.chooser.penalties:
            words = op.arange(0, self.chooser.vocabulary, 1, "int64", device_of(scores))
            one = op.astype(op.equal(words, op.reshape(token, (-1, 1))), "int32")
            op.assign(self.counts, op.add(self.counts, one))
        at = op.arange(0, scores.shape[0], 1, "int64", device_of(scores))
        return token, op.adv_index((op.log_softmax(scores, -1), at, token))

    def both(self, tokens: Any, read: Any, rows: dict[str, Any]) -> tuple[Any, Any]:
        """Read and choose."""
        return self.choose(self.scores(tokens, read), rows)


class _StepProgram(Model):
    """A part of a step as a program: "scores", "choose", or "both"."""

    records = False

    def build(self, step: _Step, part: str) -> None:
        """Name the method."""
        self.step, self.part = step, part

    @trace
    def forward(self, *arguments: Any) -> Any:
        """Run it."""
        return getattr(self.step, self.part)(*arguments)


class _Runner:
    """Compiled steps for so many rows and slots, and one way to choose."""

    def __init__(self, decoder: Decoder, cache: Cache, chooser: Chooser) -> None:
        self.state = _State(decoder, cache, chooser)
        self._steps = [_Step(decoder, self.state, chooser, fresh) for fresh in (False, True)]
        self._programs: dict[tuple[Any, ...], Any] = {}

    def __call__(self, part: str, fresh: bool, *arguments: Any) -> Any:
        """Run a part of a step, compiled for the shape of its first argument."""
        key = part, fresh, arguments[0].shape
        if key not in self._programs:
            model = _StepProgram(self._steps[fresh], part).train(False)
            self._programs[key] = compile_program(model, *arguments)
        return self._programs[key](*arguments)


class _Compiled:
    """What a decoder has compiled, and the memory of caches that nobody keeps, which stays where
    programs know it.
    """

    def __init__(self, arrays: tuple[int, ...]) -> None:
        self.arrays = arrays
        self._runners: dict[tuple[Any, ...], _Runner] = {}
        self._scratch: dict[tuple[int, int], list[torch.Tensor]] = {}

    @staticmethod
    def of(decoder: Decoder) -> _Compiled:
        """Return that of a decoder, anew once its arrays are others."""
        arrays = tuple(id(a) for a in decoder.state().values())
        if decoder.compiled is None or decoder.compiled.arrays != arrays:
            decoder.compiled = _Compiled(arrays)
        found: _Compiled = decoder.compiled
        return found

    def scratch(self, decoder: Decoder, rows: int, slots: int) -> Cache:
        """Return a cache for one call."""
        cache = Cache(rows)
        cache.arrays = self._scratch.get((rows, slots), [])
        cache.reserve(decoder, slots)
        self._scratch[rows, slots] = cache.arrays
        return cache

    def runner(self, decoder: Decoder, cache: Cache, chooser: Chooser) -> _Runner:
        """Return what runs the steps."""
        shape = cache.arrays[0].shape if cache.arrays else ()
        key = len(cache.tokens), cache.slots, shape, chooser.signature
        if key not in self._runners:
            self._runners[key] = _Runner(decoder, cache, chooser)
        return self._runners[key]


def _bucket(length: int) -> int:
    """Return what a prompt is padded to; one token is read as those that are written."""
    if length == 1:
        return 1
    if length > LARGEST_BUCKET:
        return -(-length // LARGEST_BUCKET) * LARGEST_BUCKET
    return int(max(BUCKET, 1 << (length - 1).bit_length()))


def _tokens_of(decoder: Decoder, prompt: Any) -> list[int]:
    """Return the tokens of a prompt; ArgumentError for what is none."""
    if isinstance(prompt, str):
        if decoder.tokenizer is None:
            raise ArgumentError(
                "this model has no tokenizer",
                hint="give tokens, or a folder with tokenizer.json to meta.language.load",
            )
        found: list[int] = decoder.tokenizer.encode(prompt).ids
        return found
    tokens = np.asarray(prompt)
    if tokens.ndim != 1 or (tokens.size and not np.issubdtype(tokens.dtype, np.integer)):
        raise ArgumentError(
            "a prompt is a text, or a sequence of tokens", found=f"{tokens.dtype}{tokens.shape}"
        )
    size = decoder.config.vocab_size
    if tokens.size and not (0 <= tokens.min() and tokens.max() < size):
        raise ArgumentError(
            "a prompt has a token that is none", expected=f"0 to {size - 1}", found=prompt
        )
    return [int(token) for token in tokens]


def _is_single(prompts: Any) -> bool:
    """Whether this is one prompt and not several."""
    return isinstance(prompts, str) or (
        len(prompts) > 0 and not isinstance(prompts[0], str) and np.ndim(prompts[0]) == 0
    )


class _Generation:
    """One call of `generate`: its cache, its texts, and the loop."""

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[list[int]],
        texts: list[Text],
        sampling: Sampling,
        limit: int,
        cache: Cache | None,
        seed: int | None,
        constraint: Constraint | None,
    ) -> None:
        self._texts, self._limit, self._constraint = texts, limit, constraint
        self._decoder, rows = decoder, len(prompts)
        begun = Cache(rows) if cache is None else cache
        if len(begun.tokens) != rows:
            raise ArgumentError(
                "a cache has a row for each prompt", expected=len(begun.tokens), found=rows
            )
        everything = [a + list(b) for a, b in zip(begun.tokens, prompts, strict=True)]
        if any(len(a) <= n for a, n in zip(everything, begun.lengths, strict=True)):
            raise ArgumentError("a prompt is empty", expected="at least one token to go on from")
        chooser = Chooser(sampling, rows, decoder.config.vocab_size)
        each = [len(text) + max(limit - 1, 0) for text in everything]
        slots, compiled = self._slots(max(each)), _Compiled.of(decoder)
        if cache is None:
            self._cache = compiled.scratch(decoder, rows, slots)
        else:
            self._cache = cache
            cache.reserve(decoder, slots, each)
        self._cache.tokens = everything
        self._runner = compiled.runner(decoder, self._cache, chooser)
        mixed = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)
        key = random.default.key() if seed is None else mixed
        self._runner.state.begin(self._cache, everything, sampling, key)
        self._device = self._cache.arrays[0].device
        self._rows = {
            name: ndarray(torch.from_numpy(values).to(self._device))
            for name, values in sampling.rows(rows).items()
        }

    def _slots(self, needed: int) -> int:
        """Return how many slots there are for so many tokens of a text."""
        table = self._decoder.config.positions
        if table and needed > table:
            raise ArgumentError(
                "the model has no positions for so long a text",
                expected=f"at most {table} tokens, with those of the prompt",
                found=needed,
                hint="a shorter prompt, or a smaller max_new_tokens",
            )
        slots = -(-needed // SLOTS) * SLOTS
        return min(slots, table) if table else slots

    def _first(self) -> tuple[Any, Any]:
        """Read what is unread of all texts; return the next tokens."""
        cache = self._cache
        unread = [t[n:] for t, n in zip(cache.tokens, cache.lengths, strict=True)]
        longest = max(map(len, unread))
        tokens = np.zeros((len(unread), _bucket(longest)), np.int64)
        for row, text in zip(tokens, unread, strict=True):
            row[: len(text)] = text
        fresh = longest > 1 and not any(cache.lengths)
        return self._next(tokens, np.array([len(t) for t in unread]), fresh)

    def _next(self, tokens: Any, read: Any, fresh: bool = False) -> tuple[Any, Any]:
        tokens, read = (
            x if isinstance(x, ndarray) else ndarray(torch.from_numpy(x).to(self._device))
            for x in (tokens, read)
        )
        if self._constraint is None:
            found: tuple[Any, Any] = self._runner("both", fresh, tokens, read, self._rows)
            return found
        scores = self._runner("scores", fresh, tokens, read)
        written = [a + b.tokens for a, b in zip(self._cache.tokens, self._texts, strict=True)]
        scores = as_array(self._constraint(scores, written)).to(dtype="float32")
        found = self._runner("choose", False, scores, self._rows)
        return found

    def pieces(self) -> Iterator[Piece]:
        """Yield what is written, token by token."""
        if self._limit == 0:
            return
        one, cache = np.ones(len(self._texts), np.int64), self._cache
        ahead = self._device.type != "cpu" and self._constraint is None
        found, read = self._first(), [len(text) for text in cache.tokens]
        try:
            for number in range(self._limit):
                following = None
                more = number + 1 < self._limit
                if more and ahead:
                    following, read = self._after(found, one), [n + 1 for n in read]
                yield from self._handed(found)
                if not more or all(text.reason for text in self._texts):
                    return
                if following is None:
                    following, read = self._after(found, one), [n + 1 for n in read]
                found = following
        finally:
            for row, text in enumerate(self._texts):
                cache.tokens[row] = cache.tokens[row] + text.tokens
                cache.lengths[row] = min(read[row], len(cache.tokens[row]))

    def _after(self, found: tuple[Any, Any], one: Any) -> tuple[Any, Any]:
        return self._next(op.reshape(found[0], (-1, 1)), one)

    def _handed(self, found: tuple[Any, Any]) -> Iterator[Piece]:
        """Yield what tokens add to the texts that go on."""
        tokens, logprobs = (x.tensor.tolist() for x in found)
        for row, text in enumerate(self._texts):
            if text.reason is None:
                added = text.add(tokens[row], logprobs[row])
                shown = None if self._decoder.tokenizer is None else added
                yield Piece(row, tokens[row], shown, logprobs[row], text.reason)


def generate(
    model: Decoder,
    prompts: Any,
    *,
    max_new_tokens: int = 128,
    temperature: float | Sequence[float] = 0.0,
    top_k: int | Sequence[int] = 0,
    top_p: float | Sequence[float] = 1.0,
    min_p: float | Sequence[float] = 0.0,
    repetition_penalty: float | Sequence[float] = 1.0,
    presence_penalty: float | Sequence[float] = 0.0,
    frequency_penalty: float | Sequence[float] = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    stop: str | Sequence[str] = (),
    end_tokens: Sequence[int] | None = None,
    seed: int | None = None,
    stream: bool = False,
    cache: Cache | None = None,
    constraint: Constraint | None = None,
) -> Any:
    """Write on from prompts.

    prompts: a text or a sequence of tokens, or several of them, of any lengths. max_new_tokens: of
    each. temperature and what follows it: see `Sampling`; as they are, the most probable token is
    taken. stop: texts before which to end. end_tokens: those of the model unless given. seed: of
    the draws; without one they go on from `meta.random.seed`. The same call on the same device
    draws the same tokens.

    stream: return an iterator of `Piece`, as they are written, instead. cache: a `Cache` whose
    texts are written on; it has all that was written, then. constraint: a function of the scores
    [n, vocabulary] and the tokens of each text that returns scores, -inf where a token is not
    allowed.

    Returns a `Completion`, or a list of them for several prompts. The first call for so many
    prompts, or for a longer text, compiles.

    Raises ArgumentError for a prompt, an option or a cache that does not fit.
    """
    if not isinstance(model, Decoder):
        raise ArgumentError(
            "generate takes a decoder",
            found=type(model).__name__,
            hint="meta.language.load(folder)",
        )
    if (
        isinstance(max_new_tokens, bool)
        or not isinstance(max_new_tokens, int)
        or max_new_tokens < 0
    ):
        raise ArgumentError("max_new_tokens is an int >= 0", found=max_new_tokens)
    several = [prompts] if _is_single(prompts) else list(prompts)
    if not several:
        raise ArgumentError("there are no prompts", expected="at least one")
    sampling = Sampling(
        temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty,
        logit_bias or {},
    )  # fmt: skip
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if stops and model.tokenizer is None:
        raise ArgumentError("stop is of texts, and this model has no tokenizer", hint="end_tokens=")
    ends = model.end_tokens if end_tokens is None else tuple(end_tokens)
    texts = [Text(model.tokenizer, max_new_tokens, ends, stops) for _ in several]
    of = [_tokens_of(model, p) for p in several]
    run = _Generation(model, of, texts, sampling, max_new_tokens, cache, seed, constraint)
    if stream:
        return run.pieces()
    for _ in run.pieces():
        pass
    found = [_completion(model, text) for text in texts]
    return found[0] if _is_single(prompts) else found


def _completion(model: Decoder, text: Text) -> Completion:
    return Completion(
        np.array(text.tokens, np.int64),
        None if model.tokenizer is None else text.written,
        np.array(text.logprobs, np.float32),
        text.reason or "length",
    )
