"""What of a run is in a checkpoint: taken from its parts, and put back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from meta.base.dtype import FROM_TORCH
from meta.base.errors import DistributedError, FormatError
from meta.model.model import Model
from meta.model.state import listed
from meta.runtime.ndarray import ndarray
from meta.train.callback import Callback
from meta.train.checkpoint import Checkpoint, Checkpoints
from meta.train.data import Feed
from meta.train.team import ALONE, Team


@dataclass(frozen=True, slots=True)
class Saved:
    """The parts of a run that have state.

    Attributes
    ----------
    model: the user's model, whose arrays get a file of their own. training_step: the model around
    it, with everything else in its state. base_rate: the learning rate that the script states.
    feed: the position in the data and the random state.
    """

    model: Model
    training_step: Model
    base_rate: float
    feed: Feed
    callbacks: Sequence[Callback]

    def write(self, checkpoints: Checkpoints, step: int, team: Team = ALONE) -> Path:
        """Write a checkpoint, on the first rank; all call it. Return its folder."""
        model, training = self._arrays()
        parts = [n for n, a in {**model, **training}.items() if a.placement.splits]
        if parts:
            raise DistributedError(
                "a checkpoint of arrays of which ranks have parts", found=listed(parts)
            )
        more = {
            "base_rate": self.base_rate,
            "feed": self.feed.state(),
            "callbacks": [[type(c).__name__, s] for c in self.callbacks if (s := c.state())],
        }
        team.by_first(
            "writing a checkpoint",
            lambda: checkpoints.write(
                step,
                {name: a.torch() for name, a in model.items()},
                {name: a.torch() for name, a in training.items()},
                more,
            ),
        )
        return checkpoints.path(step)

    def load(self, checkpoint: Checkpoint) -> None:
        """Put a checkpoint back; FormatError if it is of another run."""
        model, training = self._arrays()
        _require_fit(model, checkpoint.model, "the model")
        _require_fit(training, checkpoint.training, "the optimizer")
        stateful = [c for c in self.callbacks if c.state()]
        kept = checkpoint.more["callbacks"]
        if [type(c).__name__ for c in stateful] != [name for name, _ in kept]:
            raise FormatError(
                "the callbacks are others than those of the checkpoint",
                expected=[name for name, _ in kept],
                found=[type(c).__name__ for c in stateful],
            )
        for own, given in ((model, checkpoint.model), (training, checkpoint.training)):
            for name, array in own.items():
                array.update(given[name])
        for callback, (_, state) in zip(stateful, kept, strict=True):
            callback.load_state(state)
        self.feed.load_state(checkpoint.more["feed"])

    def _arrays(self) -> tuple[dict[str, ndarray], dict[str, ndarray]]:
        """Return the arrays of the model, and those of the training step that are not among them.

        Of memory with several names the first one counts.
        """
        model = self.model.state()
        own = {id(a) for a in model.values()}
        others = {n: a for n, a in self.training_step.state().items() if id(a) not in own}
        return model, others


def _require_fit(own: Mapping[str, ndarray], given: Mapping[str, torch.Tensor], what: str) -> None:
    unknown, missing = sorted(given.keys() - own.keys()), sorted(own.keys() - given.keys())
    if unknown or missing:
        raise FormatError(
            f"the checkpoint is of another run: {what} has other arrays",
            expected=f"exactly {len(own)} arrays; missing: {listed(missing) or 'none'}",
            found=f"unknown: {listed(unknown) or 'none'}",
            hint="train another model, or with another optimizer, in another folder",
        )
    for name, array in own.items():
        tensor = given[name]
        if tuple(tensor.shape) != array.shape or FROM_TORCH[tensor.dtype] != array.dtype:
            raise FormatError(
                f"the checkpoint is of another run: {name!r} of {what} has another type",
                expected=f"{array.dtype}{list(array.shape)}",
                found=f"{FROM_TORCH[tensor.dtype]}{list(tensor.shape)}",
                hint="train another model in another folder",
            )
