"""What kind of file this is, by its content.

A foreign kind that people mistake for Relay is a row of one of the tables: what it is, and what to
do instead.
"""

from __future__ import annotations

from enum import Enum
from typing import NoReturn

from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.params import MAGIC


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
