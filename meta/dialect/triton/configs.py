"""Configurations of a kernel: values of its meta-parameters, and how many warps, stages and blocks.

What Triton's autotuner would try is data here: the configurations of the `OpEnv`, which
`meta.measure` times and measured dispatch chooses from. A program names the one that runs,
``triton.softmax@BLOCK=128,num_warps=4``; the first in the list runs where nothing was measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import triton

from meta.base.errors import RegistrationError
from meta.base.source import Span
from meta.dialect.core import Config, Unsupported
from meta.dialect.core.openv import config_text
from meta.op.core.call import CallValues

OPTIONS: dict[str, int | None] = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None}
"""What a configuration states to the compiler besides meta-parameters, with Triton's defaults."""
MOST = 4096
"""Configurations of a kernel, at most."""
MOST_CTAS = 8
"""Blocks of a cluster: more are not portable."""
_WORD = re.compile(r"[A-Za-z0-9_]+", re.ASCII)
ConfigList = Sequence[Any] | Callable[[CallValues], Sequence[Any]]
"""Configurations as they are given: ``triton.Config``s or dicts, or a function of the call."""


@dataclass(frozen=True)
class Tuning:
    """One configuration: meta-parameters and compiler's options by name."""

    meta: Mapping[str, Any]
    options: Mapping[str, int]

    @property
    def config(self) -> Config:
        """Its name in programs: the meta-parameters, and the options that were stated."""
        pairs = {**self.meta, **self.options}
        return tuple(sorted((n, v if type(v) is int else str(v)) for n, v in pairs.items()))

    def __str__(self) -> str:
        return config_text(self.config) or "without meta-parameters"


def read(stated: Iterable[Any], names: Iterable[str], kernel: str, site: Span) -> list[Tuning]:
    """Return configurations; RegistrationError for one that is none, or names no parameter.

    names: of the parameters that are ``tl.constexpr``. kernel: the function's name.
    """
    known = set(names)
    if isinstance(stated, str) or not isinstance(stated, Iterable):
        raise RegistrationError(
            f"the configurations of the kernel {kernel!r} are no list", found=f"{stated!r:.200}",
            expected='[triton.Config({"BLOCK": 128}), ...]', span=site,
        )  # fmt: skip
    stated = list(islice(stated, MOST + 1))
    if len(stated) > MOST:
        raise RegistrationError(
            f"the kernel {kernel!r} has too many configurations", found=f"more than {MOST}",
            expected=f"at most {MOST}: each of them is compiled and timed", span=site,
        )  # fmt: skip
    found = [_tuning(one, known, kernel, site) for one in stated]
    seen: set[Config] = set()
    for one in found:
        if one.config in seen:
            raise RegistrationError(
                f"the kernel {kernel!r} has the configuration {one} twice", span=site
            )
        seen.add(one.config)
        if set(one.meta) != set(found[0].meta):
            raise RegistrationError(
                f"configurations of the kernel {kernel!r} have different meta-parameters",
                expected=sorted(found[0].meta),
                found=sorted(one.meta),
                hint="state each meta-parameter in every configuration",
                span=site,
            )
    return found or [Tuning({}, {})]


def _tuning(one: Any, known: set[str], kernel: str, site: Span) -> Tuning:
    if isinstance(one, triton.Config):
        more = [n for n in ("pre_hook", "ir_override") if getattr(one, n, None) is not None]
        if more:
            raise RegistrationError(
                f"a configuration of the kernel {kernel!r} has {' and '.join(more)}",
                expected="meta-parameters, num_warps, num_stages, num_ctas and maxnreg",
                span=site,
            )
        stated = {n: getattr(one, n) for n in OPTIONS}
        changed = {n: v for n, v in stated.items() if v != OPTIONS[n] or n == "num_warps"}
        pairs = {**one.kwargs, **changed}
    elif isinstance(one, Mapping):
        pairs = dict(one)
    else:
        raise RegistrationError(
            f"a configuration of the kernel {kernel!r} is neither a triton.Config nor a dict",
            expected='triton.Config({"BLOCK": 128}, num_warps=4) or dict(BLOCK=128, num_warps=4)',
            found=repr(one),
            span=site,
        )
    options = {n: v for n, v in pairs.items() if n in OPTIONS and n not in known}
    meta = {n: v for n, v in pairs.items() if n not in options}
    unknown = sorted(n for n in meta if n not in known)
    if unknown:
        raise RegistrationError(
            f"a configuration of the kernel {kernel!r} names what is no parameter: {unknown}",
            expected=f"tl.constexpr parameters, {sorted(known)}, or {', '.join(OPTIONS)}",
            span=site,
        )
    for name, value in options.items():
        check_option(name, value, kernel, site)
    for name, value in meta.items():
        natural = type(value) is int and value >= 0
        if not natural and not (type(value) in (str, bool) and _WORD.fullmatch(str(value))):
            raise RegistrationError(
                f"a configuration of the kernel {kernel!r} has {name}={value!r}",
                expected="a natural number, a bool or a word: programs name configurations",
                hint="compute other values from these, with heuristics=",
                span=site,
            )
    return Tuning(meta, options)


def check_option(name: str, value: Any, kernel: str, site: Span) -> None:
    """Raise RegistrationError unless an option of the compiler has such a value."""
    power = name in ("num_warps", "num_ctas")
    most = {"num_warps": 32, "num_ctas": MOST_CTAS, "maxnreg": 255}.get(name, 64)
    if type(value) is not int or not 1 <= value <= most or (power and value & (value - 1)):
        what = "a power of two" if power else "a number"
        raise RegistrationError(
            f"a configuration of the kernel {kernel!r} has {name}={value!r}",
            expected=f"{what} from 1 to {most}",
            span=site,
        )


def chosen(tunings: Sequence[Tuning], config: Config) -> Tuning:
    """Return the configuration of a name, () for the first; Unsupported if there is none such."""
    for one in tunings:
        if config in ((), one.config):
            return one
    known = "; ".join(map(str, tunings))
    raise Unsupported(f"the kernel has no configuration {config_text(config)}, only {known}")
