"""What a release needs: the version in one place, and pages in the formats that they name."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

import meta

ROOT = Path(__file__).parents[1]
PROJECT = (ROOT / "pyproject.toml").read_text("utf-8")


def test_the_version_stands_in_one_place() -> None:
    declared = re.findall(r'^path = "(.+)"$', PROJECT, re.MULTILINE)
    assert 'dynamic = ["version"]' in PROJECT and declared == ["meta/__init__.py"]
    assert f'__version__ = "{meta.__version__}"\n' in (ROOT / declared[0]).read_text("utf-8")
    assert meta.__version__ not in PROJECT
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))


def test_changelog_is_in_the_format_that_it_names() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    releases = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert releases[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", r) for r in releases[1:])
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= kinds


def test_release_notes_are_a_page_about_this_version() -> None:
    notes = (ROOT / "docs" / "release_notes.md").read_text("utf-8")
    versions = re.findall(r"^## (.+)$", notes, re.MULTILINE)
    assert versions[0] == meta.__version__ and len(notes.split("\n## ")[1].splitlines()) <= 60


def test_citation_has_what_its_format_requires() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["message"] and citation["title"] and citation["authors"]


def test_the_source_archive_names_what_there_is() -> None:
    block = re.search(r"^only-include = \[(.*?)\]", PROJECT, re.MULTILINE | re.DOTALL)
    assert block is not None
    missing = [p for p in re.findall(r'"(.+?)"', block[1]) if not (ROOT / p).exists()]
    assert not missing, f"an archive silently leaves out what is not there: {missing}"
