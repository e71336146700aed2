"""TVM's binary record of an array, as it stands in parameter files and in JSON graphs.

All numbers are little endian: the magic number, 8 reserved bytes, device kind and index (int32),
number of axes (int32), dtype (code uint8, bits uint8, lanes uint16), extents (int64), bytes of data
(int64), data. To read a further dtype, add a row to `_DTYPES`.
"""

from __future__ import annotations

import struct
from math import prod

import torch

_MAGIC = 0xDD5E40F096B4A13F
_HEADER = struct.Struct("<QQiiiBBH")
_CPU = 1
MAX_AXES = 32
_LARGEST = 2**63 - 1

_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _E4M3, _E5M2 = 0, 1, 2, 4, 5, 6, 7
_DTYPES: dict[tuple[int, int], torch.dtype] = {
    (_INT, 8): torch.int8,
    (_INT, 16): torch.int16,
    (_INT, 32): torch.int32,
    (_INT, 64): torch.int64,
    (_UINT, 1): torch.bool,
    (_UINT, 8): torch.uint8,
    (_UINT, 16): torch.uint16,
    (_UINT, 32): torch.uint32,
    (_UINT, 64): torch.uint64,
    (_FLOAT, 16): torch.float16,
    (_FLOAT, 32): torch.float32,
    (_FLOAT, 64): torch.float64,
    (_BFLOAT, 16): torch.bfloat16,
    (_COMPLEX, 64): torch.complex64,
    (_COMPLEX, 128): torch.complex128,
    (_E4M3, 8): torch.float8_e4m3fn,
    (_E5M2, 8): torch.float8_e5m2,
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_CODE_NAMES = ("int", "uint", "float", "handle", "bfloat", "complex", "e4m3_float", "e5m2_float")
_NAMES = {torch.float8_e4m3fn: "e4m3_float8", torch.float8_e5m2: "e5m2_float8"}


class BadRecord(Exception):
    """A record that is damaged, or of a dtype that cannot be held: what is wrong, in words."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return TVM's name of a dtype, "float32"."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


def _shape(data: memoryview, offset: int, ndim: int) -> tuple[int, ...]:
    if not 0 <= ndim <= MAX_AXES:
        raise BadRecord(f"an array of {ndim} axes; at most {MAX_AXES} can be")
    if len(data) - offset < 8 * ndim:
        raise BadRecord("it ends within an array's shape")
    shape = struct.unpack_from(f"<{ndim}q", data, offset)
    if any(n < 0 for n in shape):
        raise BadRecord(f"a negative extent in the shape {shape}")
    # What is empty has to have strides too.
    if prod(n for n in shape if n) > _LARGEST // 16:
        raise BadRecord(f"the shape {shape} has more elements than can be")
    return shape


def read_record(
    data: memoryview, offset: int = 0, lost_bool: bool = False
) -> tuple[torch.Tensor | None, int]:
    """Read the record that starts at an offset; return the array and the offset after it.

    Every length is compared with the bytes that are left before anything is allocated.

    Parameters
    ----------
    lost_bool: accept a bool array without its bytes, as TVM 0.6 wrote them in JSON; the array is
        then None.

    Raises BadRecord.
    """
    if len(data) - offset < _HEADER.size:
        raise BadRecord("it ends within an array's header")
    magic, _, device, _, ndim, code, bits, lanes = _HEADER.unpack_from(data, offset)
    if magic != _MAGIC:
        raise BadRecord(f"no array begins here (found {magic:#018x})")
    if device != _CPU:
        raise BadRecord(f"an array of device kind {device}; in files it is {_CPU}")
    dtype = _DTYPES.get((code, bits))
    if dtype is None or lanes != 1:
        kind = _CODE_NAMES[code] if code < len(_CODE_NAMES) else f"code {code}, "
        vector = f"x{lanes}" if lanes != 1 else ""
        raise BadRecord(f"the dtype {kind}{bits}{vector} is not supported")
    offset += _HEADER.size
    shape = _shape(data, offset, ndim)
    offset += 8 * ndim
    if len(data) - offset < 8:
        raise BadRecord("it ends before the length of an array's data")
    (length,) = struct.unpack_from("<q", data, offset)
    offset += 8
    expected = prod(shape) * dtype.itemsize
    if lost_bool and dtype == torch.bool and length == 0 and expected:
        return None, offset
    if length != expected:
        raise BadRecord(
            f"{length} bytes of data for {dtype_name(dtype)}{list(shape)}, which has {expected}"
        )
    if len(data) - offset < length:
        raise BadRecord(f"{length} bytes of data where {len(data) - offset} are left")
    if length == 0:
        return torch.empty(shape, dtype=dtype), offset
    owned = bytearray(data[offset : offset + length])
    if dtype == torch.bool and any(owned.translate(None, b"\x00\x01")):
        raise BadRecord("a bool array with bytes other than 0 and 1")
    return torch.frombuffer(owned, dtype=dtype).reshape(shape), offset + length


def write_record(tensor: torch.Tensor) -> bytes:
    """Return the record of an array. Raises BadRecord for a dtype that TVM has no code for."""
    code = _CODES.get(tensor.dtype)
    if code is None:
        raise BadRecord(f"TVM has no dtype for {tensor.dtype}")
    if tensor.ndim > MAX_AXES:
        raise BadRecord(f"an array of {tensor.ndim} axes; at most {MAX_AXES} can be")
    held = tensor.detach().cpu().contiguous()
    data = held.reshape(-1).view(torch.uint8).numpy().tobytes() if held.numel() else b""
    header = _HEADER.pack(_MAGIC, 0, _CPU, 0, tensor.ndim, *code, 1)
    extents = struct.pack(f"<{tensor.ndim}q", *tensor.shape)
    return header + extents + struct.pack("<q", len(data)) + data
