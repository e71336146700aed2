"""Run by each process of test_distributed.py: runs of `fit` on several GPUs beside those of one
GPU, a checkpoint that goes on with one, and masks of dropout.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import meta
from meta import distributed as dist
from meta.model import BatchNorm, Conv2d, Dropout, Flatten, Linear, ReLU, Sequential
from meta.optim import DynamicLossScale, with_adamw, with_sgd
from meta.train import Accuracy, Batches, fit

count, DEVICE, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
CLASSES, SAMPLES, SIZE = 5, 200, 16 * count


def arrays() -> tuple[Any, Any]:
    """Return images of classes that can be told apart."""
    drawn = np.random.default_rng(0)
    labels = drawn.integers(0, CLASSES, SAMPLES)
    x = drawn.standard_normal((SAMPLES, 1, 8, 8)).astype("float32")
    x[np.arange(SAMPLES), 0, labels] += 3
    return x, labels


def network(synchronised: bool) -> Sequential:
    meta.random.seed(0)
    net = Sequential(
        Conv2d(1, 8, 3, bias=False), BatchNorm(8), ReLU(), Flatten(), Linear(288, CLASSES)
    )
    return meta.model.sync_batch_norm(net) if synchronised else net


OPTIMIZERS = {
    "sgd": (lambda: with_sgd(0.05, 0.9), None),
    "clipped": (lambda: with_adamw(1e-2, clip_norm=0.5, ema=0.9), None),
    "half": (lambda: with_sgd(0.05, 0.9, loss_scale=DynamicLossScale(init=64.0)), "float16"),
}


def run(name: str, mesh: Any, folder: Path | None = None, epochs: int = 3) -> Any:
    """Train; return the record and the state."""
    optimizer, amp = OPTIMIZERS[name]
    net = network(mesh is not None)
    record = fit(
        net, meta.cross_entropy, Batches(*arrays(), SIZE, drop_last=True), optimizer(),
        epochs=epochs, eval_data=Batches(*arrays(), SIZE + 1, shuffle=False), amp=amp,
        metrics={"accuracy": Accuracy()}, mesh=mesh, device=DEVICE, checkpoint=folder,
    )  # fmt: skip
    return record, {n: a.numpy() for n, a in dist.unshard(record.training_step.state()).items()}


def masks() -> Any:
    """Return what dropout leaves on each rank, of a compiled program."""
    layer, x = Dropout(0.5), meta.ones((4096,), device=DEVICE)
    run = meta.vm.compile(layer, x)
    return [dist.all_gather(run(x), "dp").numpy().reshape(count, -1) for _ in range(3)]


dist.init(DEVICE, timeout=120)
with dist.Mesh({"dp": count}):
    here = dist.rank("dp")
    together = {name: run(name, {"dp": count}) for name in OPTIMIZERS}
    run("sgd", {"dp": count}, folder, 2)
    dropped = masks()
dist.end()

for name, (record, state) in together.items():
    alone, wanted = run(name, None)
    close = (3e-2, 3e-2) if OPTIMIZERS[name][1] else (2e-3, 2e-4)
    np.testing.assert_allclose(record.losses, alone.losses, *close, err_msg=name)
    assert abs(record.metrics["accuracy"] - alone.metrics["accuracy"]) <= 0.02, name
    for key, value in state.items():
        if name == "sgd":
            np.testing.assert_allclose(value, wanted[key], *close, err_msg=f"{name}: {key}")
for one in dropped:
    assert len({row.tobytes() for row in one}) == count, "ranks draw the same masks"
    assert 0.4 < (one > 0).mean() < 0.6
if here == 0:
    gone_on, _ = run("sgd", None, folder, 3)
    steps = SAMPLES // SIZE
    assert gone_on.first_step == 2 * steps
    np.testing.assert_allclose(gone_on.losses, together["sgd"][0].losses[2 * steps :], 5e-3, 5e-4)
print(f"rank {here} of {count}: {len(together)} runs agree")
