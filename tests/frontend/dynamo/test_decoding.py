"""Decoding with a cache of keys and values: eager PyTorch's tokens, few programs, and caches that
are written in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from meta.frontend.dynamo.compiler import GraphCompiler, record_compiled_graphs

transformers = pytest.importorskip("transformers")

SLOTS, WIDTH = 8, 4
COPIES = ("scatter", "scatter_nd", "strided_set", "assign")
"""Operators that write a whole cache, or a copy of it."""


def kernels(graphs: list[GraphCompiler]) -> list[str]:
    """Return the operators of all compiled programs."""
    programs = [p for g in graphs for p in g.programs() if p.executable is not None]
    return [k.name.split(".")[-1] for p in programs for k in p.executable.code.kernels]


def at(cache: Tensor, where: Tensor, rows: Tensor) -> Tensor:
    cache.index_copy_(1, where, rows)
    return cache.sum(-1)


def indexed(cache: Tensor, where: Tensor, rows: Tensor) -> Tensor:
    cache[:, where] = rows
    return cache.sum(-1)


def sliced(cache: Tensor, where: Tensor, rows: Tensor) -> Tensor:
    cache[:, 2:3] = rows
    return cache.sum(-1)


def of_pairs(cache: Tensor, where: Tensor, rows: Tensor) -> Tensor:
    cache[torch.arange(2), where.expand(2)] = rows[:, 0]
    return cache.sum(-1)


def twice(cache: Tensor, where: Tensor, rows: Tensor) -> Tensor:
    cache.index_copy_(1, where, rows)
    cache.index_copy_(1, where + 1, rows * 2)
    return cache.sum(-1)


def read_before(cache: Tensor, where: Tensor, rows: Tensor) -> Tensor:
    before = cache.sum(-1)
    return before - at(cache, where, rows)


def by_view(cache: Tensor, where: Tensor, rows: Tensor) -> Tensor:
    cache.view(2 * SLOTS, WIDTH).index_copy_(0, where, rows[0])
    return cache.sum(-1)


def returned(cache: Tensor, where: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    return cache, at(cache, where, rows)


def counted(cache: Tensor, where: Tensor, rows: Tensor) -> Tensor:
    """The place is written, too, behind its use."""
    found = at(cache, where, rows)
    where.add_(1)
    return found


IN_PLACE = (at, indexed, sliced, of_pairs, twice, read_before, by_view, returned, counted)


def rolled(cache: Tensor, where: Tensor, rows: Tensor) -> Tensor:
    """A window that is full: all elements move."""
    new = cache.roll(-1, 1)
    new[:, torch.tensor([-1])] = rows
    cache.copy_(new)
    return cache.sum(-1)


def old_is_returned(cache: Tensor, where: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    new = cache.index_copy(1, where, rows)
    old = cache + 1
    cache.copy_(new)
    return old, new


def a_part_of_it(cache: Tensor, where: Tensor, rows: Tensor) -> Tensor:
    """A view of a part, which is no memory of its own."""
    cache[1].index_copy_(0, where, rows[1])
    return cache.sum(-1)


@pytest.mark.product
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("step", [*IN_PLACE, rolled, old_is_returned, a_part_of_it])
def test_updates(step: Callable[..., Any], dynamic: bool) -> None:
    """Results and caches are eager's after each of two steps; the cache is not copied."""
    cache = torch.arange(2 * SLOTS * WIDTH, dtype=torch.float32).view(2, SLOTS, WIDTH)
    wanted, where = cache.clone(), torch.tensor([3])
    expected_at, run = where.clone(), torch.compile(step, backend="meta", dynamic=dynamic)
    with torch.no_grad(), record_compiled_graphs() as graphs:
        for number in (1.0, 2.0):
            rows = torch.full((2, 1, WIDTH), number)
            found, expected = run(cache, where, rows), step(wanted, expected_at, rows)
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
            torch.testing.assert_close((cache, where), (wanted, expected_at), rtol=0, atol=0)
    if step in IN_PLACE and not dynamic:
        names = kernels(graphs)
        assert "assign_at" in names
        assert "assign" not in names and names.count("multi_tensor_increment") == (step is counted)
        assert not set(COPIES[:-1]) & set(names)


SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}
COMMON = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("ForCausalLM", SIZES),
    "Qwen2": ("ForCausalLM", SIZES),
    "Mistral": ("ForCausalLM", {**SIZES, "sliding_window": 8}),
    "GPT2": ("LMHeadModel", GPT2),
    "T5": ("ForConditionalGeneration", {**T5, "decoder_start_token_id": 0}),
}
GREEDY: dict[str, Any] = {"do_sample": False}
SAMPLED: dict[str, Any] = {"do_sample": True, "top_k": 8}
BEAMS: dict[str, Any] = {"do_sample": False, "num_beams": 3}


def generated(
    name: str, kind: str, how: dict[str, Any], batch: int, padded: bool, prompt: int = 5
) -> list[GraphCompiler]:
    """Compare what a model generates with eager's tokens; return what was compiled."""
    suffix, options = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**options, **COMMON)
    model = getattr(transformers, f"{name}{suffix}")(config).eval()
    ids = torch.randint(3, 64, (batch, prompt))
    mask = torch.ones_like(ids)
    if padded:
        ids[0, :2] = mask[0, :2] = 0
    given = {"max_new_tokens": 9, "min_new_tokens": 9, "attention_mask": mask, **how}
    torch.manual_seed(2)
    expected = model.generate(ids, **given)
    if kind == "static":
        settings = transformers.CompileConfig(backend="meta", mode=None, fullgraph=True)
        settings._compile_all_devices = True  # else on accelerators only
        given |= {"cache_implementation": "static", "compile_config": settings}
    else:
        model.forward = torch.compile(model.forward, backend="meta")
    torch.manual_seed(2)
    with record_compiled_graphs() as graphs:
        found = model.generate(ids, **given)
    assert torch.equal(found, expected)
    assert not [failure for g in graphs for p in g.programs() for failure in p.calls_back]
    return graphs


@pytest.mark.parametrize(
    ("name", "how", "batch", "padded"),
    [
        ("Llama", GREEDY, 3, True),
        ("Qwen2", SAMPLED, 1, False),
        ("GPT2", SAMPLED, 3, True),
        ("Mistral", GREEDY, 2, False),  # beyond its window
        ("T5", GREEDY, 2, True),
    ],
)
@pytest.mark.long
def test_static_cache(name: str, how: dict[str, Any], batch: int, padded: bool) -> None:
    """One program for all steps, and one more as soon as torch knows that the numbers of steps
    behind a window change, and one for a window that is full; the cache is written in place.
    """
    graphs = generated(name, "static", how, batch, padded)
    assert len(graphs) == (3 if name == "Mistral" else 1)
    names = kernels(graphs[:1])
    assert "assign_at" in names
    assert not set(COPIES[:-1]) & set(names)


@torch.no_grad()
def test_slots_that_are_not_seen_are_not_read() -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, **COMMON)
    model = transformers.LlamaForCausalLM(config).eval()
    caches = [transformers.StaticCache(config=config, max_cache_len=64) for _ in "12"]
    ids = torch.randint(3, 64, (1, 6))
    for cache in caches:
        model(ids[:, :5], cache=cache, use_cache=True)
    with record_compiled_graphs() as graphs:
        compiled = torch.compile(model.forward, backend="meta")
        found = compiled(ids[:, 5:], cache=caches[0], use_cache=True).logits
    wanted = model(ids[:, 5:], cache=caches[1], use_cache=True).logits
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    names = kernels(graphs)
    assert "cached_attention" in names and "fused_attention" not in names


@pytest.mark.parametrize(
    ("name", "how", "batch", "padded", "prompt"),
    [
        ("Llama", GREEDY, 2, True, 5),
        ("Llama", BEAMS, 2, False, 5),
        ("Mistral", SAMPLED, 1, False, 9),  # a window that is full
    ],
)
@pytest.mark.long
def test_growing_cache(
    name: str, how: dict[str, Any], batch: int, padded: bool, prompt: int
) -> None:
    """The prompt, the first step, and one program for all lengths behind it."""
    graphs = generated(name, "dynamic", how, batch, padded, prompt)
    assert len(graphs) == 3
    assert [len(graph.programs()) for graph in graphs] == [1, 1, 1]
