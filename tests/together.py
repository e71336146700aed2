"""Many cases of microseconds as one test: for pytest, a test takes a millisecond or more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Signature
from typing import Any

import pytest


def together(cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Make one test of a function that takes each of the cases: a tuple of arguments, or the only
    one. All run, and the error names those that fail, with the traceback of the first.
    """

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        @wraps(check)
        def test() -> None:
            failed: dict[str, BaseException] = {}
            for case in cases:
                try:
                    check(*case) if isinstance(case, tuple) else check(case)
                except (Exception, pytest.fail.Exception) as error:
                    failed[str(case)] = error
            if failed:
                name, first = next(iter(failed.items()))
                text = f"{len(failed)} cases: {', '.join(failed)}\n{name}: {first}"
                raise AssertionError(text) from first

        test.__signature__ = Signature()  # pytest would give the parameters as fixtures
        return test

    return decorate
