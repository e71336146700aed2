"""Quantised weights as other libraries write them: a tiny model in each layout, against
transformers' model with the numbers that the layout's definition, or its library, makes of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import meta
from meta import language
from meta.base.errors import ArgumentError, FormatError
from tests.language.folders import prompts, reference, written

Tensors = dict[str, torch.Tensor]
Written = tuple[Tensors, np.ndarray]
"""What a file has of a layer by the end of its name, and the matrix that it stands for."""
RNG = np.random.default_rng(0)
GROUP = 16


def words(numbers: np.ndarray, bits: int, axis: int, order: range | tuple[int, ...]) -> Any:
    """Return unsigned numbers in int32 along an axis: number ``order[i]`` of a word has place i."""
    count = 32 // bits
    moved = np.moveaxis(numbers.astype(np.uint64), axis, -1)
    moved = moved.reshape(*moved.shape[:-1], -1, count)
    found = sum(moved[..., order[i]] << np.uint64(bits * i) for i in range(count))
    packed = np.moveaxis(np.asarray(found).astype(np.uint32).view(np.int32), -1, axis)
    return torch.from_numpy(np.ascontiguousarray(packed))


def grouped(w: np.ndarray, bits: int, whole: bool) -> tuple[np.ndarray, ...]:
    """Return numbers (n, k), scales and zeros (n, groups), and what they stand for."""
    groups = w.reshape(len(w), -1, GROUP)
    least, most = groups.min(2, keepdims=True), groups.max(2, keepdims=True)
    scale = ((most - least) / (2**bits - 1)).astype(np.float16)
    zero = np.clip(np.rint(-least / scale), 0, 2**bits - 1)
    if whole:
        zero = np.full_like(zero, 2 ** (bits - 1))
    numbers = np.clip(np.rint(groups / scale) + zero, 0, 2**bits - 1)
    stands = ((numbers - zero) * scale.astype(np.float32)).reshape(w.shape)
    return numbers.reshape(w.shape), scale[..., 0], zero[..., 0], stands


def of_gptq(bits: int = 4, form: str = "gptq", symmetric: bool = False) -> Any:
    def write(w: np.ndarray) -> Written:
        numbers, scale, zero, stands = grouped(w, bits, symmetric)
        stored = (zero - (form == "gptq")) % 2**bits
        order = range(32 // bits)
        return {
            "qweight": words(numbers.T, bits, 0, order),
            "qzeros": words(stored.T, bits, 1, order),
            "scales": torch.from_numpy(scale.T.copy()),
            "g_idx": torch.arange(w.shape[1], dtype=torch.int32) // GROUP,
        }, stands

    return write, {"quant_method": "gptq", "bits": bits, "checkpoint_format": form}


def of_awq() -> Any:
    def write(w: np.ndarray) -> Written:
        numbers, scale, zero, stands = grouped(w, 4, False)
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        return {
            "qweight": words(numbers.T, 4, 1, order),
            "qzeros": words(zero.T, 4, 1, order),
            "scales": torch.from_numpy(scale.T.copy()),
        }, stands

    return write, {"quant_method": "awq", "bits": 4, "version": "gemm"}


def of_bitsandbytes() -> Any:
    def write(w: np.ndarray) -> Written:
        most = np.abs(w).max(1)
        numbers = np.rint(w * 127 / most[:, None]).astype(np.int8)
        own = {"weight": torch.from_numpy(numbers), "SCB": torch.from_numpy(most)}
        own["weight_format"] = torch.tensor(0, dtype=torch.uint8)
        return own, numbers * (most / 127)[:, None]

    return write, {"quant_method": "bitsandbytes", "load_in_8bit": True}


def of_float8(block: int | None, ends: tuple[str, str], method: dict[str, Any]) -> Any:
    """Numbers of float8 with scales of blocks, or of the whole tensor."""

    def write(w: np.ndarray) -> Written:
        n, k = w.shape
        rows, columns = (block, block) if block else (n, k)
        scale = np.zeros((-(-n // rows), k // columns), np.float32)
        for i, j in np.ndindex(*scale.shape):
            scale[i, j] = np.abs(w[i * rows :, j * columns :][:rows, :columns]).max() / 448
        whole = np.kron(scale, np.ones((rows, columns), np.float32))[:n]
        stored = torch.from_numpy(w / whole).to(torch.float8_e4m3fn)
        given = torch.from_numpy(scale if block else scale.reshape(1))
        return {ends[0]: stored, ends[1]: given}, stored.float().numpy() * whole

    return write, method


def of_torchao() -> Any:
    """Int8Tensor, whose parts lie beside one another."""

    def write(w: np.ndarray) -> Written:
        scale = np.abs(w).max(1, keepdims=True) / np.float32(127.5)
        numbers = np.clip(np.rint(w / scale), -128, 127).astype(np.int8)
        parts = {"_weight_qdata": numbers, "_weight_scale": scale.astype(np.float32)}
        return {n: torch.from_numpy(a) for n, a in parts.items()}, numbers * scale

    return write, {"quant_method": "torchao", "quant_type": "int8_weight_only"}


def of_compressed(bits: int, symmetric: bool, strategy: str) -> Any:
    """What the library compressed-tensors makes of a matrix."""
    from compressed_tensors.compressors import PackedQuantizationCompressor as Compressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    group = GROUP if strategy == "group" else None
    args = QuantizationArgs(num_bits=bits, symmetric=symmetric, strategy=strategy, group_size=group)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)

    def write(w: np.ndarray) -> Written:
        groups = w.reshape(len(w), -1, group or w.shape[1])
        least, most = groups.min(2), groups.max(2)
        if symmetric:
            most = np.maximum(most, -least)
            scale, zero = most * 2 / (2**bits - 1), np.zeros_like(most)
        else:
            scale = (most - least) / (2**bits - 1)
            zero = np.clip(np.rint(-(2 ** (bits - 1)) - least / scale), -(2 ** (bits - 1)), 127)
            zero = np.minimum(zero, 2 ** (bits - 1) - 1)
        state = {
            "weight": torch.from_numpy(w),
            "weight_scale": torch.from_numpy(scale.astype(np.float32)),
            "weight_zero_point": torch.from_numpy(zero.astype(np.int8)),
        }
        packed = Compressor.compress(state, scheme)
        whole = Compressor.decompress(dict(packed), scheme)["weight"]
        return packed, whole.float().numpy()

    weights = json.loads(args.model_dump_json())
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    method = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    return write, {**method, "config_groups": groups, "ignore": ["lm_head"]}


def compressed_floats(kind: str) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "strategy": kind, "block_structure": [GROUP, GROUP]}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


LAYOUTS: dict[str, Callable[[], Any]] = {
    "gptq": of_gptq,
    "gptq, symmetric": lambda: of_gptq(symmetric=True),
    "gptq, the second form, 8 bits": lambda: of_gptq(8, "gptq_v2"),
    "awq": of_awq,
    "bitsandbytes": of_bitsandbytes,
    "torchao": of_torchao,
    "fp8": lambda: of_float8(
        GROUP, ("weight", "weight_scale_inv"),
        {"quant_method": "fp8", "weight_block_size": [GROUP, GROUP]},
    ),
    "compressed, float8 of the tensor": lambda: of_float8(
        None, ("weight", "weight_scale"), compressed_floats("tensor")
    ),
    "compressed, float8 in blocks": lambda: of_float8(
        GROUP, ("weight", "weight_scale"), compressed_floats("block")
    ),
    "compressed, 4 bits": lambda: of_compressed(4, True, "group"),
    "compressed, 4 bits with zeros": lambda: of_compressed(4, False, "group"),
    "compressed, 8 bits of rows": lambda: of_compressed(8, True, "channel"),
}  # fmt: skip


def rewrite(folder: Path, model: Any, made: Any) -> None:
    """Write a model's linear layers in a layout, and give the model what they stand for."""
    write, config = made
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    for name, module in model.named_modules():
        if not name.endswith("_proj"):
            continue
        own, stands = write(tensors.pop(f"{name}.weight").numpy())
        tensors |= {f"{name}.{end}": tensor.contiguous() for end, tensor in own.items()}
        with torch.no_grad():
            module.weight.copy_(torch.from_numpy(np.ascontiguousarray(stands)))
    safetensors.torch.save_file(tensors, file)
    settings = json.loads((folder / "config.json").read_text())
    settings["quantization_config"] = config
    (folder / "config.json").write_text(json.dumps(settings))


def agrees(decoder: Any, model: Any) -> None:
    (prompt,) = prompts(20)
    found = language.generate(decoder, prompt, max_new_tokens=8, end_tokens=(), temperature=1.0)
    _, logprobs = reference(model, prompt, found.tokens.tolist())
    assert (logprobs - torch.from_numpy(found.logprobs)).abs().max() < 3e-4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout(tmp_path: Path, layout: str) -> None:
    model = written(tmp_path, "qwen2", intermediate_size=64)
    rewrite(tmp_path, model, LAYOUTS[layout]())
    decoder = language.load(tmp_path)
    one, theirs = decoder.layers[1].mlp.down_proj, model.model.layers[1].mlp.down_proj.weight
    found = meta.dequantize_weight(one.weight, one.scales, one.zeros).torch()
    assert (found - theirs).abs().max() < 1e-6
    agrees(decoder, model)


def renamed(method: str) -> Callable[[Tensors, dict[str, Any]], None]:
    return lambda tensors, how: how.update(quant_method=method)


def out_of_order(tensors: Tensors, how: dict[str, Any]) -> None:
    name = "model.layers.0.mlp.down_proj.g_idx"
    tensors[name] = tensors[name].flip(0)


def half_of_it(tensors: Tensors, how: dict[str, Any]) -> None:
    name = "model.layers.0.self_attn.k_proj"
    for end in ("qweight", "qzeros", "scales", "g_idx"):
        del tensors[f"{name}.{end}"]
    tensors[f"{name}.weight"] = torch.zeros(16, 32)


def of_another_shape(tensors: Tensors, how: dict[str, Any]) -> None:
    name = "model.layers.0.mlp.down_proj.scales"
    tensors[name] = tensors[name][:, :8].contiguous()


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (renamed("hqq"), ArgumentError, "no layout of quantised weights 'hqq'"),
        (lambda t, how: how.update(bits=3), ArgumentError, "of so many bits"),
        (lambda t, how: how.update(checkpoint_format="marlin"), FormatError, "no such form"),
        (out_of_order, FormatError, "order of activations"),
        (half_of_it, FormatError, "in different ways"),
        (of_another_shape, FormatError, "layers.0.mlp.down_proj do not fit together"),
        (
            lambda t, how: t.update({"model.layers.0.mlp.down_proj.perm": torch.ones(4)}),
            FormatError, "unknown to this family",
        ),
        (renamed("awq"), FormatError, "do not fit together"),
    ],
)  # fmt: skip
def test_what_does_not_fit(tmp_path: Path, change: Any, error: Any, match: str) -> None:
    model = written(tmp_path, "qwen2", intermediate_size=64)
    rewrite(tmp_path, model, of_gptq())
    file, settings = tmp_path / "model.safetensors", tmp_path / "config.json"
    tensors, values = safetensors.torch.load_file(file), json.loads(settings.read_text())
    change(tensors, values["quantization_config"])
    safetensors.torch.save_file(tensors, file)
    settings.write_text(json.dumps(values))
    with pytest.raises(error, match=match):
        language.load(tmp_path)


def test_weights_are_quantised_once(tmp_path: Path) -> None:
    rewrite(tmp_path, written(tmp_path, "qwen2", intermediate_size=64), of_awq())
    with pytest.raises(ArgumentError, match="are quantised"):
        language.load(tmp_path, quantize="int8")
