"""What the user prefers: `prefer`, `only` and `exclude`, nestable and per thread (or task)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from meta.base.call_context import context, override_context, set_default_preference
from meta.base.registry import OPERATORS
from meta.dialect.core.catalog import known

Config = tuple[tuple[str, int | str], ...]
"""How a kernel is launched, as sorted pairs of a name and a number or word; () is its default."""


@dataclass(frozen=True)
class Preference:
    """A choice of dialects. ``plans`` and ``envs`` cache what was decided under it, ``alone``
    and ``pairs`` what of that an eager call runs at once; see `base/call_context.py`. ``config``:
    the configuration in which kernels are launched; None where the chooser decides. ``by_op``: the
    dialects that go first for single operators, as sorted pairs.
    """

    first: tuple[str, ...] = ()
    by_op: tuple[tuple[str, tuple[str, ...]], ...] = ()
    only: tuple[str, ...] | None = None
    excluded: frozenset[str] = frozenset()
    config: Config | None = None
    plans: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    envs: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    alone: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    pairs: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def first_of(self, op: str) -> tuple[str, ...]:
        """Return the dialects that go first for an operator."""
        own = next((names for name, names in self.by_op if name == op), ())
        return (*own, *(name for name in self.first if name not in own)) if own else self.first

    def place(self, dialect: str, op: str) -> int:
        """Return when a dialect is asked for an operator: 0 first, most of them at last."""
        first = self.first_of(op)
        return first.index(dialect) if dialect in first else len(first)

    def refusal(self, dialect: str) -> str | None:
        """Return why this choice rules a dialect out, or None."""
        if self.only is not None and dialect not in self.only:
            return f"not among only({', '.join(map(repr, self.only))})"
        return "excluded by exclude()" if dialect in self.excluded else None


DECISIONS = 8192
"""Calls that a preference remembers the plans and the kernels of."""
_interned: dict[Preference, Preference] = {}
DEFAULT = Preference()
_interned[DEFAULT] = DEFAULT
set_default_preference(DEFAULT)


def current() -> Preference:
    """Return what is preferred here."""
    preference: Preference | None = context.get().preference
    return DEFAULT if preference is None else preference  # of a block that began before this floor


def forget() -> None:
    """Drop every cached decision: an implementation was registered after the first dispatch."""
    for preference in list(_interned.values()):
        preference.plans.clear()
        preference.envs.clear()
        preference.alone.clear()
        preference.pairs.clear()


@contextmanager
def _changed(change: Callable[[Preference], dict[str, Any]]) -> Iterator[None]:
    # What was preferred before is asked on entry: the block may be entered later than made.
    before = current()
    wanted = replace(before, **change(before), plans={}, envs={}, alone={}, pairs={})
    with override_context(preference=_interned.setdefault(wanted, wanted)):
        yield


def prefer(*names: str, **by_op: str | Sequence[str]) -> Any:
    """Try these dialects first, in this order, whatever their plevel; then the others.

    ``by_op``: by the name of an operator, the dialect that goes before these for it, or several, in
    order: ``prefer("tvm", softmax="torch")``. UnknownName for what is no dialect or operator.

    A context manager.

    >>> with meta.dialect.prefer("torch"):
    ...     meta.explain(meta.exp, meta.ones(3)).chosen.dialect_op.name
    'torch.exp'
    """
    first = known(names)
    own = {
        OPERATORS[op].name: known((some,) if isinstance(some, str) else tuple(some))
        for op, some in by_op.items()
    }
    return _changed(lambda before: {"first": first, "by_op": tuple(sorted(own.items()))})


def only(*names: str) -> Any:
    """Use no dialect but these, by plevel. A context manager.

    >>> with meta.dialect.only("torch"):
    ...     run = meta.vm.compile(meta.model.Linear(3, 2), meta.ones((4, 3)))
    >>> run.kernels()
    {'torch.linear': 1}
    """
    allowed = known(names)
    return _changed(lambda before: {"only": allowed})


def exactly(name: str, config: Config) -> Any:
    """Use this dialect only, and its kernels in this configuration. A context manager."""
    return _changed(lambda before: {"only": (name,), "config": config})


def unrestricted() -> Any:
    """Use every dialect again, within a block in which `only` or `exclude` holds.

    A context manager.
    """
    return _changed(lambda before: {"only": None, "excluded": frozenset()})


def exclude(*names: str) -> Any:
    """Do not use these dialects, in addition to those excluded already. A context manager.

    >>> with meta.dialect.exclude("tvm"):
    ...     meta.exp(meta.zeros(2)).tolist()
    [1.0, 1.0]
    """
    added = frozenset(known(names))
    return _changed(lambda before: {"excluded": before.excluded | added})
