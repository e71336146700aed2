"""Programs of sizes of their own, which are for CUDA, on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

import meta
from meta.base.errors import MetaError
from meta.vm.run.sized_programs import SizedPrograms, is_sized
from tests.sized_programs import check


def compiled(*args: Any, **kwargs: Any) -> Any:
    run = meta.vm.compile(*args, **kwargs)
    assert is_sized(run.code)
    assert run.recipe is not None
    run._sized = SizedPrograms(run, run.recipe, None, run._ranges)
    return run


def test_each_size_has_its_own() -> None:
    check("cpu", compiled)


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
