"""Tensors as text: a few numbers inline, or base64 of the bytes. Both read back bit by bit.

Elements are in row-major order, bytes little-endian (the order of every machine torch runs on).
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence

import torch

from meta.base.dtype import COMPLEX, FLOAT8, FROM_TORCH, TO_TORCH, is_real, limits, prepare_cast

INLINE_LIMIT = 16
"""Constants of at most this many elements are written where they are used."""


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the elements' bytes, from any device and any strides."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.numel() <= 1:  # contiguous by any stride, but not seen as bytes by any
        flat = flat.as_strided((flat.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


def inline_text(tensor: torch.Tensor) -> str | None:
    """Return ``[1.0, 2.5]``, or ``1.0`` for 0 dims; None if it is too long, would lose a bit or
    has complex numbers.

    The shortest digits do not carry the payload of a nan, which `structural_equal` compares.
    """
    dtype = FROM_TORCH[tensor.dtype]
    if tensor.numel() > INLINE_LIMIT or dtype in COMPLEX:
        return None
    values = tensor.detach().cpu().reshape(-1).tolist()
    texts = _shortest_digits(values, dtype) if is_real(dtype) else [str(v) for v in values]
    again = from_values([_parse_number(t, dtype) for t in texts], tuple(tensor.shape), dtype)
    if tensor_bytes(again) != tensor_bytes(tensor):
        return None
    return texts[0] if tensor.ndim == 0 else f"[{', '.join(texts)}]"


def _parse_number(text: str, dtype: str) -> float | int | bool:
    if is_real(dtype):
        return float(text)
    return text == "True" if dtype == "bool" else int(text)


def _shortest_digits(values: list[float], dtype: str) -> list[str]:
    """Return for each value the fewest digits that round to it in that dtype."""
    texts = [repr(v) for v in values]
    if dtype == "float64":
        return texts
    for digits in range(9, 0, -1):
        shorter = [repr(float(f"{v:.{digits}g}")) for v in values]
        rounded = _tensor([float(t) for t in shorter], dtype).tolist()
        texts = [
            s if r == v else t for s, r, v, t in zip(shorter, rounded, values, texts, strict=True)
        ]
    return texts


def from_values(
    values: Sequence[float | int | bool], shape: tuple[int, ...], dtype: str
) -> torch.Tensor:
    """Return a tensor of Python numbers; ValueError if their number or range does not fit."""
    if math.prod(shape) != len(values):
        raise ValueError(f"{math.prod(shape)} elements are needed, {len(values)} are given")
    _check_shape(shape, dtype)
    if not is_real(dtype):
        bounds = limits(dtype)
        for value in values:
            if not bounds.min <= value <= bounds.max:
                raise ValueError(f"{value} is outside the range of {dtype}")
    return _tensor(values, dtype).reshape(shape)


def _tensor(values: Sequence[float | int | bool], dtype: str) -> torch.Tensor:
    if dtype in FLOAT8:
        wide = torch.tensor(values, dtype=torch.float64)
        return prepare_cast(wide, TO_TORCH[dtype]).to(TO_TORCH[dtype])
    return torch.tensor(values, dtype=TO_TORCH[dtype])


def to_base64(tensor: torch.Tensor) -> str:
    """Return the elements' bytes in base64."""
    return base64.b64encode(tensor_bytes(tensor)).decode("ascii")


def from_base64(text: str, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Return the tensor that `to_base64` wrote; ValueError if the bytes do not fit the type."""
    size = math.prod(shape) * TO_TORCH[dtype].itemsize
    if len(text) != 4 * -(-size // 3):
        raise ValueError(f"{size} bytes are needed, {len(text) * 3 // 4} are given")
    _check_shape(shape, dtype)
    try:
        data = bytearray(base64.b64decode(text, validate=True))
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None
    if len(data) != size:
        raise ValueError(f"{size} bytes are needed, {len(data)} are given")
    if dtype == "bool" and data.translate(None, b"\0\1"):
        raise ValueError("a byte of a bool is neither 0 nor 1")
    if not data:
        return torch.empty(shape, dtype=TO_TORCH[dtype])
    return torch.frombuffer(data, dtype=TO_TORCH[dtype]).reshape(shape)


def _check_shape(shape: tuple[int, ...], dtype: str) -> None:
    """Refuse what overflows torch's strides: an empty tensor may have any other dimension."""
    if math.prod(max(d, 1) for d in shape) * TO_TORCH[dtype].itemsize >= 2**63:
        raise ValueError("the shape is too large for this machine")
