"""Files are told apart by their content; what is no Relay is refused by its name."""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
import safetensors.torch
import torch

from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.read import FileKind, kind_of
from tools.relay_text.params import dump_params, write_record


def tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("src/relay.txt"), io.BytesIO())
    return out.getvalue()


def saved(value: object) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def numpy_file() -> bytes:
    out = io.BytesIO()
    np.save(out, np.zeros(3))
    return out.getvalue()


def zip_file() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a", "b")
    return out.getvalue()


KINDS = [
    (b'#[version = "0.0.5"]\ndef @main() { 1f }', FileKind.TEXT),
    (b"v0.0.4\nfn (%x) { %x }", FileKind.TEXT),
    (b"\xef\xbb\xbfdef @main() { 1f }", FileKind.TEXT),
    (b"free_var %x", FileKind.TEXT),
    (b'#[version = "0.0.5"]\nfn () { 1f /* span=tvm.script.py */ }', FileKind.TEXT),
    (b' \n{\n  "root": 1', FileKind.JSON),
    (dump_params({}), FileKind.PARAMS),
    (tar(), FileKind.ARCHIVE),
]


@pytest.mark.parametrize(("data", "kind"), KINDS)
def test_kind(data: bytes, kind: FileKind) -> None:
    assert kind_of(data) is kind


REFUSED = [
    (b"", "empty"),
    (b" \n\t\n", "empty"),
    *[(pickle.dumps([1], protocol), "a pickle") for protocol in (0, 2, 3, 4, 5)],
    (pickle.dumps(object(), 0), "a pickle"),
    (pickle.dumps({}, 0), "a pickle"),
    (saved(torch.zeros(1)), "a zip archive"),
    (zip_file(), "a zip archive"),
    (safetensors.torch.save({"w": torch.zeros(1)}), "a safetensors file"),
    (numpy_file(), "a numpy array"),
    (write_record(torch.zeros(1)), "a single array"),
    (b"\x7fELF\x02\x01\x01" + bytes(100), "a shared library"),
    (b"\x08\x07\x12\x07pytorch\x1a\x032.0", "an ONNX model"),
    (b"\x1c\x00\x00\x00TFL3" + bytes(20), "TensorFlow Lite"),
    (b"\x1f\x8b\x08\x00" + bytes(20), "a gzip file"),
    ("def @main() { 1f }".encode("utf-16"), "UTF-16"),
    (b"def @main\x00() { 1f }", "a binary file"),
    (b"# from tvm.script import ir as I\n@I.ir_module\nclass Module:", "TVMScript"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS"),
]


@pytest.mark.parametrize(("data", "message"), REFUSED, ids=[f"{m}-{d[:4]!r}" for d, m in REFUSED])
def test_refused(data: bytes, message: str) -> None:
    with pytest.raises(RelayError, match=message) as info:
        kind_of(data, "file.bin")
    assert info.value.place == "file.bin"
