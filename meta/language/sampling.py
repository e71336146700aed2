"""How the next token is chosen from its scores, for each row of a batch, on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from meta import op
from meta.base.errors import ArgumentError
from meta.op.core.function import device_of

HALF = 2.0**-25
"""Half of the step of uniform numbers in float32."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Each is one value, or one for each row.

    temperature: what scores are divided by; 0 takes the token of the highest score. top_k: how many
    of the highest scores may be drawn; 0 is no limit (Fan et al., arXiv:1805.04833). top_p: the
    fewest tokens that have this probability together (Holtzman et al., arXiv:1904.09751). min_p:
    those at least so probable as the most probable one times this (arXiv:2407.01082). They apply
    in this order, each to what the one before left.

    repetition_penalty: scores of tokens of the prompt and of the text so far are divided by it if
    they are positive, else multiplied (Keskar et al., arXiv:1909.05858). presence_penalty,
    frequency_penalty: subtracted from the scores of tokens that were generated, once, or as often
    as they were. logit_bias: numbers to add to scores, by token.
    """

    temperature: float | Sequence[float] = 0.0
    top_k: int | Sequence[int] = 0
    top_p: float | Sequence[float] = 1.0
    min_p: float | Sequence[float] = 0.0
    repetition_penalty: float | Sequence[float] = 1.0
    presence_penalty: float | Sequence[float] = 0.0
    frequency_penalty: float | Sequence[float] = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    _ranges: ClassVar = {
        "temperature": (0.0, float("inf")),
        "top_k": (0, 2**31 - 1),
        "top_p": (0.0, 1.0),
        "min_p": (0.0, 1.0),
        "repetition_penalty": (1e-6, float("inf")),
        "presence_penalty": (-float("inf"), float("inf")),
        "frequency_penalty": (-float("inf"), float("inf")),
    }

    def rows(self, count: int) -> dict[str, np.ndarray]:
        """Return the values of each row; ArgumentError for one that is out of range."""
        found = {}
        for name, (low, high) in self._ranges.items():
            dtype = np.int64 if name == "top_k" else np.float32
            given = np.asarray(getattr(self, name))
            if given.ndim > 1 or (given.ndim == 1 and len(given) != count):
                raise ArgumentError(
                    f"{name} has one value for each prompt",
                    expected=f"a number, or {count} of them",
                    found=getattr(self, name),
                )
            if not np.issubdtype(given.dtype, np.number) or not np.all(
                (given >= low) & (given <= high)
            ):
                raise ArgumentError(
                    f"{name} is out of range",
                    expected=f"{low} to {high}",
                    found=getattr(self, name),
                )
            if dtype is np.int64 and not np.issubdtype(given.dtype, np.integer):
                raise ArgumentError("top_k is an integer", found=self.top_k)
            found[name] = np.broadcast_to(given.astype(dtype), (count,)).copy()
        return found


class Chooser:
    """What a compiled program does to scores: only what the rows ask for.

    Attributes
    ----------
    draws: whether any row draws. sorts: how many scores are sorted, 0 for none. penalties, biased:
    whether there are any.
    """

    def __init__(self, sampling: Sampling, count: int, vocabulary: int) -> None:
        rows = sampling.rows(count)
        drawing = rows["temperature"] > 0
        self.draws = bool(drawing.any())
        limits = np.where(rows["top_k"] > 0, rows["top_k"], vocabulary)
        nucleus = bool((drawing & (rows["top_p"] < 1)).any())
        limited = bool((drawing & (limits < vocabulary)).any())
        self.sorts = 0
        if nucleus or limited:
            longest = int(limits[drawing].max())
            self.sorts = min(vocabulary, -(-longest // 64) * 64)
        self.floor = bool((drawing & (rows["min_p"] > 0)).any())
        self.penalties = any(
            bool((rows[name] != neutral).any())
            for name, neutral in (
                ("repetition_penalty", 1), ("presence_penalty", 0), ("frequency_penalty", 0),
            )
        )  # fmt: skip
        self.biased = bool(sampling.logit_bias)
        self.vocabulary = vocabulary
        for token in sampling.logit_bias:
            if not 0 <= token < vocabulary:
                raise ArgumentError(
                    "logit_bias names a token that is none",
                    expected=f"0 to {vocabulary - 1}",
                    found=token,
                )

    @property
    def signature(self) -> tuple[Any, ...]:
        """Return what a program depends on."""
        return self.draws, self.sorts, self.floor, self.penalties, self.biased

    def penalized(self, scores: Any, rows: Mapping[str, Any], known: Any, counts: Any) -> Any:
        """Return scores after penalties; known: bool, of the prompt; counts: int32, generated."""
        counted = op.astype(counts, "float32")
        presence, frequency, repetition = (
            op.reshape(rows[name], (-1, 1))
            for name in ("presence_penalty", "frequency_penalty", "repetition_penalty")
        )
        again = op.where(
            op.greater(scores, 0.0),
            op.divide(scores, repetition),
            op.multiply(scores, repetition),
        )
        generated = op.greater(counts, 0)
        scores = op.where(op.logical_or(known, generated), again, scores)
        scores = op.subtract(scores, op.multiply(op.astype(generated, "float32"), presence))
        return op.subtract(scores, op.multiply(counted, frequency))

    def chosen(self, scores: Any, rows: Mapping[str, Any], key: Any) -> Any:
        """Return the tokens, int64 [n], of scores [n, vocabulary]; key: int64 [1]."""
        if not self.draws:
            return op.argmax(scores, -1)
        tokens = None
        if self.sorts:
            scores, tokens = op.topk(scores, self.sorts, -1)
        temperature = op.reshape(rows["temperature"], (-1, 1))
        greedy = op.equal(temperature, 0.0)
        scaled = op.divide(scores, op.where(greedy, 1.0, temperature))
        scaled = op.where(self._kept(scaled, rows), scaled, float("-inf"))
        # The largest of scores plus noise of Gumbel's distribution is a draw by their softmax.
        noise = op.add(op.random_uniform(key, scores.shape), HALF)
        noise = op.negative(op.log(op.negative(op.log(noise))))
        found = op.argmax(op.where(greedy, scores, op.add(scaled, noise)), -1)
        if tokens is None:
            return found
        at = op.arange(0, scores.shape[0], 1, "int64", device_of(scores))
        return op.adv_index((tokens, at, found))

    def _kept(self, scaled: Any, rows: Mapping[str, Any]) -> Any:
        """Return which tokens may be drawn, of scores that descend if they are sorted."""
        top_k, top_p, min_p = (op.reshape(rows[n], (-1, 1)) for n in ("top_k", "top_p", "min_p"))
        kept = op.equal(scaled, scaled)
        if self.sorts:
            rank = op.arange(0, self.sorts, 1, "int64", device_of(scaled))
            kept = op.logical_or(op.less(rank, top_k), op.equal(top_k, 0))
            shares = op.softmax(op.where(kept, scaled, float("-inf")), -1)
            before = op.subtract(op.cumsum(shares, -1), shares)
            nucleus = op.logical_or(op.less(before, top_p), op.equal(rank, 0))
            kept = op.logical_and(kept, op.logical_or(nucleus, op.greater_equal(top_p, 1.0)))
        if self.floor:
            highest = op.max(scaled, -1, True)
            likely = op.greater_equal(op.exp(op.subtract(scaled, highest)), min_p)
            kept = op.logical_and(kept, likely)
        return kept
