"""benchmarks/distributed.py without GPUs: contenders that hang or fail are rows that say so,
figures become goals, and all of it runs in small on Gloo.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import meta
from tests.conftest import first_on_path

ROOT = Path(__file__).parents[1]
ANSWERS = """
import os, sys
print('{"rank": %s}' % os.environ["RANK"], flush=True)
for line in sys.stdin:
    print('{"heard": "%s"}' % line.strip(), flush=True)
    if line.strip() == "end":
        break
"""
HANGS = f"{ANSWERS}\nimport time\ntime.sleep(60)".replace(
    "for line in sys.stdin:", "for line in ():"
)
FAILS = "import os\nif os.environ['RANK'] == '1': raise ValueError('rank 1 has no luck')\n" + HANGS


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what imports a file of benchmarks/ by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def group(benchmarks: Any, folder: Path, program: str, limit: float) -> Any:
    command = [sys.executable, "-S", "-c", program]
    workers = benchmarks("worker_processes")
    return workers.WorkerGroup(command, workers.rank_environments(2, str(folder)), limit)


def test_ranks_answer(benchmarks: Any, tmp_path: Path) -> None:
    ranks = group(benchmarks, tmp_path, ANSWERS, 30)
    try:
        assert ranks.answers() == [{"rank": 0}, {"rank": 1}]
        assert ranks.tell("turn") == 2 * [{"heard": "turn"}]
        assert ranks.tell("end") == 2 * [{"heard": "end"}]
    finally:
        ranks.end(10)


def test_a_rank_that_hangs(benchmarks: Any, tmp_path: Path) -> None:
    failed = benchmarks("worker_processes").GroupFailed
    ranks = group(benchmarks, tmp_path, HANGS, 30)
    ranks.answers()
    ranks.limit = 0.2
    start = time.monotonic()
    with pytest.raises(failed, match=r"no answer of rank 0, 1 within 0\.2 s"):
        ranks.tell("turn")
    ranks.end()
    assert time.monotonic() - start < 10


def test_a_rank_that_fails(benchmarks: Any, tmp_path: Path, capfd: Any) -> None:
    failed = benchmarks("worker_processes").GroupFailed
    ranks = group(benchmarks, tmp_path, FAILS, 30)
    with pytest.raises(failed, match="rank 1: exit status 1: ValueError: rank 1 has no luck"):
        for _ in range(2):
            ranks.answers()
    ranks.show_errors("gpt2")
    ranks.end()
    assert "gpt2 rank 1: ValueError: rank 1 has no luck" in capfd.readouterr().err


class Group:
    """A group that answers without processes; "ddp" has no answer to its second turn."""

    def __init__(self, command: list[str], environments: list[Any], *_: Any) -> None:
        self.name, self.turns = command[command.index("cpu") - 2], 0
        self.ranks = len(environments)

    def answers(self) -> list[dict[str, Any]]:
        return [{"losses": [2.0 + r, 1.0 + r], "first_call": 1.0 + r} for r in range(self.ranks)]

    def tell(self, line: str) -> list[dict[str, Any]]:
        if line.split()[0] == "end":
            assert line == "end 2.0"
            return [{"peak_mb": 5.0 + r} for r in range(self.ranks)]
        self.turns += 1
        if self.name == "ddp" and self.turns == 2:
            failed = importlib.import_module("worker_processes").GroupFailed
            raise failed("no answer of rank 1 within 3 s")
        return [{"ms": [1.0 + r, 2.0, 3.0], "host_ms": [0.5]} for r in range(self.ranks)]

    def show_errors(self, name: str) -> None:
        print(f"{name} has no stderr", file=sys.stderr)

    def end(self, patience: float = 0.0) -> None:
        pass


def test_one_contender_fails_and_the_others_go_on(
    benchmarks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    records = benchmarks("models.rank_records")
    monkeypatch.setattr(records, "WorkerGroup", Group)
    file = tmp_path / "rows.jsonl"
    run = records.Ranks(
        ["meta", "ddp", "fsdp2"], [1, 2], 3, 3, 2, 3.0, "cpu", 1e6, joined=True, records=file
    )
    found = run.measure("gpt2")
    right = {k: r for k, r in found.items() if "failed" not in r}
    assert set(right) == {("meta", 2), ("fsdp2", 2), ("meta", 1), ("joined", 1)}
    assert found["ddp", 2] == {"failed": "no answer of rank 1 within 3 s"}
    two = found["meta", 2]
    assert (two["ms"], two["peak_mb"], two["first_call"]) == (2.0, 6.0, 2.0)
    assert two["losses"] == [2.5, 1.5]
    assert len(file.read_text().splitlines()) == len(found) == 6
    assert json.loads(file.read_text().splitlines()[0])["failed"]
    assert "gpt2 ddp-x2: failed: no answer" in capsys.readouterr().err
    assert records.compare(found, 2) == ("joined", 1)
    assert found["meta", 2]["loss_apart"] == 0.5
    bad = records.missed(found, 2, "cpu")
    assert bad[:2] == ["ddp-x2 failed", "ddp-x1 failed"] and "meta-x2 losses" not in bad
    found["fsdp2", 2]["loss_apart"] = 0.1  # which was as far
    assert "meta-x2 losses" in records.missed(found, 2, "cpu")


def test_who_is_there_at_the_same_time(benchmarks: Any) -> None:
    records = benchmarks("models.rank_records")
    run = records.Ranks(["meta", "ddp", "fsdp2"], [1, 2], 1, 1, 1, 1.0, "cuda", 70.0)
    keys = run.keys(joined=False)
    assert keys == [("meta", 2), ("meta", 1), ("ddp", 2), ("ddp", 1), ("fsdp2", 2)]
    assert run.shifts(keys, 20.0) == [keys[:3], keys[3:]]
    assert run.shifts(keys, 100.0) == [[key] for key in keys]


def test_goals(benchmarks: Any) -> None:
    records, program = benchmarks("models.rank_records"), benchmarks("distributed")

    def record(ms: float, peak: float, graphs: int | None = None) -> dict[str, Any]:
        found = {"ms": ms, "p20": ms, "p80": ms, "host_ms": 1.0, "peak_mb": peak, "crowd": 1}
        found |= {"first_call": 1.0, "reserved_mb": peak, "losses": [2.0]}
        return found if graphs is None else found | {"graphs": [graphs] * 2, "not_in_graphs": []}

    found = {
        ("meta", 2): record(10.2, 90.0, 1),
        ("ddp", 2): record(13.0, 90.0),
        ("fsdp2", 2): record(20.0, 60.0),
        ("zero3", 2): record(19.0, 59.0, 1),
        ("meta", 1): record(10.0, 90.0) | {"graphs": [1], "not_in_graphs": []},
    }
    assert records.compare(found, 2) == ("ddp", 2)
    assert records.missed(found, 2, "cuda") == []
    found["meta", 2] |= {"ms": 10.5, "graphs": [1, 0]}
    found["zero3", 2] |= {"peak_mb": 61.0, "loss_apart": float("inf")}
    bad = ["scaling", "to best", "zero3 memory", "meta-x2 is no single graph", "zero3-x2 losses"]
    assert records.missed(found, 2, "cuda") == bad
    found["zero3", 2] |= {"loss_apart": 0.12}
    found["ddp", 2] |= {"loss_apart": 0.1}  # roundings have grown as much there
    assert records.missed(found, 2, "cuda") == bad[:-1]
    found["zero3", 2] |= {"loss_apart": 0.13}
    assert records.missed(found, 2, "cuda") == bad
    found["fsdp2", 2] = {"failed": "exit status 1"}
    row = {"row": "gpt2", "what": "GPT-2", "most": 2, "reference": ("ddp", 2), "missed": bad}
    table = program.rows([row | {"contenders": found}])
    assert all(len(line) == len(table[0]) for line in table)
    assert "1.05x" in table[1] and "0.81x" in table[1] and table[3][3] == "failed"
    assert "gpt2 fsdp2-x2 failed: exit status 1" in program.notes([row | {"contenders": found}])


@pytest.mark.slow
@pytest.mark.parametrize("row", ["gpt2", "bert", "llama"])
def test_tiny_rows_on_gloo(row: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    script = str(ROOT / "benchmarks" / "distributed.py")
    options = "--tiny --device cpu --no-compile --rounds 1 --steps 1"
    passes = json.dumps({"config": {"bucket_collectives": {"bucket_mib": 1.0}}})
    command = [sys.executable, script, *options.split(), "--rows", row, "--losses", "8", "--json"]
    command += ["--passes", passes, "--contenders", "meta,half,ddp,fsdp2"]
    done = subprocess.run(
        command, cwd=tmp_path, env=first_on_path(ROOT), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["rows"]
    assert found["reference"] == "joined-x1" and len(found["contenders"]) == 8
    for name in ("meta-x2", "half-x2", "ddp-x2", "fsdp2-x2"):
        assert found["contenders"][name]["loss_apart"] < 1e-3, name


def test_predictions(
    benchmarks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    program = benchmarks("scaling")
    file = tmp_path / "rows.jsonl"
    lines = [
        {"row": "gpt2", "contender": "meta", "ranks": 1, "ms": 4.0},
        {"row": "gpt2", "contender": "meta", "ranks": 2, "ms": 5.0},
        {"row": "gpt2", "contender": "ddp", "ranks": 1, "ms": 6.0},
        {"row": "bert", "contender": "meta", "ranks": 1, "failed": "exit status 1"},
    ]
    file.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    assert program.single_rank_times(file) == {"gpt2": 4.0}
    step = meta.optim.with_adamw(1e-3, over="dp")
    with meta.distributed.planned(2):
        run = meta.vm.compile(step(meta.model.Linear(4, 3)), meta.ones((2, 3)), meta.ones((2, 4)))
    monkeypatch.setattr(program, "program", lambda *_: run.module)
    command = ["scaling.py", "--records", str(file), "--zero", "0", "--ranks", "2", "64"]
    monkeypatch.setattr(sys, "argv", [*command, "--tiny", "--json"])
    assert program.main() == 0
    two, many = json.loads(capsys.readouterr().out)["rows"]
    assert (two["ranks"], two["hosts"], many["ranks"], many["hosts"]) == ("2", "1", "64", "8")
    assert 4.0 <= float(two["step, ms"]) <= float(many["step, ms"])
    monkeypatch.setattr(sys, "argv", ["scaling.py", "--rows", "bert", "--records", str(file)])
    with pytest.raises(SystemExit):
        program.main()
    assert "no row has a step of one rank" in capsys.readouterr().err


@pytest.mark.slow
def test_predictions_of_a_tiny_network() -> None:
    pytest.importorskip("transformers")
    script = str(ROOT / "benchmarks" / "scaling.py")
    options = ["--one", "gpt2=1.0", "--tiny", "--zero", "0", "3", "--ranks", "2", "8", "--json"]
    done = subprocess.run(
        [sys.executable, script, *options], env=first_on_path(ROOT), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["rows"]
    assert [(r["ZeRO"], r["ranks"]) for r in found] == [
        *(("none", "2"), ("none", "8"), ("3", "2"), ("3", "8"))
    ]
    memory = [float(r["memory of a rank, MB"]) for r in found]
    assert memory[0] == memory[1] >= memory[2] >= memory[3]
