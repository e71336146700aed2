"""Which passes run: levels, `PassContext`, and the program after each pass as a file."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import meta
from meta import op
from meta.base import config
from meta.base.device import CPU
from meta.base.errors import FileError
from meta.ir import parse, structural_equal
from meta.model import trace
from meta.passes.manager import pass_name
from meta.testing import check
from meta.vm.compiler.pipeline import MAX_LEVEL, STEPS, pipeline


def names(opt_level: int | None = None) -> list[str]:
    return [pass_name(p) for p in pipeline(CPU, opt_level).passes]


def chain(x: Any) -> Any:
    for i in range(6):
        x = op.maximum(x * (0.1 + i), -9.0)
    return op.relu(x * 1.0)


def x() -> meta.ndarray:
    return meta.array([[1.0, 2.0], [-3.0, 0.5]])


def test_a_higher_level_adds_passes_and_keeps_the_order() -> None:
    levels = [names(level) for level in range(MAX_LEVEL + 1)]
    for lower, higher in pairwise(levels):
        assert [n for n in higher if n in lower] == lower
    assert levels[0] == ["infer_type", "dispatch", "configure"]
    assert levels[3] == [step.name for step in STEPS]
    assert names() == levels[2]


@pytest.mark.parametrize("opt_level", range(MAX_LEVEL + 1))
def test_every_level_runs(opt_level: int) -> None:
    run = meta.vm.compile(trace(chain), x(), opt_level=opt_level)
    assert [r.name for r in run.history] == ["input", *names(opt_level)]
    check(run(x()), trace(chain)(x()), 1e-5, 1e-5)


@pytest.mark.parametrize("level", [-1, 4, True, 1.0, "2"])
def test_levels_that_are_none(level: Any) -> None:
    for make in (lambda: pipeline(CPU, level), lambda: meta.PassContext(opt_level=level)):
        with pytest.raises(meta.errors.ArgumentError, match="opt_level from 0 to 3"):
            make()


def test_contexts_nest_and_the_inner_one_counts() -> None:
    assert meta.PassContext is meta.vm.PassContext
    default = names()
    with meta.PassContext(opt_level=1, disabled=["simplify"]):
        assert "fuse_operators" not in names() and "simplify" not in names()
        assert "fuse_operators" in names(2), "the argument counts more"
        with meta.PassContext(required=["fuse_operators", "simplify"], disabled=["dead_code"]):
            assert {"fuse_operators", "simplify"} < set(names())
            assert "dead_code" not in names(3)
        assert "dead_code" in names() and "fuse_operators" not in names()
    assert names() == default


def test_a_context_ends_with_an_error_and_may_be_used_again() -> None:
    context = meta.PassContext(disabled=["fuse_operators"])
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), context, context:
            assert "fuse_operators" not in names()
            raise ZeroDivisionError
        assert "fuse_operators" in names()


def test_a_context_is_that_of_its_thread() -> None:
    found: list[list[str]] = []
    with meta.PassContext(opt_level=0):
        thread = threading.Thread(target=lambda: found.append(names()))
        thread.start()
        thread.join()
        assert names() == names(0)
    assert found == [names(2)]


def test_options_reach_their_pass() -> None:
    def kernels() -> int:
        return sum(meta.vm.compile(trace(chain), x()).kernels().values())

    with meta.dialect.only("tvm"):
        assert kernels() == 1
        with meta.PassContext(config={"fuse_operators": {"max_members": 4}}):
            assert kernels() == 4
            with meta.PassContext(config={"fuse_operators": {"max_members": 7}}):
                assert kernels() == 2
        with meta.PassContext(disabled=["fuse_operators"]):
            assert kernels() > 4


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"disabled": ["fuse_operator"]}, "UnknownName", "did you mean 'fuse_operators'"),
        ({"required": ["simplfy"]}, "UnknownName", "did you mean 'simplify'"),
        ({"config": {"fuse_operator": {}}}, "UnknownName", "did you mean 'fuse_operators'"),
        (
            {"config": {"fuse_operators": {"max_member": 8}}},
            "UnknownName",
            "no option 'max_member'(.|\n)*did you mean 'max_members'",
        ),
        ({"config": {"simplify": {"x": 8}}}, "UnknownName", "no options"),
        ({"config": {"dispatch": {"device": "cpu"}}}, "UnknownName", "no option 'device'"),
        ({"disabled": ["dead_code"], "required": ["dead_code"]}, "ArgumentError", "both"),
        ({"disabled": ["dispatch"]}, "ArgumentError", "no program runs without"),
        ({"disabled": "dead_code"}, "ArgumentError", r"come as a list(.|\n)*\['dead_code'\]"),
    ],
)
def test_mistakes(arguments: dict[str, Any], error: str, text: str) -> None:
    with pytest.raises(getattr(meta.errors, error), match=text):
        meta.PassContext(**arguments)


def test_the_program_after_each_pass_as_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "dumps"
    with config.override(META_DUMP_IR=str(folder)):
        first = meta.vm.compile(trace(chain), x())
        (folder / "notes.txt").touch()
        with config.override(META_DEBUG=True):
            meta.vm.compile(trace(chain), x(), opt_level=0)
    assert sorted(p.name for p in folder.iterdir() if p.is_dir()) == ["0000", "0001"]
    files = sorted((folder / "0000").iterdir())
    assert [p.name for p in files] == [
        f"{i:03d}-{r.name}.meta" for i, r in enumerate(first.history)
    ]
    for path, record in zip(files, first.history, strict=True):
        lines = path.read_text("utf-8").splitlines()
        assert lines[0] == f"# pass: {record.name}"
        assert float(lines[1].removeprefix("# seconds: ")) == pytest.approx(
            record.seconds, abs=1e-6
        )
        assert structural_equal(parse("\n".join(lines)), record.module)
    printed = capsys.readouterr().err
    assert f"# written to {folder / '0001' / '001-infer_type.meta'}" in printed
    assert "0000" not in printed


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with config.override(META_DUMP_IR=str(tmp_path / "file")), pytest.raises(FileError):
        meta.vm.compile(trace(chain), x())
