"""Run by each process of test_distributed.py: collectives on NCCL, eagerly and in CUDA graphs,
beside simulated ranks on the CPU; and data parallel steps beside those of one GPU.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import pairwise
from typing import Any

import numpy as np

import meta
from meta import distributed as dist
from meta import op
from meta.base import config
from meta.base.device import Device
from meta.cost.interconnect import INSIDE, Link, Links, Reach, links_key
from meta.cost.store import find
from meta.dialect import only
from meta.vm.graphs.region_step import GraphStep
from tests.distributed.test_simulated_mesh import CALLS, values
from tests.distributed.training import MAKERS, STAGES, trained

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


class Deep(meta.Model):
    """Layers of several sizes, in float32."""

    def build(self) -> None:
        sizes = (64, 512, 256, 1024, 96, 640, 32)
        self.layers = [meta.model.Linear(a, b) for a, b in pairwise(sizes)]

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = op.tanh(layer(x))
        return op.mean(x * x)


def overlapped(*disabled: str, zero: int = 0, **sizes: float) -> dict[str, Any]:
    """Train on this rank's rows with these buckets; return the model's arrays."""
    meta.random.seed(3)
    net = Deep()
    net.to(device="cuda")
    step = meta.optim.with_sgd(0.1, 0.9, over="dp", zero=zero)(net)
    drawn = np.random.default_rng(dist.rank("dp"))
    dy = meta.array(1.0, "float32", device="cuda")
    batches = [drawn.standard_normal((512, 64)).astype("float32") for _ in range(4)]
    arrays = [meta.array(x, device="cuda") for x in batches]
    options = {"bucket_collectives": sizes, "schedule_collectives": {"apart_mib": 64.0}}
    with meta.PassContext(disabled=disabled, config=options):
        run = meta.vm.compile(step, dy, arrays[0], cuda_graph=True)
    for i in range(40):
        run(dy, arrays[i % len(arrays)])
    look(run)
    started = any(name.endswith("_start") for name in run.kernels())
    assert started != bool(disabled), run.kernels()
    return {n: a.numpy() for n, a in net.state().items()}


def overlaps() -> None:
    """What runs on a second stream has the same results, but for the order of sums."""
    expected = overlapped("schedule_collectives", "bucket_collectives")
    for zero in (0, 1, 2):
        for size in (0.0, 0.3, 25.0):
            found = overlapped(zero=zero, first_mib=min(1.0, size / 3), bucket_mib=size)
            for name, value in found.items():
                said = f"zero={zero}, {size} MiB: {name}"
                np.testing.assert_allclose(value, expected[name], 1e-4, 1e-6, err_msg=said)


def measured() -> Link:
    """Measure the link of the GPUs: what is predicted by it is about what was measured."""
    with tempfile.TemporaryDirectory() as folder, config.override(META_CACHE_DIR=folder):
        link = dist.measure_links("dp")
        race = find(links_key(INSIDE, Device("cuda")))
        assert link.measured and race is not None and len(race.costs) == 4, race
        for cost in race.costs:
            assert cost.forward is not None
            size, reach = dict(cost.config)["bytes"], Reach(count, 1, count)
            time, _ = Links(link, link).time("all_reduce", int(size), reach)
            assert 0.6 < time / cost.forward.median < 1.6, (str(link), time, race.costs)
    return link


kept: list[Any] = []
dist.init("cuda", timeout=60)
mesh = dist.Mesh({"dp": count})
here, results = dist.rank("dp"), everything("cuda")
cases = [(name, zero) for name in MAKERS for zero in STAGES]
states = {case: trained(case[0], True, "dp", "cuda", look, case[1]) for case in cases}
overlaps()
link = measured()
dist.end()
for mine, wanted in zip(results, dist.simulate(count).run(everything, "cpu")[here], strict=True):
    np.testing.assert_allclose(mine, wanted, 1e-6, 1e-9)
singles = {name: trained(name, True, device="cuda") for name in MAKERS}
for case, state in states.items():
    for key, value in state.items():
        message = f"{case}: {key}"
        np.testing.assert_allclose(value, singles[case[0]][key], 1e-10, 1e-13, err_msg=message)
print(f"rank {here} of {count}: {len(results)} results and {len(kept)} steps agree; {link}")
