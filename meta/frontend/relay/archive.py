"""Model Library Format: a tar that holds the Relay text of a model and its parameters.

Nothing is extracted to disk: the members that matter are read in memory, out of an archive without
compression, so that nothing is larger than the file. A reader of our own does it because tar here
is headers of 512 bytes and little else, and an archive from outside must neither hang nor name a
place outside of itself: links, devices, sparse files and absolute names are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NoReturn

from meta.base.registry import nearest
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.graph_json.document import decode

MAX_MEMBERS = 10_000
_BLOCK = 512
_REGULAR = (b"\0", b"0", b"7")
_DIRECTORY, _LONG_NAME, _EXTENDED, _GLOBAL = b"5", b"L", b"x", b"g"
_LONGEST_NAME = 4096
_RECORD = re.compile(rb"(\d{1,7}) ([^=\n]{1,100})=")
_OCTAL = re.compile(rb"[ ]*([0-7]{1,12})[ \0]*")


@dataclass
class Archive:
    """What a Model Library Format archive holds of Relay.

    Attributes
    ----------
    programs: texts by the module's name; the first versions of the format had one, without a name,
        which is called "relay". params: parameter files by name.
    """

    source: str
    programs: dict[str, str] = field(default_factory=dict)
    params: dict[str, bytes] = field(default_factory=dict)

    def choose(self, name: str | None = None) -> tuple[str, bytes | None]:
        """Return a module's text and its parameter file, None if there is none.

        Raises RelayError if there are several modules and no name, or none of the name.
        """
        if name is None and len(self.programs) == 1:
            name = next(iter(self.programs))
        elif name is None:
            raise RelayError(
                "the archive holds several modules",
                found=", ".join(self.programs),
                hint="name one of them",
                place=self.source,
            )
        if name not in self.programs:
            raise RelayError(
                f"the archive has no module {name!r}",
                found=", ".join(self.programs),
                hint=nearest(name, self.programs),
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

    def check_sum(self, offset: int) -> None:
        header = self.data[offset : offset + _BLOCK]
        blank = header[:148] + b" " * 8 + header[156:]
        if sum(blank) != self.number(offset, 148, 8):
            self.fail("a header whose checksum is wrong", offset)

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
            self.check_sum(offset)
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
    """Read the Relay texts and the parameter files of an archive.

    Raises RelayError for an archive that is damaged or unsafe, or holds no Relay text.
    """
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
