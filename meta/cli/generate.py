"""``python -m meta generate``: write on from a prompt by a model in a folder."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import fields
from typing import Any

from meta.base.device import available, require
from meta.language import Completion, Decoder, Sampling, decoding_bound, generate, load


def run(options: argparse.Namespace) -> int:
    """Load, generate and print the text as it comes; then how long it took, on stderr."""
    device = require(options.device or available()[:2][-1])  # the first GPU, if there is one
    begin = time.perf_counter()
    decoder = load(options.folder, device=device, dtype=options.dtype)
    given = _arguments(options, device)
    loaded = time.perf_counter()
    found = _streamed if options.beams == 1 else _searched
    facts = {"device": str(device), "load_s": loaded - begin, **found(decoder, options, given)}
    if options.json:
        print(json.dumps(facts))
        return 0
    print()
    print(_line(facts), file=sys.stderr)
    return 0


def _arguments(options: argparse.Namespace, device: Any) -> dict[str, Any]:
    """Return the arguments of `generate`."""
    names = "max_new_tokens", "stop", "draft_tokens", "beams", "length_penalty"
    given = {name: getattr(options, name) for name in names}
    for field in fields(Sampling):
        value = getattr(options, field.name, None)
        if value is not None:
            given[field.name] = value
    if options.draft is not None:
        folder = options.draft
        given["draft"] = folder if folder == "ngram" else load(folder, device=device)
    return given


def _searched(
    decoder: Decoder, options: argparse.Namespace, given: dict[str, Any]
) -> dict[str, Any]:
    """Let beams write, print the best text, and return facts."""
    begin = time.perf_counter()
    found: Completion = generate(decoder, options.prompt, **given)
    if not options.json:
        print(found.text, end="")
    return {
        "total_s": time.perf_counter() - begin,
        "tokens": found.tokens.tolist(),
        "text": found.text,
        "reason": found.reason,
        "score": found.score,
        "others": [[other.score, other.text] for other in found.others],
    }


def _streamed(
    decoder: Decoder, options: argparse.Namespace, given: dict[str, Any]
) -> dict[str, Any]:
    """Write, print the text as it comes, and return facts."""
    pieces, times = [], [time.perf_counter()]
    for piece in generate(decoder, options.prompt, stream=True, **given):
        pieces.append(piece)
        times.append(time.perf_counter())
        if not options.json and piece.text:
            print(piece.text, end="", flush=True)
    facts: dict[str, Any] = {
        "tokens": [p.token for p in pieces],
        "text": "".join(p.text or "" for p in pieces),
        "reason": pieces[-1].reason if pieces else "length",
        "first_token_s": times[1] - times[0] if pieces else None,
        "tokens_per_s": None,
    }
    if len(times) > 2:  # the first token takes reading and compiling
        facts["tokens_per_s"] = (len(times) - 2) / (times[-1] - times[1])
    guessed = sum(p.guessed for p in pieces)
    if options.draft is not None and pieces:
        facts["tokens_per_step"] = len(pieces) / (len(pieces) - guessed)
    tokenizer: Any = decoder.tokenizer
    prompt = len(tokenizer.encode(options.prompt).ids)
    bound = decoding_bound(decoder, prompt + len(pieces) // 2)
    facts |= {
        "bytes_per_step": bound.bytes,
        "bound_steps_per_s": 1 / bound.seconds,
        "bound_is_measured": bound.measured,
    }
    return facts


def _line(facts: dict[str, Any]) -> str:
    """Return what is said of times."""
    parts = [f"{facts['device']}: loaded in {facts['load_s']:.2f} s"]
    if "total_s" in facts:
        parts.append(f"{len(facts['tokens'])} tokens in {facts['total_s']:.2f} s")
    if facts.get("first_token_s") is not None:
        parts.append(f"first token in {facts['first_token_s']:.2f} s")
    if facts.get("tokens_per_s") is not None:
        parts.append(f"then {facts['tokens_per_s']:.1f} tokens/s")
        if "tokens_per_step" in facts:
            parts.append(f"{facts['tokens_per_step']:.2f} a step")
        source = "" if facts["bound_is_measured"] else ", not measured here"
        parts.append(
            f"at most {facts['bound_steps_per_s']:.1f} steps/s by the memory's bandwidth "
            f"({facts['bytes_per_step'] / 1e9:.3g} GB each{source})"
        )
    return ", ".join(parts)
