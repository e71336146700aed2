"""Reading a Relay program from whatever holds one: a path, a text, the bytes of a file.

The kind is told by the content (`detect.py`), never by a file's name.
"""

from __future__ import annotations

import os
import re

import torch

from meta.base.errors import FormatError
from meta.base.files import read_file
from meta.frontend.relay import ast
from meta.frontend.relay.archive import read_archive
from meta.frontend.relay.detect import FileKind, kind_of
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.graph_json import read_json
from meta.frontend.relay.graph_json.scanner import decode
from meta.frontend.relay.params import read_params
from meta.frontend.relay.text import parse_text

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
