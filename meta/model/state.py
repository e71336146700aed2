"""A model's arrays by name, and loading them from those of another source.

Sources differ from a model in four ways, and each has its place here. An array under several names
(tied weights) may be given under any of them. Names that carry nothing are declared by the layer,
in `Model.not_kept`; names that other libraries, or older versions, use in `Model.renamed`. Another
dtype of the same kind (float, int) is converted, as torch's ``copy_`` does.

Masters (`meta/runtime/master_weights.py`) are written, too, as the weights that are loaded may have
more digits than a half precision parameter. Of an array of which a rank has a part (`Placement`),
the whole may be given as well as the part.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from meta.base.dtype import is_float
from meta.base.errors import FormatError
from meta.base.registry import close_names
from meta.model.init import draw_deferred
from meta.runtime.array_key import array_key, key_of
from meta.runtime.buffer_replacement import replace_buffer
from meta.runtime.deferred_values import deferred, give
from meta.runtime.master_weights import masters_of
from meta.runtime.ndarray import as_array, ndarray
from meta.runtime.placement import Placement, shard_of
from meta.vm.eager.kernel_contracts import same_bits

if TYPE_CHECKING:
    from meta.model.model import Model


Replacement = str | Callable[[re.Match[str]], str]


class Unmatched(NamedTuple):
    """What a load left out: names of the model that the source lacks, and names that only the
    source has.
    """

    missing: tuple[str, ...]
    unknown: tuple[str, ...]


class ArrayNames(NamedTuple):
    """A model's names: ``arrays`` has every name of every array, in the order of the attributes;
    ``not_kept`` are those that a source may have besides; ``renamed`` the rules for names of a
    source that begin with a path.
    """

    arrays: dict[str, ndarray]
    not_kept: frozenset[str]
    renamed: tuple[tuple[str, str, Replacement], ...]

    def own(self, name: str) -> str:
        """Return the model's name for a name of a source."""
        for path, pattern, replacement in self.renamed:
            if name.startswith(path):
                name = path + re.sub(pattern, replacement, name[len(path) :])
        return name

    def first_names(self) -> dict[int, str]:
        """Return the first name of each array, by the array's id."""
        first: dict[int, str] = {}
        for name, array in self.arrays.items():
            first.setdefault(id(array), name)
        return first


def array_names(model: Model) -> ArrayNames:
    """Return the names of a model: the dotted paths on which its arrays are found."""
    arrays: dict[str, ndarray] = {}
    not_kept: set[str] = set()
    renamed: list[tuple[str, str, Replacement]] = []
    for path, value in model.paths():
        if isinstance(value, ndarray):
            arrays[path] = value
        else:
            inside = f"{path}." if path else ""
            not_kept |= {inside + name for name in value.not_kept}
            renamed += [(inside, *rule) for rule in value.renamed]
    return ArrayNames(arrays, frozenset(not_kept), tuple(renamed))


def load(
    model: Model, state: Mapping[str, object], strict: bool, assign: bool = False
) -> Unmatched:
    """Overwrite a model's arrays in place; see `Model.load_state_dict`."""
    names = array_names(model)
    first = names.first_names()
    given: dict[str, dict[str, ndarray]] = {}  # what the state has for each array, by its names
    typed: set[str] = set()
    unknown = []
    for name, value in state.items():
        own = names.own(name)
        if own in names.arrays:
            given.setdefault(first[id(names.arrays[own])], {})[name] = as_array(value)
            if hasattr(value, "dtype"):  # Python's numbers take the dtype of the array
                typed.add(name)
        elif own not in names.not_kept:
            unknown.append(name)
    unmatched = Unmatched(tuple(n for n in first.values() if n not in given), tuple(unknown))
    problems = _problems(names.arrays, given, typed)
    nothing = bool(state) and not given and bool(first)
    if problems or ((strict or nothing) and (unmatched.missing or unmatched.unknown)):
        told = unmatched if strict or nothing else Unmatched((), ())
        raise _does_not_fit(len(first), told, problems)
    values = {id(names.arrays[n]): next(iter(several.values())) for n, several in given.items()}
    for array in (names.arrays[n] for n in given):
        for written in (array, *(m for m in masters_of(array) if id(m) not in values)):
            new = _shard_to_write(values[id(array)], array, written)
            if not (assign and _shared(written, new)):
                written.update(new)
    draw_deferred(names.arrays.values())
    return unmatched


def _shared(array: ndarray, value: ndarray | torch.Tensor) -> bool:
    """Let an array be in the memory of a value, if that is compact and of its dtype and device;
    return whether it is.
    """
    tensor = as_array(value).tensor
    later = deferred(array)
    place = array.device if later is None else later.device
    key = array_key(array.shape, array.dtype, place)
    if key_of(tensor) is not key or array.tensor.stride() != tensor.stride():
        return False
    if later is None:
        replace_buffer(array, tensor.detach())
    else:
        give(array, tensor.detach())
    return True


def _shard_to_write(value: ndarray, array: ndarray, written: ndarray) -> ndarray | torch.Tensor:
    """Return what is written to an array, or to its master, of a value that was given for it."""
    placement = array.placement
    if value.shape == placement.shape:  # the whole is given to each rank
        placement = Placement(placement.shape)
    if placement == written.placement:
        return value
    return shard_of(value.tensor.detach(), placement, written.placement)


def _problems(
    own: Mapping[str, ndarray], given: Mapping[str, Mapping[str, ndarray]], typed: Collection[str]
) -> list[str]:
    """Describe values of another shape or (if ``typed``) kind, and several values for one array."""
    problems = []
    for name, several in given.items():
        shape = own[name].shape
        fitting = shape, own[name].placement.shape
        other = {n: a for n, a in several.items() if a.shape not in fitting}
        for n, array in other.items():
            problems.append(f"{n!r} has another shape: {array.shape}, the model's is {shape}")
        for n, array in several.items():
            if n in typed and _kind(array.dtype) != _kind(own[name].dtype):
                problems.append(
                    f"{n!r} has another kind of numbers: {array.dtype}, the model's are "
                    f"{own[name].dtype}"
                )
        if not other and _values_differ(own[name], list(several.values())):
            problems.append(f"{list(several)} are one array here, and differ in the state")
    return problems


def _values_differ(own: ndarray, values: list[ndarray]) -> bool:
    """Whether several values for one array differ, in its dtype."""
    if len(values) == 1:
        return False
    first, *others = (v.tensor.to(own.tensor.dtype) for v in values)
    return not all(same_bits(first, other) for other in others)


def _kind(dtype: str) -> str:
    return "float" if is_float(dtype) else "bool" if dtype == "bool" else "int"


# So many names of a kind are listed; a state of another model would fill screens.
_MAX_NAMES = 40


def _does_not_fit(count: int, unmatched: Unmatched, problems: list[str]) -> FormatError:
    missing, unknown = unmatched
    lines = []
    if missing:
        lines.append(f"missing: {join_names([repr(n) for n in missing])}")
    if unknown:
        told = [_with_nearest(n, missing) for n in unknown[:_MAX_NAMES]]
        lines.append(f"unknown: {join_names([*told, *unknown[_MAX_NAMES:]])}")
    lines += problems
    return FormatError(
        "the state does not fit this model",
        expected=f"its {count} arrays by name",
        found="\n            ".join(lines),
        hint=_hint(missing, unknown),
    )


def join_names(names: Sequence[str]) -> str:
    """Return names as text; of very many the first ones."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _with_nearest(name: str, names: tuple[str, ...]) -> str:
    near = close_names(name, names)
    return f"{name!r} (the model has {' or '.join(map(repr, near))})" if near else repr(name)


def _hint(missing: tuple[str, ...], unknown: tuple[str, ...]) -> str | None:
    """Say what to do where it shows: most names differ by one prefix, or only some fit."""
    if not missing and not unknown:
        return None
    for change, shorter, longer in (("remove", missing, unknown), ("add", unknown, missing)):
        pairs = ((name, short) for name in longer for short in shorter)
        found = Counter(n.removesuffix(short) for n, short in pairs if n.endswith(f".{short}"))
        prefix, fit = max(found.items(), key=lambda item: item[1], default=("", 0))
        if 2 * fit > min(len(missing), len(unknown)):
            rest = "" if fit == min(len(missing), len(unknown)) else f" {fit} of"
            return f"{change} the prefix {prefix!r}:{rest} the names then fit"
    return "pass strict=False to load what fits by name"
