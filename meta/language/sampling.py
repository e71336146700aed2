"""How the next token is chosen from its scores, for each row of a batch, on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, ClassVar, TypeVar

import numpy as np

from meta import op
from meta.base.errors import ArgumentError
from meta.base.signature_check import check_signature
from meta.op.core.function import device_of
from meta.runtime import random

HALF = 2.0**-25
"""Half of the step of uniform numbers in float32."""


F = TypeVar("F", bound=Callable[..., Any])
Many = Sequence[Any]
PENALTIES = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
"""What each is where there is none."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. Each is one value, or one for each row.

    temperature: what scores are divided by; 0 takes the token of the highest score. top_k: how many
    of the highest scores may be drawn; 0 is no limit (Fan et al., arXiv:1805.04833). top_p: the
    fewest tokens that have this probability together (Holtzman et al., arXiv:1904.09751). min_p:
    those at least so probable as the most probable one times this (arXiv:2407.01082). They apply
    in this order, each to what the one before left.

    repetition_penalty: scores of tokens of the prompt and of the text so far are divided by it if
    they are positive, else multiplied (Keskar et al., arXiv:1909.05858). presence_penalty,
    frequency_penalty: subtracted from the scores of tokens that were generated, once, or as often
    as they were. logit_bias: numbers to add to scores, by token.

    seed: an int >= 0, of the draws; None: they go on from `meta.random.seed`. What a row draws is a
    function of its seed and of where in its text the token is, whatever the batch. One seed gives
    each row another, which is itself for the first.

    Raises ArgumentError, where it is used, for a number that is out of its range.

    >>> numbers = meta.language.Sampling(temperature=0.5, top_k=[5, 0]).rows(2, vocabulary=11)
    >>> numbers["temperature"].tolist(), numbers["top_k"].tolist()
    ([0.5, 0.5], [5, 0])
    """

    temperature: float | Many = 0.0
    top_k: int | Many = 0
    top_p: float | Many = 1.0
    min_p: float | Many = 0.0
    repetition_penalty: float | Many = 1.0
    presence_penalty: float | Many = 0.0
    frequency_penalty: float | Many = 0.0
    logit_bias: Mapping[int, float] | Many = field(default_factory=dict)
    seed: int | Many | None = None

    _ranges: ClassVar = {
        "temperature": (0.0, float("inf")),
        "top_k": (0, 2**31 - 1),
        "top_p": (0.0, 1.0),
        "min_p": (0.0, 1.0),
        "repetition_penalty": (1e-6, float("inf")),
        "presence_penalty": (-float("inf"), float("inf")),
        "frequency_penalty": (-float("inf"), float("inf")),
    }

    def rows(self, count: int, vocabulary: int) -> dict[str, np.ndarray]:
        """Return the numbers of each row, [count] each, its "key" of draws, int64, and "bias",
        float32 [count, vocabulary], if there is any; ArgumentError for one that is out of range.
        """
        found: dict[str, np.ndarray] = {}
        for name, (low, high) in self._ranges.items():
            dtype = np.int64 if name == "top_k" else np.float32
            given = np.asarray(getattr(self, name))
            if given.ndim > 1 or (given.ndim == 1 and len(given) != count):
                raise _wrong_count(name, count, getattr(self, name))
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
        found["key"] = self._keys(count, bool(found["temperature"].any()))
        bias = self._bias(count, vocabulary)
        return found if bias is None else {**found, "bias": bias}

    def _keys(self, count: int, drawing: bool) -> np.ndarray:
        if self.seed is None:
            return random.default.keys(count).copy() if drawing else np.zeros(count, np.int64)
        several = np.ndim(self.seed) > 0
        given: Any = self.seed
        seeds = list(given) if several else [given]
        if several and len(seeds) != count:
            raise _wrong_count("seed", count, self.seed)
        if any(isinstance(s, bool) or not isinstance(s, int | np.integer) or s < 0 for s in seeds):
            raise ArgumentError("a seed is an int >= 0", found=self.seed)
        each = 1 if several else count
        words = [np.random.SeedSequence(int(s)).generate_state(each, np.uint64) for s in seeds]
        return (np.concatenate(words) >> np.uint64(1)).astype(np.int64)

    def _bias(self, count: int, vocabulary: int) -> np.ndarray | None:
        given = self.logit_bias
        rows = [given] * count if isinstance(given, Mapping) else list(given)
        if len(rows) != count:
            raise _wrong_count("logit_bias", count, given)
        if not any(rows):
            return None
        found = np.zeros((count, vocabulary), np.float32)
        for row, numbers in zip(found, rows, strict=True):
            for token, number in numbers.items():
                if not 0 <= token < vocabulary:
                    raise ArgumentError(
                        "logit_bias names a token that is none",
                        expected=f"0 to {vocabulary - 1}",
                        found=token,
                    )
                row[token] = number
        return found


def takes_sampling(f: F) -> F:
    """Give a function that hands ``**sampling`` to `Sampling` a signature with its fields."""
    own = signature(f)
    fields = [p.replace(kind=p.KEYWORD_ONLY) for p in signature(Sampling).parameters.values()]
    first = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
    f.__signature__ = own.replace(parameters=[*first, *fields])  # type: ignore[attr-defined]
    return check_signature(f)


def _wrong_count(name: str, count: int, found: Any) -> ArgumentError:
    return ArgumentError(
        f"{name} has one value for each prompt", expected=f"one, or {count} of them", found=found
    )


@dataclass(frozen=True)
class Chooser:
    """What a compiled program does to scores: only what its rows ask for.

    draws: whether any row draws. sorts: how many scores are sorted, 0 for none. floor: whether any
    row has ``min_p``. penalties, biased: whether there are any.
    """

    vocabulary: int
    draws: bool
    sorts: int
    floor: bool
    penalties: bool
    biased: bool

    @property
    def takes_best(self) -> bool:
        """Whether each token is the one of the largest score."""
        return not (self.draws or self.penalties or self.biased)

    @classmethod
    def of(cls, rows: Mapping[str, np.ndarray], vocabulary: int) -> Chooser:
        """Return what is needed for rows, as `Sampling.rows` returns them."""
        drawing = rows["temperature"] > 0
        limits = np.where(rows["top_k"] > 0, rows["top_k"], vocabulary)
        sorts = 0
        if (drawing & ((rows["top_p"] < 1) | (limits < vocabulary))).any():
            # Powers of two: each is a program.
            longest = max(64, int(limits[drawing].max()))
            sorts = min(vocabulary, 1 << (longest - 1).bit_length())
        floor = bool((drawing & (rows["min_p"] > 0)).any())
        penalties = any(bool((rows[name] != none).any()) for name, none in PENALTIES.items())
        return cls(vocabulary, bool(drawing.any()), sorts, floor, penalties, "bias" in rows)

    def needed(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Return the numbers of rows that a program of this kind is given."""
        names = [
            *(("temperature", "key") if self.draws else ()),
            *(("top_k", "top_p") if self.sorts else ()),
            *(("min_p",) if self.floor else ()),
            *(PENALTIES if self.penalties else ()),
            *(("bias",) if self.biased else ()),
        ]
        return {name: rows[name] for name in names}

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

    def chosen(self, scores: Any, rows: Mapping[str, Any], at: Any) -> Any:
        """Return the tokens, int64 [n], of scores [n, vocabulary].

        at: int64 [n], where in its text each token is.
        """
        if not self.draws:
            return op.argmax(scores, -1)
        # The largest of scores plus noise of Gumbel's distribution is a draw by their softmax. The
        # noise belongs to a token, whatever its rank: other rows may ask for the order.
        noise = op.random_uniform(op.add(rows["key"], at), scores.shape)
        tokens = None
        if self.sorts:
            scores, tokens = op.topk(scores, self.sorts, -1)
            noise = op.take_along_axis(noise, tokens, -1)
        temperature = op.reshape(rows["temperature"], (-1, 1))
        greedy = op.equal(temperature, 0.0)
        scaled = op.divide(scores, op.where(greedy, 1.0, temperature))
        scaled = op.where(self._kept(scaled, rows), scaled, float("-inf"))
        noise = op.negative(op.log(op.negative(op.log(op.add(noise, HALF)))))
        found = op.argmax(op.where(greedy, scores, op.add(scaled, noise)), -1)
        if tokens is None:
            return found
        rank = op.reshape(found, (-1, 1))
        return op.reshape(op.take_along_axis(tokens, rank, -1), (-1,))

    def _kept(self, scaled: Any, rows: Mapping[str, Any]) -> Any:
        """Return which tokens may be drawn, of scores that descend if they are sorted."""
        kept = op.equal(scaled, scaled)
        if self.sorts:
            top_k, top_p = (op.reshape(rows[name], (-1, 1)) for name in ("top_k", "top_p"))
            rank = op.arange(0, self.sorts, 1, "int64", device_of(scaled))
            kept = op.logical_or(op.less(rank, top_k), op.equal(top_k, 0))
            shares = op.softmax(op.where(kept, scaled, float("-inf")), -1)
            before = op.subtract(op.cumsum(shares, -1), shares)
            nucleus = op.logical_or(op.less(before, top_p), op.equal(rank, 0))
            kept = op.logical_and(kept, op.logical_or(nucleus, op.greater_equal(top_p, 1.0)))
        if self.floor:
            highest = op.max(scaled, -1, True)
            least = op.reshape(rows["min_p"], (-1, 1))
            likely = op.greater_equal(op.exp(op.subtract(scaled, highest)), least)
            kept = op.logical_and(kept, likely)
        return kept
