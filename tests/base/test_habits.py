"""Names of other libraries are answered with the name here, and are no aliases."""

from __future__ import annotations

import re

import pytest

import meta
from meta.base import habits
from meta.base.errors import ArgumentError, MetaError, UnknownName


@pytest.mark.parametrize("name", sorted(habits.MODULE))
def test_a_name_of_the_module(name: str) -> None:
    with pytest.raises(UnknownName, match=re.escape(habits.MODULE[name])):
        getattr(meta, name)
    for path in re.findall(r"meta((?:\.\w+)+)", habits.MODULE[name]):
        found = meta
        for part in path[1:].split("."):
            found = getattr(found, part)


@pytest.mark.parametrize("name", sorted(habits.ARRAY))
def test_an_attribute_of_an_array(name: str) -> None:
    x = meta.array([1.0])
    with pytest.raises(UnknownName, match=re.escape(habits.ARRAY[name])):
        getattr(x, name)
    assert not hasattr(x, name)
    with pytest.raises(UnknownName):
        meta.model.trace(lambda t: getattr(t, name))(x)


def test_an_argument() -> None:
    x = meta.array([[1.0]])
    with pytest.raises(ArgumentError, match="called 'axis'"):
        meta.sum(x, dim=0)
    with pytest.raises(ArgumentError, match="called 'keepdims'"):
        x.mean(keepdim=True)


def test_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        meta.array([1.0]).nonsense  # noqa: B018


@pytest.mark.parametrize("called", ["power", "tvm.power"])
def test_a_program_with_an_old_name(called: str) -> None:
    text = f"""
    func @main(%x: float32[2]) -> float32[2] {{
      %r: float32[2] = {called}(%x, 2.0)
      %r
    }}
    """
    with pytest.raises(MetaError, match=r"no operator .*'power'(.|\n)*it is called meta\.pow"):
        meta.ir.parse(text)
