"""A process that has used cuDNN's graphs ends without a word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("cudnn", reason="needs nvidia-cudnn-frontend")
ROOT = Path(__file__).parents[3]
# A graph of the frontend, which nothing is done with, in the place of one that was built: that
# takes a device.
PROGRAM = """
import importlib
import torch
import meta
from meta import op
from meta.dialect import Dialect
from meta.dialect.core import OpEnv
from meta.dialect.cudnn import graph, library, plans

module = importlib.import_module("cudnn._compiled_module")

class Built:
    def __init__(self):
        types = module.data_type
        self.node = module.backend_graph(
            io_data_type=types.HALF, intermediate_data_type=types.FLOAT,
            compute_data_type=types.FLOAT, handle=1,
        )
        self.tensor = self.node.tensor(dim=[1, 2], stride=[2, 1], data_type=types.HALF, uid=1)
        self.count = 1

class Plan(plans.ExecutionPlan):
    def __init__(self):
        self._graph = Built()
        self._execute = self._graph.node._execute_with_raw_ptrs
        plans._alive.add(self)
    def __call__(self, x, out):
        torch.neg(x, out=out)

dialect = Dialect("held", devices=("cpu",), plevel=99, probe=lambda: None)

@dialect.op(op.negative)
def negative(call):
    return OpEnv(plans._plans.setdefault(call.out, Plan()), allocates=False)

x = meta.ndarray(torch.ones(3))
with meta.dialect.only("torch", "held"):
    op.negative(x)
    run = meta.vm.compile(meta.model.trace(lambda x: op.negative(op.exp(x))), x)
run(x)
assert len(plans._alive) > 0
"""


def test_nothing_is_left_when_a_process_ends(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "META_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stderr == ""
