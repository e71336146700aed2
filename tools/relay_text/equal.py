"""Structural equality of Relay programs, and where two of them differ.

What is compared: the kinds of nodes and how they are connected, what is shared included (a node
that is evaluated once is no copy of two); declared types; attributes as they are stated; constants
bit by bit, any NaN being equal to any other. What is not: names of variables and type parameters,
places, and what type inference adds (checked types, type arguments of calls). Constants, operators
and names of functions are values: whether they are shared says nothing. Nor does what two functions
of a module share. Constants that the file does not hold are the same unless they are different
references into its metadata.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch

from meta.frontend.relay import ast

Path = tuple[Any, str] | None
"""Where a value stands: where the one around it stands, and the step from there."""

_SHOWN = 12
_LEAVES = (ast.Constant, ast.Op, ast.GlobalVar, ast.Constructor)
_NOT_COMPARED = {"checked_type", "place", "type_args", "type_params", "version"} | {
    *("text_version", "source", "warnings"),
}
"""Fields of nodes that say where one stands and what was inferred; type parameters are bound."""


def equal(
    a: ast.Module | ast.Expr,
    b: ast.Module | ast.Expr,
    *,
    names: bool = False,
    scalar_digits: int | None = None,
) -> bool:
    """Tell whether two programs or expressions are the same.

    Parameters
    ----------
    names: whether names of variables count.
    scalar_digits: significant digits that scalar constants and numbers in attributes agree in; by
        default they are equal. Relay text has 6.
    """
    return difference(a, b, names=names, scalar_digits=scalar_digits) is None


def difference(
    a: ast.Module | ast.Expr,
    b: ast.Module | ast.Expr,
    *,
    names: bool = False,
    scalar_digits: int | None = None,
) -> str | None:
    """Return where and how two programs first differ, None if they are the same. See `equal`."""
    return _Comparison(names, scalar_digits).run(a, b)


@dataclass
class _TypeNames:
    """Which type parameter of one program is which of the other."""

    there: dict[str, str] = field(default_factory=dict)
    back: dict[str, str] = field(default_factory=dict)

    def bind(self, a: tuple[str, ...], b: tuple[str, ...], names: bool) -> bool:
        """Note which names belong together; return whether they can."""
        if len(a) != len(b) or (names and a != b):
            return False
        self.there.update(zip(a, b, strict=True))
        self.back.update(zip(b, a, strict=True))
        return True

    def same(self, a: str, b: str) -> bool:
        """Tell whether two names mean the same parameter."""
        return self.there.get(a, a) == b and self.back.get(b, b) == a


def _same_type(a: ast.Type | None, b: ast.Type | None, bound: _TypeNames, names: bool) -> bool:
    """Tell whether two types are the same. A type that is not known is one that is not stated."""
    work: list[tuple[Any, Any]] = [(a, b)]
    while work:
        x, y = work.pop()
        if isinstance(x, ast.UnknownType | None) and isinstance(y, ast.UnknownType | None):
            continue
        if type(x) is not type(y) or (isinstance(x, tuple) and len(x) != len(y)):
            return False
        if isinstance(x, tuple):
            work += zip(x, y, strict=True)
        elif isinstance(x, ast.TypeVar):
            if not bound.same(x.name, y.name):
                return False
        elif isinstance(x, ast.Type):
            function = isinstance(x, ast.FuncType)
            if function and not bound.bind(x.type_params, y.type_params, names):
                return False
            work += [(v, w) for _, v, w in _fields(x, y)]
        elif x != y:
            return False
    return True


def _fields(x: Any, y: Any) -> list[tuple[str, Any, Any]]:
    """Return the fields of two nodes of a kind that are compared: name and both values."""
    names = [f.name for f in fields(x) if f.name not in _NOT_COMPARED]
    return [(name, getattr(x, name), getattr(y, name)) for name in names]


@dataclass
class _Comparison:
    names: bool
    digits: int | None
    partners: dict[Any, Any] = field(default_factory=dict)
    partners_back: dict[Any, Any] = field(default_factory=dict)
    types: _TypeNames = field(default_factory=_TypeNames)

    def run(self, a: Any, b: Any) -> str | None:
        work: list[tuple[Any, Any, Path]] = [(a, b, None)]
        while work:
            x, y, path = work.pop()
            parts = self._compare(x, y, path)
            if isinstance(parts, str):
                return f"{_written(path)}: {parts}"
            work.extend(reversed(parts))
        return None

    def _compare(self, x: Any, y: Any, path: Path) -> str | list[tuple[Any, Any, Path]]:
        """Return how two values differ, or the parts that are still to be compared."""
        if isinstance(x, ast.Type | None) and isinstance(y, ast.Type | None):
            return [] if _same_type(x, y, self.types, self.names) else f"{x} and {y}"
        if isinstance(x, bool | int | float) and isinstance(y, bool | int | float):
            return [] if self._same_number(x, y) else f"{x!r} and {y!r}"
        if isinstance(x, tuple | list) and isinstance(y, tuple | list):
            if len(x) != len(y):
                return f"{len(x)} and {len(y)} items"
            return [(v, w, (path, f"[{i}]")) for i, (v, w) in enumerate(zip(x, y, strict=True))]
        if isinstance(x, ast.Attrs | None) and isinstance(y, ast.Attrs | None):
            return self._attrs(x, y, path)
        if type(x) is not type(y):
            return f"{_kind(x)} and {_kind(y)}"
        if isinstance(x, dict):
            return _dicts(x, y, path)
        if isinstance(x, ast.Constant):
            return self._constants(x, y)
        if is_dataclass(x):
            return self._nodes(x, y, path)
        return [] if x == y else f"{x!r} and {y!r}"

    def _same_number(self, x: float, y: float) -> bool:
        if x == y or (x != x and y != y):
            return True
        if self.digits is None or not (isinstance(x, float) or isinstance(y, float)):
            return False
        # Rounding is off by half a unit of the last digit, then once more by the dtype.
        return abs(x - y) <= 6 * 10.0**-self.digits * max(abs(x), abs(y)) < float("inf")

    def _attrs(
        self, x: ast.Attrs | None, y: ast.Attrs | None, path: Path
    ) -> str | list[tuple[Any, Any, Path]]:
        """No attributes at all and none that are stated are written in one way."""
        keys = {a.type_key for a in (x, y) if a is not None and a.type_key is not None}
        if len(keys) > 1:
            return " and ".join(sorted(keys))
        return _dicts(x.fields if x else {}, y.fields if y else {}, path)

    def _constants(self, x: ast.Constant, y: ast.Constant) -> str | list[tuple[Any, Any, Path]]:
        if x.value is None or y.value is None:
            named = str(x.missing).startswith("meta[") and str(y.missing).startswith("meta[")
            same = x.value is y.value and (x.missing == y.missing or not named)
            return [] if same else f"{_constant(x)} and {_constant(y)}"
        if x.value.dtype == y.value.dtype and x.value.shape == y.value.shape:
            scalar = x.value.ndim == 0 and x.value.is_floating_point()
            close = scalar and self.digits and self._same_number(x.value.item(), y.value.item())
            if close or _same_bits(x.value, y.value):
                return []
        return f"{_constant(x)} and {_constant(y)}"

    def _nodes(self, x: Any, y: Any, path: Path) -> str | list[tuple[Any, Any, Path]]:
        if isinstance(x, ast.Expr) and not isinstance(x, _LEAVES):
            if x in self.partners or y in self.partners_back:
                if self.partners.get(x) is y and self.partners_back.get(y) is x:
                    return []
                return f"{_kind(x)} that is shared with another place in one of them only"
            self.partners[x], self.partners_back[y] = y, x
        if isinstance(x, ast.Var):
            if self.names and x.name != y.name:
                return f"%{x.name} and %{y.name}"
            return [(x.type, y.type, (path, ".type"))]
        if isinstance(x, ast.Function | ast.TypeDefinition):
            if path is not None and path[0] is not None and path[0][1] in (".functions", ".types"):
                self._begin_definition()
            if not self.types.bind(x.type_params, y.type_params, self.names):
                return f"type parameters {x.type_params} and {y.type_params}"
        return [(v, w, (path, f".{name}")) for name, v, w in _fields(x, y)]

    def _begin_definition(self) -> None:
        self.partners.clear()
        self.partners_back.clear()
        self.types = _TypeNames()


def _dicts(x: dict[Any, Any], y: dict[Any, Any], path: Path) -> str | list[tuple[Any, Any, Path]]:
    if x.keys() != y.keys():
        only = [str(k) for k in [*x, *y] if (k in x) != (k in y)]
        return f"only one of them has {', '.join(map(repr, only[:5]))}"
    return [(x[k], y[k], (path, f"[{k!r}]")) for k in x]


def _same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    if x.numel() == 0:
        return True
    a, b = (t.detach().cpu().contiguous().reshape(-1, 1) for t in (x, y))
    same = (a.view(torch.uint8) == b.view(torch.uint8)).all(dim=1)
    if bool(same.all()):
        return True
    if not x.is_floating_point():
        return False
    a, b = a.reshape(-1).to(torch.float64), b.reshape(-1).to(torch.float64)
    return bool((same | (a.isnan() & b.isnan())).all())


def _kind(x: Any) -> str:
    if x is None:
        return "nothing"
    name = type(x).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _constant(x: ast.Constant) -> str:
    if x.value is None:
        return f"a constant that the file does not hold ({x.missing})"
    if x.value.ndim == 0:
        return f"the constant {x.value.item()!r} ({x.value.dtype})"
    return f"a constant {tuple(x.value.shape)} ({x.value.dtype})"


def _written(path: Path) -> str:
    """Return a path as text, without its middle if it is long."""
    steps: list[str] = []
    while path is not None:
        steps.append(path[1])
        path = path[0]
    steps.reverse()
    if len(steps) > 2 * _SHOWN:
        steps[_SHOWN:-_SHOWN] = [f" ... ({len(steps) - 2 * _SHOWN} steps) ... "]
    return "".join(steps).lstrip(".") or "the programs"
