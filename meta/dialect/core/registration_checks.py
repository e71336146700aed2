"""What the author of a backend states of it, checked where it is stated: names, devices, levels,
functions. What they answer later is checked by `op.core.registration.reason_of`.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from meta.base.device import has_name_in_torch, kinds
from meta.base.errors import RegistrationError
from meta.base.registry import OPERATORS, nearest
from meta.base.source import Span, definition_span, python_function
from meta.dialect.core.plevel import PLevel
from meta.op.core.op import Op
from meta.op.core.registration import require_function

if TYPE_CHECKING:
    from meta.dialect.core.backend import Backend

FUNCTIONS = ("probe", "warmup", "declines")
"""What a `Dialect` states as functions."""


def check_dialect(dialect: Backend) -> None:
    """Raise RegistrationError, at the dialect's line, for what a `Dialect` states wrongly.

    Devices become a tuple.
    """
    site, name = dialect.site, dialect.name
    if not isinstance(name, str) or not name.isidentifier():
        raise RegistrationError(
            "a dialect's name is a word", expected="such as acme", found=repr(name), span=site
        )
    what = f"the dialect {name!r}"
    if name in OPERATORS:
        raise RegistrationError(
            f"{what} has the name of an operator",
            found=f"{site} and {OPERATORS.site(name)}",
            hint="meta.op.<name> is that operator",
            span=site,
        )
    dialect.devices = _devices(dialect.devices, what, site)
    check_level(dialect.plevel, what, site)
    for part in FUNCTIONS:
        given = getattr(dialect, part)
        if given is not None:
            require_function(given, f"{part}= of {what}", site)
    for part in ("package", "restorer", "linkable"):
        if not isinstance(getattr(dialect, part), str):
            raise RegistrationError(
                f"{part}= of {what} is no name of a module",
                found=f"{getattr(dialect, part)!r:.200}", expected="such as __name__", span=site,
            )  # fmt: skip
    if isinstance(dialect.once, str) or not all(isinstance(one, str) for one in dialect.once):
        raise RegistrationError(
            f"once= of {what} is no tuple of operator families", expected='such as ("reduce",)',
            found=repr(dialect.once), span=site,
        )  # fmt: skip
    limit = dialect.time_limit
    if limit is not None and (isinstance(limit, bool | str) or not limit > 0):
        raise RegistrationError(
            f"time_limit= of {what} is no number of seconds", expected="above 0",
            found=repr(limit), span=site,
        )  # fmt: skip


def _devices(given: Any, what: str, site: Span) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, tuple | list) or not given:
        hint = f"devices=({given!r},)" if isinstance(given, str) else None
        raise RegistrationError(
            f"devices= of {what} are no kinds of devices",
            expected='a tuple such as ("cpu", "cuda")', found=repr(given), hint=hint, span=site,
        )  # fmt: skip
    for one in given:
        if not isinstance(one, str) or not (one in kinds() or _is_kind(one)):
            raise RegistrationError(
                f"{what} is for an unknown kind of device",
                expected=f"some of {kinds()}, or one that torch has", found=repr(one),
                hint='a GPU is "cuda"' if one in ("gpu", "GPU") else nearest(str(one), kinds()),
                span=site,
            )  # fmt: skip
    return tuple(dict.fromkeys(given))


def _is_kind(name: str) -> bool:
    return name.isidentifier() and has_name_in_torch(name)


def check_level(given: Any, what: str, site: Span) -> None:
    """Raise RegistrationError unless a level is a natural number."""
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        levels = ", ".join(f"{one.name} {one.value}" for one in PLevel)
        raise RegistrationError(
            f"plevel= of {what} is no level", found=repr(given), span=site,
            expected=f"a whole number, or one by kind of device: {levels}",
        )  # fmt: skip


def check_levels(given: Any, what: str, devices: tuple[str, ...], site: Span) -> None:
    """Raise RegistrationError unless levels are a number, or numbers for some of the devices."""
    for kind, one in given.items() if isinstance(given, Mapping) else ((None, given),):
        if kind is not None and kind not in devices:
            raise RegistrationError(
                f"{what} states a level for a device of others", expected=f"some of {devices}",
                found=repr(kind), span=site,
            )  # fmt: skip
        check_level(one, what, site)


def check_kernel(base: Op, function: Callable[..., Any]) -> None:
    """Raise RegistrationError for a kernel that is no plain function, or that neither returns what
    it computes nor takes the operator's "out", where to write it.
    """
    what, site = f"a kernel of {base.name!r}", definition_span(function)
    require_function(function, what, site)
    if not site.is_own and not base.schema.written:  # a test looks at ours
        require_result(function, what, base.schema.reserved("out"))


def require_result(function: Callable[..., Any], what: str, out: str) -> None:
    """Raise RegistrationError for a function that has no way to give its result."""
    if definition_span(function).is_own:
        return
    if _returns_nothing(function) and out not in inspect.signature(function).parameters:
        raise RegistrationError(
            f"{what} returns nothing, and has no parameter {out!r} to write to",
            expected=f"a result that is returned, or written to {out!r}",
            span=definition_span(function),
        )


def _returns_nothing(function: Callable[..., Any]) -> bool:
    """Whether each return of a function that is written in Python is one of None."""
    code = getattr(python_function(function), "__code__", None)
    if code is None:
        return False
    found: list[bool] = []
    constant: object = code  # what was loaded right before, if that is a constant
    for one in dis.get_instructions(code):
        if one.opname == "RETURN_CONST":
            found.append(one.argval is None)
        elif one.opname == "RETURN_VALUE":
            found.append(constant is None)
        constant = one.argval if one.opname == "LOAD_CONST" else code
    return bool(found) and all(found)
