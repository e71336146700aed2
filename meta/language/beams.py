"""Beam search: of all continuations of a few texts, the few of the highest scores go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta import op
from meta.base.errors import ArgumentError
from meta.language.steps import Batch, Rows, Step
from meta.language.text import Text
from meta.op.core.function import device_of
from meta.runtime.ndarray import ndarray

UNLIKELY = -1e9
"""The score of a beam that has no text."""


@dataclass(frozen=True)
class Beams:
    """How many texts go on, and the power of its length by which a text's score is divided."""

    count: int
    length_penalty: float

    @staticmethod
    def of(count: Any, length_penalty: Any, **others: bool) -> Beams | None:
        """Return what the arguments of `generate` say; others: which arguments do not go with it,
        and whether they are given. ArgumentError for what does not fit.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ArgumentError("beams is an int >= 1", found=count)
        if isinstance(length_penalty, bool) or not isinstance(length_penalty, int | float):
            raise ArgumentError("length_penalty is a number", found=length_penalty)
        if count == 1:
            return None
        for name, given in others.items():
            if given:
                raise ArgumentError(
                    f"{name} does not go with beams", found=f"beams={count}", hint="without either"
                )
        return Beams(count, float(length_penalty))


class BeamStep(Step):
    """A step whose rows take the place of others."""

    def follow(self, tokens: Any, parents: Any) -> Any:
        """Let each row be what row ``parents`` [n] was, and read its token [n]; return scores."""
        for array in (*self.keys, *self.values):
            op.assign(array, op.take(array, parents, 0))
        if self.chooser.penalties:
            op.assign(self.counts, op.add(op.take(self.counts, parents, 0), self.ones(tokens)))
        read = op.full(tokens.shape, 1, "int64", device_of(tokens))
        return self.scores(op.reshape(tokens, (-1, 1)), read)

    def rank(self, scores: Any, running: Any, rows: Rows, count: int) -> tuple[Any, Any, Any]:
        """Return the best continuations of each prompt's beams, [prompts, count].

        scores: [n, vocabulary]. running: [prompts, beams], of the texts. Results: the scores of
        texts; beam * vocabulary + token; the logarithms of the tokens' probabilities.
        """
        logprobs = op.log_softmax(scores, -1)
        changed = self.changed(logprobs, rows, self.known, self.counts)
        total = op.add(changed, op.reshape(running, (-1, 1)))
        best, at = op.topk(op.reshape(total, (running.shape[0], -1)), count, -1)
        own = op.take_along_axis(op.reshape(logprobs, (running.shape[0], -1)), at, -1)
        return best, at, own

    def search(self, tokens: Any, parents: Any, running: Any, rows: Rows, count: int) -> Any:
        """`follow` and `rank`."""
        return self.rank(self.follow(tokens, parents), running, rows, count)


class _Group:
    """The beams of one prompt: a score and a text each, None where there is none; texts that ended,
    the best first; whether a running one may still be among these.
    """

    def __init__(self, text: Text, beams: Beams) -> None:
        self._beams = beams
        self.running: list[tuple[float, Text] | None] = [(0.0, text)]
        self.running += [None] * (beams.count - 1)
        self.ended: list[tuple[float, Text]] = []
        self.parents, self.tokens, self.length = [0] * beams.count, [0] * beams.count, 0
        self.is_open = True

    def add(self, vocabulary: int, *best: list[Any]) -> None:
        """Go on to the best continuations, as `BeamStep.rank` returns them.

        What ends counts if it is among the best ``beams``. It is enough once these ended, and the
        best that runs has a lower score, by its length, than the last of them.
        """
        count, self.length = self._beams.count, self.length + 1
        share = float(self.length) ** self._beams.length_penalty
        running, parents, tokens = [], [], []
        for rank, (score, at, logprob) in enumerate(zip(*best, strict=True)):
            parent, token = divmod(at, vocabulary)
            before = self.running[parent]
            if score != score:
                raise ArgumentError(
                    "the scores of a text are no numbers",
                    found=f"after {self.length - 1} tokens",
                    hint="a constraint that allows no token, or weights that overflow",
                )
            if before is None or score == -math.inf:
                continue
            text = before[1].fork()
            text.add(token, logprob)
            if text.reason is None:
                running.append((score, text))
                parents.append(parent)
                tokens.append(token)
            elif rank < count:
                self.ended.append((score / share, text))
        self.ended = sorted(self.ended, key=lambda one: -one[0])[:count]
        self.is_open = bool(running) and (
            len(self.ended) < count or running[0][0] / share > self.ended[-1][0]
        )
        missing = max(count - len(running), 0)
        self.running = [*running[:count], *[None] * missing]
        self.parents, self.tokens = ([*x[:count], *[0] * missing] for x in (parents, tokens))


def search(
    prompts: Batch,
    batch: Batch,
    texts: Sequence[Text],
    beams: Beams,
    changed: Callable[[ndarray, list[list[int]]], ndarray] | None,
) -> list[list[tuple[float, Text]]]:
    """Return what is written after each prompt: scores and texts, the best first.

    prompts: each once. batch: each as often as there are beams. texts: with nothing written.
    changed: what a constraint makes of scores [n, vocabulary], for the tokens written.
    """
    groups, vocabulary = [_Group(text, beams) for text in texts], batch.runner.vocabulary
    # Of tokens that end a text as many may be the best ones of each beam.
    count = max(2, 1 + len(texts[0].end_tokens)) * beams.count
    count = min(count, beams.count * vocabulary)
    scores = op.repeat(prompts.prompt_scores(), beams.count, 0)
    for own, of_prompts in zip(batch.cache.arrays, prompts.cache.arrays, strict=True):
        own.copy_(of_prompts.repeat_interleave(beams.count, 0))
    batch.state.lengths.tensor.copy_(prompts.state.lengths.tensor.repeat_interleave(beams.count))
    first = np.arange(len(groups))[:, None] * beams.count

    def ranked(scores: ndarray) -> Any:
        if changed is not None:
            running = [text for group in groups for text in group.running]
            scores = changed(scores, [[] if r is None else r[1].tokens for r in running])
        return batch.runner("rank", scores, running_scores(), batch.rows, count=count)

    def running_scores() -> ndarray:
        values = [[UNLIKELY if r is None else r[0] for r in group.running] for group in groups]
        return batch.array(values, np.float32)

    found = ranked(scores)
    while True:
        best = [x.tensor.tolist() for x in found]
        for group, *own_best in zip(groups, *best, strict=True):
            if group.is_open:
                group.add(vocabulary, *own_best)
        if not any(group.is_open for group in groups):
            return [group.ended for group in groups]
        tokens = batch.array([token for group in groups for token in group.tokens])
        parents = batch.array((first + [group.parents for group in groups]).ravel())
        if changed is not None:
            found = ranked(batch.runner("follow", tokens, parents))
        else:
            found = batch.runner(
                "search", tokens, parents, running_scores(), batch.rows, count=count
            )
