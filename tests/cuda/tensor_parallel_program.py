"""Run by each process of test_distributed.py: divided models on NCCL, in CUDA graphs, beside
whole ones on one GPU.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from meta import distributed as dist
from tests.distributed.parallel import MODELS, trained

count = int(sys.argv[1])
# By what is asked for, how far the arrays of the ranks may be from those of one GPU after a few
# steps: sums have other orders, and halves fewer digits. None: masks of parts are others.
CASES: dict[str, tuple[dict[str, Any], float | None]] = {
    "float64": ({"dtype": "float64"}, 1e-9),
    "float32": ({"dtype": "float32"}, 1e-3),
    "mixed": ({"dtype": "float32", "half": "bfloat16"}, 6e-2),
    "dropout": ({"dtype": "float32", "half": "bfloat16", "dropout": 0.1}, None),
}
graphs: list[int] = []


def look(run: Any) -> None:
    """Note how many graphs a step is made of."""
    graphs.append(sum(region.graphs for region in run.cuda_graph.regions))


def run(name: str, over: str | None, **options: Any) -> Any:
    """Return what a rank has of a trained model's arrays."""
    return trained(name, over, True, device="cuda", look=look, **options)


dist.init("cuda", timeout=120)
with dist.Mesh({"tp": count}):
    here = dist.rank("tp")
    parts = {(n, case): run(n, "tp", **CASES[case][0]) for n in MODELS for case in CASES}
    alike = {
        key: [name for name, (_, placement) in found.items() if not placement.splits]
        for key, found in parts.items()
    }
    for key, names in alike.items():  # what is whole is the same on all ranks, bit for bit
        for name in names:
            value = torch.from_numpy(parts[key][name][0]).cuda()
            largest, smallest = value.clone(), value.clone()
            torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
            torch.distributed.all_reduce(smallest, torch.distributed.ReduceOp.MIN)
            assert torch.equal(largest, smallest), f"{key}: {name}"
dist.end()
for (name, case), found in parts.items():
    options, near = CASES[case]
    if near is None:
        assert all(np.isfinite(value).all() for value, _ in found.values()), (name, case)
        continue
    whole = run(name, None, **options)
    for key, (value, placement) in found.items():
        wanted = placement.part(torch.from_numpy(whole[key][0]), {"tp": here}).numpy()
        np.testing.assert_allclose(value, wanted, near, near, err_msg=f"{name}, {case}: {key}")
print(f"rank {here} of {count}: {len(parts)} models agree, graphs: {graphs}")
