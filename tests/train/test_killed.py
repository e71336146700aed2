"""A run that is killed at any moment and resumed ends as if nobody had disturbed it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import run_python
from tests.train.problem import DATA

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.parametrize(
    ("data", "kills", "every"),
    [
        pytest.param("batches", 5, 9, id="some"),
        pytest.param(",".join(DATA), 20, 1, id="all", marks=pytest.mark.slow),
    ],
)
def test_killed_and_resumed(data: str, kills: int, every: int, tmp_path: Path) -> None:
    program = ("-m", "tests.train.killed_run", tmp_path, data, kills, every)
    report = json.loads(run_python(*program, META_PROGRESS="off"))
    for run in report["random"]:
        assert run["kills"] == kills
        assert max(run["resumed at"]) > 0, run
        assert run["identical"] and run["log"], run
    assert report["writing"]["operations"] >= 40 // every
    assert not report["writing"]["wrong"], report["writing"]
