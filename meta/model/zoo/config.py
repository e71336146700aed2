"""`Config`: what the configurations of language models have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from meta.base.errors import ArgumentError

C = TypeVar("C", bound="Config")


@dataclass(frozen=True)
class Config:
    """Base of frozen dataclasses with the field names of transformers' class of the same name.

    ``fixed``: fields of theirs that change the network and have one value here. Fields that say
    nothing about the network (``use_cache``, ``torch_dtype``) are not kept.
    """

    fixed: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def from_dict(cls: type[C], values: Mapping[str, Any]) -> C:
        """Return the configuration that a ``config.json`` of transformers describes.

        Raises ArgumentError if that network is another one than is built here.
        """
        require_dict(cls.__name__, values)
        for name, built in cls.fixed.items():
            if values.get(name, built) not in (built, None):
                raise ArgumentError(
                    f"{cls.__name__} has no networks with another {name}",
                    expected=f"{name}={built!r}",
                    found=repr(values[name]),
                )
        known = {f.name for f in fields(cls)}
        return cls(**{n: v for n, v in values.items() if n in known})

    @classmethod
    def require(cls, config: object) -> None:
        """Raise ArgumentError for something else than a configuration of this class."""
        if not isinstance(config, cls):
            raise ArgumentError(
                f"this network is made from meta's {cls.__name__}",
                found=f"{type(config).__module__}.{type(config).__qualname__}",
                hint=f"meta.model.zoo.{cls.__name__}.from_dict(config.to_dict())",
            )


def require_dict(name: str, values: object) -> None:
    """Raise ArgumentError for something else than the values of a configuration by name."""
    if not isinstance(values, Mapping):
        raise ArgumentError(
            f"{name}.from_dict takes a dict",
            found=type(values).__name__,
            hint="config.to_dict() of transformers' class, or json.load of a config.json",
        )


def require_divides(part: int, whole: int, parts: str, wholes: str) -> None:
    """Raise ArgumentError unless ``part`` divides ``whole``."""
    if part < 1 or whole % part:
        raise ArgumentError(
            f"{parts} must divide {wholes}", expected=f"a divisor of {whole}", found=part
        )
