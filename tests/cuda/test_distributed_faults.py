"""What goes wrong among ranks on NCCL: no kernel waits for ever, and the others say who is missing.

The thread that watches a process ends it where launched work does not come to its end; see
`meta.distributed.watchdog`. On the CPU: tests/distributed/test_faults.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.distributed.test_faults import report

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
# By fault: what each of two ranks says, and its exit code; None: any but 0.
FAULTS: dict[str, list[tuple[int | None, str]]] = {
    "raises": [(None, "rank 1 raised ZeroDivisionError: mine"), (1, "ZeroDivisionError: mine")],
    "is late": [(None, "rank 1 did not come: it is at"), (None, "rank 1 did not come")],
    "is killed": [(None, "rank 1 is gone"), (-9, "")],
    "leaves": [(None, "rank 1 (has left|is gone)"), (0, "")],
    "other shapes": [
        (0, r"rank 0: all_reduce\(float32\[3\], sum\)\s+rank 1: all_reduce\(float32\[4\], sum\)"),
        (0, r"after: \[2\.0, 2\.0, 2\.0\].*again: \[2\.0\]"),
    ],
    "other programs": [
        (0, r"do not agree on a program.*rank 0: [^\n]* = \S*tanh.*rank 1: [^\n]* = \S*exp"),
        (0, r"after: \[1\.0, 1\.0, 1\.0, 1\.0\]"),
    ],
    "does not come": [(1, "rank 1 of 2 did not come"), (0, "")],
    "other mesh": [(1, "the ranks make different meshes")] * 2,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_an_error_on_all_ranks(name: str, tmp_path: Path) -> None:
    found = report(tmp_path, [name], "cuda")[name]
    for rank, ((code, pattern), ended) in enumerate(zip(FAULTS[name], found, strict=True)):
        where = f"rank {rank}: code {ended['code']} after {ended['seconds']} s\n{ended['said']}"
        assert ended["code"] is not None, f"it hangs: {where}"
        assert ended["code"] == code if code is not None else ended["code"] != 0, where
        assert re.search(pattern, ended["said"].replace(f"[rank{rank}]:", ""), re.S), where
