"""One registry class for everything that is looked up by name.

A clash names both places of definition; an unknown name offers the nearest ones.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any, Generic, TypeVar

from meta.base import aliases
from meta.base.errors import RegistrationError, UnknownName
from meta.base.source import Span

T = TypeVar("T")


def close_names(name: str, names: Iterable[str], cutoff: float = 0.5) -> list[str]:
    """Return up to three names that resemble ``name``, the closest first."""
    return difflib.get_close_matches(name, list(names), n=3, cutoff=cutoff)


def nearest(name: str, names: Iterable[str], habitual: Mapping[str, str] = {}) -> str:
    """Return a hint: what the habitual ``name`` is called here, or the names closest to it."""
    if name in habitual:
        return f"it is called {habitual[name]}"
    # Beside a table of names with a meaning, a likeness of letters must be a slip of the keyboard:
    # "cov" has no use for "cos". Gradients are not called by users.
    if habitual:
        close = close_names(name, (n for n in names if not n.endswith("_dx")), 0.75)
    else:
        close = close_names(name, names)
    return (
        f"did you mean {' or '.join(repr(n) for n in close)}?"
        if close
        else "see the list of known names"
    )


class Registry(Generic[T]):
    """A mapping from name to object that remembers where each object was defined.

    Parameters
    ----------
    kind: what the entries are, in error messages: "operator", "dialect".
    habitual: by a name that people type from habit, what to write instead.
    """

    def __init__(self, kind: str, habitual: Mapping[str, str] = {}) -> None:
        self.kind, self.habitual = kind, habitual
        self._entries: dict[str, T] = {}
        self._sites: dict[str, Span] = {}
        self._modules: list[dict[str, Any]] = []
        # What may add entries, asked before a name is said to be unknown.
        self.finders: list[Callable[[], None]] = []
        # What imports the files that register our own entries, until they are.
        self.rest: Callable[[], object] | None = None
        # What else is said of a name that is unknown.
        self.also: Callable[[], str] = str

    def register(self, name: str, entry: T, site: Span) -> T:
        """Add ``entry``; RegistrationError if the name is taken, naming both sites."""
        if name in self._entries:
            raise RegistrationError(
                f"the {self.kind} {name!r} is defined twice",
                found=f"{site} and {self._sites[name]}",
                hint="rename one of them, or remove the other definition first",
                span=site,
            )
        self._entries[name] = entry
        self._sites[name] = site
        for attributes in self._modules:
            attributes.setdefault(name, entry)
        return entry

    def remove(self, name: str) -> None:
        """Take an entry out again (for tests and for reloading in a notebook)."""
        entry = self[name]
        del self._entries[name], self._sites[name]
        for attributes in self._modules:
            if attributes.get(name) is entry:
                del attributes[name]

    def show_in(self, attributes: dict[str, Any]) -> None:
        """Keep the entries among the attributes of a module, its ``globals()``, from now on.

        Reading one then costs what any attribute costs. What the module defines itself stays.
        """
        self._modules.append(attributes)
        for name, entry in self._entries.items():
            attributes.setdefault(name, entry)

    def _completed(self) -> dict[str, T]:
        if self.rest is not None:
            self.rest()
        return self._entries

    def __getitem__(self, name: str) -> T:
        if name not in self._entries and name not in self._completed():
            for find in self.finders:
                find()
        try:
            return self._entries[name]
        except KeyError:
            error = UnknownName(
                f"there is no {self.kind} named {name!r}",
                hint=nearest(name, self._entries, self.habitual),
            )
            if self.also():
                error.note(self.also())
            raise error from None

    def get(self, name: str) -> T | None:
        """Return the entry or None."""
        return self._completed().get(name)

    def site(self, name: str) -> Span:
        """Return where the entry was defined."""
        self[name]
        return self._sites[name]

    def __contains__(self, name: object) -> bool:
        return name in self._completed()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._completed()))

    def __len__(self) -> int:
        return len(self._completed())

    def values(self) -> list[T]:
        """Return the entries in order of registration."""
        return list(self._completed().values())


@cache
def _entry_points() -> Any:
    return entry_points()  # reads a file of every installed package, so only once


def announced(group: str) -> EntryPoints:
    """Return what installed packages announce in a group of entry points."""
    found: EntryPoints = _entry_points().select(group=group)
    return found


OPERATORS: Registry[Any] = Registry("operator", aliases.MODULE)
"""Every base operator by name. It lives here because arrays, the parser and the operators all look
names up.
"""

FUNCTIONS: Registry[Any] = Registry("function")
"""Every public function that is composed of operators, by name (`meta.op.core.function`)."""
