"""Kernels kept as artifacts: made again without TVM's Python package; damage is an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import meta
from meta.base.device import CPU
from meta.dialect.core import Artifact, compile_together, dispatch, only
from meta.dialect.core.catalog import DIALECTS
from meta.dialect.tvm.launch import LaunchPlan
from meta.op.core import TensorType
from tests.conftest import run_python

ROOT = Path(__file__).parents[3]
X = TensorType((4, 4), "float32")


def artifact(op: meta.op.core.Op, *args: object) -> Artifact:
    with only("tvm"):
        env = dispatch(op.call_values(args, CPU))
    compile_together([env])
    assert env.artifact is not None
    return env.artifact


ELSEWHERE = """
import json, sys, torch
from pathlib import Path
from meta.dialect.core import Artifact
from meta.dialect.core.catalog import DIALECTS
file, record = json.loads(sys.argv[1])
run = DIALECTS["tvm"].restore(Artifact(Path(file), record)).run
x, out = torch.full((4, 4), 2.0), torch.empty(4, 4)
run(x, x, out)
assert (out == 4).all()
print("tvm" in sys.modules)
"""


def test_another_process_runs_it_without_the_compiler() -> None:
    made = artifact(meta.op.multiply, X, X)
    found = run_python("-c", ELSEWHERE, json.dumps([str(made.file), made.record]))
    assert found.strip() == "False"


def test_a_kernel_that_writes_its_argument() -> None:
    made = artifact(meta.op.sgd, X, X, X, 0.5, 0.0)
    assert made.record["launch"] == {"repeated": (0, 2)}
    x, dx, v = torch.ones(4, 4), torch.ones(4, 4), torch.zeros(4, 4)
    DIALECTS["tvm"].restore(made).run(x, dx, v, 0.5, 0.0)
    assert (x == 0.5).all() and (v == 1).all()


def test_a_kernel_of_lists() -> None:
    numbers = (0.5, 0.0, 0.0, (), 1.0, float("inf"), None, False)
    made = artifact(meta.op.multi_tensor_sgd, (X, X), (X, X), (), *numbers)
    record = json.loads(json.dumps(made.record))
    run = DIALECTS["tvm"].restore(Artifact(made.file, record)).run
    x, dx = [torch.ones(4, 4) for _ in range(2)], [torch.ones(4, 4) for _ in range(2)]
    run(*x, *dx, 0.5, 0.0, 0.0, 1.0, float("inf"))
    assert all((t == 0.5).all() for t in x)
    lists = record["launch"]["lists"]
    for changes in ({"operator": "sgd"}, {"sizes": [16]}, {"slots": [["x", 3]]}, {"more": 1}):
        record["launch"]["lists"] = {**lists, **changes}
        with pytest.raises(ValueError, match="how to launch"):
            DIALECTS["tvm"].restore(Artifact(made.file, record))


def test_a_kernel_that_draws_a_key() -> None:
    made = artifact(meta.op.dropout_train, X, 0.5, None)
    run = DIALECTS["tvm"].restore(made).run
    x, y, z = torch.ones(4, 4), torch.empty(4, 4), torch.empty(4, 4)
    mask, nothing = torch.empty(4, 4, dtype=torch.bool), torch.empty(0, dtype=torch.uint8)
    run(x, y, mask, nothing)
    run(x, z, mask, nothing)
    assert set(y.unique().tolist()) <= {0.0, 2.0} and not torch.equal(y, z)


@pytest.mark.parametrize(
    "changes",
    [
        {"symbol": "absent"},
        {"symbol": 1},
        {"workspaces": [1]},
        {"workspaces": None},
        {"launch": []},
        {"launch": {"repeated": [-1]}},
        {"launch": {"repeated": ["0"]}},
        {"launch": {"key_after": True}},
        {"launch": {"other": 1}},
        {"more": 1},
    ],
)
def test_a_damaged_record(changes: dict[str, object]) -> None:
    made = artifact(meta.op.multiply, X, X)
    with pytest.raises(ValueError):
        DIALECTS["tvm"].restore(Artifact(made.file, {**made.record, **changes}))


def test_a_file_of_another_content(tmp_path: Path) -> None:
    made = artifact(meta.op.multiply, X, X)
    copy = tmp_path / f"{'0' * 64}.so"
    copy.write_bytes(made.file.read_bytes()[:-1])
    for file in (copy, tmp_path / "kernel.so", tmp_path / f"{'1' * 64}.so"):
        with pytest.raises(ValueError, match="in good order"):
            DIALECTS["tvm"].restore(Artifact(file, made.record))


def test_a_dialect_that_keeps_none() -> None:
    with pytest.raises(ValueError, match="keeps no kernels"):
        DIALECTS["torch"].restore(Artifact(Path("x"), {}))


def test_launch_records() -> None:
    for launch in (LaunchPlan(), LaunchPlan((0, 2)), LaunchPlan((1,), 3)):
        assert LaunchPlan.read(json.loads(json.dumps(launch.record()))) == launch
