"""Run by each process of test_distributed.py: collectives on NCCL, eagerly and in CUDA graphs,
beside simulated ranks on the CPU; and data parallel steps beside those of one GPU.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import meta
from meta import distributed as dist
from meta import op
from meta.dialect import only
from meta.vm.graph_steps import GraphStep
from tests.distributed.test_simulated import CALLS, values
from tests.distributed.training import MAKERS, trained

RUNS = 4
count = int(sys.argv[1])


def chain(x: Any) -> Any:
    for f in (op.tanh, op.sin):
        x = f(x)
    return x


def eager(device: str) -> list[Any]:
    """Return the result of each collective, and of some in other dtypes."""
    x = meta.array(values(count)[dist.rank("dp")], device=device)
    found = [call(x) for call, _ in CALLS.values()]
    for dtype in ("float16", "bfloat16", "float32", "int32", "int64", "uint8"):
        found += [dist.all_reduce(meta.arange(0, 6, device=device).astype(dtype), "dp")]
    for dtype in ("bool", "uint16", "complex64"):
        y = meta.array([[dist.rank("dp"), 1]], device=device).astype(dtype)
        found += [dist.all_gather(y, "dp"), dist.broadcast(y[0, 0], "dp", 1)]
        found += [dist.send_recv(y, "dp", 0, 1)]
    empty = meta.ones((0, count), device=device)
    found += [dist.all_gather(empty, "dp"), dist.all_reduce(empty, "dp")]
    return [found, dist.axis_index("dp", device)]


def captured(device: str) -> list[Any]:
    """Return what programs with a collective in their middle return, several times."""
    found = []
    for name, (call, _) in CALLS.items():
        x = meta.array(values(count)[0], device=device)
        body = meta.model.trace(lambda x, call=call: chain(call(chain(x))))
        run = meta.vm.compile(body, x, cuda_graph=True if device == "cuda" else None)
        for i in range(RUNS):
            mine = meta.array(values(count, i)[dist.rank("dp")], device=device)
            found.append(run(mine))
        if device == "cuda":
            (region,) = run.cuda_graph.regions
            assert region.graphs == 1, f"{name}: {run.cuda_graph}"
    return found


def refused(device: str) -> list[Any]:
    """Return the results of a program whose kernels one rank cannot record."""
    body = GraphStep.body

    def failing(self: GraphStep, own: Any) -> None:
        if dist.rank("dp") == count - 1:
            raise ZeroDivisionError("not on this rank")
        body(self, own)

    def program(x: Any) -> Any:
        return chain(chain(dist.all_reduce(chain(chain(x)), "dp", "mean")))

    x = meta.array(values(count)[dist.rank("dp")], device=device)
    GraphStep.body = failing  # type: ignore[method-assign]
    try:
        run = meta.vm.compile(meta.model.trace(program), x)
        found = [run(x) for _ in range(RUNS)]
    finally:
        GraphStep.body = body  # type: ignore[method-assign]
    if device == "cuda":
        assert f"rank dp={count - 1}: ZeroDivisionError: not on this rank" in str(run.cuda_graph)
    return found


def everything(device: str) -> list[Any]:
    """Return all results on this rank as NumPy's arrays."""
    found, place = eager(device)
    with only("torch", "nccl", "gloo"):  # kernels that are not fused: so many make a graph
        arrays = [*found, place, *captured(device), *refused(device)]
    return [one.astype("complex128").numpy() for one in arrays]


def look(run: Any) -> None:
    """The whole step is one graph."""
    (region,) = run.cuda_graph.regions
    assert region.graphs == 1 and not run.cuda_graph.alone, run.cuda_graph
    assert region.kernels == sum(run.kernels().values()), run.cuda_graph
    kept.append(run)  # its graph is there when the processes part


kept: list[Any] = []
dist.init("cuda", timeout=60)
mesh = dist.Mesh({"dp": count})
here, results = dist.rank("dp"), everything("cuda")
states = {name: trained(name, True, "dp", "cuda", look) for name in MAKERS}
dist.end()
for mine, wanted in zip(results, dist.simulate(count).run(everything, "cpu")[here], strict=True):
    np.testing.assert_allclose(mine, wanted, 1e-6, 1e-9)
for name, state in states.items():
    alone = trained(name, True, device="cuda")
    for key, value in state.items():
        np.testing.assert_allclose(value, alone[key], 1e-10, 1e-13, err_msg=f"{name}: {key}")
print(f"rank {here} of {count}: {len(results)} results and {len(kept)} steps agree")
