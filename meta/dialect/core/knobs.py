"""Knobs: the numbers of a kernel that were chosen by reasoning, and what they could be instead.

What makes a kernel asks for each such number with `Knobs.ask`, which returns the default or what
the configuration says, and notes the question. The configurations worth measuring follow from the
questions: each of them answered otherwise, one at a time. `ask` finds the knobs of the kernel that
is being made (`deciding`); a maker that asks is `tunable`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import zip_longest
from typing import Any

from meta.base.call_context import context, override_context
from meta.base.errors import RegistrationError
from meta.dialect.core.openv import Configs, OpEnv, Unsupported
from meta.dialect.core.preference import Config

MOST = 12
"""Configurations of a kernel that are worth measuring, at most."""


class Knobs:
    """The answers of a configuration, and what was asked while a kernel was made with it."""

    def __init__(self, config: Config = ()) -> None:
        self.chosen = dict(config)
        self.asked: dict[str, list[tuple[int, tuple[int, ...]]]] = {}

    def ask(self, name: str, default: int, options: Sequence[int]) -> int:
        """Return a number: the default, or the configuration's if that is one of ``options``.

        What is asked for several times under one name, by several kernels of a function, is one
        knob: it turns those that have its value among their options.
        """
        self.asked.setdefault(name, []).append((default, tuple(options)))
        chosen = self.chosen.get(name, default)
        return chosen if isinstance(chosen, int) and chosen in options else default

    def forget(self) -> None:
        """Forget what was asked by rules whose kernels are not used."""
        self.asked.clear()

    def check(self) -> None:
        """Raise Unsupported if the configuration has a name or a number that nothing asked for."""
        for name, value in self.chosen.items():
            options = {
                n for default, others in self.asked.get(name, ()) for n in (default, *others)
            }
            if value not in options:
                known = f"{name}={sorted(options)}" if options else f"{sorted(self.asked)}"
                raise Unsupported(f"this kernel has no {name}={value}, only {known}")

    def listed(self) -> list[Config]:
        """Return the configurations that turn one knob: first the nearest value of each knob."""
        columns = []
        for name, questions in self.asked.items():
            found = {n: _apart(n, d) for d, options in questions for n in options if n != d}
            columns.append([((name, n),) for n in sorted(found, key=lambda n: (found[n], n))])
        rows = zip_longest(*columns)
        return [config for row in rows for config in row if config is not None][:MOST]


def _apart(number: int, other: int) -> float:
    """Return how far numbers are apart: as many times the one as the other is as far."""
    return abs(math.log((number + 1) / (other + 1)))


@dataclass(frozen=True, slots=True)
class KnobContext:
    """What answers `ask` here.

    Attributes
    ----------
    knobs: of the kernel that is being made. preset: numbers in place of defaults, by name; None if
    there are none. asked: the names of what was asked meanwhile.
    """

    knobs: Knobs | None = None
    preset: Mapping[str, int] | None = None
    asked: set[str] = field(default_factory=set)


_DEFAULTS = KnobContext()


def _context() -> KnobContext:
    found: KnobContext | None = context.get().numbers
    return _DEFAULTS if found is None else found


@contextmanager
def deciding(knobs: Knobs) -> Iterator[Knobs]:
    """Let `ask` in the block ask these knobs."""
    with override_context(numbers=replace(_context(), knobs=knobs)):
        yield knobs


@contextmanager
def preset(numbers: Mapping[str, int]) -> Iterator[set[str]]:
    """Let these numbers stand in place of the defaults of what is `ask`ed in the block. Gives the
    names of what was asked.
    """
    asked: set[str] = set()
    with override_context(numbers=replace(_context(), preset=numbers, asked=asked)):
        yield asked


def ask(name: str, default: int, options: Sequence[int]) -> int:
    """Return what the knobs of the kernel that is being made say, the default where there are
    none; see `Knobs.ask`. Raises Unsupported for a `preset` number that the kernel cannot have.

    >>> meta.dialect.ask("rows", 64, (16, 256))  # no kernel is being tuned: the default
    64
    """
    whole = isinstance(default, int) and all(isinstance(n, int) for n in options)
    if not whole or not isinstance(name, str) or not name.isidentifier():
        raise RegistrationError(
            "ask() is not given a word and whole numbers",
            expected='such as ask("rows", 64, (16, 256))',
            found=f"{name!r}, {default!r}, {options!r}",
        )
    here = _context()
    if here.preset is not None:
        here.asked.add(name)
        number, known = here.preset.get(name, default), (default, *options)
        if number not in known:
            raise Unsupported(f"this kernel has no {name}={number}, only {sorted({*known})}")
        default, options = number, tuple(n for n in known if n != number)
    knobs = here.knobs
    return default if knobs is None else knobs.ask(name, default, options)


def forget() -> None:
    """Forget what was asked so far; see `Knobs.forget`."""
    knobs = _context().knobs
    if knobs is not None:
        knobs.forget()


def tunable(make: Callable[..., OpEnv]) -> Callable[..., OpEnv]:
    """Let what a maker `ask`s be the configurations of the kernels that it makes; a decorator.

    >>> @meta.dialect.tunable
    ... def make():
    ...     rows = meta.dialect.ask("rows", 64, (16, 256))
    ...     return meta.dialect.OpEnv(lambda x: x * rows, allocates=True)
    >>> env = make()
    >>> env.run(1), env.configs.listed()
    (64, [(('rows', 16),), (('rows', 256),)])
    >>> env.configured((("rows", 16),)).run(1)
    16
    """

    @wraps(make)
    def maker(*args: Any, **kwargs: Any) -> OpEnv:
        def made(config: Config) -> tuple[OpEnv, Knobs]:
            with deciding(Knobs(config)) as knobs:
                env = make(*args, **kwargs)
            knobs.check()
            return env, knobs

        env, knobs = made(())
        if knobs.asked:
            env.configs = Configs(knobs.listed, lambda config: made(config)[0])
        return env

    return maker
