"""Libraries that the package does without, until something asks for them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from meta.base.errors import ArgumentError, MetaError


def optional_module(
    module: str,
    does: str,
    *,
    library: str | None = None,
    install: str | None = None,
    instead: str = "",
    raises: type[MetaError] = ArgumentError,
) -> ModuleType:
    """Return a module of a library that may be absent.

    module: its name. does: what it does here, as in "gguf, which reads GGUF files". library: whose
    module it is, unless its name says so. install: what pip is given, by default the library.
    instead: what else there is to do, behind the command. raises: the error if it is not there, of
    which what Python said is the cause.

    >>> optional_module("json", "reads configurations").loads("[1]")
    [1]
    >>> try:
    ...     optional_module("no_such_module", "reads minds")
    ... except meta.errors.ArgumentError as error:
    ...     print(f"{error.what}; {error.hint}")
    no_such_module, which reads minds, is not installed; pip install no_such_module
    """
    library = library or module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError)
        raise raises(
            f"{library}, which {does}, {'is not installed' if absent else 'cannot be imported'}",
            found=error,
            hint=f"pip install {install or library}{instead}",
        ) from error
