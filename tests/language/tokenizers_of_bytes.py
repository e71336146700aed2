"""A tokenizer whose tokens are the 256 bytes."""

from __future__ import annotations

from typing import Any

import tokenizers


def byte_tokenizer() -> Any:
    """Return it: token i is byte i."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    characters = {b: chr(b) for b in plain} | {b: chr(256 + n) for n, b in enumerate(others)}
    vocabulary = {characters[b]: b for b in range(256)}
    found = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    found.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = tokenizers.decoders.ByteLevel()
    return found
