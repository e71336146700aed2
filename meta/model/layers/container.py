"""Containers of models: `ModuleList` and `ModuleDict`. They have no forward: the model around them
says how they are called. Models in Python's lists and dicts are found, too, under the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from meta.base.errors import ArgumentError
from meta.model.model import Model

__all__ = ["ModuleDict", "ModuleList"]


class ModuleList(Model):
    """A list of models, whose arrays are named by position: "0.weight"."""

    def build(self, models: Iterable[Model] = ()) -> None:
        """Keep the models; ArgumentError for what is none."""
        self._models = [_model(m) for m in models]

    def members(self) -> dict[str, Any]:
        """Return the models by position, and the attributes of the list itself."""
        return {str(i): model for i, model in enumerate(self._models)} | super().members()

    def __len__(self) -> int:
        return len(self._models)

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models)

    def __getitem__(self, index: int | slice) -> Any:
        found = self._models[index]
        return ModuleList(found) if isinstance(found, list) else found

    def __setitem__(self, index: int, model: Model) -> None:
        self._models[index] = _model(model)

    def __delitem__(self, index: int | slice) -> None:
        del self._models[index]

    def __add__(self, other: Iterable[Model]) -> ModuleList:
        return ModuleList([*self, *other])

    def append(self, model: Model) -> ModuleList:
        """Add a model at the end; returns the list."""
        self._models.append(_model(model))
        return self

    def extend(self, models: Iterable[Model]) -> ModuleList:
        """Add models at the end; returns the list."""
        self._models.extend([_model(m) for m in models])
        return self

    def insert(self, index: int, model: Model) -> None:
        """Add a model before the position ``index``."""
        self._models.insert(index, _model(model))

    def pop(self, index: int = -1) -> Model:
        """Remove a model and return it."""
        return self._models.pop(index)


class ModuleDict(Model):
    """A dict of models, whose arrays are named by key: "head.weight"."""

    def build(self, models: Mapping[str, Model] | None = None) -> None:
        """Keep the models; ArgumentError for what is none, and for keys that are no names."""
        self._models: dict[str, Model] = {}
        self.update(models or {})

    def members(self) -> dict[str, Any]:
        """Return the models by key, and the attributes of the dict itself. ArgumentError for a key
        that is also the name of an attribute.
        """
        own = super().members()
        if both := own.keys() & self._models.keys():
            raise ArgumentError(
                "a key is the name of an attribute of the ModuleDict, too", found=repr(min(both))
            )
        return self._models | own

    def __len__(self) -> int:
        return len(self._models)

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __contains__(self, key: str) -> bool:
        return key in self._models

    def __getitem__(self, key: str) -> Model:
        return self._models[key]

    def __setitem__(self, key: str, model: Model) -> None:
        if not isinstance(key, str) or not key or "." in key:
            raise ArgumentError(
                "this key cannot be part of the name of an array",
                expected="a string with at least one character and no dot",
                found=repr(key),
            )
        self._models[key] = _model(model)

    def __delitem__(self, key: str) -> None:
        del self._models[key]

    def keys(self) -> Iterable[str]:
        """Return the keys, in the order in which they were set."""
        return self._models.keys()

    def values(self) -> Iterable[Model]:
        """Return the models."""
        return self._models.values()

    def items(self) -> Iterable[tuple[str, Model]]:
        """Return pairs of key and model."""
        return self._models.items()

    def pop(self, key: str) -> Model:
        """Remove a model and return it."""
        return self._models.pop(key)

    def clear(self) -> None:
        """Remove all models."""
        self._models.clear()

    def update(self, models: Mapping[str, Model]) -> None:
        """Set several models."""
        for key, model in models.items():
            self[key] = model


def _model(value: Any) -> Model:
    if not isinstance(value, Model):
        raise ArgumentError("a container holds models", found=type(value).__name__)
    return value
