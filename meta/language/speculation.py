"""Speculative decoding: a draft guesses tokens, the model reads them in one step, and keeps those
that it would have chosen.

The model draws a token by noise that is a function of its seed and place (`Chooser.chosen`). A
draft model draws by the same noise, so that both find the same token as often as such draws may
(Daliri, Musco and Suresh, arXiv:2408.07978). What is written is, token by token, what the model
writes alone, whoever guesses. The idea is that of Leviathan et al., arXiv:2211.17192, whose
rejection keeps the distribution only; it keeps somewhat more of the guesses of a model, and as many
of those of n-grams.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meta import op
from meta.base.errors import ArgumentError
from meta.language.decoder import Decoder
from meta.language.steps import Batch, Choices, Rows, Step
from meta.op.core.function import device_of
from meta.runtime.ndarray import ndarray

NGRAM = 3
"""So many tokens are compared to find where a text was before as it is now; fewer if need be."""


@dataclass(frozen=True)
class Draft:
    """What guesses how many tokens: a model, or None for n-grams of the text."""

    model: Decoder | None
    guesses: int

    @staticmethod
    def of(draft: Any, guesses: Any, model: Decoder, constraint: Any) -> Draft | None:
        """Return what the arguments of `generate` say; ArgumentError for what does not fit."""
        if isinstance(guesses, bool) or not isinstance(guesses, int) or guesses < 1:
            raise ArgumentError("draft_tokens is an int >= 1", found=guesses)
        if draft is None:
            return None
        if not isinstance(draft, Decoder) and draft != "ngram":
            raise ArgumentError('draft is a decoder, or "ngram"', found=draft)
        if constraint is not None:
            raise ArgumentError(
                "a constraint is given the tokens of a text one by one, not guesses",
                hint="without draft=, or without constraint=",
            )
        if not isinstance(draft, Decoder):
            return Draft(None, guesses)
        places = draft.embed_tokens.weight.device, model.embed_tokens.weight.device
        if places[0] != places[1]:
            raise ArgumentError(
                "a draft is where the model is", expected=str(places[1]), found=str(places[0])
            )
        sizes = draft.config.vocab_size, model.config.vocab_size
        if sizes[0] != sizes[1]:
            raise ArgumentError(
                "a draft has the tokens of the model",
                expected=f"{sizes[1]} of them",
                found=sizes[0],
            )
        return Draft(draft, guesses)


class SpeculativeStep(Step):
    """A step that reads the newest token of each text and guesses of what follows."""

    def verify(
        self, newest: Any, drafts: Any, ends: Any, rows: Rows
    ) -> tuple[Any, Any, Any, Any, Any]:
        """Read the newest tokens [n] and guesses [n, k].

        ends: int64 [n], of how many tokens a text may be read. Returns what is chosen behind each
        [n, k + 1], logprobs, and how many guesses are so chosen [n]; the tokens that are newest
        then, and those before them.
        """
        n, steps, where = drafts.shape[0], drafts.shape[1] + 1, device_of(drafts)
        start, column = self.lengths, op.reshape(newest, (-1, 1))
        tokens = op.concat((column, drafts), 1)
        left = op.subtract(ends, start)
        scores = self.read(tokens, op.minimum(left, steps), every=True)
        own = op.arange(1, steps + 1, 1, "int64", where)
        at = op.reshape(op.add(op.reshape(start, (-1, 1)), own), (-1,))
        each = {name: op.repeat(values, steps, 0) for name, values in rows.items()}
        known = counts = None
        if self.chooser.penalties:
            known, counts = op.repeat(self.known, steps, 0), self._counts(drafts, column)
        found = self.chosen(op.reshape(scores, (n * steps, -1)), each, at, known, counts)
        chosen, logprobs = (op.reshape(x, (n, steps)) for x in found)
        same = op.astype(op.equal(chosen[:, :-1], drafts), "int64")
        kept = op.sum(op.cumprod(same, 1), 1)
        count = op.minimum(op.add(kept, 1), left)
        op.assign(self.lengths, op.add(start, count))
        if self.chooser.penalties:
            is_kept = op.less_equal(own, op.reshape(count, (-1, 1)))
            ones = op.where(op.expand_dims(is_kept, 2), self.ones(chosen), 0)
            written = op.astype(op.sum(ones, 1), "int32")
            op.assign(self.counts, op.add(self.counts, written))
        last = op.reshape(op.maximum(op.subtract(count, 1), 0), (-1, 1))
        newer, before = (
            op.reshape(op.take_along_axis(x, last, 1), (-1,)) for x in (chosen, tokens)
        )
        return chosen, logprobs, kept, op.where(op.greater(count, 0), newer, newest), before

    def _counts(self, drafts: Any, column: Any) -> Any:
        """Return how often tokens were generated before each choice, [n * steps, vocabulary]."""
        ones = self.ones(op.concat((drafts, column), 1))
        before = op.subtract(op.cumsum(ones, 1, "int32"), ones)
        counts = op.add(op.expand_dims(self.counts, 1), before)
        return op.reshape(counts, (-1, self.chooser.vocabulary))

    def look_up(self, newest: Any, texts: Any, ends: Any, rows: Rows, guesses: int) -> Any:
        """`verify` what followed where the text was before as it is now.

        texts: int64 [n, slots], whose newest token, and what is behind, is still to be written.
        Returns what `verify` does, and the texts with what was read.
        """
        places = op.arange(0, texts.shape[1], 1, "int64", device_of(texts))
        newest_at = op.reshape(self.lengths, (-1, 1))
        column = op.reshape(newest, (-1, 1))
        texts = op.where(op.equal(places, newest_at), column, texts)
        same = length = None
        for back in range(NGRAM):
            last = op.take_along_axis(texts, op.maximum(op.subtract(newest_at, back), 0), 1)
            equal = op.astype(op.equal(texts, last), "int64")
            equal = op.pad(equal, ((0, 0), (back, 0)))[:, : texts.shape[1]] if back else equal
            same = equal if same is None else op.multiply(same, equal)
            length = same if length is None else op.add(length, same)
        # The last of the longest ones; behind the end of the text it repeats from there.
        rank = op.add(op.multiply(length, texts.shape[1]), places)
        best = op.argmax(op.where(op.less(places, newest_at), rank, -1), -1)
        best = op.reshape(best, (-1, 1))
        steps = op.arange(0, guesses, 1, "int64", device_of(texts))
        steps = op.add(op.remainder(steps, op.subtract(newest_at, best)), 1)
        drafts = op.take_along_axis(texts, op.add(best, steps), 1)
        behind = op.subtract(places, newest_at)
        tokens = op.concat((column, drafts), 1)
        written = op.take_along_axis(tokens, op.clip(behind, 0, guesses), 1)
        is_written = op.logical_and(op.greater_equal(behind, 0), op.less_equal(behind, guesses))
        return *self.verify(newest, drafts, ends, rows), op.where(is_written, written, texts)


class Speculation:
    """The rounds of guessing and reading, after prompts are read.

    batch: of the model; small: of the draft, None for n-grams. limit: of new tokens.
    """

    def __init__(self, batch: Batch, small: Batch | None, guesses: int, limit: int) -> None:
        self._batch, self._small, self._guesses = batch, small, guesses
        prompts = batch.cache.tokens
        self._ends = batch.array([len(text) + limit - 1 for text in prompts])
        self._newest: ndarray | None = None
        if small is None:
            texts = np.zeros((len(prompts), batch.cache.slots), np.int64)
            for row, text in zip(texts, prompts, strict=True):
                row[: len(text)] = text
            self._texts = batch.array(texts)
        else:
            small.read_prompts()
            self._before = batch.array([text[-1] for text in prompts])
            self._two = batch.array([2] * len(prompts))

    def round(self, found: Choices) -> Choices:
        """Return what follows what was found; of the first round, what prompts are followed by."""
        newest = found[0] if self._newest is None else self._newest
        batch = self._batch
        if self._small is None:
            *found_now, self._newest, _, self._texts = batch.runner(
                "look_up", newest, self._texts, self._ends, batch.rows, guesses=self._guesses
            )
        else:
            drafts = self._drafts(self._small, newest)
            *found_now, self._newest, self._before = batch.runner(
                "verify", newest, drafts, self._ends, batch.rows
            )
        return tuple(found_now)

    def _drafts(self, small: Batch, newest: ndarray) -> Any:
        """Let the draft go on from where the model is; it may not have read the token before."""
        theirs, own = small.state, self._batch.state
        theirs.lengths.tensor.copy_(own.lengths.tensor - 1)
        if theirs.counts is not None and own.counts is not None:
            theirs.counts.tensor.copy_(own.counts.tensor)
        found = [small.read(op.stack((self._before, newest), 1), self._two)]
        while len(found) < self._guesses:
            found.append(small.read_one(found[-1]))
        return op.stack([tokens for tokens, _ in found], 1)
