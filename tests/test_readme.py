"""The README and the tour keep their word: commands are those that CI runs, code runs as it stands,
figures are those of the page that measures.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import run_python

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
TOUR = (ROOT / "docs" / "tour.md").read_text("utf-8")
DEMO = "pip install '.[demo]' && python -m meta demo"
PROCESSES = "torchrun --standalone --nproc-per-node 2 -m meta demo"
TEST = "pip install '.[test]' && pytest"


def blocks(language: str, *pages: str) -> Iterator[tuple[str, str]]:
    """Yield (nearest heading above, code) of each fenced block in ``language`` of the README, or of
    the texts of pages.
    """
    pattern = re.compile(rf"^```{language}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for page in pages or (README,):
        for block in pattern.finditer(page):
            heading = re.findall(r"^#+ (.+)$", page[: block.start()], re.MULTILINE)[-1]
            yield heading, block[1]


def commands(*pages: str) -> list[str]:
    """Return the shell commands, without comments."""
    lines = [line for _, code in blocks("bash", *pages) for line in code.splitlines()]
    return [re.sub(r"\s+# .*", "", line) for line in lines if line and not line.startswith("#")]


def test_first_screen_shows_the_two_commands() -> None:
    screen = README.splitlines()[:40]
    assert DEMO in commands() and any(line.startswith(DEMO) for line in screen)
    assert TEST in commands() and any(line.startswith(TEST) for line in screen)
    assert any(line.startswith(PROCESSES) for line in screen)


def test_ci_runs_the_test_command() -> None:
    """It installs what the README says, and more in the same step, and runs the tests."""
    install, run = TEST.split(" && ")
    (extra,) = re.findall(r"pip install '\.\[(\w+)\]'", install)
    steps = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    installed = [re.findall(r"^pip install .*'\.\[([\w,]+)\]'$", step) for step in steps]
    assert any(extra in extras.split(",") for found in installed for extras in found), installed
    assert any(re.search(rf"(^|\s){re.escape(run)}(\s|$)", step) for step in steps)


def test_ci_has_a_job_for_each_torch_that_is_admitted() -> None:
    """The bounds in pyproject.toml are the oldest and the newest release of the jobs."""
    lines = (ROOT / ".ci" / "jobs").read_text("utf-8").splitlines()
    jobs = dict(line.split() for line in lines if not line.startswith("#"))
    minors = sorted(int(name.removeprefix("torch-2.")) for name in jobs)
    assert jobs == {f"torch-2.{n}": f"torch==2.{n}.*" for n in minors}
    assert minors == list(range(minors[0], minors[-1] + 1))
    pin = f'"torch>=2.{minors[0]},<2.{minors[-1] + 1}"'
    assert pin in (ROOT / "pyproject.toml").read_text("utf-8")
    for page in ("README.md", "docs/install.md"):
        assert f"'torch<2.{minors[-1] + 1}' --index-url" in (ROOT / page).read_text("utf-8")


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.slow if command.endswith("demo") else ())
        for line in commands()
        for command in line.split(" && ")
        if command.startswith(("python -m meta", "torchrun"))
    ],
)
def test_command_runs(command: str, tmp_path: Path) -> None:
    program, *arguments = shlex.split(command)
    if program == "torchrun":
        arguments = ["-m", "torch.distributed.run", *arguments]
    assert run_python(*arguments, cwd=tmp_path, tvm=True).strip()


@pytest.mark.parametrize(
    "code", [pytest.param(code, id=title) for title, code in blocks("python", README, TOUR)]
)
def test_python_block_runs(code: str, tmp_path: Path) -> None:
    # In a process of its own: a block may register operators and backends.
    program = tmp_path / "block.py"
    program.write_text(code, "utf-8")
    run_python(program, cwd=tmp_path, tvm=True)


def test_linked_files_exist() -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
    missing = [link for link in links if not (ROOT / link).exists()]
    assert links and not missing, f"README links to nothing: {missing}"


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("page", ["README.md", "docs/release_notes.md"])
def test_figures_are_those_of_the_page_on_performance(page: str) -> None:
    """A time in a table, in ms, and a ratio anywhere."""
    measured = (ROOT / "docs" / "performance.md").read_text("utf-8")
    text = (ROOT / page).read_text("utf-8")
    figures = set(re.findall(r"\b\d+\.\d{3}\b|\b\d\.\d\dx", text))
    assert figures
    missing = {figure for figure in figures if not re.search(rf"(?<!\d){figure}\b", measured)}
    assert not missing, f"{page} has figures that nothing measures: {missing}"
