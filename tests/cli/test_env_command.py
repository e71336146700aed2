"""``python -m meta env``, and what all commands have in common."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import meta
from meta.base import caches, config
from meta.cli import env
from meta.cli.arguments import parser
from meta.cli.main import command, main


def _parsers(of: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


COMMANDS = dict(_parsers(parser()))
RUNS = {
    run
    for each in COMMANDS.values()
    for run in (each.get_default("run"), *(one.get_default("run") for _, one in _parsers(each)))
    if run is not None
}


def test_env(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with config.override(META_CACHE_DIR=str(tmp_path)):
        assert main(["env", "--json"]) == 0
        record = json.loads(capsys.readouterr().out)
        assert main(["env"]) == 0
    shown = capsys.readouterr().out
    assert record["devices"][0]["name"] == "cpu"
    assert {d["name"] for d in record["dialects"]} >= {"torch", "tvm"}
    assert {k["name"] for k in record["knobs"]} == set(config.KNOBS)
    assert record["packages"]["torch"] in shown
    assert record["kernel_cache"]["folder"] == str(tmp_path / "kernels")
    assert {cache["folder"] for cache in record["caches"]["caches"]} == {
        str(tmp_path / name) for name in caches.CACHES
    }
    assert all(name in shown for name in config.KNOBS)


def test_packages_that_are_absent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(env, "version", absent)
    assert main(["env", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["packages"].values()) == {None}
    assert main(["env"]) == 0
    assert "not installed" in capsys.readouterr().out


def test_cache_that_is_switched_off(capsys: pytest.CaptureFixture[str]) -> None:
    with config.override(META_CACHE=False):
        assert main(["env"]) == 0
    assert "META_CACHE" in capsys.readouterr().out.partition("kernel cache")[2]


def test_variable_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("META_FUEL", "banana")
    assert main(["env"]) == 2
    assert "META_FUEL" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.split() == ["meta", meta.__version__]


@pytest.mark.parametrize("name", COMMANDS)
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([name, "--help"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    assert "--json" in shown or name == "serve"  # whose answers are all JSON


@pytest.mark.parametrize("run", sorted(RUNS))
def test_every_command_has_a_function_that_runs_it(run: str) -> None:
    assert callable(command(run))


@pytest.mark.parametrize(
    "arguments, status", [(["--help"], 0), (["compile", "--help"], 0), (["compil"], 2), ([], 2)]
)
def test_help_and_typing_errors_do_not_import_torch(arguments: list[str], status: int) -> None:
    program = [sys.executable, "-X", "importtime", "-m", "meta", *arguments]
    run = subprocess.run(program, capture_output=True, text=True)
    assert run.returncode == status
    imported = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
    assert "meta.cli.arguments" in imported
    assert not imported & {"torch", "numpy", "meta.namespace", "meta.op"}


def test_a_package_that_runs_as_a_module_gets_all_of_meta(tmp_path: Path) -> None:
    package = tmp_path / "inner"
    package.mkdir()
    (package / "__init__.py").write_text("import meta\nprint(meta.add(1.0, meta.ones(())).item())")
    (package / "__main__.py").write_text("")
    run = subprocess.run(
        [sys.executable, "-m", "inner"], capture_output=True, text=True, cwd=tmp_path
    )
    assert (run.returncode, run.stdout) == (0, "2.0\n"), run.stderr


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["demo", "--epochs", "0"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_as_a_program_whose_reader_leaves_early() -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "meta", "ops"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert program.stdout is not None and program.stderr is not None
    program.stdout.close()
    with program.stderr:
        assert program.stderr.read() == b""
    assert program.wait() == 0
