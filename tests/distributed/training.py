"""Training of a small network on one rank, or data parallel on several: the same arrays result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

import meta
from meta import distributed as dist
from meta.optim import DynamicLossScale, StepMaker, with_adamw, with_sgd

ROWS, STEPS = 12, 4
STAGES = 0, 1, 2, 3
"""Of ``zero``."""
MAKERS: Mapping[str, Callable[..., StepMaker]] = {
    "adamw": partial(with_adamw, 1e-2, clip_norm=0.1),
    "accumulated": partial(with_sgd, 0.1, momentum=0.9, accumulate=2, ema=0.5),
    "scaled": partial(with_sgd, 0.1, loss_scale=DynamicLossScale(init=16.0), clip_value=0.05),
}


class Net(meta.Model):
    """Two layers, in float64, and the mean square of what they miss."""

    def build(self) -> None:
        self.first = meta.model.Linear(6, 8)
        self.last = meta.model.Linear(8, 1)

    @meta.model.trace
    def forward(self, x: Any, y: Any) -> Any:
        """Return the loss of a batch."""
        missed = self.last(meta.tanh(self.first(x))) - y
        return (missed * missed).mean()


def trained(
    name: str,
    compiled: bool,
    over: str | None = None,
    device: str = "cpu",
    look: Callable[[Any], None] = lambda run: None,
    zero: int = 0,
) -> dict[str, Any]:
    """Train, on this rank's rows of each batch; return the state, of parts the whole arrays. Rank 0
    has the weights. What was trained is looked at in the end.
    """
    drawn = np.random.default_rng(0)
    batches = [(drawn.standard_normal((ROWS, 6)), drawn.standard_normal((ROWS, 1)))] * STEPS
    rank, count = (0, 1) if over is None else (dist.rank(over), dist.size(over))
    net = Net()
    net.to(dtype="float64", device=device)
    for array in net.state().values():
        array.update(meta.array(drawn.standard_normal(array.shape) * (1 + rank), device=device))
    step: Any = MAKERS[name](over=over, zero=zero)(net)
    own = slice(rank * (ROWS // count), (rank + 1) * (ROWS // count))
    arguments = [
        [meta.array(one, "float64", device=device) for one in (1.0, x[own], y[own])]
        for x, y in batches
    ]
    run = meta.vm.compile(step, *arguments[0]) if compiled else step
    for one in arguments:
        run(*one)
    look(run)
    return {n: dist.unshard(a).numpy() for n, a in step.state().items()}
