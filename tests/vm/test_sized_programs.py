"""Programs of sizes of their own, which are for CUDA, on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.base.errors import MetaError
from meta.vm.run.compiled_program import CompiledProgram
from meta.vm.run.sized_programs import SizedPrograms, is_sized
from tests import sized_programs


def compiled(*args: Any, **kwargs: Any) -> Any:
    run = meta.vm.compile(*args, **kwargs)
    assert is_sized(run.code)
    assert run.recipe is not None
    run._sized = SizedPrograms(run, run.recipe, None, run._ranges)
    return run


def test_each_size_has_its_own() -> None:
    sized_programs.check("cpu", compiled)


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> list[SizedPrograms]:
    """Let all programs that could have sizes on CUDA have them here; the list gets them."""
    found: list[SizedPrograms] = []
    make = CompiledProgram.__init__

    def init(self: Any, program: Any, *args: Any, **kwargs: Any) -> None:
        make(self, program, *args, **kwargs)
        if self.recipe is not None and is_sized(self.code):
            self._sized = SizedPrograms(self, self.recipe, None, self._ranges)
            found.append(self._sized)

    monkeypatch.setattr(CompiledProgram, "__init__", init)
    return found


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
        assert is_sized(run.code) == sized
