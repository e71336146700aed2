"""The ``state_dict()`` of an optimizer of torch, as the state of ours of the same algorithm."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from math import isclose
from typing import Any

import torch

from meta.base.errors import FormatError

EXECUTION = ("foreach", "fused", "capturable", "differentiable")
"""Options of torch's optimizers that say how a step runs, not what it computes."""


def arrays_of_torch(optimizer: Any, state: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arrays of a state of torch by the names that ``optimizer`` has for them; None for
    a state that is not one of torch's optimizers.

    What is there of no parameter yet is zeros. FormatError for another algorithm, other options and
    other groups, and where parameters have made different numbers of steps.
    """
    if set(state) != {"state", "param_groups"}:
        return None
    groups, theirs = optimizer.param_groups, state["param_groups"]
    names = optimizer.torch_names
    if not names:
        raise _misfit(optimizer, "it has no counterpart in torch with the same state", "its own")
    if len(groups) != len(theirs):
        raise _misfit(optimizer, "it has other groups", len(groups), len(theirs))
    base = [float(theirs[0]["lr"]), groups[0]["lr"]]
    found: dict[str, Any] = {"lr": base[0] / float(optimizer.groups[0].get("rate", 1.0))}
    steps: set[float] = set()
    for number, (group, own, other) in enumerate(
        zip(optimizer.groups, groups, theirs, strict=True)
    ):
        _require_options(optimizer, own, other)
        if not isclose(float(other["lr"]) * base[1], own["lr"] * base[0], rel_tol=1e-5):
            what = f"group {number} has another multiple of the first group's learning rate"
            raise _misfit(optimizer, what, own["lr"] / base[1], float(other["lr"]) / base[0])
        values = [state["state"].get(i, {}) for i in other["params"]]
        if len(values) != len(group["names"]):  # frozen ones made no step, and are not ours
            stepped = [v for v in values if float(v.get("step", bool(v)))]
            values = stepped or values if any(values) else [{}] * len(group["names"])
        if len(values) != len(group["names"]):
            counts = len(group["names"]), len(other["params"])
            raise _misfit(optimizer, f"group {number} has other parameters", *counts)
        for name, value in zip(group["names"], values, strict=True):
            unknown = set(value) - {"step", *names.values()}
            if unknown:
                raise _misfit(optimizer, "there is more of a parameter", names, sorted(unknown))
            steps |= {float(value["step"])} if "step" in value else set()
            for kind, called in names.items():
                kept = getattr(optimizer, kind)
                if name in kept:
                    array = value.get(called)
                    zeros = torch.zeros(kept[name].placement.shape)
                    found[f"{kind}.{name}"] = zeros if array is None else array
    if len(steps) > 1:
        raise _misfit(optimizer, "its parameters have made different numbers of steps", 1, steps)
    for own, other in zip(groups, theirs, strict=True):
        own.update({n: x for n, x in other.items() if n not in own})  # such as "initial_lr"
    return {**found, "step_count": steps.pop()} if steps else found


def _require_options(optimizer: Any, own: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Raise FormatError for options with which torch computes something else."""
    known = inspect.signature(getattr(torch.optim, type(optimizer).__name__)).parameters
    for name, value in theirs.items():
        if name in ("lr", "params", *EXECUTION) or (name not in own and name not in known):
            continue  # what a schedule notes is no option
        expected = own[name] if name in own else optimizer.torch_options.get(name, False)
        if (tuple(value) if isinstance(value, list) else value or False) != expected:
            hint = "an optimizer that is made with this option, if it has it"
            raise _misfit(optimizer, f"it has another {name}", expected, value, hint)


def _misfit(
    optimizer: Any, what: str, expected: object, found: object = None, hint: str | None = None
) -> FormatError:
    return FormatError(
        f"this state of torch's optimizer does not fit {type(optimizer).__name__}: {what}",
        expected=expected,
        found=found,
        hint=hint,
    )
