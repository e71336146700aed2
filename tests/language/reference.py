"""Generation as its definition says it: each token of the whole text anew, in NumPy, one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import meta
from meta import language, op

Constraint = Callable[[Any, list[list[int]]], Any]


def scores_behind(decoder: language.Decoder, text: Sequence[int]) -> np.ndarray:
    """Return the scores of the next token of a text, float32, all of it read anew."""
    cache = language.Cache()
    cache.reserve(decoder, -(-len(text) // 32) * 32)
    arrays = [meta.array(x) for x in cache.arrays]
    pairs = list(zip(arrays[::2], arrays[1::2], strict=True))
    padded = [*text, *[0] * (cache.slots - len(text))]
    start, read = meta.array([0]), meta.array([len(text)])
    found: np.ndarray = decoder.scores(meta.array([padded]), start, read, pairs).numpy()[0]
    return found


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max()
    found: np.ndarray = x - np.log(np.exp(x).sum())
    return found


def changed(
    scores: np.ndarray, prompt: Sequence[int], written: Sequence[int], options: Mapping[str, Any]
) -> np.ndarray:
    """Return scores with bias and penalties."""
    scores = scores.copy()
    for token, number in options.get("logit_bias", {}).items():
        scores[token] += number
    factor = np.float32(options.get("repetition_penalty", 1.0))
    for token in {*prompt, *written}:
        scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
    for token in set(written):
        scores[token] -= options.get("presence_penalty", 0.0)
        scores[token] -= options.get("frequency_penalty", 0.0) * written.count(token)
    return scores


def chosen(scores: np.ndarray, at: int, options: Mapping[str, Any]) -> int:
    """Return the token that is drawn, by Gumbel's noise, for a place in the text."""
    temperature = options.get("temperature", 0.0)
    if temperature == 0:
        return int(scores.argmax())
    scaled = scores / np.float32(temperature)
    order = np.argsort(-scaled, kind="stable")
    kept = order[: options.get("top_k", 0) or len(order)]
    shares = np.exp(scaled[kept] - scaled.max())
    before = np.cumsum(shares / shares.sum()) - shares / shares.sum()
    if options.get("top_p", 1.0) < 1:
        kept = kept[(before < options["top_p"]) | (np.arange(len(kept)) == 0)]
    kept = kept[np.exp(scaled[kept] - scaled.max()) >= options.get("min_p", 0.0)]
    words = np.random.SeedSequence(options["seed"]).generate_state(1, np.uint64)
    key = meta.array([int(words[0] >> np.uint64(1)) + at])
    noise = op.random_uniform(key, (len(scores),)).numpy() + np.float32(2**-25)
    return int(kept[np.argmax(scaled[kept] - np.log(-np.log(noise[kept])))])


def generated(
    decoder: language.Decoder, prompt: Sequence[int], count: int, **options: Any
) -> tuple[list[int], str]:
    """Return the tokens that are written after a prompt, and why they end."""
    written: list[int] = []
    while len(written) < count:
        text = [*prompt, *written]
        scores = scores_behind(decoder, text)
        token = chosen(changed(scores, prompt, written, options), len(text), options)
        if token in options.get("end_tokens", ()):
            return written, "end"
        written.append(token)
        if any(stop in bytes(written).decode("latin-1") for stop in options.get("stop", ())):
            return written, "stop"
    return written, "length"


def searched(
    decoder: language.Decoder, prompt: Sequence[int], count: int, beams: int, **options: Any
) -> list[tuple[float, list[int], str]]:
    """Return what beams write: scores, tokens, and why they end, the best first."""
    running, ended = [(0.0, list[int]())], list[tuple[float, list[int], str]]()
    ends, stops = options.get("end_tokens", ()), options.get("stop", ())
    for length in range(1, count + 1):
        every = []
        for total, written in running:
            scores = scores_behind(decoder, [*prompt, *written])
            if options.get("constraint"):
                scores = options["constraint"](scores[None], [[*prompt, *written]])[0]
            logprobs = changed(log_softmax(scores), prompt, written, options)
            every += [(total + x, [*written, t]) for t, x in enumerate(logprobs) if x > -1e8]
        every.sort(key=lambda one: -one[0])
        every, running = every[: max(2, 1 + len(ends)) * beams], []
        share = length ** options.get("length_penalty", 1.0)
        for rank, (total, written) in enumerate(every):
            end = written[-1] in ends
            stop = any(s in bytes(written).decode("latin-1") for s in stops) and not end
            if not (end or stop or length == count):
                running.append((total, written))
            elif rank < beams:
                reason = "end" if end else "stop" if stop else "length"
                ended.append((total / share, written[:-1] if end else written, reason))
        ended = sorted(ended, key=lambda one: -one[0])[:beams]
        running = running[:beams]
        if not running or (len(ended) == beams and running[0][0] / share <= ended[-1][0]):
            break
    return ended
