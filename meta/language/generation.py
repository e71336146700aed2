"""Writing on: prompts are read by one step, then tokens by others, one by one.

The host looks at a token while the next one is computed on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meta.base.errors import ArgumentError
from meta.language.beams import Beams, BeamStep, search
from meta.language.cache import Cache
from meta.language.decoder import Decoder
from meta.language.sampling import Chooser, Sampling, takes_sampling
from meta.language.speculation import Draft, Speculation, SpeculativeStep
from meta.language.steps import Batch, Choices, Step
from meta.language.text import Text
from meta.runtime.host_copies import HostCopy
from meta.runtime.ndarray import as_array, ndarray

Constraint = Callable[[ndarray, list[list[int]]], Any]
"""Changes scores [n, vocabulary], for the tokens that each text has, its prompt first."""
SLOTS = 256
"""Caches grow by so many tokens."""


@dataclass(frozen=True)
class Piece:
    """A token of a text that is written.

    row: of the prompts. token: its number, None where the text ended with what is held back.
    text: what is new of the text, empty while a character is incomplete, None without a tokenizer.
    logprob: the logarithm of the token's probability, before penalties and temperature. reason: why
    the text ends here, as `Completion` says it, else None. guessed: whether a draft had it.
    alternatives: the most probable tokens and the logarithms of their probabilities, where an
    engine was asked for them.

    >>> rope = {"rope_type": "default", "rope_theta": 1e4}
    >>> model = meta.language.Decoder(meta.language.DecoderConfig(
    ...     vocab_size=11, hidden_size=8, inner=12, heads=2, key_value_heads=1, head_width=4,
    ...     windows=(None,), rotary=(rope,), experts=(None,), rotary_width=4, scale=0.5, eps=1e-6,
    ...     max_positions=32))
    >>> pieces = list(meta.language.generate(model, [1, 2], max_new_tokens=3, stream=True))
    >>> [piece.reason for piece in pieces], pieces[0].row
    ([None, None, 'length'], 0)
    """

    row: int
    token: int | None
    text: str | None
    logprob: float
    reason: str | None
    guessed: bool = False
    alternatives: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Completion:
    """What was written after a prompt.

    tokens: int64, without the token that ended it. text: None without a tokenizer. logprobs:
    float32, of each token. reason: "end" behind a token that ends texts, "stop" before a text of
    ``stop``, "length" for as many tokens as were asked for. guessed: how many of the tokens a draft
    had; each other one took a step of the model. score: with beams, the sum of the tokens'
    logarithms, as options change them, over the length to the power of ``length_penalty``. others:
    the texts of the other beams, the best first.

    >>> rope = {"rope_type": "default", "rope_theta": 1e4}
    >>> model = meta.language.Decoder(meta.language.DecoderConfig(
    ...     vocab_size=11, hidden_size=8, inner=12, heads=2, key_value_heads=1, head_width=4,
    ...     windows=(None,), rotary=(rope,), experts=(None,), rotary_width=4, scale=0.5, eps=1e-6,
    ...     max_positions=32))
    >>> found = meta.language.generate(model, [1, 2, 3], max_new_tokens=4, end_tokens=())
    >>> found.tokens.dtype.name, found.logprobs.shape, found.reason, found.text
    ('int64', (4,), 'length', None)
    """

    tokens: np.ndarray
    text: str | None
    logprobs: np.ndarray
    reason: str
    guessed: int = 0
    score: float | None = None
    others: tuple[Completion, ...] = ()


def tokens_of(decoder: Decoder, prompt: Any) -> list[int]:
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
    numbers: list[int] = tokens.astype(np.int64).tolist()
    return numbers


def begun(
    decoder: Decoder,
    max_new_tokens: int,
    stop: str | Sequence[str],
    end_tokens: Sequence[int] | None,
) -> Text:
    """Return a text to be written; ArgumentError for an option that does not fit."""
    if (
        isinstance(max_new_tokens, bool)
        or not isinstance(max_new_tokens, int)
        or max_new_tokens < 0
    ):
        raise ArgumentError("max_new_tokens is an int >= 0", found=max_new_tokens)
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if stops and decoder.tokenizer is None:
        raise ArgumentError("stop is of texts, and this model has no tokenizer", hint="end_tokens=")
    ends = decoder.end_tokens if end_tokens is None else tuple(end_tokens)
    return Text(decoder.tokenizer, max_new_tokens, ends, stops)


def _is_single(prompts: Any) -> bool:
    """Whether this is one prompt and not several."""
    return isinstance(prompts, str) or (
        len(prompts) > 0 and not isinstance(prompts[0], str) and np.ndim(prompts[0]) == 0
    )


class _Generation:
    """One call of `generate`: its texts, and the loop."""

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[list[int]],
        texts: list[Text],
        sampling: Sampling,
        limit: int,
        cache: Cache | None,
        constraint: Constraint | None,
        draft: Draft | None,
    ) -> None:
        self._texts, self._limit, self._constraint = texts, limit, constraint
        self._decoder, self._draft, rows = decoder, draft, len(prompts)
        begun = Cache(rows) if cache is None else cache
        if len(begun.tokens) != rows:
            raise ArgumentError(
                "a cache has a row for each prompt", expected=len(begun.tokens), found=rows
            )
        self._prompts = [a + list(b) for a, b in zip(begun.tokens, prompts, strict=True)]
        if any(len(a) <= n for a, n in zip(self._prompts, begun.lengths, strict=True)):
            raise ArgumentError("a prompt is empty", expected="at least one token to go on from")
        vocabulary = decoder.config.vocab_size
        self._numbers = sampling.rows(rows, vocabulary)
        self._chooser = Chooser.of(self._numbers, vocabulary)
        self._each = [len(text) + max(limit - 1, 0) for text in self._prompts]
        self._cache = cache
        if cache is not None:
            cache.reserve(decoder, self._slots(decoder), self._each)
            cache.tokens = list(self._prompts)

    def _slots(self, decoder: Decoder, more: int = 0) -> int:
        """Return how many slots there are for what is read of a text, and so many tokens more."""
        needed, table = max(self._each) + more, decoder.config.positions
        if table and needed > table:
            raise ArgumentError(
                "the model has no positions for so long a text",
                expected=f"at most {table} tokens, with those of the prompt and of a draft",
                found=needed,
                hint="a shorter prompt, or a smaller max_new_tokens",
            )
        slots = -(-needed // SLOTS) * SLOTS
        return min(slots, table) if table else slots

    def _batch(
        self,
        decoder: Decoder,
        kind: type[Step],
        cache: Cache | None = None,
        times: int = 1,
        more: int = 0,
    ) -> Batch:
        """Return the texts for a decoder, each so many times; with room for so many more tokens."""
        texts = [text for text in self._prompts for _ in range(times)]
        numbers = {name: np.repeat(x, times, 0) for name, x in self._numbers.items()}
        change = None if self._constraint is None else self._constrained
        slots = self._slots(decoder, more)
        return Batch(decoder, texts, cache, slots, self._chooser, numbers, kind, change)

    def _constrained(self, scores: ndarray, texts: list[list[int]] | None = None) -> ndarray:
        """Return what the constraint makes of scores, for tokens that were written."""
        assert self._constraint is not None
        texts = [text.tokens for text in self._texts] if texts is None else texts
        times = len(texts) // len(self._prompts)
        whole = [self._prompts[i // times] + text for i, text in enumerate(texts)]
        return as_array(self._constraint(scores, whole)).to(dtype="float32")

    def searched(self, beams: Beams) -> list[Completion]:
        """Return what beams write."""
        if self._limit == 0:
            return [_completion(self._decoder, text, 0.0) for text in self._texts]
        with ExitStack() as lent:
            prompts = lent.enter_context(closing(self._batch(self._decoder, Step)))
            batch = self._batch(self._decoder, BeamStep, times=beams.count)
            lent.enter_context(closing(batch))
            changed = None if self._constraint is None else self._constrained
            found = search(prompts, batch, self._texts, beams, changed)
        every = [[_completion(self._decoder, t, score) for score, t in texts] for texts in found]
        return [replace(best, others=tuple(others)) for best, *others in every]

    def pieces(self) -> Iterator[Piece]:
        """Yield what is written, token by token."""
        if self._limit == 0:
            return
        with ExitStack() as lent:
            kind = Step if self._draft is None else SpeculativeStep
            batch = lent.enter_context(closing(self._batch(self._decoder, kind, self._cache)))
            after: Callable[[Choices], Choices] = batch.read_one
            if self._draft is not None:
                small, guesses = None, self._draft.guesses
                if self._draft.model is not None:  # which guesses behind the end, too
                    small = self._batch(self._draft.model, Step, more=guesses)
                    lent.enter_context(closing(small))
                after = Speculation(batch, small, guesses, self._limit).round
            yield from self._loop(batch, after)

    def _loop(self, batch: Batch, after: Callable[[Choices], Choices]) -> Iterator[Piece]:
        ahead = batch.device.type != "cpu" and self._constraint is None
        found: Choices = batch.read_prompts()
        handed, values = [0] * len(self._texts), HostCopy(x.tensor for x in found)
        try:
            while True:
                following = None
                left = max(self._limit - len(t.tokens) for t in self._texts if t.reason is None)
                if ahead and left > 1:
                    following = after(found)
                yield from self._handed(values, handed)
                if all(text.reason for text in self._texts):
                    return
                found = after(found) if following is None else following
                values = HostCopy(x.tensor for x in found)
        finally:
            for row, (text, count) in enumerate(zip(self._texts, handed, strict=True)):
                tokens = self._prompts[row] + text.tokens
                read = len(self._prompts[row]) + max(count - 1, 0)  # all but the newest
                batch.cache.tokens[row], batch.cache.lengths[row] = tokens, min(read, len(tokens))

    def _handed(self, values: HostCopy, handed: list[int]) -> Iterator[Piece]:
        """Yield what tokens add to the texts that go on; count them."""
        tokens, logprobs, *rest = values.values()
        kept = rest[0] if rest else None
        for row, text in enumerate(self._texts):
            own = [(tokens[row], logprobs[row])]
            if kept is not None:
                own = list(zip(tokens[row], logprobs[row], strict=True))[: kept[row] + 1]
            for i, (token, logprob) in enumerate(own):
                if text.reason is not None:
                    break
                if logprob != logprob:
                    raise ArgumentError(
                        "the scores of a text are no numbers",
                        found=f"row {row}, after {handed[row]} tokens",
                        hint="a constraint that allows no token, or weights that overflow",
                    )
                guessed = kept is not None and i < kept[row]
                added = text.add(token, logprob, guessed)
                handed[row] += 1
                shown = None if self._decoder.tokenizer is None else added
                yield Piece(row, token, shown, logprob, text.reason, guessed)


@takes_sampling
def generate(
    model: Decoder,
    prompts: Any,
    *,
    max_new_tokens: int = 128,
    stop: str | Sequence[str] = (),
    end_tokens: Sequence[int] | None = None,
    stream: bool = False,
    cache: Cache | None = None,
    constraint: Constraint | None = None,
    draft: Decoder | str | None = None,
    draft_tokens: int = 4,
    beams: int = 1,
    length_penalty: float = 1.0,
    **sampling: Any,
) -> Any:
    """Write on from prompts.

    prompts: a text or a sequence of tokens, or several of them, of any lengths. max_new_tokens: of
    each. stop: texts before which to end. end_tokens: those of the model unless given. sampling:
    temperature, top_k, top_p, seed and all else that `Sampling` has; without any, the most probable
    token is taken.

    stream: return an iterator of `Piece`, as they are written, instead. cache: a `Cache` whose
    texts are written on; it has all that was written, then. constraint: a function of the scores
    [n, vocabulary] and the tokens of each text that returns scores, -inf where a token is not
    allowed. draft: what guesses ``draft_tokens`` tokens, which the model then reads in one step and
    keeps as far as they are its own: a smaller decoder with the same tokens, or "ngram", for what
    followed the last tokens where they were in the text before. The texts are those without it.
    beams: how many texts to go on with, of all continuations of these those of the highest scores,
    until as many have ended and no other may be better; scores are divided by the length to the
    power of ``length_penalty``. Each is a text of its own to a constraint.

    Returns a `Completion`, or a list of them for several prompts. The first call for so many
    prompts, or for a longer text, compiles.

    Raises ArgumentError for a prompt, an option or a cache that does not fit.

    >>> rope = {"rope_type": "default", "rope_theta": 1e4}
    >>> model = meta.language.Decoder(meta.language.DecoderConfig(
    ...     vocab_size=11, hidden_size=8, inner=12, heads=2, key_value_heads=1, head_width=4,
    ...     windows=(None,), rotary=(rope,), experts=(None,), rotary_width=4, scale=0.5, eps=1e-6,
    ...     max_positions=32))
    >>> found = meta.language.generate(model, [[1, 2, 3], [4]], max_new_tokens=4, end_tokens=())
    >>> [completion.tokens.shape for completion in found]
    [(4,), (4,)]
    """
    if not isinstance(model, Decoder):
        raise ArgumentError(
            "generate takes a decoder",
            found=type(model).__name__,
            hint="meta.language.load(folder)",
        )
    several = [prompts] if _is_single(prompts) else list(prompts)
    if not several:
        raise ArgumentError("there are no prompts", expected="at least one")
    texts = [begun(model, max_new_tokens, stop, end_tokens) for _ in several]
    of = [tokens_of(model, p) for p in several]
    chosen = Sampling(**sampling)
    drawing = bool(np.any(np.asarray(chosen.temperature) != 0))
    wide = Beams.of(
        beams, length_penalty, stream=stream, cache=cache is not None, draft=draft is not None,
        temperature=drawing,
    )  # fmt: skip
    drafted = Draft.of(draft, draft_tokens, model, constraint)
    run = _Generation(model, of, texts, chosen, max_new_tokens, cache, constraint, drafted)
    if stream:
        return run.pieces()
    if wide is None:
        for _ in run.pieces():
            pass
    found = [_completion(model, t) for t in texts] if wide is None else run.searched(wide)
    return found[0] if _is_single(prompts) else found


def _completion(model: Decoder, text: Text, score: float | None = None) -> Completion:
    return Completion(
        np.array(text.tokens, np.int64),
        None if model.tokenizer is None else text.written,
        np.array(text.logprobs, np.float32),
        text.reason or "length",
        text.guessed,
        score,
    )
