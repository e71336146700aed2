"""The guides under `docs/guides`: followed to the letter, each makes what it says.

Their code is written into a folder outside of the project, block by block, and run there: blocks
with ``file=NAME`` make up that file, the others are one script, ``guide.py``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.conftest import run_python

ROOT = Path(__file__).parents[1]
GUIDES = ROOT / "docs" / "guides"
BLOCK = re.compile(r"```(?:python|yaml|toml)(?: file=(\S+))?\n(.*?)```", re.DOTALL)
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark", "-W", "error"]
SCRIPT = "guide.py"
EMULATOR = "meta.testing.emulator.templates"
FOLLOWED: dict[str, tuple[list[str], str]] = {
    "softmax.md": ([*PYTEST, "test_boltzmann.py"], r"\b\d+ passed"),
    "template.md": ([*PYTEST, "-p", EMULATOR, "test_add_one.py"], r"\b\d passed"),
    "attention.md": (
        [SCRIPT],
        r"'guide.multihead': 1, 'tvm.sum': 1, 'guide.multihead_backward': 1",
    ),
    "vendor.md": ([*PYTEST, "test_acme.py"], r"\b7 passed"),
}
"""By guide: what Python runs in the folder at the end, and what that prints."""


def written(page: Path, folder: Path) -> None:
    """Write the code of a guide into a folder."""
    files: dict[str, list[str]] = defaultdict(list)
    for name, code in BLOCK.findall(page.read_text("utf-8")):
        files[name or SCRIPT].append(code)
    for name, blocks in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n\n".join(blocks), "utf-8")


def test_every_guide_is_followed() -> None:
    assert {page.name for page in GUIDES.glob("*.md")} == set(FOLLOWED)


def follow(guide: str, folder: Path) -> None:
    """Follow a guide in a folder, on the GPU if there is one."""
    written(GUIDES / guide, folder)
    arguments, printed = FOLLOWED[guide]
    shown = run_python(*arguments, cwd=folder, tvm=True)
    assert re.search(printed, shown), shown


@pytest.mark.parametrize("guide", sorted(FOLLOWED))
@pytest.mark.long
def test_following_the_guide(guide: str, tmp_path: Path) -> None:
    follow(guide, tmp_path)


@pytest.mark.cuda
@pytest.mark.parametrize("guide", sorted(FOLLOWED))
def test_following_the_guide_on_a_gpu(guide: str, tmp_path: Path) -> None:
    follow(guide, tmp_path)


def test_the_template_guide_shows_the_text_that_is_made(tmp_path: Path) -> None:
    page = GUIDES / "template.md"
    written(page, tmp_path)
    printed = run_python(SCRIPT, cwd=tmp_path, tvm=True)
    (shown,) = re.findall(r"```text\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    assert printed.startswith(shown)
    assert "num_elements *= x_dim_1;\nlaunch_add_one(out, x, num_elements, stream);" in printed
