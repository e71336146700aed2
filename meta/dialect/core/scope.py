"""Scopes: for which chips an implementation is. One of a dialect operator may be generic, for the
chips of a vendor, or for one architecture of these.

Of the implementations that a dialect has of an operator, those take part whose scope is *in force*
on the call's device, the most specific first: architecture, vendor, generic. Each is a candidate of
its own, so that one that declines leaves its reason, and the next is asked. Which scopes are in
force is said by `meta.dialect.vendors`, which registers as `VENDORS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meta.base.call_context import context, override_context
from meta.base.device import Device
from meta.base.source import Span

if TYPE_CHECKING:
    from meta.op.core.call import CallValues


@dataclass(frozen=True, slots=True)
class Scope:
    """For which chips an implementation is.

    Attributes
    ----------
    vendor, architecture: their names, empty where it holds for all. source: a hash of what the
    scope was read from: what was measured or compiled with another is not used. declines: of a
    call, why none of the vendor's kernels runs it, or None.
    """

    vendor: str = ""
    architecture: str = ""
    source: str = ""
    declines: Callable[[CallValues], str | None] | None = field(
        default=None, compare=False, repr=False
    )

    @property
    def rank(self) -> int:
        """How specific it is: 0 generic, 1 of a vendor, 2 of an architecture."""
        return bool(self.vendor) + bool(self.architecture)

    def __str__(self) -> str:
        if self.architecture:
            return f"architecture {self.vendor}/{self.architecture}"
        return f"vendor {self.vendor}" if self.vendor else "generic"


GENERIC = Scope()
"""The scope of what is registered outside of the folder of a vendor."""

VENDORS: list[Callable[[Device], tuple[Scope, ...]]] = []
"""What says which scopes besides `GENERIC` are in force on a device, the most specific first."""


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """How a vendor wants the kernels of a name launched.

    Attributes
    ----------
    configs: keyword arguments of `triton.Config`, one mapping for each configuration; empty where
    it states none. heuristics: by the name of a kernel's constant, a function of the arguments.
    configs_of, heuristics_of: the scope that each is from, `GENERIC` where there is none. place:
    where the configurations are stated, None without any.
    """

    configs: tuple[Mapping[str, Any], ...] = ()
    heuristics: Mapping[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)
    configs_of: Scope = GENERIC
    heuristics_of: Scope = GENERIC
    place: Span | None = None

    @property
    def scope(self) -> Scope:
        """The most specific scope that says anything."""
        return max(self.configs_of, self.heuristics_of, key=lambda scope: scope.rank)


LAUNCH_SETTINGS: list[Callable[[str, Device], LaunchSettings]] = []
"""What says how a vendor wants the kernels of a name launched on a device."""


def in_force(device: Device) -> tuple[Scope, ...]:
    """Return the scopes in force on a device, the most specific first, `GENERIC` last."""
    stated = VENDORS[0](device) if VENDORS else ()
    return (*stated, GENERIC)


def marks(device: Device) -> str:
    """Return what tells the scopes in force from others, also of another version; "" where only
    `GENERIC` is.
    """
    return ", ".join(f"{scope} {scope.source}" for scope in in_force(device) if scope != GENERIC)


def launch_settings(name: str, device: Device) -> LaunchSettings:
    """Return how the vendor in force on a device wants the kernels of a name launched: that of an
    operator, or the one that a kernel goes by. What it does not state is empty.
    """
    return LAUNCH_SETTINGS[0](name, device) if LAUNCH_SETTINGS else LaunchSettings()


def registering() -> Scope:
    """Return the scope of what is registered here."""
    scope: Scope | None = context.get().scope
    return scope or GENERIC


def registering_as(scope: Scope) -> AbstractContextManager[None]:
    """Let what is registered in a ``with`` block be of a scope."""
    return override_context(scope=scope)
