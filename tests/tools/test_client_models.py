"""``python -m tools.client_models``: architectures of transformers, torchvision and timm come in
right, are compiled right and give torch's gradients; and the command says so.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from tools.client_models import __main__ as command
from tools.client_models import libraries
from tools.client_models.measure import measure
from tools.client_models.row import Row
from tools.client_models.transformers_rows import ROWS


def named(library: str) -> list[Any]:
    """Return the rows of a library, those that are not quick marked as slow; none where it is not
    installed.
    """
    try:
        rows = libraries.rows(library)
    except ImportError:
        return []
    marks = {n: () if row.quick else pytest.mark.slow for n, row in rows.items()}
    return [pytest.param(library, n, marks=m) for n, m in marks.items()]


@pytest.mark.parametrize(
    "library,name", [p for library in libraries.LIBRARIES for p in named(library)]
)
def test_architectures(library: str, name: str) -> None:
    row = libraries.rows(library)[name]
    outcome = measure(name, row, None, list(command.STAGES))
    assert outcome.passes, outcome.failed
    assert (outcome.refused is None) == (row.refused is None)
    assert outcome.refused is not None or set(outcome.errors) == set(command.STAGES)


class Exported(nn.Module):
    """Something else when it is exported."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.compiler.is_exporting() else x


def row(**options: Any) -> Row:
    return Row(
        lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)),
        lambda g: {"input": torch.randn(4, 3, generator=g)},
        **options,
    )


def test_a_wrong_result_fails() -> None:
    outcome = measure("one", row(), "torch", ["eager", "gradients"])
    assert outcome.passes and set(outcome.errors) == {"eager", "gradients"}
    wrong = Row(Exported, lambda g: {"x": torch.randn(4, 3, generator=g)})
    assert "eager" in measure("wrong", wrong, "torch", ["eager"]).failed


class Deciding(nn.Module):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input if input.sum() > 0 else -input


def test_a_module_that_torch_refuses() -> None:
    inputs = row().inputs
    known = Row(Deciding, inputs, refused="data-dependent", cause="an if")
    assert measure("known", known, "torch", ["eager"]).refused == "import: an if"
    assert "import" in measure("unknown", Row(Deciding, inputs), "torch", ["eager"]).failed


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing() -> dict[str, Row]:
        raise ImportError("no timm here")

    own = {"transformers": lambda: {"one": row(), "bad": Row(Deciding, row().inputs)}}
    known = {**own, "timm": missing}
    monkeypatch.setattr(command, "LIBRARIES", known)
    monkeypatch.setattr(libraries, "LIBRARIES", known)
    libraries.rows.cache_clear()
    words = ["--stage", "eager", "--dialect", "torch"]
    try:
        assert command.main([*words, "--filter", "one"]) == 0
        shown = capsys.readouterr().out
        assert "1 of 1 pass" in shown and "timm is skipped: no timm here" in shown
        assert command.main([*words, "--json"]) == 1
        found = json.loads(capsys.readouterr().out)
        assert [m["name"] for m in found["models"]] == ["one", "bad"]
        assert "import" in found["models"][1]["failed"]
    finally:
        libraries.rows.cache_clear()


def test_the_table_is_complete() -> None:
    assert len(ROWS) >= 46
