"""Quantised weights as other libraries write them, as `quantized_matmul` takes them.

A layout is a function: it reads the tensors of one linear layer of theirs, (out, in), and returns
its parts, or None for a layer that is not quantised. Integers of fewer than 8 bits lie in int32,
the first in the lowest bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch

from meta.base.errors import ArgumentError, FormatError
from meta.base.registry import nearest
from meta.op.quantized import BLOCK, pack_halves
from meta.runtime.ndarray import ndarray

Settings = Mapping[str, Any]
"""The ``quantization_config`` of a config.json."""


class Tensors(Protocol):
    """The tensors of a folder by name."""

    def __contains__(self, name: object) -> bool: ...
    def __getitem__(self, name: str) -> torch.Tensor: ...


class PackedWeight(NamedTuple):
    """A weight, its scales and its zeros: what `quantized_matmul` takes."""

    weight: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None


Layout = Callable[[Tensors, str, Settings], PackedWeight | None]
_WORD = 32
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where column i of eight lies in a word of AWQ, counted from the lowest bits."""


def _optional(tensors: Tensors, name: str) -> torch.Tensor | None:
    """Return a tensor that may be missing."""
    if name not in tensors:
        return None
    return tensors[name]


def _unpacked(words: torch.Tensor, bits: int, axis: int, order: tuple[int, ...] = ()) -> Any:
    """Return the unsigned numbers that lie in int32 along an axis, uint8."""
    shifts = torch.tensor([bits * i for i in order or range(_WORD // bits)], dtype=torch.int32)
    last = words.movedim(axis, -1)
    numbers = (last[..., None] >> shifts) & ((1 << bits) - 1)
    return numbers.to(torch.uint8).flatten(-2).movedim(-1, axis)


def packed_weight(
    name: str, numbers: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bits: int
) -> PackedWeight:
    """Return the parts of unsigned numbers (n, k); zeros are in their units, None for the middle.
    FormatError, which names the layer, for a shape that has no such product.
    """
    n, k = numbers.shape
    groups = scales.shape[1] if scales.ndim == 2 else 0
    if len(scales) != n or not groups or k % groups or (bits == 4 and k % BLOCK):
        raise FormatError(
            f"the parts of {name} do not fit together",
            expected="scales[n, a divisor of k] for weights [n, k]; of 4 bits k a multiple of 32",
            found=f"scales{list(scales.shape)}, weights[{n}, {k}]",
        )
    middle = 1 << (bits - 1)
    if zeros is not None and bool((zeros == middle).all()):
        zeros = None
    if bits == 4:
        weight = pack_halves(ndarray(numbers.to(torch.uint8).contiguous())).tensor
    else:
        weight = (numbers.to(torch.int16) - middle).to(torch.int8).contiguous()
        zeros = None if zeros is None else zeros - middle
    zeros = None if zeros is None else zeros.to(scales.dtype).contiguous()
    return PackedWeight(weight, scales.contiguous(), zeros)


def _bits(how: Settings, *allowed: int) -> int:
    """Return how many bits a number has; ArgumentError for others than are known."""
    found = how.get("bits", how.get("w_bit", 4))
    if found not in allowed:
        raise ArgumentError(
            "weights of so many bits have no products", expected=allowed, found=found
        )
    return int(found)


def gptq(tensors: Tensors, name: str, how: Settings) -> PackedWeight | None:
    """Read AutoGPTQ's layout (Frantar et al., arXiv:2210.17323): words along columns; those of
    zeros along rows, which its first format has one too small.
    """
    if f"{name}.qweight" not in tensors:
        return None
    bits = _bits(how, 4, 8)
    form = how.get("checkpoint_format") or "gptq"
    if form not in ("gptq", "gptq_v2"):
        raise FormatError("there is no such form of GPTQ", expected="gptq, gptq_v2", found=form)
    numbers = _unpacked(tensors[f"{name}.qweight"], bits, 0).T
    scales = tensors[f"{name}.scales"].T
    zeros = _unpacked(tensors[f"{name}.qzeros"], bits, 1).T[: len(numbers)].to(torch.int16)
    if f"{name}.g_idx" in tensors:
        order = tensors[f"{name}.g_idx"].long()
        group = numbers.shape[1] // max(scales.shape[1], 1)
        if not torch.equal(order, torch.arange(numbers.shape[1]) // max(group, 1)):
            raise FormatError(
                f"the columns of {name} are in the order of activations",
                expected="groups of columns that follow one another: desc_act false",
                hint="quantise the model with desc_act=False",
            )
    if form == "gptq":
        zeros = zeros + 1 & (1 << bits) - 1
    return packed_weight(name, numbers, scales, zeros, bits)


def awq(tensors: Tensors, name: str, how: Settings) -> PackedWeight | None:
    """Read AutoAWQ's layout "gemm" (Lin et al., arXiv:2306.00978): words along rows."""
    if f"{name}.qweight" not in tensors:
        return None
    bits, version = _bits(how, 4), str(how.get("version", "gemm")).lower()
    if version != "gemm":
        raise FormatError("there is no such version of AWQ", expected="gemm", found=version)
    numbers, zeros = (
        _unpacked(tensors[f"{name}.{kind}"], bits, 1, _AWQ_ORDER).T
        for kind in ("qweight", "qzeros")
    )
    return packed_weight(name, numbers, tensors[f"{name}.scales"].T, zeros.to(torch.int16), bits)


def _weights_of(how: Settings) -> Settings:
    """Return how compressed-tensors rounded weights, which has to be one way."""
    groups = list(how.get("config_groups", {}).values())
    if len(groups) != 1 or not isinstance(groups[0], dict) or not groups[0].get("weights"):
        raise FormatError("weights are quantised in one way", found=how.get("config_groups"))
    found: Settings = groups[0]["weights"]
    if found.get("actorder") not in (None, "static", "weight"):
        raise FormatError(
            "columns are in the order of activations",
            expected='actorder null, "static" or "weight"',
            found=found["actorder"],
        )
    return found


def compressed_tensors(tensors: Tensors, name: str, how: Settings) -> PackedWeight | None:
    """Read the layouts of compressed-tensors: "pack-quantized" of 4 and 8 bits, whose words lie
    along columns, those of zeros along rows; "int-quantized" and "float-quantized", whose numbers
    have 8 bits. What they say of activations is left out: these are not rounded.
    """
    if f"{name}.weight_scale" not in tensors:
        return None
    weights = _weights_of(how)
    scales, bits = tensors[f"{name}.weight_scale"], _bits({"bits": weights.get("num_bits")}, 4, 8)
    zeros = _optional(tensors, f"{name}.weight_zero_point")
    for kind in ("input_scale", "input_zero_point"):
        _optional(tensors, f"{name}.{kind}")
    if f"{name}.weight_packed" not in tensors:
        stored = tensors[f"{name}.weight"]
        return integers_of(name, stored, scales, zeros, weights.get("block_structure"))
    n, k = tensors[f"{name}.weight_shape"].tolist()
    numbers = _unpacked(tensors[f"{name}.weight_packed"], bits, 1)[:, :k]
    if zeros is not None:
        zeros = _unpacked(zeros, bits, 0)[:n].to(torch.int16)
    return packed_weight(name, numbers, _spread(name, scales, n, k), zeros, bits)


def _spread(name: str, scales: torch.Tensor, n: int, k: int, block: object = None) -> torch.Tensor:
    """Return scales of a tensor, of rows, of groups or of blocks (rows, columns) as (n, groups)."""
    scales = scales.reshape(1, 1) if scales.numel() == 1 else scales
    scales = scales[:, None] if scales.ndim == 1 else scales
    if len(scales) == n:
        return scales
    rows = n if len(scales) == 1 else block[0] if isinstance(block, list | tuple) else 0
    if rows < 1 or len(scales) != -(-n // rows) or k % scales.shape[1]:
        raise FormatError(
            f"the scales of {name} do not fit",
            expected=f"scales of [{n}, {k}], of its rows, of groups, or of blocks that divide it",
            found=f"{list(scales.shape)}, blocks {block}",
        )
    return scales.repeat_interleave(rows, 0)[:n]


def integers_of(
    name: str,
    stored: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    block: object = None,
) -> PackedWeight:
    """Return the parts of a weight that is stored as int8 or float8_e4m3fn, (n, k)."""
    if stored.ndim != 2 or stored.dtype not in (torch.int8, torch.float8_e4m3fn):
        raise FormatError(
            f"{name} is stored in an unknown way",
            expected="a matrix of int8 or float8_e4m3fn",
            found=f"{stored.dtype}{list(stored.shape)}",
        )
    n, k = stored.shape
    scales = _spread(name, scales, n, k, block)
    if scales.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        scales = scales.float()
    if zeros is not None:
        zeros = _spread(name, zeros, n, k, block).to(scales.dtype).expand_as(scales).contiguous()
        zeros = None if not zeros.any() else zeros
    return PackedWeight(stored, scales.contiguous(), zeros)


def fp8(tensors: Tensors, name: str, how: Settings) -> PackedWeight | None:
    """Read float8 of transformers and DeepSeek-V3 (arXiv:2412.19437): scales of blocks."""
    if f"{name}.weight_scale_inv" not in tensors:
        return None
    _optional(tensors, f"{name}.activation_scale")
    weight, scales = tensors[f"{name}.weight"], tensors[f"{name}.weight_scale_inv"]
    return integers_of(name, weight, scales, None, how.get("weight_block_size"))


def bitsandbytes(tensors: Tensors, name: str, how: Settings) -> PackedWeight | None:
    """Read the int8 layout of bitsandbytes (Dettmers et al., arXiv:2208.07339), whose numbers are
    127 where a row is largest. Columns of outliers are not kept apart.
    """
    if how.get("load_in_4bit"):
        raise FormatError("4 bits of bitsandbytes are not whole numbers", expected="load_in_8bit")
    if f"{name}.SCB" not in tensors:
        return None
    form = _optional(tensors, f"{name}.weight_format")
    if form is not None and int(form) != 0:
        raise FormatError(f"the rows of {name} do not follow one another", expected="format 0")
    return integers_of(name, tensors[f"{name}.weight"], tensors[f"{name}.SCB"].float() / 127)


def torchao(tensors: Tensors, name: str, how: Settings) -> PackedWeight | None:
    """Read torchao's tensors of 8 bits: int8 and float8, with scales of rows or of groups."""
    if f"{name}._weight_qdata" not in tensors:
        return None
    stored, scales = (tensors[f"{name}._weight_{kind}"] for kind in ("qdata", "scale"))
    return integers_of(name, stored, scales, _optional(tensors, f"{name}._weight_zero_point"))


LAYOUTS: Mapping[str, Layout] = {
    "awq": awq,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "fp8": fp8,
    "gptq": gptq,
    "torchao": torchao,
}
"""Layouts by the ``quant_method`` of a ``quantization_config``."""


def layout_of(how: Settings) -> Layout:
    """Return the layout that a ``quantization_config`` names; ArgumentError for another one."""
    found = str(how.get("quant_method"))
    if found not in LAYOUTS:
        raise ArgumentError(
            f"there is no layout of quantised weights {found!r}",
            expected=", ".join(LAYOUTS),
            hint=nearest(found, LAYOUTS),
        )
    return LAYOUTS[found]
