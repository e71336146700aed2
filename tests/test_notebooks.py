"""The notebooks under `examples/` run from top to bottom, and are kept without their outputs."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import first_on_path

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
SECONDS = 300
"""For a cell; a notebook takes less than 30 on two cores that do nothing else."""


def read(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def test_there_are_some() -> None:
    assert [p.stem for p in NOTEBOOKS] == [
        "arrays_and_gradients",
        "eager_to_compiled",
        "language_model",
        "relay_model",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_outputs_are_not_kept(path: Path) -> None:
    cells = read(path).cells
    assert cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
    for cell in cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
        assert max(map(len, cell.source.split("\n"))) <= 100


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_linked_files_exist(path: Path) -> None:
    prose = "\n".join(c.source for c in read(path).cells if c.cell_type == "markdown")
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", prose)
    assert links and not [link for link in links if not (path.parent / link).exists()]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
@pytest.mark.long
def test_every_cell_runs(path: Path, tmp_path: Path) -> None:
    notebook = read(path)
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": tmp_path}})
    client.execute(env={**first_on_path(ROOT), "META_CACHE_DIR": str(tmp_path / "cache")})
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    shown = "".join(o.data.get("text/html", "") for o in outputs if "data" in o)
    assert "meta-view" in shown
    warned = [o.text for o in outputs if o.output_type == "stream" and o.name == "stderr"]
    assert not warned
