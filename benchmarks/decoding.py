"""Decoding by `meta.language` alone, beside the time that reading weights and cache takes.

    python benchmarks/decoding.py [--sizes 1b,8b] [--quantize none,int8] [--batch 1,16]
                                  [--context 512] [--device cuda]
    python benchmarks/decoding.py --json --check    # one JSON object; 1 if a goal is missed

Models have random weights, in bfloat16: *1b* and *8b* have the sizes of Llama 3.2 1B and of Llama 3
8B, *small* 6 layers of 512. Each text has --context tokens, and is written on by some, greedily.
Milliseconds a token are the difference of a long and a short call, so that what a call costs once
is left out. *Prompt* is the time of reading --context tokens and writing one. The bound is that of
`meta.language.decoding_bound`. decode_torch.py has the peers.

Goals on a GPU, with one text: 0.75 of the bound with 1b, 0.85 with 8b, 0.7 with weights of 8 bits
and 0.6 with those of 4.
"""

from __future__ import annotations

import sys
import time
from itertools import product
from typing import Any

import torch
from command import add_outputs, parser_of
from report import conditions, conditions_cuda, write
from turns import add_threads, set_threads, synchronize

import meta
from meta import language
from meta.model import quantize

NAMES = "vocab_size hidden_size inner heads key_value_heads head_width"
SIZES = {  # NAMES, the layers, and whether embeddings are the head
    "small": ((4096, 512, 1024, 8, 8, 64), 6, True),
    "1b": ((128256, 2048, 8192, 32, 8, 64), 16, True),
    "8b": ((128256, 4096, 14336, 32, 8, 128), 32, False),
}
GOALS = {("1b", "none"): 0.75, ("8b", "none"): 0.85, ("1b", "int8"): 0.7, ("1b", "int4"): 0.6}
GOALS |= {("8b", "int8"): 0.7, ("8b", "int4"): 0.6}
OPTIONS: dict[str, dict[str, Any]] = {"int4": {"group": 64}}
SHORT, LONG = 16, 144


def decoder_of(size: str, kind: str, device: str) -> language.Decoder:
    """Return a decoder with random weights."""
    numbers, layers, tied = SIZES[size]
    given: dict[str, Any] = dict(zip(NAMES.split(), numbers, strict=True))
    rope = {"rope_type": "default", "rope_theta": 5e5}
    config = language.DecoderConfig(
        **given, windows=(None,) * layers, rotary=(rope,) * layers, experts=(None,) * layers,
        rotary_width=numbers[-1], scale=numbers[-1] ** -0.5, eps=1e-5, max_positions=131072,
        tied=tied,
    )  # fmt: skip
    with meta.device(device):
        model = language.Decoder(config)
    model.to(dtype="bfloat16")
    if kind != "none":
        quantize(model, kind, where=lambda path, _: path != "lm_head", **OPTIONS.get(kind, {}))
    return model


def measure(size: str, kind: str, batch: int, context: int, options: Any) -> dict[str, Any]:
    """Return the record of one row."""
    model = decoder_of(size, kind, options.device)
    prompts = torch.randint(0, model.config.vocab_size, (batch, context)).tolist()
    cache = language.Cache(batch)
    cache.reserve(model, context + LONG)
    language.generate(model, prompts, max_new_tokens=2, cache=cache)

    def written(count: int, given: list[list[int]] | None = None) -> float:
        cache.truncate(0 if given else context)
        synchronize(options.device)
        start = time.perf_counter()
        more: dict[str, Any] = {"max_new_tokens": count, "end_tokens": (), "cache": cache}
        language.generate(model, given or [[1]] * batch, **more)
        synchronize(options.device)
        return time.perf_counter() - start

    read = min(written(1, prompts) for _ in range(options.rounds))
    written(SHORT)
    turns = [(written(SHORT), written(LONG)) for _ in range(options.rounds)]
    best = [min(seconds) for seconds in zip(*turns, strict=True)]
    seconds = (best[1] - best[0]) / (LONG - SHORT)
    bound = language.decoding_bound(model, context + LONG // 2, batch)
    share = bound.seconds / seconds
    goal = GOALS.get((size, kind)) if options.device == "cuda" and batch == 1 else None
    return {
        "size": size, "weights": kind, "batch": batch, "context": context, "ms": 1e3 * seconds,
        "tokens per second": batch / seconds, "bound ms": 1e3 * bound.seconds, "share": share,
        "prompt ms": 1e3 * read, "goal": goal, "missed": goal is not None and share < goal,
    }  # fmt: skip


def _words(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def main() -> int:
    """Measure and print; return 1 if ``--check`` finds a goal missed."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sizes", type=_words, default=None, help=", ".join(SIZES))
    parser.add_argument("--quantize", type=_words, default=["none"], metavar="none,int8,int4")
    parser.add_argument("--batch", type=_numbers, default=[1])
    parser.add_argument("--context", type=_numbers, default=[512])
    add_threads(parser, rounds=3)
    add_outputs(parser, page=False)
    options = parser.parse_args()
    set_threads(options.threads)
    meta.vm.measure_peaks(options.device)
    sizes = options.sizes or (["1b", "8b"] if options.device == "cuda" else ["small"])
    cases = product(sizes, options.quantize, options.batch, options.context)
    rows = [measure(*case, options) for case in cases]
    heads = ["size", "weights", "batch", "context", "ms", "tokens per second"]
    heads += ["bound ms", "share", "prompt ms"]
    table = [heads]
    for r in rows:
        figures_of = [f"{r[h]:.{3 if h == 'ms' else 2}f}" for h in heads[4:]]
        table.append([*(str(r[h]) for h in heads[:4]), *figures_of])
    figures = f"the shortest of {options.rounds} turns"
    where = conditions_cuda(figures) if options.device == "cuda" else conditions(True, figures)
    write(options, where, {"rows": rows}, table)
    return int(options.check and any(r["missed"] for r in rows))


if __name__ == "__main__":
    sys.exit(main())
