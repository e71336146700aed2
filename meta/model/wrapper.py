"""`Wrapper`: base of models that stand for another one, as `Autocast` does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meta.model.model import Model
from meta.op.core import tree
from meta.runtime.ndarray import ndarray


class Wrapper(Model):
    """A model whose arrays, their names, and mode are those of another one, ``model``.

    A subclass sets ``model`` in ``build``; what else it holds it adds in `members`, `models` and
    `paths`.
    """

    model: Model

    # One mode for both, also where a model around this one sets it.
    @property
    def _training(self) -> bool:
        return self.model._training

    @_training.setter
    def _training(self, training: bool) -> None:
        if "model" in vars(self):
            self.model._training = training

    @property
    def records(self) -> bool:  # type: ignore[override]
        """Whether calls are recorded for `backward`."""
        return self.model.records

    def members(self) -> dict[str, Any]:
        """Return what ``model`` holds, under the same names."""
        return self.model.members()

    def models(self) -> list[Model]:
        """Return this model, the one that it wraps, and all inside."""
        return [self, *self.model.models()]

    def paths(self) -> Iterator[tuple[str, ndarray | Model]]:
        """Iterate over what is inside of ``model``, itself included."""
        return self.model.paths()

    def signature(self) -> tuple[Any, ...]:
        """Return what a trace depends on."""
        return (*super().signature(), tree.IdentityKey(self.model), self.model._checkpointed)
