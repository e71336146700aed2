"""Decoding of a Llama of transformers' with a StaticCache: `torch.compile(backend="meta")` and
`meta.language` beside Inductor and eager PyTorch, in one run.

    python benchmarks/decode_torch.py [--slots 128,4096] [--batch 1,16] [--device cuda] [--tiny]
                                      [--dtype bfloat16] [--quantize int8,int4] [--prompt 2048]
    python benchmarks/decode_torch.py --json --check    # one JSON object; 1 if a goal is missed

The model has random weights: on the CPU 6 layers of 512 in float32 unless --dtype says otherwise,
on CUDA the sizes of Llama 3.2 1B in bfloat16. A step is the forward pass of one token for each
sequence, of which the most likely successor is taken; Inductor has CUDA graphs. The successors are
compared before anything is timed: in bfloat16 a few may differ. "native" is
`meta.language.generate`, which reads what it wrote, with slots in steps of 256. With --prompt, a
row more says how many tokens of a text a second each reads into the largest cache.
*First call* is CPU time with caches on disk that another process has filled; "trace" is that of the
backend "aot_eager_decomp_partition", which compiles nothing.
Goals of "meta": Inductor's speed with the fewest slots, 1/1.2 of it with more; no longer a first
call. Of "native": 1.3 of Inductor's speed; of the same with weights of 8 and 4 bits (--quantize),
1.7 and 2.2 of its speed; of prompts 1.19 of Inductor's.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from command import add_outputs, parser_of
from report import conditions, conditions_cuda, has_compiler, write
from turns import add_threads, in_turns, set_threads, synchronize
from worker_processes import records_of

import meta.frontend.dynamo  # noqa: F401  (registers the backend)
from meta import language

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
PROMPT, STEPS = 16, 32
NAMES = "hidden_size intermediate_size vocab_size num_hidden_layers num_attention_heads"
SIZES = {  # NAMES, then the heads of keys
    "tiny": (64, 128, 256, 2, 4, 2),
    "cpu": (512, 1024, 4096, 6, 8, 8),
    "cuda": (2048, 8192, 128256, 16, 32, 8),
}
BACKENDS = {"meta": "meta", "inductor": "inductor", "trace": "aot_eager_decomp_partition"}
LEAST, LEAST_LONG, LEAST_NATIVE, LEAST_PROMPT = 1.0, 1 / 1.2, 1.3, 1.19
LEAST_QUANTIZED = {"int8": 1.7, "int4": 2.2}
MOST_DIFFERENT = {"float32": 0, "bfloat16": 0.1}


def model_of(size: str, device: str, dtype: str) -> Any:
    """Return a Llama, with weights of a seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    *sizes, heads = SIZES[size]
    given = dict(zip(NAMES.split(), sizes, strict=True), num_key_value_heads=heads)
    config = LlamaConfig(**given, max_position_embeddings=8192)
    return LlamaForCausalLM(config).eval().to(device, getattr(torch, dtype))


def steps_of(prompt: int) -> tuple[int, int, int]:
    """Return how many tokens are read first, in each step, and how many steps there are."""
    return (0, prompt, 1) if prompt else (PROMPT, 1, STEPS)


@torch.no_grad()
def decoder(
    model: Any, backend: str, slots: int, batch: int, prompt: int = 0
) -> Callable[..., torch.Tensor]:
    """Return what reads some tokens, one by one behind a prompt or a prompt at once, and returns
    their successors, of a prompt the last ones.
    """
    from transformers import StaticCache

    forward = model.forward
    if backend != "eager":
        has_graphs = backend == "inductor" and model.device.type == "cuda"
        options: Any = {"mode": "reduce-overhead"} if has_graphs else {}
        forward = torch.compile(forward, backend=BACKENDS[backend], **options)
    cache = StaticCache(config=model.config, max_cache_len=slots)
    has_name = "cache" in inspect.signature(model.forward).parameters  # since 5.18
    given = {"cache" if has_name else "past_key_values": cache, "use_cache": True}
    before, each, count = steps_of(prompt)
    text = torch.randint(0, model.config.vocab_size, (batch, before + each * count))
    text = text.to(model.device)
    model(text[:, : before or each], **given)  # the cache is made here: a graph may write it
    if not before:
        _forget(cache, each)
    tokens = [t.clone() for t in text[:, before:].split(each, 1)]

    @torch.no_grad()
    def run(steps: int = count) -> torch.Tensor:
        found = []
        for token in tokens[:steps]:
            torch.compiler.cudagraph_mark_step_begin()
            found.append(forward(token, logits_to_keep=STEPS, **given).logits.argmax(-1))
        _forget(cache, steps * each)
        synchronize(model.device.type)
        return torch.cat(found, 1)

    return run


def _forget(cache: Any, count: int) -> None:
    """Let the last tokens of a cache not have been read."""
    for layer in cache.layers:
        layer.cumulative_length.sub_(count)


def native(
    model: Any, slots: int, batch: int, quantize: str | None = None, prompt: int = 0
) -> Callable[..., torch.Tensor]:
    """Return what writes as many tokens behind a prompt by `meta.language`, or reads a prompt and
    writes one.
    """
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        how = None
        if quantize:  # the head, too, as llama.cpp has it
            group = 64 if quantize == "int4" else None
            how = language.Quantization(quantize, group=group, head=True)
        own = language.load(folder, device=model.device, quantize=how)
    cache = language.Cache(batch)
    cache.reserve(own, slots)
    before, each, count = steps_of(prompt)
    text = torch.randint(0, model.config.vocab_size, (batch, before + each)).tolist()
    if before:
        language.generate(own, [t[:before] for t in text], max_new_tokens=1, cache=cache)

    def run() -> torch.Tensor:
        cache.truncate(before)
        given: dict[str, Any] = {"max_new_tokens": count, "end_tokens": (), "cache": cache}
        found = language.generate(own, [t[before:] for t in text], **given)
        return torch.tensor([c.tokens.tolist() for c in found])

    return run


def measure(
    size: str, backends: list[str], slots: int, batch: int, prompt: int, options: Any
) -> dict[str, Any]:
    """Return the tokens per second of each contender, after their results were compared."""
    torch._dynamo.reset()
    model, calls = model_of(size, options.device, options.dtype), dict[str, Callable[[], Any]]()
    for backend in ("eager", *backends):
        torch.manual_seed(1)
        calls[backend] = decoder(model, backend, slots, batch, prompt)
        calls[backend]()  # CUDA graphs are captured
        different = (calls[backend]() != calls["eager"]()).float().mean().item()
        if different > MOST_DIFFERENT[options.dtype]:
            raise SystemExit(f"{backend} gives other tokens than eager: {different:.0%}")
    for kind in (None, *options.quantize):
        name = f"native {kind}" if kind else "native"
        calls[name] = native(model, slots, batch, kind, prompt)
        calls[name]()
    times = in_turns(calls, options.rounds).items()
    speeds = {name: 1e3 * batch * (prompt or STEPS) / ms for name, ms in times}
    return {"slots": slots, "batch": batch, "prompt": prompt, "tokens per second": speeds}


def first_call_apart(*given: str) -> float:
    """Return the CPU seconds of a first step, in the second process with the same caches."""
    with tempfile.TemporaryDirectory() as folder:
        both = [r for _ in "12" for r in records_of(folder, __file__, "--first-call", *given)]
    return float(both[1]["seconds"])


def main() -> int:
    """Measure and print; return 1 if ``--check`` finds a goal missed."""
    parser, numbers = parser_of(__doc__), lambda text: [int(n) for n in text.split(",")]
    parser.add_argument("--slots", type=numbers, default=[128, 4096])
    parser.add_argument("--batch", type=numbers, default=[1])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    kinds = {"type": lambda text: text.split(","), "default": [], "metavar": "int8,int4"}
    parser.add_argument("--quantize", **kinds, help="beside native, with such weights")
    parser.add_argument("--prompt", type=int, help="time reading of a text of so many tokens, too")
    parser.add_argument("--tiny", action="store_true", help="a model that takes seconds")
    parser.add_argument("--no-first-call", action="store_true", help="time steps only")
    add_threads(parser, rounds=5)
    add_outputs(parser, page=False)
    parser.add_argument("--first-call", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
    if options.first_call:
        size, device, dtype, backend = options.first_call
        run, start = decoder(model_of(size, device, dtype), backend, 128, 1), time.process_time()
        run(1)
        print(json.dumps({"seconds": time.process_time() - start}))
        return 0
    set_threads(options.threads)
    size = "tiny" if options.tiny else options.device
    backends = ["meta", "inductor"] if options.device == "cuda" or has_compiler() else ["meta"]
    sizes = [(*pair, 0) for pair in product(options.slots, options.batch)]
    if options.prompt:
        if max(options.slots) < options.prompt + 1:
            parser.error(f"a text of {options.prompt} tokens needs a cache of more slots")
        sizes.append((max(options.slots), options.batch[0], options.prompt))
    records = []
    for each in sizes:
        records.append(measure(size, backends, *each, options))
        print(records[-1], file=sys.stderr, flush=True)
    apart = () if options.no_first_call else (*backends, "trace")
    place = size, options.device, options.dtype
    first = {name: first_call_apart(*place, name) for name in apart}
    table, missed = [["slots", "batch", "prompt", *records[0]["tokens per second"]]], False
    for r in records:
        speeds = r["tokens per second"]
        numbers_of = [str(r[name]) for name in ("slots", "batch", "prompt")]
        table.append([*numbers_of, *(f"{v:.0f}" for v in speeds.values())])
        least = LEAST if r["slots"] == min(options.slots) else LEAST_LONG
        missed |= speeds["meta"] < least * speeds.get("inductor", 0)
        least = LEAST_PROMPT if r["prompt"] else LEAST_NATIVE
        missed |= speeds["native"] < least * speeds.get("inductor", 0)
        if r["prompt"]:
            continue
        for kind in options.quantize:
            missed |= speeds[f"native {kind}"] < LEAST_QUANTIZED[kind] * speeds["native"]
    missed |= first.get("meta", 0) > first.get("inductor", torch.inf)
    where = conditions_cuda if options.device == "cuda" else partial(conditions, len(backends) > 1)
    notes = [f"first call, {name}: {seconds:.1f} s" for name, seconds in first.items()]
    write(options, where("tokens per second"), {"rows": records, "first": first}, table, notes)
    return int(options.check and missed)


if __name__ == "__main__":
    sys.exit(main())
