"""``python -m meta generate``: write on from a prompt by a model in a folder."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator

from meta.base.device import available, require
from meta.language import Decoder, Piece, generate, load


def run(options: argparse.Namespace) -> int:
    """Load, generate and print the text as it comes; then how long it took, on stderr."""
    device = require(options.device or available()[:2][-1])  # the first GPU, if there is one
    begin = time.perf_counter()
    decoder = load(options.folder, device=device, dtype=options.dtype)
    loaded = time.perf_counter()
    pieces, times = [], [loaded]
    for piece in _pieces(decoder, options):
        pieces.append(piece)
        times.append(time.perf_counter())
        if not options.json and piece.text:
            print(piece.text, end="", flush=True)
    # The first token takes reading and compiling.
    rate = (len(times) - 2) / (times[-1] - times[1]) if len(times) > 2 else None
    facts = {
        "device": str(device),
        "load_s": loaded - begin,
        "first_token_s": times[1] - loaded if pieces else None,
        "tokens_per_s": rate,
        "tokens": [p.token for p in pieces],
        "text": "".join(p.text or "" for p in pieces),
        "reason": pieces[-1].reason if pieces else "length",
    }
    if options.json:
        print(json.dumps(facts))
        return 0
    print()
    speed = "" if rate is None else f", then {rate:.1f} tokens/s"
    first = "" if not pieces else f", first token in {times[1] - loaded:.2f} s{speed}"
    print(f"{device}: loaded in {loaded - begin:.2f} s{first}", file=sys.stderr)
    return 0


def _pieces(decoder: Decoder, options: argparse.Namespace) -> Iterator[Piece]:
    found: Iterator[Piece] = generate(
        decoder,
        options.prompt,
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        stop=options.stop,
        seed=options.seed,
        stream=True,
    )
    return found
