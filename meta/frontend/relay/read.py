"""Reading a Relay program from whatever holds one: a path, a text, the bytes of a file.

The kind is told by the content, never by a file's name. A foreign kind that people mistake for
Relay is a row of one of the tables: what it is, and what to do instead.
"""

from __future__ import annotations

import os
import re
from enum import Enum
from typing import NoReturn

import torch

from meta.base.errors import FormatError
from meta.base.files import read_file
from meta.frontend.relay import ast
from meta.frontend.relay.archive import read_archive
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.graph_json import read_json
from meta.frontend.relay.graph_json.document import decode
from meta.frontend.relay.params import MAGIC, read_params
from meta.frontend.relay.text import parse_text


class FileKind(Enum):
    """The kinds of files that hold Relay programs or their parameters."""

    TEXT = "Relay text"
    JSON = "a JSON graph"
    PARAMS = "a parameter file"
    ARCHIVE = "a tar archive"


_SAVE = "save the Relay program with tvm.ir.save_json(mod) or mod.astext(), and give that"
_PICKLE = "unpickle it where it comes from, and save the Relay program: pickles can run any code"
_UNPACK = "unpack it first"
_TORCH = "load it in torch and use meta.frontend.from_torch"
_ONNX = "use meta.frontend.from_onnx"
_RELAX = "load it with TVM and use meta.frontend.relax"

# (offset, bytes, what it is, what to do)
_FOREIGN: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"PK\x03\x04", "a zip archive, as torch.save, torch.export and numpy write", _TORCH),
    (0, b"\x7fELF", "a shared library: compiled code", _SAVE),
    (0, b"MZ", "a Windows library: compiled code", _SAVE),
    (0, b"\xcf\xfa\xed\xfe", "a macOS library: compiled code", _SAVE),
    (0, b"\xca\xfe\xba\xbe", "a macOS library: compiled code", _SAVE),
    (0, b"!<arch>\n", "a static library: compiled code", _SAVE),
    (0, b"BC\xc0\xde", "LLVM bitcode: compiled code", _SAVE),
    (0, b"\x1d\x15\x14\x42\x2f\xde\x25\xd2", "the code of TVM's virtual machine", _SAVE),
    (0, b"\x3f\xa1\xb4\x96\xf0\x40\x5e\xdd", "a single array of TVM's", _SAVE),
    (0, b"\x1f\x8b", "a gzip file", _UNPACK),
    (0, b"BZh", "a bzip2 file", _UNPACK),
    (0, b"\xfd7zXZ\x00", "an xz file", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "a zstandard file", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (0, b"\x89HDF\r\n", "an HDF5 file, as Keras writes", "convert the model to ONNX; " + _ONNX),
    (0, b"\x93NUMPY", "a numpy array", _SAVE),
    (4, b"TFL3", "a TensorFlow Lite model", "convert the model to ONNX; " + _ONNX),
    (0, b"\xff\xfe", "text in UTF-16", "store it as UTF-8"),
    (0, b"\xfe\xff", "text in UTF-16", "store it as UTF-8"),
)
# Text that is no Relay, by what stands in its first lines.
_FOREIGN_TEXT: tuple[tuple[bytes, str, str], ...] = (
    (b"tvm.script", "TVMScript, which has no Relay", _RELAX),
    (b"@I.ir_module", "TVMScript, which has no Relay", _RELAX),
    (b"@R.function", "a Relax function as TVMScript", _RELAX),
    (b"@T.prim_func", "a function of TVM's tensor level as TVMScript", _RELAX),
    *(
        (mark, "a pickle", _PICKLE)
        for mark in (b"copyreg\n_", b"copy_reg\n_", b"(lp0\n", b"(dp0\n")
    ),
    (b"primfn(", "a function of TVM's tensor level", _SAVE),
    (b"HloModule", "an XLA program", _SAVE),
    (b"<!DOCTYPE html", "a web page; perhaps a download that failed", _SAVE),
    (b"version https://git-lfs", "a pointer of Git LFS, not the file", "run git lfs pull"),
)
_HEADERS = (b"#[version", b"v0.0.")
_HEAD = 4096
# The second field of an ONNX model follows its version: producer, graph, or operator set.
_ONNX_FIELDS = frozenset(b"\x12\x1a\x22\x2a\x3a\x42")
_CONTROL = frozenset(range(32)) - frozenset(b"\t\n\r\f\v")


def _is_safetensors(data: bytes) -> bool:
    length = int.from_bytes(data[:8], "little")
    return data[8:9] == b"{" and 2 <= length <= max(len(data), 2**20)


def _foreign(data: bytes) -> tuple[str, str] | None:
    """Return what a binary file is that is no Relay, and what to do; None if it is not known."""
    for offset, magic, what, hint in _FOREIGN:
        if data.startswith(magic, offset):
            return what, hint
    if data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "a pickle", _PICKLE
    if _is_safetensors(data):
        return "a safetensors file", "give the Relay program; its params come from the params file"
    if data[:1] == b"\x08" and data[1:2] < b"\x20" and set(data[2:3]) & _ONNX_FIELDS:
        return "an ONNX model", _ONNX
    return None


def _refuse(what: str, hint: str, source: str) -> NoReturn:
    raise RelayError(f"this is {what}, and no Relay program", place=source, hint=hint)


def kind_of(data: bytes, source: str = "<bytes>") -> FileKind:
    """Return the kind of a file by its content.

    Whether a text is a correct program is for its reader to say. Raises RelayError for what is
    recognised as something else, or is empty, with what it is and what to do.
    """
    if not data or data.isspace():
        raise RelayError("the file is empty", place=source)
    if data.startswith(MAGIC):
        return FileKind.PARAMS
    if data[257:262] == b"ustar":
        return FileKind.ARCHIVE
    foreign = _foreign(data)
    if foreign is not None:
        _refuse(*foreign, source)
    head = data[:_HEAD].removeprefix(b"\xef\xbb\xbf").lstrip()
    if _CONTROL & set(head):
        _refuse("a binary file of an unknown kind", _SAVE, source)
    if head.startswith(b"{"):
        return FileKind.JSON
    if not head.startswith(_HEADERS):
        for mark, what, hint in _FOREIGN_TEXT:
            if mark in head:
                _refuse(what, hint, source)
    return FileKind.TEXT


Source = str | bytes | os.PathLike[str]

# How a program of one line begins; one of several has an end of line, and no file's name has.
_ONE_LINE = re.compile(
    r"\s*(#\[|\{|v0\.0\.\d|def @|fn ?[\[(]|free_var |let %|type |%|\(|[a-z][\w.]*\(.*\)\s*\Z|\Z)"
)
_NO_CONSTANTS = (
    "the text of an archive is written without its constants: meta[relay.Constant][n] has no value"
    " here; save the program as JSON to have them"
)


def _content(source: Source) -> tuple[bytes, str]:
    """Return the bytes of a source and what it is called."""
    if isinstance(source, bytes):
        return source, "<bytes>"
    if isinstance(source, str) and ("\n" in source or _ONE_LINE.match(source)):
        try:
            return source.encode(), "<text>"
        except UnicodeEncodeError as error:
            raise RelayError(
                "the text holds half a character (a lone surrogate)",
                place=f"<text>, character {error.start}",
            ) from None
    try:
        return read_file(source), str(source)
    except FormatError as error:
        raise RelayError(error.what, found=error.found, hint=error.hint) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise RelayError(
            f"the file cannot be read: {why}",
            found=repr(os.fspath(source))[:200],
            hint="give a path, or the program's text itself",
        ) from None


def read_with_params(
    source: Source, name: str | None = None
) -> tuple[ast.Module, dict[str, torch.Tensor]]:
    """Read a program and the parameters that came with it: those of an archive, else none.

    Parameters
    ----------
    source: the path of a file of any kind, the bytes of one, or a program's text or JSON as a str.
    name: which module of an archive, if there are several.

    Raises RelayError for what is no Relay program, with what it is; for one that is damaged, with
    the place. Raises ParamsError for an archive's parameters.
    """
    data, where = _content(source)
    kind = kind_of(data, where)
    if name is not None and kind is not FileKind.ARCHIVE:
        raise RelayError(
            f"a module can be named in archives only; this is {kind.value}", place=where
        )
    if kind is FileKind.ARCHIVE:
        return _read_archive(data, where, name)
    if kind is FileKind.PARAMS:
        raise RelayError(
            "this is a parameter file, without a program",
            place=where,
            hint="give the program, and this file as its params",
        )
    text = decode(data, where)
    return (read_json if kind is FileKind.JSON else parse_text)(text, where), {}


def _read_archive(
    data: bytes, where: str, name: str | None
) -> tuple[ast.Module, dict[str, torch.Tensor]]:
    text, params = read_archive(data, where).choose(name)
    module = parse_text(text, where)
    if "meta[relay.Constant]" in text and "#[metadata]" not in text:
        module.warnings.append(_NO_CONSTANTS)
    return module, {} if params is None else read_params(params)


def read(source: Source, name: str | None = None) -> ast.Module:
    """Read a program, without the parameters that an archive may hold.

    For the parameters and the errors see `read_with_params`.
    """
    return read_with_params(source, name)[0]
