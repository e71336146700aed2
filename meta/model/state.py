"""A model's arrays by name, and loading them from those of another source.

Sources differ from a model in three ways, and each has its place here. An array under several names
(tied weights) may be given under any of them. Names that carry nothing are declared by the layer,
in `Model.not_kept`. Another dtype is converted, as torch's ``copy_`` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch

from meta.base.errors import FormatError
from meta.base.registry import close_names
from meta.runtime.ndarray import as_array, ndarray

if TYPE_CHECKING:
    from meta.model.model import Model


class Unmatched(NamedTuple):
    """What a load left out: names of the model that the source lacks, and names that only the
    source has.
    """

    missing: tuple[str, ...]
    unknown: tuple[str, ...]


class Named(NamedTuple):
    """A model's names: ``arrays`` has every name of every array, in the order of the attributes;
    ``not_kept`` are those that a source may have besides.
    """

    arrays: dict[str, ndarray]
    not_kept: frozenset[str]

    def first_names(self) -> dict[int, str]:
        """Return the first name of each array, by the array's id."""
        first: dict[int, str] = {}
        for name, array in self.arrays.items():
            first.setdefault(id(array), name)
        return first


def named(model: Model) -> Named:
    """Return the names of a model: the dotted paths on which its arrays are found."""
    arrays: dict[str, ndarray] = {}
    not_kept: set[str] = set()
    for path, value in model.paths():
        if isinstance(value, ndarray):
            arrays[path] = value
        else:
            not_kept |= {f"{path}.{name}" if path else name for name in value.not_kept}
    return Named(arrays, frozenset(not_kept))


def load(model: Model, state: Mapping[str, object], strict: bool) -> Unmatched:
    """Overwrite a model's arrays in place; see `Model.load_state`."""
    names = named(model)
    first = names.first_names()
    given: dict[str, list[str]] = {}
    for name in state:
        if name in names.arrays:
            given.setdefault(first[id(names.arrays[name])], []).append(name)
    unmatched = Unmatched(
        tuple(n for n in first.values() if n not in given),
        tuple(n for n in state if n not in names.arrays and n not in names.not_kept),
    )
    arrays = {n: as_array(state[n]) for several in given.values() for n in several}
    problems = _shape_problems(names.arrays, arrays) or _differing(names.arrays, arrays, given)
    if problems or (strict and (unmatched.missing or unmatched.unknown)):
        raise _does_not_fit(len(first), unmatched if strict else Unmatched((), ()), problems)
    for name, several in given.items():
        names.arrays[name].update(arrays[several[0]])
    return unmatched


def _shape_problems(own: Mapping[str, ndarray], found: Mapping[str, ndarray]) -> list[str]:
    return [
        f"{name!r} has another shape: {array.shape}, the model's is {own[name].shape}"
        for name, array in found.items()
        if array.shape != own[name].shape
    ]


def _differing(
    own: Mapping[str, ndarray], found: Mapping[str, ndarray], given: Mapping[str, list[str]]
) -> list[str]:
    """Describe the arrays that are given under several names with different values."""
    problems = []
    for name, several in given.items():
        if len(several) > 1:
            target = own[name].torch()
            first, *others = (found[n].torch().to(target) for n in several)
            if not all(torch.equal(_bits(first), _bits(other)) for other in others):
                problems.append(f"{several} are one array here, and differ in the state")
    return problems


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes: NaN equals itself."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


# So many names of a kind are listed; a state of another model would fill screens.
_LISTED = 40


def _does_not_fit(count: int, unmatched: Unmatched, problems: list[str]) -> FormatError:
    missing, unknown = unmatched
    lines = []
    if missing:
        lines.append(f"missing: {_listed([repr(n) for n in missing])}")
    if unknown:
        told = [_with_nearest(n, missing) for n in unknown[:_LISTED]]
        lines.append(f"unknown: {_listed([*told, *unknown[_LISTED:]])}")
    lines += problems
    return FormatError(
        "the state does not fit this model",
        expected=f"its {count} arrays by name",
        found="\n            ".join(lines),
        hint=_advice(missing, unknown),
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _with_nearest(name: str, names: tuple[str, ...]) -> str:
    near = close_names(name, names)
    return f"{name!r} (the model has {' or '.join(map(repr, near))})" if near else repr(name)


def _advice(missing: tuple[str, ...], unknown: tuple[str, ...]) -> str | None:
    """Say what to do where it shows: all names differ by one prefix, or only some fit."""
    if missing and unknown:
        shorter, longer = sorted((missing, unknown), key=lambda names: len(min(names, key=len)))
        short = min(shorter, key=len)
        for name in longer:
            prefix = name.removesuffix(short)
            if prefix != name and _nested({prefix + n for n in shorter}, set(longer)):
                change = "remove" if longer is unknown else "add"
                return f"{change} the prefix {prefix!r}: the names then fit"
    return "pass strict=False to load what fits by name" if missing or unknown else None


def _nested(a: set[str], b: set[str]) -> bool:
    return a <= b or b <= a
