"""What of a run is in a checkpoint: taken from its parts, and put back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meta.base.errors import FormatError
from meta.model.model import Model
from meta.model.state import join_names
from meta.runtime.mesh import current_mesh
from meta.runtime.ndarray import ndarray
from meta.train.callback import Callback
from meta.train.checkpoint import SECTIONS, CheckpointFolder, StoredCheckpoint
from meta.train.checkpoint_shards import ShardedArray
from meta.train.data import Feed
from meta.train.process_group import SINGLE_PROCESS, ProcessGroup


@dataclass(frozen=True, slots=True)
class RunState:
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

    def write(
        self, checkpoints: CheckpointFolder, step: int, group: ProcessGroup = SINGLE_PROCESS
    ) -> Path:
        """Write a checkpoint; all ranks call it. Return its folder."""
        more = {
            "base_rate": self.base_rate,
            "feed": self.feed.state(),
            "callbacks": [[type(c).__name__, s] for c in self.callbacks if (s := c.state())],
        }
        return checkpoints.write(step, *self._arrays(), more, group)

    def load(self, stored: StoredCheckpoint, group: ProcessGroup = SINGLE_PROCESS) -> None:
        """Put a checkpoint back, of whatever mesh it is; all ranks call it.

        Raises FormatError if it is damaged, or of another run.
        """
        stored.check(group)
        state = stored.state(group)
        sections = dict(zip(SECTIONS, self._arrays(), strict=True))
        _require_same_arrays(sections["model"], stored.written["model"], "the model")
        _require_same_arrays(sections["training"], stored.written["training"], "the optimizer")
        stateful = [c for c in self.callbacks if c.state()]
        kept = state["callbacks"]
        if [type(c).__name__ for c in stateful] != [name for name, _ in kept]:
            raise FormatError(
                "the callbacks are others than those of the checkpoint",
                expected=[name for name, _ in kept],
                found=[type(c).__name__ for c in stateful],
            )
        place = {} if group.alone else current_mesh().coordinates
        for kind, arrays in sections.items():
            for name, array in arrays.items():
                array.update(stored.part(kind, name, array.placement, place))
        for callback, (_, its) in zip(stateful, kept, strict=True):
            callback.load_state(its)
        self.feed.load_state(state["feed"])

    def _arrays(self) -> tuple[dict[str, ndarray], dict[str, ndarray]]:
        """Return the arrays of the model, and those of the training step that are not among them.

        Of memory with several names the first one counts.
        """
        model = self.model.state()
        own = {id(a) for a in model.values()}
        others = {n: a for n, a in self.training_step.state().items() if id(a) not in own}
        return model, others


def _require_same_arrays(
    own: Mapping[str, ndarray], given: Mapping[str, ShardedArray], what: str
) -> None:
    unknown, missing = sorted(given.keys() - own.keys()), sorted(own.keys() - given.keys())
    if unknown or missing:
        raise FormatError(
            f"the checkpoint is of another run: {what} has other arrays",
            expected=f"exactly {len(own)} arrays; missing: {join_names(missing) or 'none'}",
            found=f"unknown: {join_names(unknown) or 'none'}",
            hint="train another model, or with another optimizer, in another folder",
        )
    for name, array in own.items():
        dtype, shape = given[name].dtype, given[name].placement.shape
        if shape != array.placement.shape or dtype != array.dtype:
            raise FormatError(
                f"the checkpoint is of another run: {name!r} of {what} has another type",
                expected=f"{array.dtype}{list(array.placement.shape)}",
                found=f"{dtype}{list(shape)}",
                hint="train another model in another folder",
            )
