"""Decoders in GGUF files, as llama.cpp has them: their metadata as a ``config.json``, their tensors
under transformers' names, and blocks of 8, 4 and 6 bits as `quantized_matmul` takes them.

The file is read by the library gguf. Blocks are those of ggml's block_q8_0, block_q4_0, block_q4_K
and block_q6_K: a scale for 32 numbers, or for 16, of which 256 share another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from meta import op
from meta.base.errors import FormatError
from meta.base.files import require_file
from meta.base.optional import optional_module
from meta.base.registry import nearest
from meta.language.layouts import PackedWeight, Settings, Tensors, packed_weight
from meta.runtime.ndarray import ndarray

_NAMES: Mapping[str, str] = {
    "embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""GGUF's names by the ends of transformers'."""
FAMILIES = ("llama", "qwen2", "qwen3")
"""The architectures that are read, which have their families' names."""
_ENTRIES: Mapping[str, str] = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
}
"""What config.json calls the metadata of an architecture."""
_NEEDED = ("embedding_length", "feed_forward_length", "block_count", "attention.head_count")


def _halves(blocks: np.ndarray) -> np.ndarray:
    """Return pairs of bytes as float32."""
    found: np.ndarray = np.ascontiguousarray(blocks).view(np.float16).astype(np.float32)
    return found


def _q8_0(blocks: np.ndarray, name: str) -> PackedWeight:
    """32 numbers of 8 bits behind their scale."""
    n = len(blocks)
    weight = np.ascontiguousarray(blocks[..., 2:]).view(np.int8).reshape(n, -1)
    return PackedWeight(
        torch.from_numpy(weight), torch.from_numpy(_halves(blocks[..., :2])[..., 0]), None
    )


def _q4_0(blocks: np.ndarray, name: str) -> PackedWeight:
    """32 numbers of 4 bits behind their scale, in halves of bytes as ours are."""
    weight = np.ascontiguousarray(blocks[..., 2:]).reshape(len(blocks), -1)
    return PackedWeight(
        torch.from_numpy(weight), torch.from_numpy(_halves(blocks[..., :2])[..., 0]), None
    )


def _q4_k(blocks: np.ndarray, name: str) -> PackedWeight:
    """256 numbers of 4 bits: eight groups, each with a scale and what is taken away, of 6 bits."""
    n, count = blocks.shape[:2]
    whole, taken = (_halves(blocks[..., i : i + 2]) for i in (0, 2))
    first, second, rest = (blocks[..., i : i + 4] for i in (4, 8, 12))
    # The lower four groups have their 6 bits in a byte; of the others the upper two are there.
    scale = np.concatenate((first & 63, (rest & 15) | (first >> 6 << 4)), 2)
    least = np.concatenate((second & 63, (rest >> 4) | (second >> 6 << 4)), 2)
    bytes_ = blocks[..., 16:].reshape(n, count, 4, 1, 32)
    numbers = np.concatenate((bytes_ & 15, bytes_ >> 4), 3).reshape(n, count * 8, 32)
    scales = (whole * scale).reshape(n, count * 8)
    taken = (taken * least).reshape(n, count * 8)
    # A group whose scale is 0 is what is taken away, throughout.
    flat = scales == 0
    numbers = np.where(flat[..., None], 0, numbers).astype(np.uint8)
    scales = np.where(flat, np.where(taken == 0, 1, taken), scales)
    zeros = np.where(flat, taken != 0, taken / scales).astype(np.float32)
    arrays = numbers.reshape(n, -1), scales.astype(np.float32), zeros
    numbers_, scales_, zeros_ = map(torch.from_numpy, arrays)
    return packed_weight(name, numbers_, scales_, zeros_, 4)


def _q6_k(blocks: np.ndarray, name: str) -> PackedWeight:
    """256 numbers of 6 bits, the lower four and the upper two apart; sixteen groups."""
    n, count = blocks.shape[:2]
    low = blocks[..., :128].reshape(n, count, 2, 1, 64)
    high = blocks[..., 128:192].reshape(n, count, 2, 1, 32)
    lower = np.concatenate((low & 15, low >> 4), 3).reshape(n, count, 2, 4, 32)
    upper = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], 3)
    numbers = (lower | upper << 4).astype(np.int8) - 32
    scale = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.float32)
    scales = (scale * _halves(blocks[..., 208:])).reshape(n, -1)
    weight = numbers.reshape(n, -1)
    return PackedWeight(torch.from_numpy(weight), torch.from_numpy(scales), None)


BLOCKS: Mapping[str, tuple[int, Callable[[np.ndarray, str], PackedWeight]]] = {
    "Q8_0": (34, _q8_0),
    "Q4_0": (18, _q4_0),
    "Q4_K": (144, _q4_k),
    "Q6_K": (210, _q6_k),
}
"""Kinds of blocks: how many bytes one has, and what reads them."""
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class GGUFFile:
    """The tensors of a GGUF file by transformers' names; see `Tensors` of `layouts`.

    Raises FormatError for a file that is none, for another architecture, and for tensors of
    another kind; ArgumentError without the library gguf.
    """

    def __init__(self, path: Path) -> None:
        library = optional_module("gguf", "reads GGUF files")
        require_file(path)
        try:
            reader = library.GGUFReader(path)
        except (ValueError, IndexError, KeyError, OverflowError) as error:
            raise FormatError(
                "this is no GGUF file", found=f"{path}: {type(error).__name__}: {error}"
            ) from error
        self._path = path
        self._said = {key: field.contents() for key, field in reader.fields.items()}
        self._found = {tensor.name: tensor for tensor in reader.tensors}
        self.unread = set(self._found)
        self.values = self._values()

    def _entry(self, key: str) -> Any:
        return self._said.get(f"{self._said.get('general.architecture')}.{key}")

    def _values(self) -> dict[str, Any]:
        """Return what a config.json would say."""
        kind = self._said.get("general.architecture")
        if kind not in FAMILIES:
            raise FormatError(
                f"decoders of the architecture {kind!r} are not read out of GGUF files",
                expected=", ".join(FAMILIES),
                found=self._path,
            )
        lost = [f"{kind}.{key}" for key in _NEEDED if self._entry(key) is None]
        if lost or "token_embd.weight" not in self._found:
            raise FormatError(
                "this GGUF file lacks metadata or the embeddings",
                expected=", ".join(lost) or "token_embd.weight",
                found=self._path,
            )
        values = {name: self._entry(key) for name, key in _ENTRIES.items()}
        width = values["head_dim"] or values["hidden_size"] // values["num_attention_heads"]
        return {
            **{name: value for name, value in values.items() if value is not None},
            "model_type": kind,
            "vocab_size": int(self._found["token_embd.weight"].shape[1]),
            "head_dim": width,
            "eos_token_id": self._said.get("tokenizer.ggml.eos_token_id"),
            "tie_word_embeddings": "output.weight" not in self._found,
            "attention_bias": "blk.0.attn_output.bias" in self._found,
            "rope_parameters": self._rope(width),
        }

    def _rope(self, width: int) -> dict[str, Any]:
        """Return how positions turn; frequencies may be divided by numbers of a tensor."""
        found: dict[str, Any] = {
            "rope_type": "default",
            "rope_theta": self._entry("rope.freq_base") or 1e4,
            "partial_rotary_factor": (self._entry("rope.dimension_count") or width) / width,
        }
        kind, factor = (self._entry(f"rope.scaling.{key}") for key in ("type", "factor"))
        original = self._entry("rope.scaling.original_context_length")
        if "rope_freqs.weight" in self._found:
            self.unread.discard("rope_freqs.weight")
            each = np.asarray(self._found["rope_freqs.weight"].data, np.float32).tolist()
            length = self._entry("context_length") or 1
            return {
                **found, "rope_type": "longrope", "short_factor": each, "long_factor": each,
                "original_max_position_embeddings": length, "attention_factor": 1.0,
            }  # fmt: skip
        if kind in (None, "none"):
            return found
        if kind not in ("linear", "yarn"):
            raise FormatError("positions are stretched in an unknown way", found=kind)
        found |= {"rope_type": kind, "factor": factor}
        return found if original is None else {
            **found, "original_max_position_embeddings": original
        }  # fmt: skip

    def _name(self, name: str) -> str:
        """Return GGUF's name of a tensor."""
        module, _, kind = name.rpartition(".")
        end = next((e for e in _NAMES if module.endswith(e)), None)
        layer = next((part for part in module.split(".") if part.isdigit()), None)
        own = _NAMES[end] if end else module
        return f"{own}.{kind}" if layer is None else f"blk.{layer}.{own}.{kind}"

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._name(name) in self._found

    def _tensor(self, name: str) -> Any:
        own = self._name(name)
        if own not in self._found:
            raise FormatError(
                "the file lacks a tensor",
                expected=f"{own}, which transformers calls {name}",
                found=f"{len(self._found)} tensors, like {nearest(own, self._found) or 'none'}",
            )
        self.unread.discard(own)
        return self._found[own]

    def __getitem__(self, name: str) -> torch.Tensor:
        found = self._tensor(name)
        kind, shape = found.tensor_type.name, [int(e) for e in reversed(found.shape)]
        if kind in BLOCKS:
            parts = self._ordered(name, self._parts(found))
            arrays = [None if t is None else ndarray(t) for t in parts]
            whole: torch.Tensor = op.dequantize_weight(*arrays).tensor
            return whole
        if kind not in _PLAIN:
            raise self._unknown(found)
        data = torch.from_numpy(np.array(found.data)).view(_PLAIN[kind]).reshape(shape)
        return self._ordered(name, PackedWeight(data, data, None)).weight

    def parts(self, name: str) -> PackedWeight | None:
        """Return the parts of a matrix, None for one that is not quantised."""
        if name not in self or self._found[self._name(name)].tensor_type.name in _PLAIN:
            return None  # which is missing, or read whole
        return self._ordered(name, self._parts(self._tensor(name)))

    def _parts(self, found: Any) -> PackedWeight:
        kind = found.tensor_type.name
        if kind not in BLOCKS:
            raise self._unknown(found)
        size, read = BLOCKS[kind]
        data = np.asarray(found.data)
        if data.ndim != 2 or data.shape[1] % size:
            raise FormatError(
                f"{found.name} is no matrix of whole blocks of {kind}",
                expected=f"rows of a multiple of {size} bytes",
                found=list(data.shape),
            )
        return read(data.reshape(len(data), -1, size), found.name)

    def _unknown(self, found: Any) -> FormatError:
        return FormatError(
            f"the tensor {found.name} is of an unknown kind",
            expected=", ".join((*BLOCKS, *_PLAIN)),
            found=found.tensor_type.name,
        )

    def _ordered(self, name: str, parts: PackedWeight) -> PackedWeight:
        """Return a tensor with its rows as transformers has them: for Llama, llama.cpp turns pairs
        of neighbours in a head where transformers turns an element of each half.
        """
        keys = ".k_proj." in name
        if self.values["model_type"] != "llama" or not (keys or ".q_proj." in name):
            return parts
        heads = self.values["num_attention_heads"]
        heads = self.values.get("num_key_value_heads", heads) if keys else heads

        def ordered(tensor: torch.Tensor) -> torch.Tensor:
            pairs = tensor.view(heads, -1, 2, *tensor.shape[1:])
            return pairs.transpose(1, 2).reshape(tensor.shape)

        weight, scales = ordered(parts.weight), ordered(parts.scales)
        return PackedWeight(weight, scales, None if parts.zeros is None else ordered(parts.zeros))


def gguf(tensors: Tensors, name: str, how: Settings) -> PackedWeight | None:
    """Read a layer of a GGUF file; see `layouts`."""
    assert isinstance(tensors, GGUFFile)
    return tensors.parts(f"{name}.weight")
