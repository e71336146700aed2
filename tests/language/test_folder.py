"""Folders: files in parts, other forms of names and settings, dtypes; what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from meta import language
from meta.base.errors import ArgumentError, FormatError
from tests.language.folders import COMMON, GEMMA, prompts, reference, written

Change = Any


def edit(path: Path, change: Change) -> None:
    """Change a JSON file."""
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def edit_tensors(folder: Path, change: Change) -> None:
    """Change the tensors of a folder."""
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    change(tensors)
    safetensors.torch.save_file(tensors, file)


def agrees(model: Any, folder: Path) -> None:
    decoder = language.load(folder)
    (prompt,) = prompts(30)
    found = language.generate(decoder, prompt, max_new_tokens=30, end_tokens=(), temperature=1.0)
    _, logprobs = reference(model, prompt, found.tokens.tolist())
    assert (logprobs - torch.from_numpy(found.logprobs)).abs().max() < 2e-4


def test_files_in_parts(tmp_path: Path) -> None:
    model = written(tmp_path, "qwen3-moe")
    model.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    agrees(model, tmp_path / "parts")


def test_settings_of_transformers_4(tmp_path: Path) -> None:
    model = written(tmp_path, "llama3")

    def older(values: dict[str, Any]) -> None:
        rope = values.pop("rope_parameters")
        values["rope_theta"] = rope.pop("rope_theta")
        values["rope_scaling"] = rope

    edit(tmp_path / "config.json", older)
    agrees(model, tmp_path)
    model = written(tmp_path, "gemma3")

    def gemma(values: dict[str, Any]) -> None:
        rope = values.pop("rope_parameters")
        values["rope_theta"] = rope["full_attention"]["rope_theta"]
        values["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        values["sliding_window_pattern"] = values.pop("_sliding_window_pattern")
        del values["layer_types"]

    edit(tmp_path / "config.json", gemma)
    agrees(model, tmp_path)


def test_names_of_a_model_without_a_head_and_masks(tmp_path: Path) -> None:
    model = written(tmp_path, "gpt2")

    def older(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 8, 8)

    edit_tensors(tmp_path, older)
    agrees(model, tmp_path)


def test_a_head_beside_tied_embeddings(tmp_path: Path) -> None:
    model = written(tmp_path, "llama3")

    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    edit_tensors(tmp_path, add)
    agrees(model, tmp_path)


def test_the_decoder_of_a_model_that_reads_images(tmp_path: Path) -> None:
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    config = transformers.Gemma3Config(
        text_config={**COMMON, **GEMMA}, vision_config=vision, mm_tokens_per_image=4
    )
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    agrees(model, tmp_path)


def test_end_tokens(tmp_path: Path) -> None:
    written(tmp_path, "llama2")
    assert language.load(tmp_path).end_tokens == (2,)
    edit(tmp_path / "generation_config.json", lambda v: v.update(eos_token_id=[5, 6]))
    assert language.load(tmp_path).end_tokens == (5, 6)


def test_dtypes(tmp_path: Path) -> None:
    written(tmp_path, "gemma2").bfloat16().save_pretrained(tmp_path)
    for dtype, wanted in ((None, "bfloat16"), ("float64", "float64"), ("float16", "float16")):
        decoder = language.load(tmp_path, dtype=dtype)
        assert decoder.lm_head.weight.dtype == wanted
        norm = decoder.norm.weight.dtype
        assert norm == ("float64" if wanted == "float64" else "float32")


def drop(name: str) -> Change:
    return lambda values: values.pop(name)


@pytest.mark.parametrize(
    ("of_settings", "of_tensors", "error", "message"),
    [
        (drop("hidden_size"), None, FormatError, "config.json lacks an entry"),
        (lambda v: v.update(model_type="lama"), None, ArgumentError, "no decoder of model_type"),
        (lambda v: v.update(vocab_size=98), None, FormatError, "another shape than config.json"),
        (lambda v: v.update(hidden_act="gelux"), None, ArgumentError, "function 'gelux'"),
        (
            lambda v: v.update(rope_parameters={"rope_type": "spiral", "rope_theta": 1.0}),
            None, ArgumentError, "no rope_type 'spiral'",
        ),
        (
            lambda v: v.update(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}),
            None, ArgumentError, "lack factor",
        ),
        (None, drop("model.norm.weight"), FormatError, "files lack a tensor"),
        (
            None, lambda t: t.update({"model.layers.0.self_attn.sinks": torch.ones(4)}),
            FormatError, "unknown to this family",
        ),
        (
            None, lambda t: t.update({"model.layers.7.mlp.down_proj.weight": torch.ones(4)}),
            FormatError, "unknown to this family",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit(
    tmp_path: Path, of_settings: Change, of_tensors: Change, error: Any, message: str
) -> None:
    written(tmp_path, "llama2")
    if of_settings:
        edit(tmp_path / "config.json", of_settings)
    if of_tensors:
        edit_tensors(tmp_path, of_tensors)
    with pytest.raises(error, match=message):
        language.load(tmp_path)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        language.load(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(FormatError, match="holds a JSON object"):
        language.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **COMMON}))
    with pytest.raises(FormatError, match="holds no weights"):
        language.load(tmp_path)
