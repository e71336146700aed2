"""The options of an algorithm: from one table, `Optimizer.defaults`, come the parameters of its
constructor and of its ``with_<name>``, and what is said of an option that there is not.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any

from meta.base.errors import ArgumentError
from meta.base.registry import nearest
from meta.model.model import Model
from meta.runtime.ndarray import ndarray

ABSENT: dict[str, str] = {
    "learning_rate": "it is called lr here",
    "learning_rate_decay": "it is called lr_decay here",
    **dict.fromkeys(("beta1", "beta2"), "they are betas=(0.9, 0.999) here"),
    "amsgrad": "the largest second moment so far is not kept: leave amsgrad out",
    "dampening": "a gradient enters the velocity whole: leave dampening out",
    "decoupled_weight_decay": "this is what AdamW does",
    **dict.fromkeys(
        ("foreach", "fused"), "one call updates all parameters in any case: leave it out"
    ),
    "capturable": "nothing of an update is decided on the host: leave it out",
    "differentiable": "updates have no gradients: write them with operators on arrays",
    "max_norm": "it is called clip_norm here",
    "max_grad_norm": "it is called clip_norm here",
    "gradient_accumulation_steps": "it is called accumulate here",
}
"""What is said of options of torch and of trainers that have another name here, or are not here."""

_SCHEDULED = (
    "a schedule is given to meta.train.fit(schedule=), or called before each step: "
    "optimizer.lr = 1e-3 * rate(i)"
)
Parameter = inspect.Parameter


def parameters(defaults: Mapping[str, Any]) -> list[inspect.Parameter]:
    """Return the options of an algorithm as parameters."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    return [
        Parameter(name, kind, default=value, annotation=type(value))
        for name, value in defaults.items()
    ]


def bind(
    who: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call of ``who`` by name, defaults filled in.

    Raises ArgumentError for arguments that do not fit the signature.
    """
    for name in kwargs:
        if name not in signature.parameters:
            raise unknown_option(who, name, signature.parameters, _call(who, signature))
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(
            f"{who} cannot be called like this: {error}", expected=_call(who, signature)
        ) from None
    bound.apply_defaults()
    defaults = {n: p.default for n, p in signature.parameters.items()}
    return {
        n: tuple(x) if isinstance(x, list) and isinstance(defaults[n], tuple) else x
        for n, x in bound.arguments.items()
    }


def operator_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options under the names of the operators' arguments."""
    named = {"lr_decay": "learning_rate_decay"}
    found = {named.get(name, name): value for name, value in options.items()}
    if "betas" in found:
        found["beta1"], found["beta2"] = found.pop("betas")
    return found


def require_kinds(who: str, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise ArgumentError for an option that is no number, or no bool or pair of numbers where its
    default is one.
    """
    for name, value in options.items():
        if isinstance(defaults.get(name), tuple):
            _require_pair(who, name, value)
            continue
        wanted = bool if isinstance(defaults.get(name, False), bool) else Real
        if isinstance(value, bool) == (wanted is bool) and isinstance(value, wanted):
            continue
        hint = None
        if isinstance(value, Model):
            hint = f"the numbers come first: with_{who.lower()}(1e-3)(model)"
        elif callable(value):
            hint = _SCHEDULED
        raise ArgumentError(
            f"{who}'s {name} is no {'bool' if wanted is bool else 'number'}",
            found=type(value).__name__ if callable(value) else repr(value),
            hint=hint,
        )


def _require_pair(who: str, name: str, value: Any) -> None:
    pair = isinstance(value, tuple | list) and len(value) == 2
    if not pair or not all(isinstance(x, Real) and not isinstance(x, bool) for x in value):
        raise ArgumentError(
            f"{who}'s {name} are no pair of numbers", expected="(0.9, 0.999)", found=repr(value)
        )


def require_range(who: str, name: str, value: Any, fits: bool, expected: str) -> None:
    """Raise ArgumentError for an option out of its range."""
    if not fits:
        raise ArgumentError(
            f"{who}'s {name} is out of range", expected=f"{name} {expected}", found=value
        )


def unknown_option(who: str, name: str, known: Iterable[str], expected: str) -> ArgumentError:
    """Return the error for an option that ``who`` has not."""
    hint = ABSENT.get(name) or nearest(name, known)
    return ArgumentError(f"{who} has no option {name!r}", expected=expected, hint=hint)


def _call(who: str, signature: inspect.Signature) -> str:
    """Return how ``who`` is called, without types."""
    plain = [p.replace(annotation=Parameter.empty) for p in signature.parameters.values()]
    return f"{who}{inspect.Signature(plain)}"


# Parameters and groups of parameters: what an optimizer is given, in one form.
#
# A group is a set of parameters with options of its own. It is written as a dict: "params", which
# are arrays, a mapping of names to arrays or, of a model, patterns of names ("*.bias"), and the
# options, under the names of the optimizer's arguments.


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
