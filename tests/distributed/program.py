"""Run by each process of test_processes.py: every collective on Gloo, beside simulated ranks."""

import random
import sys
import tempfile

import numpy as np
import torch

import meta
from meta import distributed as dist
from meta.base import config
from meta.model import Linear
from meta.optim import with_sgd
from meta.train import Accuracy, Batches, fit
from tests.distributed import parallel
from tests.distributed.test_fit import OPTIMIZERS, arrays, assert_equal, likeliest
from tests.distributed.test_fit import run as fit_on
from tests.distributed.test_simulated_mesh import CALLS, values
from tests.distributed.training import MAKERS, STAGES, trained
from tests.train.problem import CLASSES, DATA, FEATURES, loss

count = int(sys.argv[1])


def rank():
    """Return the result of each collective, and of some in other dtypes."""
    x = meta.array(values(count)[dist.rank("dp")])
    found = [call(x) for call, _ in CALLS.values()]
    for dtype in ("float16", "bfloat16", "int32", "uint8"):
        found += [dist.all_reduce(meta.arange(0, 6).astype(dtype), "dp", "max")]
    for dtype in ("bool", "uint16", "complex64"):
        y = meta.array([[dist.rank("dp"), 1]]).astype(dtype)
        found += [dist.all_gather(y, "dp"), dist.broadcast(y[0, 0], "dp", 1)]
        found += [dist.send_recv(y, "dp", 0, 1)]
    empty = meta.ones((0, count))
    found += [dist.all_gather(empty, "dp"), dist.all_reduce(empty, "dp")]
    found += [dist.all_to_all(empty, "dp", 1, 0)]
    traced = meta.model.trace(lambda x: dist.all_reduce(meta.tanh(x), "dp", "mean"))
    return [*found, meta.vm.compile(traced, x)(x)]


def measured():
    """Measure the link of the ranks; return a prediction by it, the same on all of them."""
    with tempfile.TemporaryDirectory() as folder, config.override(META_CACHE_DIR=folder):
        link = dist.measure_links("dp")
        assert link.measured and link.bandwidth > 0, link
        traced = meta.model.trace(lambda x: dist.all_reduce(x, "dp"))
        module = meta.vm.compile(traced, meta.ones((1 << 20,))).module
        report = meta.analysis.scaling(module, count)
        assert report.links.inside == link and report.communication > 0, report
    return link.bandwidth, report.communication


def fitted(mesh):
    """Return a run of `fit`, with evaluations of batches whose rows ranks do not divide."""
    data = Batches(*arrays(), 10, shuffle=False)
    metrics = {"accuracy": Accuracy(), "likeliest": likeliest}
    with meta.dialect.only("torch", "gloo"):
        return fit_on(mesh, OPTIMIZERS["accumulated"], eval_data=data, metrics=metrics)


def shuffled(mesh, seed):
    """Return losses of data that draw from torch's, Python's and numpy's generators."""
    found = []
    for data in ("loader", "loader with a generator", "Python's generator"):
        net = Linear(FEATURES, CLASSES)
        net.weight.update(meta.ones((CLASSES, FEATURES)))
        net.bias.update(meta.zeros(CLASSES))
        options = {"epochs": 2, "executor": "interpreter", "seed": seed, "mesh": mesh}
        with meta.dialect.only("torch", "gloo"):
            found += fit(net, loss, DATA[data](), with_sgd(0.1), **options).losses
    return found


def beside(zero):
    """Return a state after steps whose exchanges run beside other work, one for each gradient."""

    def look(run):
        assert any(name.endswith("_start") for name in run.kernels()), run.kernels()

    options = {"first_mib": 0.0, "bucket_mib": 0.0}, {"apart_mib": 64.0}
    passes = "bucket_collectives", "schedule_collectives"
    with meta.PassContext(config=dict(zip(passes, options, strict=True))):
        return trained("scaled", True, "dp", zero=zero, look=look)


dist.init("cpu", timeout=60)
with dist.Mesh({"dp": count}):
    figures = meta.array([measured()])
    alike = dist.all_gather(figures, "dp")
    assert (alike == figures).all(), alike
    here, found = dist.rank("dp"), rank()
    cases = [*((n, z) for n in MAKERS for z in (0, 3)), ("adamw", 1), ("adamw", 2)]
    states = {case: trained(case[0], True, "dp", zero=case[1]) for case in cases}
    states |= {("scaled", f"{zero}, beside"): beside(zero) for zero in STAGES}
    run = fitted({"dp": count})
    if count == 2:
        seeded = shuffled({"dp": count}, 3)
        random.seed(here)  # a run begins with the state of the first rank
        np.random.seed(here)
        torch.manual_seed(here)
        unseeded = dist.all_gather(meta.array([shuffled({"dp": count}, None)]), "dp").numpy()
with dist.Mesh({"tp": count}):
    divided = {name: parallel.trained(name, "tp", True) for name in ["gpt2"]}
dist.end()
for mine, wanted in zip(found, dist.simulate(count).run(rank)[here], strict=True):
    assert mine.dtype == wanted.dtype
    np.testing.assert_allclose(*(one.astype("complex128").numpy() for one in (mine, wanted)), 1e-12)
singles = {name: trained(name, True) for name in MAKERS}
for case, state in states.items():
    for key, value in state.items():
        message = f"{case}: {key}"
        np.testing.assert_allclose(value, singles[case[0]][key], 1e-10, 1e-13, err_msg=message)
assert_equal(run, fitted(None))
for name, parts in divided.items():
    whole = parallel.trained(name, None, True)
    for key, (value, placement) in parts.items():
        wanted = placement.part(torch.from_numpy(whole[key][0]), {"tp": here}).numpy()
        np.testing.assert_allclose(value, wanted, 1e-9, 1e-11, err_msg=f"{name}: {key}")
    assert any(placement.splits for _, placement in parts.values())
if count == 2:
    np.testing.assert_allclose(seeded, shuffled(None, 3), 1e-5)
    np.testing.assert_array_equal(unseeded[0], unseeded[1])
print(f"rank {here} of {count}: {len(found)} results agree")
