"""The options of an algorithm: from one table, `Optimizer.defaults`, come the parameters of its
constructor and of its ``with_<name>``, and what is said of an option that there is not.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from meta.base.errors import ArgumentError
from meta.base.registry import nearest
from meta.model.model import Model

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
