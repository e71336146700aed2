"""Archives in the Model Library Format, written by Python's tarfile in all of its forms."""

from __future__ import annotations

import tarfile

import pytest
import torch

from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.params import read_params
from meta.frontend.relay.read import read_archive
from tests.frontend.relay.archives import tar
from tools.relay_text.params import dump_params

TEXT = b'#[version = "0.0.5"]\ndef @main(%x: float32) { %x }\n'
PARAMS = dump_params({"w": torch.arange(3.0)})


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("prefix", ["", "./", "a" * 90 + "/"])
def test_one_module(form: int, prefix: str) -> None:
    data = tar(
        ("metadata.json", b"{}"),
        (f"{prefix}src/relay.txt", TEXT),
        (f"{prefix}parameters/default.params", PARAMS),
        (f"{prefix}codegen/host/src/lib.c", b"int x;"),
        form=form,
    )
    text, params = read_archive(data, "m.tar").choose()
    assert text.encode() == TEXT
    assert params is not None and read_params(params)["w"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names(form: int) -> None:
    name = "src/" + "ü" * 150 + ".relay"
    assert list(read_archive(tar((name, TEXT), form=form), "m.tar").programs) == ["ü" * 150]


def test_several_modules() -> None:
    data = tar(("src/one.relay", TEXT), ("src/two.relay", TEXT), ("parameters/two.params", PARAMS))
    archive = read_archive(data, "m.tar")
    assert archive.choose("one")[1] is None
    assert archive.choose("two")[1] == PARAMS
    with pytest.raises(RelayError, match="several modules"):
        archive.choose()
    with pytest.raises(RelayError, match="no module 'three'"):
        archive.choose("three")


REFUSED = {
    "a link": tar(("src/relay.txt", b""), type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "a link, hard": tar(("src/relay.txt", b""), type=tarfile.LNKTYPE, linkname="src/x"),
    "a link, a device": tar(("src/relay.txt", b""), type=tarfile.CHRTYPE),
    "outside of it": tar(("/src/relay.txt", TEXT)),
    "outside of it, up": tar(("../src/relay.txt", TEXT)),
    "no Relay text": tar(("src/lib.c", TEXT)),
    "two members": tar(("src/a.relay", TEXT), ("./src/a.relay", TEXT)),
    "more than 10000 members": tar(*[(f"{i}", b"") for i in range(10_001)]),
    "checksum": tar(("src/relay.txt", TEXT)).replace(b"src/relay.txt", b"src/relax.txt"),
    "valid UTF-8": tar(("src/relay.txt", b"\xff")),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message: str) -> None:
    with pytest.raises(RelayError, match=message.split(",")[0]):
        read_archive(REFUSED[message], "m.tar")


def test_truncated() -> None:
    data = tar(("src/relay.txt", TEXT), ("parameters/default.params", PARAMS))
    end = len(data.rstrip(b"\0"))
    for length in range(1, end - 1, 37):
        try:
            archive = read_archive(data[:length], "m.tar")
        except RelayError:
            continue
        assert set(archive.programs.values()) <= {TEXT.decode()}


def test_a_size_beyond_the_file() -> None:
    info = tarfile.TarInfo("src/relay.txt")
    info.size = 2**31
    with pytest.raises(RelayError, match="2147483648 bytes where 0 are left"):
        read_archive(info.tobuf(tarfile.USTAR_FORMAT), "m.tar")
