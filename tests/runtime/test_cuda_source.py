"""CUDA source in files: what becomes of what they include, and whether they are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import meta
from meta.runtime import nvrtc

FILES = sorted(Path(meta.__file__).parent.rglob("*.cu*"))


def test_each_included_file_is_there_once(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text("#pragma once\nint a;\n")
    (tmp_path / "b.cuh").write_text('#pragma once\n#include "a.cuh"\nint b;\n')
    (tmp_path / "c.cu").write_text('#include "a.cuh"\n#include "b.cuh"\nint c;\n')
    found = nvrtc.with_macros(tmp_path / "c.cu", {"WIDTH": 8, "T": "float"})
    assert found == "#define WIDTH 8\n#define T float\nint a;\nint b;\nint c;\n"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_files_are_complete(file: Path) -> None:
    """NVRTC needs neither headers nor files: what is included is in the text."""
    found = nvrtc.with_includes(file)
    assert "#include" not in found and "#pragma once" not in found
    assert file.read_text("utf-8").startswith("//"), "a file begins by saying what it is"
    assert max(map(len, file.read_text("utf-8").splitlines())) <= 100
    assert len(re.findall(r"__global__", found)) > 0 or file.suffix == ".cuh"
