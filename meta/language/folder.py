"""A model's folder, as transformers writes it: configuration, weights in safetensors files, and the
tokenizer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from meta.base.device import Device, default_device
from meta.base.dtype import TO_TORCH, canonical
from meta.base.errors import ArgumentError, FormatError
from meta.base.files import read_file
from meta.base.optional import optional_module
from meta.base.registry import nearest
from meta.language.config import DecoderConfig
from meta.language.decoder import Decoder
from meta.language.families import Family, family_of, from_zero, transposed
from meta.language.gguf import GGUFFile, gguf
from meta.language.layouts import Layout, PackedWeight, Settings, layout_of
from meta.language.quantization import (
    Quantization,
    layer_of_packed,
    quantizable,
    quantization_of,
    rounded,
)
from meta.model.layers.quantized import QuantizedLinear, replace_models
from meta.model.model import Model
from meta.model.weights import open_weights
from meta.op.quantized import MIDDLE
from meta.runtime.deferred_values import empty_init, give
from meta.runtime.ndarray import ndarray

MAX_JSON_BYTES = 256 << 20
"""Larger files of settings are none."""
_OF_ALL = ("tie_word_embeddings", "eos_token_id", "quantization_config")
"""What a model that reads images, too, says of its decoder beside ``text_config``."""


def settings(path: Path) -> dict[str, Any]:
    """Return what a JSON file says."""
    try:
        found = json.loads(read_file(path, MAX_JSON_BYTES))
    except (OSError, ValueError) as error:
        raise FormatError(
            "this file of settings cannot be read",
            found=f"{path}: {type(error).__name__}: {error}",
            hint="give the folder that save_pretrained of transformers wrote",
        ) from error
    if not isinstance(found, dict):
        raise FormatError("a file of settings holds a JSON object", found=path)
    return found


class _Tensors:
    """The tensors of a folder, each read when it is asked for.

    Names are those of the family's model with a head. They may lack their first part, as of models
    without one, or have one more, where the decoder is a part of a model that reads images, too.
    """

    def __init__(self, path: Path) -> None:
        self._file = open_weights(path)
        self.unread = set(self._file)

    def _form(self, name: str) -> str | None:
        """Return what the files call a tensor, None if they have none of its names."""
        first, _, rest = name.partition(".")
        forms = name, rest, f"language_model.{name}", f"{first}.language_model.{rest}"
        return next((form for form in forms if form in self._file), None)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._form(name) is not None

    def __getitem__(self, name: str) -> torch.Tensor:
        found = self._form(name)
        if found is None:
            raise FormatError(
                "the folder's files lack a tensor",
                expected=name,
                found=f"{len(self._file)} tensors, like {nearest(name, self._file) or 'none'}",
            )
        self.unread.discard(found)
        return self._file[found][found]


class _Reader:
    """Reads the arrays of a decoder out of the tensors of a family."""

    def __init__(
        self,
        family: Family,
        config: DecoderConfig,
        tensors: _Tensors | GGUFFile,
        whole: bool,
        stored: tuple[Layout, Settings] | None,
    ) -> None:
        self._family, self._config, self._tensors = family, config, tensors
        self._whole = whole  # else there are tensors for images
        self.stored = stored  # in which layout quantised weights are

    def _modules(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield our modules, and theirs."""
        for ours, theirs in self._family.names.items():
            names = (theirs,) if isinstance(theirs, str) else theirs
            for i in range(self._config.layers if "{i}" in ours else 1):
                yield (
                    ours.replace("{i}", str(i)),
                    tuple(name.replace("{i}", str(i)) for name in names),
                )

    def array(self, name: str) -> torch.Tensor:
        """Return one of our arrays."""
        for module, theirs in self._modules():
            if name == module:  # experts, whose matrices are one array
                return self._experts(name, theirs)
            kind = name.removeprefix(f"{module}.")
            if kind in ("weight", "bias"):
                parts = [self._tensors[f"{t}.{kind}"] for t in theirs]
                whole = parts[0] if len(parts) == 1 else torch.cat(parts)
                return self._family.change_of(module)(whole, self._config)
        raise FormatError("the family has no tensor for this array", found=name)

    def parts(self, name: str) -> PackedWeight | None:
        """Return the quantised weight of one of our layers, None if the files have another."""
        if self.stored is None:
            return None
        layout, how = self.stored
        theirs = dict(self._modules())[name]
        found = [layout(self._tensors, t, how) for t in theirs]
        if all(p is None for p in found):
            return None
        parts = [p for p in found if p is not None]
        alike = {(p.weight.dtype, p.scales.shape[1], p.scales.dtype) for p in parts}
        if len(parts) < len(found) or len(alike) > 1:
            raise FormatError(
                "layers that are one here are quantised in different ways",
                expected="one kind, and groups of one size",
                found=", ".join(theirs),
            )
        change = self._family.change_of(name)
        if change is transposed:
            raise FormatError("this family has no quantised layers", found=name)
        zeros = [_zeros_of(p) for p in parts] if any(p.zeros is not None for p in parts) else None
        joined = [p.weight for p in parts], [p.scales for p in parts], zeros
        weight, scales, zero = (
            None if t is None else change(t[0] if len(t) == 1 else torch.cat(t), self._config)
            for t in joined
        )
        assert weight is not None
        assert scales is not None
        return PackedWeight(weight, scales, zero)

    def dtype_of(self, name: str, tensor: torch.Tensor, wanted: torch.dtype | None) -> torch.dtype:
        """Return the dtype of one of our arrays: float32 stays where it holds more digits."""
        if self._family.change_of(name.rpartition(".")[0]) is from_zero:
            return torch.float64 if wanted is torch.float64 else torch.float32
        return tensor.dtype if wanted is None else wanted

    def left(self) -> list[str]:
        """Return the names that nothing was read of."""
        known = self._family.ignored
        if self._config.tied:
            known = (*known, *(f"{self._family.names['lm_head']}.weight",))
        return sorted(
            name
            for name in self._tensors.unread
            if not name.endswith(known) and (self._whole or "language_model" in name)
        )

    def _experts(self, name: str, theirs: tuple[str, ...]) -> torch.Tensor:
        """Return the matrices of all experts of a layer, (in, out) each."""
        layer = int(name.split(".")[1])
        experts = self._config.experts[layer]
        assert experts is not None
        found: torch.Tensor | None = None
        for e in range(experts.count):
            names = [t.replace("{e}", str(e)) for t in theirs]
            one = torch.cat([self._tensors[f"{t}.weight"] for t in names]).T
            if found is None:
                found = one.new_empty((experts.count, *one.shape))
            found[e] = one
        assert found is not None
        return found


def _zeros_of(parts: PackedWeight) -> torch.Tensor:
    """Return the zeros of a weight, which may have none."""
    middle = MIDDLE["uint8"] if parts.weight.dtype is torch.uint8 else 0
    return torch.full_like(parts.scales, middle) if parts.zeros is None else parts.zeros


def load(
    folder: str | os.PathLike[str],
    *,
    device: object = None,
    dtype: object = None,
    quantize: str | Quantization | None = None,
) -> Decoder:
    """Return the decoder in a folder that transformers wrote.

    folder: with ``config.json``, weights in one or many safetensors files, and, for texts,
    ``tokenizer.json``. device: where the model will be. dtype: of its arrays, that of the files
    unless given. Families: Gemma 2 and 3, GPT-2, GPT-NeoX, Llama 2 and 3, Mistral, Mixtral, OLMo 2,
    Phi-3, Qwen 2 and 3 and their mixtures of experts; of a model that reads images, too, the
    decoder.

    quantize: "int8", "int4" (in groups of 64 columns), "float8" or a `Quantization`: the weights of
    linear layers become `QuantizedLinear` ones as they are read. Embeddings, norms and routers stay
    as they are, and so does the head unless the `Quantization` says otherwise. Experts have no such
    products: an ArgumentError.

    Quantised weights of other libraries become `QuantizedLinear` layers of the same numbers, where
    config.json has a ``quantization_config``: AWQ, GPTQ, compressed-tensors, bitsandbytes' int8,
    torchao's of 8 bits, float8 in blocks. folder may be a file of llama.cpp, ``model.gguf`` (needs
    the library gguf): decoders of Llama's and Qwen's architectures in Q8_0, Q4_0, Q4_K and Q6_K;
    embeddings are written down in floats, and texts need a tokenizer.json beside the file.

    Each tensor is read once and moved; on the CPU, one that needs no change stays in the file's
    pages. FormatError for a folder, name or shape that does not fit, ArgumentError for another
    family.

    >>> import json
    >>> from dataclasses import asdict
    >>> from tempfile import TemporaryDirectory
    >>> sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 12}
    >>> config = meta.model.zoo.LlamaConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    >>> with TemporaryDirectory() as folder:
    ...     with open(f"{folder}/config.json", "w") as file:
    ...         json.dump({"model_type": "llama", **asdict(config)}, file)
    ...     saved = meta.model.zoo.LlamaForCausalLM(config)
    ...     meta.model.save_weights(saved, f"{folder}/model.safetensors")
    ...     decoder = meta.language.load(folder)
    >>> decoder.config.layers, decoder.config.vocab_size
    (1, 11)
    """
    path, file = Path(folder), None
    if path.suffix == ".gguf":
        file, path = GGUFFile(path), path.parent
    values = settings(path / "config.json") if file is None else file.values
    whole = "text_config" not in values
    if not whole:
        values = {**{n: values[n] for n in _OF_ALL if n in values}, **values["text_config"]}
    family = family_of(values)
    try:
        config = family.config(values)
    except KeyError as error:
        raise FormatError(
            "config.json lacks an entry", expected=str(error), found=path / "config.json"
        ) from error
    where = Device(device or default_device())
    with empty_init(), where:
        model = Decoder(config)
    reader = _Reader(family, config, file or _Tensors(path), whole, _layout(values, file))
    how = None if quantize is None else quantization_of(quantize)
    _quantize(model, reader, where, dtype, how)
    _fill(model, reader, where, dtype)
    model.train(False)
    model.end_tokens = _end_tokens(path, config)
    model.tokenizer = _tokenizer(path)
    return model


def _layout(values: Mapping[str, Any], file: GGUFFile | None) -> tuple[Layout, Settings] | None:
    """Return in which layout a folder has quantised weights, None if it has none."""
    if file is not None:
        return gguf, {}
    how = values.get("quantization_config")
    return None if how is None else (layout_of(how), how)


def _read(reader: _Reader, name: str, array: ndarray, device: Device, dtype: object) -> None:
    """Give an array without values those of a folder."""
    wanted = None if dtype is None else TO_TORCH[canonical(dtype)]
    tensor = reader.array(name)
    if tuple(tensor.shape) != array.shape:
        raise FormatError(
            f"{name} has another shape than config.json says",
            expected=list(array.shape),
            found=list(tensor.shape),
        )
    give(array, tensor.to(device, reader.dtype_of(name, tensor, wanted)))


def _quantize(
    model: Decoder, reader: _Reader, device: Device, dtype: object, how: Quantization | None
) -> None:
    """Put layers with quantised weights in the place of those without values: of a folder that has
    them, or rounded as ``how`` says.
    """
    if how is None and reader.stored is None:
        return
    if how is not None and reader.stored is not None:
        raise ArgumentError("the weights of this folder are quantised", hint="leave quantize= out")
    if any(model.config.experts):
        raise ArgumentError("experts have no products with quantised weights", found="experts")
    made: dict[int, Model] = {}
    for path, layer in quantizable(model):
        of = "embed_tokens" if layer.weight is model.embed_tokens.weight else path
        parts = reader.parts(of)
        if parts is None and (how is None or (path == "lm_head" and not how.head)):
            continue
        bias = None if layer.bias is None else ndarray(layer.bias.tensor, layer.bias.key)
        if bias is not None:
            _read(reader, f"{of}.bias", bias, device, dtype)
        if parts is not None:
            made[id(layer)] = layer_of_packed(path, parts, bias, layer, device)
        elif how is not None:
            weight = ndarray(layer.weight.tensor, layer.weight.key)
            _read(reader, f"{of}.weight", weight, device, dtype)
            made[id(layer)] = rounded(path, weight, bias, how)
    replace_models(model, made)


def _fill(model: Decoder, reader: _Reader, device: Device, dtype: object) -> None:
    """Give a decoder without values those of a folder; quantised layers have theirs."""
    layers = [m for m in model.models() if isinstance(m, QuantizedLinear)]
    known = {id(array) for layer in layers for array in layer.state().values()}
    for name, array in model.state().items():
        if id(array) not in known:
            _read(reader, name, array, device, dtype)
    left = reader.left()
    if left:
        raise FormatError(
            "the folder has tensors that are unknown to this family", found=", ".join(left[:8])
        )


def _end_tokens(path: Path, config: DecoderConfig) -> tuple[int, ...]:
    """Return the tokens behind which a text ends: of generation_config.json where there is one."""
    file = path / "generation_config.json"
    found = settings(file).get("eos_token_id") if file.is_file() else None
    if found is None:
        return config.end_tokens
    return tuple(found) if isinstance(found, list) else (found,)


def _tokenizer(path: Path) -> Any:
    """Return the tokenizer of a folder, of the library tokenizers, None if it has none."""
    file = path / "tokenizer.json"
    if not file.is_file():
        return None
    library = optional_module("tokenizers", "makes tokens of texts")
    return library.Tokenizer.from_file(os.fspath(file))
