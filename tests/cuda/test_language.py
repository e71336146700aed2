"""Language models on CUDA: what they write is what transformers finds, computed in float32 on the
CPU without a cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meta import language
from tests.language.folders import FAMILIES, prompts, reference, written
from tests.language.test_quantization import WIDE as WIDE_INNER
from tests.language.test_quantization import round_weights

pytestmark = pytest.mark.cuda
WIDE: dict[str, Any] = {"head_dim": 32, "initializer_range": 0.1}
"""Heads of the width of hand-written kernels."""
KERNELS = {
    "llama3": WIDE,
    "qwen3": WIDE,
    "mistral": WIDE,
    "gemma2": WIDE,
    "gemma3": WIDE,
    "gpt2": {"hidden_size": 128, "initializer_range": 0.1},
}


def compare(
    model: Any, found: list[Any], of: list[list[int]], most: float, agreeing: float
) -> None:
    """Assert that tokens are those that are most probable, but for a share, and that logarithms of
    probabilities differ by ``most``.
    """
    for prompt, one in zip(of, found, strict=True):
        tokens = one.tokens.tolist()
        best, logprobs = reference(model, prompt, tokens)
        assert np.mean([a == b for a, b in zip(best, tokens, strict=True)]) >= agreeing
        assert np.abs(one.logprobs - logprobs.numpy()).max() < most


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_of_float32(tmp_path: Path, name: str) -> None:
    model = written(tmp_path, name)
    decoder = language.load(tmp_path, device="cuda")
    for lengths in ([9], [30, 1, 17]):
        of = prompts(*lengths)
        found = language.generate(decoder, of, max_new_tokens=60, end_tokens=())
        compare(model, found, of, 1e-2, 0.98)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", KERNELS)
def test_half_precision(tmp_path: Path, name: str, dtype: str) -> None:
    model = written(tmp_path, name, **KERNELS[name])
    decoder = language.load(tmp_path, device="cuda", dtype=dtype)
    most = 0.1 if dtype == "float16" else 0.6
    for lengths in ([9], [30, 1, 17], [5] * 9):
        of = prompts(*lengths)
        found = language.generate(decoder, of, max_new_tokens=60, end_tokens=())
        compare(model, found, of, most, 0.9 if dtype == "float16" else 0.5)
    kernels = {
        kernel
        for runners in decoder.compiled._runners.values()
        for runner in runners
        for program in runner._programs.values()
        for kernel in program.kernels()
    }
    assert "cuda.decode_attention" in kernels
    assert any(kernel.startswith("cuda.few_rows_") for kernel in kernels)


def test_a_continued_text_is_a_fresh_one(tmp_path: Path) -> None:
    written(tmp_path, "llama3", **WIDE)
    decoder = language.load(tmp_path, device="cuda", dtype="float16")
    (prompt,) = prompts(12)
    whole = language.generate(decoder, prompt, max_new_tokens=40, end_tokens=())
    cache = language.Cache()
    first = language.generate(decoder, prompt, max_new_tokens=20, end_tokens=(), cache=cache)
    more = [whole.tokens[20].item()]
    second = language.generate(decoder, more, max_new_tokens=19, end_tokens=(), cache=cache)
    found = [*first.tokens.tolist(), *more, *second.tokens.tolist()]
    assert found == whole.tokens.tolist()


@pytest.mark.parametrize(
    "how", [language.Quantization("int8"), language.Quantization("int4", symmetric=False)], ids=str
)
def test_quantised_weights(tmp_path: Path, how: language.Quantization) -> None:
    model = written(tmp_path, "qwen2", **WIDE_INNER)
    round_weights(model, how)
    decoder = language.load(tmp_path, device="cuda", quantize=how)
    for lengths in ([9], [30, 1, 17]):
        of = prompts(*lengths)
        found = language.generate(decoder, of, max_new_tokens=30, end_tokens=())
        compare(model, found, of, 1e-2, 0.98)
