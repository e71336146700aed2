"""The bytes of a step, beside the parameters of transformers' models."""

from __future__ import annotations

from pathlib import Path

import pytest

from meta import language
from meta.cost.roofline import peaks_of
from tests.language.folders import WINDOW, written

LENGTH, ROWS = 60, 3


@pytest.mark.parametrize("name", ["llama2", "llama3", "gpt2", "mistral", "mixtral", "qwen2-moe"])
def test_weights_and_cache_are_read_once(tmp_path: Path, name: str) -> None:
    theirs = written(tmp_path, name)
    decoder = language.load(tmp_path)
    for rows in (1, ROWS):
        numbers = 0
        for key, parameter in theirs.named_parameters():
            count = parameter.numel()
            tied = theirs.config.tie_word_embeddings
            if "wpe" in key or ("embed_tokens" in key and not tied):
                count = rows * parameter.shape[1]
            if ".experts." in key:
                count = count * min(4, rows * 2) // 4
            numbers += count
        seen = WINDOW if name == "mistral" else LENGTH
        heads, width = (4 if name in ("llama2", "gpt2") else 2), 8
        numbers += 2 * 2 * rows * seen * heads * width
        bound = language.decoding_bound(decoder, LENGTH, rows)
        assert bound.bytes == 4 * numbers
        assert (
            bound.seconds == bound.bytes / peaks_of(decoder.embed_tokens.weight.device).copy / 1e6
        )
