"""Collectives among processes on Gloo, and the errors of a process that is alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import meta
from meta.base.errors import DistributedError
from tests.conftest import first_on_path, run_python
from tests.distributed.interrupted import trained

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_processes_agree_with_simulated_ranks(count: int) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count))
    done = subprocess.run(
        [sys.executable, *launcher, str(Path(__file__).parent / "program.py"), str(count)],
        capture_output=True,
        text=True,
        env=first_on_path(ROOT)
        | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::FutureWarning"},
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(count):
        assert f"rank {rank} of {count}: " in done.stdout


def test_without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(DistributedError, match="no launcher started this process"):
        meta.distributed.init()
    with pytest.raises(DistributedError, match="there are no processes yet"):
        meta.distributed.Mesh(2)


def test_ctrl_c_on_one_rank_ends_all_behind_the_same_step(tmp_path: Path) -> None:
    program = Path(__file__).parent / "interrupted.py"
    report = json.loads(
        run_python(program, tmp_path, timeout=120, OMP_NUM_THREADS="1", META_PROGRESS="off")
    )
    (step,) = report["steps"]
    for rank in report["ranks"]:
        assert rank["code"] == 0, rank["said"]
        assert f"interrupted at step {step}; kept in " in rank["said"]
    gone_on = trained(tmp_path / "kept", step + 5, 0)
    assert gone_on.first_step == step and len(gone_on.losses) == 5
