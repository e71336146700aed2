"""Checks of JSON values that nobody trusts: what `json_reader.py` asks of every value it meets."""

from __future__ import annotations

from typing import Any, NoReturn

from meta.base.errors import FormatError
from meta.base.registry import nearest


class JsonValues:
    """Every method gets a value and the path to it, which an error names."""

    def fail(self, path: str, what: str, *, expected: object = None, **details: Any) -> NoReturn:
        raise FormatError(f"{path or 'the document'}: {what}", expected=expected, **details)

    def object(
        self, value: Any, path: str, keys: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Return an object that has these keys and no others."""
        found: dict[str, Any] = self.checked(value, path, dict, "an object")
        for key in keys:
            if key not in found:
                self.fail(path, f"the key {key!r} is missing")
        for key in found:
            if key not in keys and key not in optional:
                self.fail(path, f"unknown key {key!r}", hint=nearest(key, (*keys, *optional)))
        return found

    def checked(self, value: Any, path: str, kind: type, what: str) -> Any:
        # True is an int in Python and none in JSON.
        if type(value) is not kind:
            self.fail(path, f"a {type(value).__name__} is found", expected=what)
        return value

    def array(self, value: Any, path: str) -> list[Any]:
        return self.checked(value, path, list, "an array")  # type: ignore[no-any-return]

    def string(self, value: Any, path: str) -> str:
        return self.checked(value, path, str, "a string")  # type: ignore[no-any-return]

    def integer(self, value: Any, path: str, below: int | None = None) -> int:
        """Return an integer that is not negative, and less than ``below``."""
        number: int = self.checked(value, path, int, "an integer")
        if number < 0 or (below is not None and number >= below):
            limit = "" if below is None else f", below {below}"
            self.fail(path, f"{number} is out of range", expected=f"at least 0{limit}")
        return number
