"""docs/training.md is true: its script runs; so does the example that newcomers copy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import run_python

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_page_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "training.md").read_text("utf-8")
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), "utf-8")
    printed = run_python(script, cwd=tmp_path, tvm=True)
    assert "240 steps, 8 epochs" in printed and "nan at [1] of result 0" in printed
    assert {p.name for p in tmp_path.iterdir()} >= {"digits", "digits.csv", "digits.safetensors"}


@pytest.mark.parametrize(
    "steps",
    [pytest.param([4], id="once"), pytest.param([4, 6], id="twice", marks=pytest.mark.slow)],
)
def test_the_example_trains_and_writes(steps: list[int], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 60, "utf-8")
    program = (ROOT / "examples" / "char_gpt.py", "--text", text, "--width", 16, "--layers", 1)
    for count in steps:
        printed = run_python(*program, "--steps", count, cwd=tmp_path, tvm=True)
        assert f"{count} steps" in printed and "The " in printed
    rows = (tmp_path / "char_gpt.csv").read_text("utf-8").splitlines()[1:]
    logged = [row.split(",")[0] for row in rows if row.split(",")[3]]
    assert logged == [str(i + 1) for i in range(steps[-1])]
