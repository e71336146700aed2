"""A program is read from a path, a text or bytes, whatever kind of file it is in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from meta.frontend.relay.errors import ParamsError, RelayError
from meta.frontend.relay.read import read, read_with_params
from tests.frontend.relay.archives import tar
from tests.frontend.relay.graphs import Graph
from tools.relay_text.params import dump_params

TEXT = '#[version = "0.0.5"]\ndef @main(%x: Tensor[(3), float32]) { nn.relu(%x) }\n'


def graph() -> str:
    g = Graph()
    x = g.var("x")
    return g.dump(g.function(x, x))


@pytest.mark.parametrize("content", [TEXT, graph()], ids=["text", "JSON"])
@pytest.mark.parametrize("as_text", [True, False])
def test_sources(content: str, as_text: bool, tmp_path: Path) -> None:
    path = tmp_path / "any name.bin"
    path.write_text(content)
    assert read(path).source == str(path)
    assert list(read(str(path)).functions) == ["main"]
    module = read(content if as_text else content.encode())
    assert module.source == ("<text>" if as_text else "<bytes>")
    assert [p.name for p in module.functions["main"].params] == ["x"]


@pytest.mark.parametrize(
    "text", ["fn (%x) { %x }", "nn.relu(1f)", "free_var %x; %x", "(1f, 2f)", "v0.0.4 1f"]
)
def test_a_program_of_one_line(text: str) -> None:
    assert list(read(text).functions) == ["main"]


def test_an_archive(tmp_path: Path) -> None:
    params = {"w": torch.arange(3.0)}
    path = tmp_path / "m.tar"
    path.write_bytes(
        tar(
            ("src/a.relay", TEXT.encode()),
            ("src/b.relay", b"def @main() { meta[relay.Constant][0] }"),
            ("parameters/a.params", dump_params(params)),
        )
    )
    module, found = read_with_params(path, "a")
    assert found["w"].tolist() == [0, 1, 2] and module.warnings == []
    module, found = read_with_params(path, "b")
    assert found == {} and "without its constants" in module.warnings[-1]
    with pytest.raises(RelayError, match="several modules"):
        read(path)
    path.write_bytes(tar(("src/a.relay", TEXT.encode()), ("parameters/x.params", b"damaged")))
    with pytest.raises(ParamsError):
        read(path)


REFUSED: list[tuple[str | bytes, str]] = [
    ("", "empty"),
    ("nothing.relay", "cannot be read: No such file"),
    ("nul\0.relay", "cannot be read: .*null"),
    ("a" * 5000, "cannot be read: File name too long"),
    ("/", "cannot be read: Is a directory"),
    (b"", "empty"),
    ("def @main() {\n", "."),
    ("\ud800\n", "half a character"),
    (dump_params({}), "parameter file, without a program"),
    (b"\x80\x04\x95", "a pickle"),
    (b"{\xff", "not valid UTF-8"),
    (b"def @main() { %\xff }", "not valid UTF-8"),
]


@pytest.mark.parametrize(("source", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_refused(source: str | bytes, message: str) -> None:
    with pytest.raises(RelayError, match=message):
        read(source)


def test_a_name_is_for_archives() -> None:
    with pytest.raises(RelayError, match="in archives only"):
        read(TEXT, "a")
