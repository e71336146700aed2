"""Parameter files, what ``relay.save_param_dict`` writes: named arrays in a binary form; and which
parameter of ``main`` is which array.

The layout, little endian throughout: a magic number, 8 reserved bytes, the number of names and the
names (each a length and UTF-8), the number of arrays, and the arrays' records, in the order of the
names. A record, which JSON graphs hold too: the magic number, 8 reserved bytes, device kind and
index (int32), number of axes (int32), dtype (code uint8, bits uint8, lanes uint16), extents
(int64), bytes of data (int64), data. To read a further dtype, add a row to `DTYPES`.

Arrays are paired with parameters by name. In JSON names are exact. In text they are as TVM's
printer made them unique: a name that begins with no letter has a "v" in front, and a name met
before has a number behind. So there the exact name counts first, then the name without that "v",
then the name without the number, if only one parameter comes into question and its type fits.
Nothing is paired by position.
"""

from __future__ import annotations

import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

import torch

from meta.base.errors import FormatError
from meta.base.files import read_file
from meta.base.progress import bar
from meta.frontend.relay import ast
from meta.frontend.relay.errors import ParamsError, RelayError

MAGIC = struct.pack("<Q", 0xF7E58D4F05049CB7)
COUNT = struct.Struct("<Q")
_SMALLEST_RECORD = 40  # header and length of an array without axes
_PROGRESS_DELAY = 1.0

Source = bytes | str | os.PathLike[str]


def _load(source: Source) -> tuple[memoryview, str]:
    if isinstance(source, bytes):
        return memoryview(source), "<params>"
    try:
        return memoryview(read_file(source)), str(source)
    except FormatError as error:
        raise ParamsError(error.what, found=error.found, hint=error.hint) from None
    except (OSError, ValueError) as error:
        raise ParamsError(f"the parameter file cannot be read: {error}") from None


def _count(data: memoryview, offset: int, least: int, what: str, where: str) -> int:
    """Read a number of things that each take at least so many of the bytes that are left."""
    if len(data) - offset < COUNT.size:
        raise ParamsError(f"{where} ends before the number of its {what}")
    count: int = COUNT.unpack_from(data, offset)[0]
    left = len(data) - offset - COUNT.size
    if count * least > left:
        raise ParamsError(f"{where} is damaged: {count} {what} in {left} bytes")
    return count


def _names(data: memoryview, offset: int, where: str) -> tuple[list[str], int]:
    count = _count(data, offset, COUNT.size, "names", where)
    offset += COUNT.size
    names: list[str] = []
    for _ in range(count):
        length = _count(data, offset, 1, "bytes of a name", where)
        start, offset = offset + COUNT.size, offset + COUNT.size + length
        try:
            names.append(bytes(data[start:offset]).decode())
        except UnicodeDecodeError:
            raise ParamsError(f"{where} is damaged: a name that is not valid UTF-8") from None
    if len(set(names)) != len(names):
        twice = next(name for name, k in Counter(names).items() if k > 1)
        raise ParamsError(f"{where} has two parameters called {twice!r}")
    return names, offset


def read_params(source: Source) -> dict[str, torch.Tensor]:
    """Read a parameter file.

    Parameters
    ----------
    source: the content, as bytes, or the file's path.

    Returns the arrays by name, in the file's order, which means nothing. Every length is compared
    with the bytes that are left before anything is allocated.

    Raises ParamsError, with the parameter's name if one is concerned.
    """
    data, where = _load(source)
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise ParamsError(
            f"{where} is no parameter file",
            expected=f"it begins with {MAGIC.hex(' ')}",
            found=bytes(data[:8]).hex(" ") or "an empty file",
            hint="parameter files are written by relay.save_param_dict",
        )
    names, offset = _names(data, 2 * len(MAGIC), where)
    count = _count(data, offset, _SMALLEST_RECORD, "arrays", where)
    offset += COUNT.size
    if count != len(names):
        raise ParamsError(f"{where} is damaged: {count} arrays for {len(names)} names")
    params: dict[str, torch.Tensor] = {}
    with bar(len(data), f"reading {where}", _PROGRESS_DELAY) as progress:
        for name in names:
            try:
                tensor, offset = read_record(data, offset)
            except BadRecord as error:
                raise ParamsError(
                    f"parameter {name!r} of {where} cannot be read: {error}"
                ) from None
            assert tensor is not None  # only JSON has bool arrays without their bytes
            params[name] = tensor
            progress.update(offset - progress.n)
    if bytes(data[offset : offset + len(MAGIC)]) == MAGIC:
        raise ParamsError(
            f"{where} holds several parameter files, one after the other",
            hint="read them apart; TVM itself reads only the first",
        )
    if offset != len(data):
        raise ParamsError(f"{where} is damaged: {len(data) - offset} bytes after its end")
    return params


RECORD_MAGIC = 0xDD5E40F096B4A13F
HEADER = struct.Struct("<QQiiiBBH")
CPU = 1
MAX_AXES = 32
_LARGEST = 2**63 - 1

_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _E4M3, _E5M2 = 0, 1, 2, 4, 5, 6, 7
DTYPES: dict[tuple[int, int], torch.dtype] = {
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
    """Return the array whose record starts at an offset, and the offset after it; BadRecord.

    lost_bool: accept a bool array without its bytes, which is None: so TVM 0.6 wrote them in JSON.
    """
    if len(data) - offset < HEADER.size:
        raise BadRecord("it ends within an array's header")
    magic, _, device, _, ndim, code, bits, lanes = HEADER.unpack_from(data, offset)
    if magic != RECORD_MAGIC:
        raise BadRecord(f"no array begins here (found {magic:#018x})")
    if device != CPU:
        raise BadRecord(f"an array of device kind {device}; in files it is {CPU}")
    dtype = DTYPES.get((code, bits))
    if dtype is None or lanes != 1:
        kind = _CODE_NAMES[code] if code < len(_CODE_NAMES) else f"code {code}, "
        vector = f"x{lanes}" if lanes != 1 else ""
        raise BadRecord(f"the dtype {kind}{bits}{vector} is not supported")
    offset += HEADER.size
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


_EXECUTOR_NAME = re.compile(r"p\d+")
_DIGITS = re.compile(r"[0-9]{1,9}\Z")  # a longer number is no printer's

Params = Mapping[str, torch.Tensor]


@dataclass
class Pairing:
    """Array names by variable of ``main``, arrays that fit none, and the inputs."""

    bound: dict[ast.Var, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    free: list[ast.Var] = field(default_factory=list)


def _type_mismatch(var: ast.Var, tensor: torch.Tensor) -> tuple[str, str] | None:
    """Return what a variable's type asks for and what the array is, if they disagree."""
    declared = var.type if var.type is not None else var.checked_type
    if declared is None:
        return None
    found = f"{dtype_name(tensor.dtype)}{list(tensor.shape)}"
    if not isinstance(declared, ast.TensorType):
        return f"a {type(declared).__name__}", found
    fits = len(declared.shape) == tensor.ndim and all(
        not isinstance(d, int) or d == n for d, n in zip(declared.shape, tensor.shape, strict=True)
    )
    dtype = {"uint1": "bool"}.get(declared.dtype, declared.dtype)
    if fits and dtype == dtype_name(tensor.dtype):
        return None
    return f"{declared.dtype}[{', '.join(map(str, declared.shape))}]", found


def _without_v(name: str) -> Iterator[str]:
    if name.startswith("v") and not name[1:2].isalpha():
        yield name[1:]


def _without_number(name: str) -> Iterator[str]:
    """Yield the names that the printer may have put a number to, the longest first."""
    for form in (name, *_without_v(name)):
        digits = _DIGITS.search(form)
        for end in range(len(form) - 1, digits.start() - 1 if digits else len(form), -1):
            if form[end] != "0":  # its numbers begin at 1
                yield form[:end]


def _pair_by(
    pairing: Pairing,
    variables: list[ast.Var],
    params: Params,
    forms: Callable[[str], Iterator[str]],
) -> None:
    """Pair the variables that are left with arrays that are left, where there is no choice."""
    taken = set(pairing.bound.values())
    wanted: dict[str, list[ast.Var]] = {}
    for var in variables:
        # A name is the printer's or not: nodes of a JSON graph have the real ones.
        if var in pairing.bound or (var.place is not None and var.place.node is not None):
            continue
        for name in forms(var.name):
            if name in params and name not in taken and _type_mismatch(var, params[name]) is None:
                wanted.setdefault(name, []).append(var)
                break
    for name, candidates in wanted.items():
        if len(candidates) > 1:
            names = ", ".join(f"%{v.name}" for v in candidates)
            raise ParamsError(
                f"the array {name!r} may belong to any of {names}",
                hint="the text does not tell; use the program's JSON, or rename them",
            )
        pairing.bound[candidates[0]] = name


def pair(module: ast.Module, params: Params) -> Pairing:
    """Pair the parameters of ``main`` with arrays, by name.

    Raises ParamsError for an array of another shape or dtype than declared, for names that are
    ambiguous, and for the parameters of a compiled graph ("p0", "p1"); RelayError for a module that
    has no ``main``.
    """
    main = module.functions.get("main")
    if main is None:
        raise RelayError(
            "the module has no function main",
            found=", ".join(f"@{n}" for n in list(module.functions)[:5]) or "no functions",
            place=module.source,
        )
    variables = list(main.params)
    twice = [n for n, k in Counter(v.name for v in variables).items() if k > 1 and n in params]
    if twice:
        raise ParamsError(
            f"several parameters of main are called {twice[0]!r}, and so is an array of the file",
            hint="rename them in the program: it cannot be told which one is meant",
        )
    pairing = Pairing({v: v.name for v in variables if v.name in params})
    _pair_by(pairing, variables, params, _without_v)
    _pair_by(pairing, variables, params, _without_number)
    if params and not pairing.bound and all(_EXECUTOR_NAME.fullmatch(n) for n in params):
        raise ParamsError(
            "these parameters belong to a compiled graph, which numbers them p0, p1 and so on",
            expected=", ".join(v.name for v in variables)[:200] or "none",
            found=", ".join(params)[:200],
            hint="give the parameters that came with the Relay program",
        )
    for var, name in pairing.bound.items():
        misfit = _type_mismatch(var, params[name])
        if misfit is not None:
            raise ParamsError(
                f"the array {name!r} does not fit the parameter %{var.name} of main",
                expected=misfit[0],
                found=misfit[1],
            )
    used = set(pairing.bound.values())
    pairing.unused = [n for n in params if n not in used]
    pairing.free = [v for v in variables if v not in pairing.bound]
    return pairing
