"""Programs of sizes of their own, which are for CUDA, on the CPU."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

import meta
from meta.base.device import Device
from meta.base.errors import FormatError, MetaError
from meta.ir import parse_type
from meta.vm.run import compiled_program
from meta.vm.run.sized_programs import SizedPrograms, is_sized
from tests import sized_programs

GPU = Device("cuda:0")


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> list[SizedPrograms]:
    """Let all programs that could have sizes on CUDA have them here; the list gets them."""
    found: list[SizedPrograms] = []

    class Found(SizedPrograms):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            found.append(self)

    monkeypatch.setattr(compiled_program, "SizedPrograms", Found)
    monkeypatch.setattr(compiled_program, "is_sized", lambda code, _: is_sized(code, GPU))
    return found


@pytest.mark.usefixtures("everywhere")
def test_each_size_has_its_own() -> None:
    sized_programs.check("cpu", meta.vm.compile)


@pytest.mark.usefixtures("everywhere")
def test_a_folder_has_them() -> None:
    model = sized_programs.Network().eval()
    types = parse_type("float32[n, 3, 8, 8]"), parse_type("float32[k, 8]")
    run = meta.vm.compile(model, *types, dims={"n": (1, 6)})
    given = [[meta.random.normal(shape) for shape in ((n, 3, 8, 8), (3, 8))] for n in (2, 5, 1)]
    expected = [run(*arrays)[0].torch() for arrays in given[:2]]
    sizes = run.sizes
    assert len(sizes) == 2
    with TemporaryDirectory() as folder:
        run.save(f"{folder}/net")
        loaded = meta.vm.load(f"{folder}/net")
        loaded.save(f"{folder}/again")
        again = meta.vm.load(f"{folder}/again", rebuild=True)
        (changed := Path(folder, "net", "sizes", "0", "code.json")).write_text(
            changed.read_text() + " "
        )
        with pytest.raises(FormatError, match="was changed"):
            meta.vm.load(f"{folder}/net")
    for found in (loaded, again):
        assert found.sizes == sizes
        for arrays, values in zip(given, expected, strict=False):
            assert torch.equal(found(*arrays)[0].torch(), values)
        torch.testing.assert_close(found(*given[2])[0].torch(), run(*given[2])[0].torch())
        found.arrays[0].tensor.mul_(2)
        assert not torch.equal(found(*given[0])[0].torch(), expected[0])
        assert found.sizes == sizes


@pytest.mark.parametrize("check", ["check_torch_compile", "check_training"])
def test_sizes_of_torch_compile(check: str, everywhere: list[SizedPrograms]) -> None:
    torch.compiler.reset()
    getattr(sized_programs, check)("cpu")
    assert sum(len(sized.sizes) for sized in everywhere) >= 2


@pytest.mark.parametrize(
    ("type_", "sized"),
    [("float32[n, 3]", True), ("float32[4, 3]", False), ("float32[n + 1, 3]", False)],
)
def test_what_has_sizes(type_: str, sized: bool) -> None:
    text = f"func @main(%x: {type_}) {{ %y = relu(%x) return %y }}"
    try:
        run = meta.vm.compile(meta.ir.parse(text))
    except MetaError:
        assert not sized
    else:
        assert is_sized(run.code, GPU) == sized
        assert not is_sized(run.code, run.device)
