"""State of data, callbacks and random generators as JSON, and back; nothing in it is run."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from meta.base.dtype import FROM_TORCH, TO_TORCH
from meta.base.errors import ArgumentError, FormatError

NUMPY_KINDS = "biufc"
"""Kinds of numpy's dtypes that are kept: no objects, no text."""


def to_json(value: Any, where: str) -> Any:
    """Return a value as what `json` writes; ArgumentError, naming the place, for other objects."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return to_json(value.item(), where)
    if isinstance(value, list):
        return [to_json(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, dict):
        if all(isinstance(k, str) and not k.startswith("$") for k in value):
            return {k: to_json(v, f"{where}[{k!r}]") for k, v in value.items()}
        return {"$dict": [to_json(list(item), where) for item in value.items()]}
    if isinstance(value, tuple):
        return {"$tuple": to_json(list(value), where)}
    if isinstance(value, bytes | bytearray):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, np.ndarray) and value.dtype.kind in NUMPY_KINDS:
        return {"$numpy": _bytes(value.dtype.str, value.shape, value.tobytes())}
    if isinstance(value, torch.Tensor) and value.dtype in FROM_TORCH:
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return {"$tensor": _bytes(FROM_TORCH[value.dtype], value.shape, raw)}
    raise ArgumentError(
        f"{where} cannot be kept in a checkpoint",
        expected="None, numbers, text, bytes, arrays, and lists, tuples and dicts of them",
        found=type(value).__name__,
    )


def from_json(value: Any) -> Any:
    """Return the value that `to_json` was given; FormatError for what it does not write."""
    if isinstance(value, list):
        return [from_json(v) for v in value]
    if not isinstance(value, dict):
        return value
    if not any(isinstance(k, str) and k.startswith("$") for k in value):
        return {k: from_json(v) for k, v in value.items()}
    try:
        ((kind, content),) = value.items()
        return _from_tagged(kind, content)
    except (ValueError, KeyError, TypeError, RuntimeError, binascii.Error) as error:
        raise FormatError("this state is damaged", found=str(error)) from error


def _from_tagged(kind: str, content: Any) -> Any:
    if kind == "$tuple":
        return tuple(from_json(content))
    if kind == "$bytes":
        return base64.b64decode(content, validate=True)
    if kind == "$dict":
        return dict(map(from_json, content))
    if kind == "$numpy":
        dtype = np.dtype(content["dtype"])
        if dtype.kind not in NUMPY_KINDS:
            raise ValueError(f"an array of {dtype}")
        return np.frombuffer(_raw(content), dtype).reshape(content["shape"])
    if kind == "$tensor":
        raw, of = _raw(content), TO_TORCH[content["dtype"]]
        flat = torch.frombuffer(raw, dtype=of) if raw else torch.empty(0, dtype=of)
        return flat.reshape(content["shape"])
    raise ValueError(f"unknown mark {kind!r}")


def _bytes(dtype: str, shape: Sequence[int], raw: bytes) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data": base64.b64encode(raw).decode("ascii")}


def _raw(content: dict[str, Any]) -> bytearray:
    return bytearray(base64.b64decode(content["data"], validate=True))
