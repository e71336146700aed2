"""Reading a Relay program from whatever holds one: a path, a text, the bytes of a file.

The kind is told by the content, never by a file's name. A foreign kind that people mistake for
Relay is a row of one of the tables: what it is, and what to do instead.

An archive is in Model Library Format: a tar that holds the Relay text of a model and its
parameters. Nothing is extracted to disk: the members that matter are read in memory, out of an
archive without compression, so that nothing is larger than the file. A reader of our own does it
because tar here is headers of 512 bytes and little else, and an archive from outside must neither
hang nor name a place outside of itself: links, devices, sparse files and absolute names are
refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePosixPath
from typing import NoReturn

import torch

from meta.base.errors import FormatError
from meta.base.files import read_file
from meta.base.registry import nearest
from meta.frontend.relay import ast
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.graph_json import read_json
from meta.frontend.relay.graph_json.document import decode, encode
from meta.frontend.relay.params import MAGIC, Source, read_params
from meta.frontend.relay.text import parse_text

MAX_MEMBERS = 10_000
_BLOCK = 512
_REGULAR = (b"\0", b"0", b"7")
_DIRECTORY, _LONG_NAME, _EXTENDED, _GLOBAL = b"5", b"L", b"x", b"g"
_LONGEST_NAME = 4096
_RECORD = re.compile(rb"(\d{1,7}) ([^=\n]{1,100})=")
_OCTAL = re.compile(rb"[ ]*([0-7]{1,12})[ \0]*")


@dataclass
class Archive:
    """Relay texts and parameter files by module; an archive without names has "relay"."""

    source: str
    programs: dict[str, str] = field(default_factory=dict)
    params: dict[str, bytes] = field(default_factory=dict)

    def choose(self, name: str | None = None) -> tuple[str, bytes | None]:
        """Return a module's text and parameter file, if any; RelayError for another name."""
        if name is None and len(self.programs) == 1:
            name = next(iter(self.programs))
        if name is None or name not in self.programs:
            several = name is None
            raise RelayError(
                "the archive holds several modules"
                if several
                else f"the archive has no module {name!r}",
                found=", ".join(self.programs),
                hint="name one of them" if several else nearest(str(name), self.programs),
                place=self.source,
            )
        if name in self.params:
            return self.programs[name], self.params[name]
        alone = len(self.programs) == len(self.params) == 1
        return self.programs[name], next(iter(self.params.values())) if alone else None


class _Tar:
    """Walks over the members of a tar."""

    def __init__(self, data: bytes, source: str) -> None:
        self.data, self.source = data, source

    def fail(self, what: str, offset: int) -> NoReturn:
        raise RelayError(f"the archive is refused: {what}", place=f"{self.source}, byte {offset}")

    def number(self, offset: int, start: int, length: int) -> int:
        found = _OCTAL.fullmatch(self.data[offset + start : offset + start + length])
        if found is None:
            self.fail("a number in a header cannot be read", offset)
        return int(found[1], 8)

    def text(self, raw: bytes, offset: int) -> str:
        try:
            return raw.split(b"\0", 1)[0].decode()
        except UnicodeDecodeError:
            self.fail("a name that is not valid UTF-8", offset)

    def header_name(self, offset: int) -> str:
        header = self.data[offset : offset + _BLOCK]
        name, prefix = self.text(header[:100], offset), self.text(header[345:500], offset)
        # The GNU form keeps times where the standard one has the name's front.
        return f"{prefix}/{name}" if prefix and header[257:263] == b"ustar\0" else name

    def extended_name(self, content: bytes, offset: int) -> str | None:
        """Return the name that an extended header gives to the member after it."""
        name, start = None, 0
        while start < len(content):
            found = _RECORD.match(content, start)
            length = int(found[1]) if found else 0
            if found is None or not found.end() < start + length <= len(content):
                self.fail("an extended header cannot be read", offset)
            if found[2] == b"size" or found[2].startswith(b"GNU.sparse"):
                self.fail("a member of more than 8 GB, or one with holes", offset)
            if found[2] == b"path":
                name = self.text(content[found.end() : start + length - 1], offset)
            start += length
        return name

    def check_name(self, name: str, offset: int) -> None:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            self.fail(f"a member outside of it, {name[:100]!r}", offset)
        if len(name) > _LONGEST_NAME:
            self.fail("a name that is too long", offset)

    def members(self) -> Iterator[tuple[str, bytes]]:
        """Yield the names and contents of the files."""
        offset, given = 0, None
        for _ in range(MAX_MEMBERS):
            header = self.data[offset : offset + _BLOCK]
            if not header.strip(b"\0"):
                return
            if len(header) < _BLOCK:
                self.fail("it ends within a header", offset)
            if sum(header[:148] + b" " * 8 + header[156:]) != self.number(offset, 148, 8):
                self.fail("a header whose checksum is wrong", offset)
            size, kind = self.number(offset, 124, 12), header[156:157]
            start = offset + _BLOCK
            if size > len(self.data) - start:
                self.fail(
                    f"a member of {size} bytes where {len(self.data) - start} are left", offset
                )
            content = self.data[start : start + size]
            if kind == _LONG_NAME:
                given = self.text(content, offset)
            elif kind == _EXTENDED:
                given = self.extended_name(content, offset) or given
            elif kind in _REGULAR or kind == _DIRECTORY:
                name = given if given is not None else self.header_name(offset)
                self.check_name(name, offset)
                given = None
                if kind != _DIRECTORY:
                    yield name, content
            elif kind != _GLOBAL:
                self.fail("a link, a device or the like", offset)
            offset = start + -(-size // _BLOCK) * _BLOCK
        self.fail(f"more than {MAX_MEMBERS} members", offset)


def read_archive(data: bytes, source: str) -> Archive:
    """Read the Relay texts and parameter files of an archive, or raise RelayError."""
    archive = Archive(source)
    for name, content in _Tar(data, source).members():
        path = PurePosixPath(name)
        is_program = path.suffix == ".relay" or path.name == "relay.txt"
        if path.parent.name == "src" and is_program:
            known = path.stem in archive.programs
            archive.programs[path.stem] = decode(content, f"{source}:{name}")
        elif path.parent.name == "parameters" and path.suffix == ".params":
            known = path.stem in archive.params
            archive.params[path.stem] = content
        else:
            continue
        if known:
            raise RelayError(f"the archive has two members {name!r}", place=source)
    if not archive.programs:
        raise RelayError(
            "the archive holds no Relay text",
            place=source,
            expected="src/relay.txt or src/<name>.relay, as in TVM's Model Library Format",
        )
    return archive


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


def _foreign(data: bytes) -> tuple[str, str] | None:
    """Return what a binary file is that is no Relay, and what to do; None if it is not known."""
    for offset, magic, what, hint in _FOREIGN:
        if data.startswith(magic, offset):
            return what, hint
    if data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "a pickle", _PICKLE
    length = int.from_bytes(data[:8], "little")
    if data[8:9] == b"{" and 2 <= length <= max(len(data), 2**20):
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


# How a program of one line begins; one of several has an end of line, and no file's name has.
_SINGLE_LINE = re.compile(
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
    if isinstance(source, str) and ("\n" in source or _SINGLE_LINE.match(source)):
        return encode(source, "<text>"), "<text>"
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
        text, params = read_archive(data, where).choose(name)
        module = parse_text(text, where)
        if "meta[relay.Constant]" in text and "#[metadata]" not in text:
            module.warnings.append(_NO_CONSTANTS)
        return module, {} if params is None else read_params(params)
    if kind is FileKind.PARAMS:
        raise RelayError(
            "this is a parameter file, without a program",
            place=where,
            hint="give the program, and this file as its params",
        )
    text = decode(data, where)
    return (read_json if kind is FileKind.JSON else parse_text)(text, where), {}


def read(source: Source, name: str | None = None) -> ast.Module:
    """Read a program without parameters; otherwise as `read_with_params`."""
    return read_with_params(source, name)[0]
