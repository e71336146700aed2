"""What is around the code keeps its word: workflows and templates of .github are valid, name what
there is, and cover the jobs, versions and platforms that the pages name.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from meta.cli.arguments import parser
from tests.conftest import python_process

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = {path.name: path for path in sorted((GITHUB / "workflows").iterdir())}
FORMS = {path.name: path for path in sorted((GITHUB / "ISSUE_TEMPLATE").iterdir())}
PUBLISHED = ("README.md", "CONTRIBUTING.md", "docs/install.md", "docs/testing.md")
PROGRAMS = {"bash", "gh", "grep"}
"""What steps of workflows start: what every runner has."""


def parsed(path: Path) -> dict[str, Any]:
    """Return a file of YAML. Its ``on`` is the truth value to YAML 1.1, which the parser reads."""
    found: dict[Any, Any] = yaml.safe_load(path.read_text("utf-8"))
    return {"on" if key is True else key: value for key, value in found.items()}


def jobs(name: str) -> dict[str, dict[str, Any]]:
    """Return the jobs of a workflow by name."""
    found: dict[str, dict[str, Any]] = parsed(WORKFLOWS[name])["jobs"]
    return found


def combinations() -> set[tuple[str, str, str]]:
    """Return (runner, Python, job) of everything that the workflow of .ci/run runs."""
    matrix = jobs("ci.yml")["ci"]["strategy"]["matrix"]
    axes = [matrix[axis] for axis in ("runner", "python", "job")]
    found = {(r, p, j) for r in axes[0] for p in axes[1] for j in axes[2]}
    return found | {(more["runner"], more["python"], more["job"]) for more in matrix["include"]}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_have_what_their_format_requires(name: str) -> None:
    workflow = parsed(WORKFLOWS[name])
    assert workflow["name"] and workflow["on"] and workflow["permissions"] == {"contents": "read"}
    for job, content in workflow["jobs"].items():
        assert re.fullmatch(r"[a-z]\w*", job)
        if "uses" not in content:
            assert content["runs-on"] and content["steps"]
        needed = content.get("needs", [])
        assert {needed} if isinstance(needed, str) else set(needed) <= workflow["jobs"].keys()
        for step in content.get("steps", []):
            assert ("uses" in step) != ("run" in step), step


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_use_actions_by_major_version_and_files_that_exist(name: str) -> None:
    found = list(jobs(name).values())
    used = [
        one["uses"]
        for one in [*found, *(s for j in found for s in j.get("steps", []))]
        if "uses" in one
    ]
    assert used
    for action in used:
        if action.startswith("./"):
            assert "workflow_call" in parsed(ROOT / action)["on"]
        else:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(release/)?v\d+", action)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_steps_run_commands_and_name_files_that_exist(name: str) -> None:
    for job in jobs(name).values():
        for step in job.get("steps", []):
            for line in step.get("run", "").splitlines():
                words = line.split()
                assert words[0] in PROGRAMS, line
                files = [w for w in words[1:] if re.fullmatch(r"\.?\w[\w./]*/[\w.]+", w)]
                assert all((ROOT / file).is_file() for file in files), line


@pytest.mark.parametrize("script", ["run", "build", "site", "stranger"])
def test_scripts_of_continuous_integration_can_be_parsed(script: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / script)], check=True)


def test_every_job_and_version_of_python_has_a_run() -> None:
    lines = (ROOT / ".ci" / "jobs").read_text("utf-8").splitlines()
    named = [line.split()[0] for line in lines if not line.startswith("#")]
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    pythons = set(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project))
    found = combinations()
    assert {job for _, _, job in found} == set(named)
    assert {python for _, python, job in found if job == named[0]} == pythons
    assert {"ubuntu-24.04", "ubuntu-24.04-arm"} == {runner for runner, _, _ in found}
    assert set(jobs("build.yml")["build"]["strategy"]["matrix"]["python"]) <= pythons
    oldest, newest = (
        f"3.{minor}" for minor in sorted({int(p[2:]) for p in pythons})[:: len(pythons) - 1]
    )
    assert f'requires-python = ">={oldest}"' in project
    for page in ("README.md", "CONTRIBUTING.md", "docs/install.md"):
        assert f"Python {oldest} to {newest}" in (ROOT / page).read_text("utf-8"), page


def test_only_a_tag_publishes_without_a_password() -> None:
    release, text = parsed(WORKFLOWS["release.yml"]), WORKFLOWS["release.yml"].read_text("utf-8")
    assert release["on"] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+"]}}
    publish = release["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"} and publish["environment"]["name"]
    assert set(publish["needs"]) == {"ci", "build", "version"}
    assert "secrets." not in text and "password" not in str(publish)
    for name in WORKFLOWS.keys() - {"release.yml"}:
        assert "write" not in str([job.get("permissions") for job in jobs(name).values()])


@pytest.mark.parametrize("name", sorted(FORMS.keys() - {"config.yml"}))
def test_issue_forms_have_what_their_format_requires(name: str) -> None:
    form = parsed(FORMS[name])
    assert form["name"] and form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert fields and {field["type"] for field in fields} <= {"textarea", "input", "dropdown"}
    ids = [field["id"] for field in fields]
    assert len(set(ids)) == len(ids) and all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_commands_that_the_project_names_exist() -> None:
    """Of the package, and of tools/; files of the tree that a command names."""
    files = [*GITHUB.rglob("*.*"), ROOT / "CONTRIBUTING.md"]
    text = "\n".join(path.read_text("utf-8") for path in files if path.is_file())
    (commands,) = [a.choices for a in parser()._actions if a.dest == "command"]
    named = set(re.findall(r"python -m meta ([a-z]+)", text))
    assert named and named <= set(commands or ())
    tools = set(re.findall(r"python -m (tools\.\w+)", text))
    assert tools and all((ROOT / f"{tool.replace('.', '/')}.py").is_file() for tool in tools)
    tested = set(re.findall(r"(?<![\w/])tests/[\w/]+\.py", text))
    assert tested and all((ROOT / path).is_file() for path in tested)
    folders = set(re.findall(r"`((?:meta|tests|tools|docs|benchmarks|examples)/[\w/]*)`", text))
    assert folders and all((ROOT / folder).is_dir() for folder in folders)


def test_every_folder_of_the_package_is_in_the_table_of_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    existing = {p.name for p in (ROOT / "meta").iterdir() if p.is_dir() and p.name[0] not in "._"}
    known = set(re.findall(r"`meta/(\w+)/`", text))
    assert existing - known == {"array_api"}


def test_the_import_says_where_the_package_runs() -> None:
    """Windows is refused before anything that it lacks is imported."""
    done = python_process("-c", "import sys; sys.platform = 'win32'; import meta")
    assert done.returncode == 1 and "PlatformError: meta does not run on Windows" in done.stderr
    assert "expected: Linux on x86-64 or aarch64" in done.stderr and "wsl --install" in done.stderr


@pytest.mark.parametrize("page", PUBLISHED)
def test_pages_name_scripts_that_exist(page: str) -> None:
    named = set(re.findall(r"\.(?:ci|github)/[\w/.]*\w", (ROOT / page).read_text("utf-8")))
    assert all((ROOT / name).exists() for name in named), named
