"""Writes parameter files and the records of arrays in them, as TVM does; the reader is
`meta.frontend.relay.params`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import torch

from meta.frontend.relay.errors import ParamsError
from meta.frontend.relay.params import (
    COUNT,
    CPU,
    DTYPES,
    HEADER,
    MAGIC,
    MAX_AXES,
    RECORD_MAGIC,
    BadRecord,
)

_CODES = {dtype: code for code, dtype in DTYPES.items()}


def dump_params(params: Mapping[str, torch.Tensor]) -> bytes:
    """Return the content of a parameter file, as TVM reads it.

    Raises ParamsError for a dtype that TVM has no code for, and a name that is no text.
    """
    parts = [MAGIC, bytes(8), COUNT.pack(len(params))]
    for name in params:
        try:
            encoded = name.encode()
        except UnicodeEncodeError:
            raise ParamsError(f"the name {name!r} cannot be written as UTF-8") from None
        parts += [COUNT.pack(len(encoded)), encoded]
    parts.append(COUNT.pack(len(params)))
    for name, tensor in params.items():
        try:
            parts.append(write_record(tensor))
        except BadRecord as error:
            raise ParamsError(f"parameter {name!r} cannot be written: {error}") from None
    return b"".join(parts)


def write_record(tensor: torch.Tensor) -> bytes:
    """Return the record of an array. Raises BadRecord for a dtype that TVM has no code for."""
    code = _CODES.get(tensor.dtype)
    if code is None:
        raise BadRecord(f"TVM has no dtype for {tensor.dtype}")
    if tensor.ndim > MAX_AXES:
        raise BadRecord(f"an array of {tensor.ndim} axes; at most {MAX_AXES} can be")
    held = tensor.detach().cpu().contiguous()
    data = held.reshape(-1).view(torch.uint8).numpy().tobytes() if held.numel() else b""
    header = HEADER.pack(RECORD_MAGIC, 0, CPU, 0, tensor.ndim, *code, 1)
    extents = struct.pack(f"<{tensor.ndim}q", *tensor.shape)
    return header + extents + struct.pack("<q", len(data)) + data
