"""Parameters and groups of parameters: what an optimizer is given, in one form.

A group is a set of parameters with options of its own. It is written as a dict: "params", which are
arrays, a mapping of names to arrays or, of a model, patterns of names ("*.bias"), and the options,
under the names of the optimizer's arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from meta.base.errors import ArgumentError
from meta.model.model import Model
from meta.optim.options import unknown_option
from meta.runtime.ndarray import ndarray

NameAndArray = tuple[str, ndarray]
Params = (
    Iterable[ndarray] | Iterable[NameAndArray] | Mapping[str, ndarray] | Sequence[Mapping[str, Any]]
)


@dataclass(frozen=True)
class ParameterGroup:
    """The names of some parameters, and the options in which they differ from the optimizer's."""

    names: tuple[str, ...]
    options: dict[str, Any]


def list_groups(groups: Iterable[Any]) -> list[Any]:
    """Return groups that may be looked at again and again: iterators among their "params" are used
    up here.
    """
    return [
        {**group, "params": list(group["params"])}
        if isinstance(group, Mapping) and isinstance(group.get("params"), Iterator)
        else group
        for group in groups
    ]


def name_parameters(params: Params) -> tuple[dict[str, ndarray], list[Mapping[str, Any]]]:
    """Return all parameters by name, and the groups, if it is a list of them.

    Arrays without a name are counted: "0", "1", ... Raises ArgumentError for what is no array, and
    for two arrays of one name.
    """
    if isinstance(params, Model):
        raise ArgumentError(
            "an optimizer is given arrays, not a model",
            found=type(params).__name__,
            hint="model.parameters()",
        )
    if isinstance(params, Mapping):
        return _require_parameters(dict(params)), []
    given = list_groups(params)
    if not any(isinstance(g, Mapping) for g in given):
        return _require_parameters(dict(_members(given, 0))), []
    found: dict[str, ndarray] = {}
    for group in given:
        _require_group(group)
        for name, array in _members(group.get("params", ()), len(found)):
            if any(array is other for other in found.values()):
                raise ArgumentError("a parameter is in two groups", found=repr(name))
            if name in found:
                raise ArgumentError(
                    f"two parameters are called {name!r}",
                    hint='tell them apart: {f"head.{n}": a for n, a in head.named_parameters()}',
                )
            found[name] = array
    return _require_parameters(found), given


def _members(params: Any, first: int) -> Iterable[tuple[str, Any]]:
    """Return the arrays of a group by name; those without one are counted from ``first``."""
    if isinstance(params, Mapping):
        return params.items()
    arrays = [params] if isinstance(params, ndarray) else params
    return (
        array if _is_name_and_array(array) else (str(first + i), array)
        for i, array in enumerate(arrays)
    )


def _is_name_and_array(member: Any) -> bool:
    """Whether a member of a group is a pair of name and array, of ``model.named_parameters()``."""
    return isinstance(member, tuple) and len(member) == 2 and isinstance(member[0], str)


def _require_parameters(params: dict[str, ndarray]) -> dict[str, ndarray]:
    for name, array in params.items():
        if not isinstance(array, ndarray):
            raise ArgumentError(
                f"the parameter {name!r} is no array",
                expected="arrays, pairs of name and array, or a mapping of names to arrays",
                found=type(array).__name__,
            )
    return params


def resolve(
    params: Mapping[str, ndarray], groups: Iterable[Mapping[str, Any]], options: Iterable[str]
) -> list[ParameterGroup]:
    """Return the groups that make up all parameters; those in no group come first.

    options: what a group may state. A parameter is in the first group that names it. Raises
    ArgumentError for an option that there is not, and for a group without parameters.
    """
    left = dict.fromkeys(params)
    found: list[ParameterGroup] = []
    for number, group in enumerate(groups):
        _require_group(group)
        stated = {key: value for key, value in group.items() if key != "params"}
        for key in stated:
            if key not in options:
                expected = f"some of {sorted(options)}"
                raise unknown_option("a group of parameters", key, options, expected)
        wanted = group.get("params", ())
        names = [name for name in params if _names(wanted, name, params[name])]
        if not names:
            raise ArgumentError(
                f"group {number} has no parameters",
                expected='arrays, or patterns of names such as "*.bias"',
                found=repr(wanted) if isinstance(wanted, str | list | tuple) else type(wanted),
                hint=f"the names are {', '.join(list(params)[:8])}, ...; "
                "give the optimizer model.named_parameters() for the model's",
            )
        found.append(ParameterGroup(tuple(n for n in names if n in left), stated))
        left = {name: None for name in left if name not in names}
    rest = [ParameterGroup(tuple(left), {})] if left else []
    return rest + [group for group in found if group.names]


def _require_group(group: Any) -> None:
    if not isinstance(group, Mapping):
        raise ArgumentError(
            "this is no group of parameters",
            expected='a list of dicts, [{"params": ["*.bias"], "weight_decay": 0.0}]',
            found=f"{type(group).__name__} {group!r:.40}",
        )
    if isinstance(group.get("params"), Model):
        raise ArgumentError(
            "a group is given arrays, not a model",
            found=type(group["params"]).__name__,
            hint='{"params": model.head.parameters()}',
        )


def _names(wanted: Any, name: str, array: ndarray) -> bool:
    """Whether a group's "params" name a parameter."""
    if isinstance(wanted, str):
        return fnmatchcase(name, wanted)
    if isinstance(wanted, ndarray):
        return wanted is array
    if _is_name_and_array(wanted):
        return wanted[1] is array
    members = wanted.values() if isinstance(wanted, Mapping) else wanted
    return any(_names(member, name, array) for member in members)
