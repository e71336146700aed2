"""Run by each process of test_distributed.py: `meta.interop.torch.training_step` on NCCL, in CUDA
graphs, beside DistributedDataParallel.
"""

from __future__ import annotations

import sys

from meta import distributed as dist
from tests.interop.torch.ranks_program import CASES, agree

count = int(sys.argv[1])
dist.init("cuda", timeout=120)
steps = []
with dist.Mesh(count):
    rank = dist.rank("dp")
    for name in CASES:
        steps.append(agree(name, rank, "cuda"))
        run = next(iter(steps[-1].executables.values()))
        (region,) = run.cuda_graph.regions
        assert region.graphs == 1 and not run.cuda_graph.alone, run.cuda_graph
        assert any(kernel.startswith("nccl.") for kernel in run.kernels()), run.kernels()
    print(f"rank {rank} of {count}: {len(steps)} steps agree")
dist.end()
