"""Libraries that may be absent: the error says what reads or draws, and how it is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from meta.base.errors import ArgumentError, FormatError, MetaError
from meta.base.optional import optional_module


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (None, "library, which does it, is not installed"),
        ("from os import nowhere", "library, which does it, cannot be imported"),
    ],
)
@pytest.mark.parametrize("raises", [ArgumentError, FormatError])
def test_what_is_not_there(
    raises: type[MetaError],
    text: str | None,
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if text is not None:
        (tmp_path / "broken_library.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken_library", raising=False)
    with pytest.raises(raises, match=what) as caught:
        optional_module(
            "broken_library", "does it", library="library", instead=", or not", raises=raises
        )
    assert caught.value.hint == "pip install library, or not"
    assert isinstance(caught.value.__cause__, ImportError)
    assert str(caught.value.found) == str(caught.value.__cause__)


def test_an_extra_and_a_module_inside() -> None:
    assert optional_module("xml.dom", "reads trees").__name__ == "xml.dom"
    with pytest.raises(ArgumentError, match=r"^xml, which reads trees, is not") as caught:
        optional_module("xml.nowhere", "reads trees", install="'meta-operators[trees]'")
    assert caught.value.hint == "pip install 'meta-operators[trees]'"
