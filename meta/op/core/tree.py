"""Nested Python containers of arrays: what a model takes and returns, taken apart and put together
again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from meta.ir.types import TensorType
from meta.op.core.tracing import Value
from meta.runtime.ndarray import ndarray

_COMPARED_BY_VALUE = (bool, int, str, np.generic, torch.dtype, torch.device)
LEAF = object()
"""Stands for an array in a structure."""


class IdentityKey:
    """Stands for an object in a key: equal to itself only, it keeps the object and its id."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@dataclass(frozen=True)
class ContainerKind:
    """How objects of a class are taken apart and put together.

    opened: returns an object's parts by name, and what it is besides, of plain Python values.
    built: makes an object of both.
    """

    opened: Callable[[Any], tuple[dict[str, Any], Any]]
    built: Callable[[dict[str, Any], Any], Any]


CONTAINER_KINDS: dict[type, ContainerKind] = {}
"""Classes whose objects are containers, as `register_container` was told."""


def register_container(kind: type, opened: Callable[[Any], Any], built: Callable[..., Any]) -> None:
    """Let objects of a class, if they hold arrays, be containers: see `ContainerKind`."""
    CONTAINER_KINDS.setdefault(kind, ContainerKind(opened, built))


@dataclass(frozen=True, eq=False)
class ObjectStructure:
    """Stands for an object of a class in ``KINDS``: the structures of its parts, and the rest."""

    kind: type
    parts: dict[str, Any]
    rest: Any

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={part!r}" for name, part in self.parts.items())
        return f"{self.kind.__name__}({inner})"


def is_array(value: object) -> bool:
    """Whether a value is tensor-like or traced, as opposed to a container or a Python constant.

    A `TensorType` stands for an array where a program is traced or compiled.
    """
    return isinstance(value, ndarray | Value | torch.Tensor | np.ndarray | TensorType)


def flatten(tree: Any, is_leaf: Callable[[object], bool] = is_array) -> tuple[list[Any], Any]:
    """Return the leaves in order and the structure: the same containers with `LEAF` in place of
    each leaf.

    Tuples (named ones too), lists, dicts and objects of adopted classes that hold leaves are
    containers; everything else that is no leaf is part of the structure.
    """
    if is_leaf(tree):
        return [tree], LEAF
    if type(tree) in CONTAINER_KINDS:
        inside, rest = CONTAINER_KINDS[type(tree)].opened(tree)
        leaves, parts = flatten(inside, is_leaf)
        return leaves, ObjectStructure(type(tree), parts, rest) if leaves else tree
    if isinstance(tree, dict):
        parts = [flatten(v, is_leaf) for v in tree.values()]
        return _leaves(parts), dict(zip(tree, (s for _, s in parts), strict=True))
    if isinstance(tree, tuple | list):
        parts = [flatten(v, is_leaf) for v in tree]
        return _leaves(parts), _same_container(tree, [s for _, s in parts])
    return [], tree


def reorder_like(tree: Any, structure: Any) -> Any:
    """Return a tree whose dicts have the order of keys of those in ``structure``."""
    if isinstance(tree, dict) and isinstance(structure, dict) and tree.keys() == structure.keys():
        return {k: reorder_like(tree[k], inner) for k, inner in structure.items()}
    same = type(tree) is type(structure) and isinstance(tree, tuple | list)
    if same and len(tree) == len(structure):
        return _same_container(tree, list(map(reorder_like, tree, structure)))
    return tree


def unflatten(structure: Any, leaves: list[Any]) -> Any:
    """Put leaves back in place of `LEAF`."""
    return _fill(structure, iter(leaves))


class _Label(str):
    """A text that Python writes without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def text(structure: Any, label: Callable[[int], str] = lambda _: "array") -> str:
    """Write a structure as Python does, ``label(i)`` standing for leaf ``i``:
    ``(float32[2], {'a': int64[]})``.
    """
    count = len(leaf_names(structure))
    return repr(_fill(structure, iter([_Label(label(i)) for i in range(count)]), shown=True))


def leaf_names(structure: Any, prefix: str = "") -> list[str]:
    """Return a readable name per leaf: ``prefix``, with the path to the leaf."""
    if structure is LEAF:
        return [prefix]
    if isinstance(structure, ObjectStructure):
        return leaf_names(structure.parts, prefix)
    if isinstance(structure, dict):
        items = structure.items()
    elif isinstance(structure, tuple | list):
        items = enumerate(structure)  # type: ignore[assignment]
    else:
        return []
    return [n for k, v in items for n in leaf_names(v, f"{prefix}.{k}" if prefix else str(k))]


def _fill(structure: Any, leaves: Any, shown: bool = False) -> Any:
    """Return the tree; to be shown, objects are their `ObjectStructure`."""
    if structure is LEAF:
        return next(leaves)
    if isinstance(structure, ObjectStructure):
        parts = _fill(structure.parts, leaves, shown)
        if shown:
            return ObjectStructure(structure.kind, parts, structure.rest)
        return CONTAINER_KINDS[structure.kind].built(parts, structure.rest)
    if isinstance(structure, dict):
        return {k: _fill(v, leaves, shown) for k, v in structure.items()}
    if isinstance(structure, tuple | list):
        return _same_container(structure, [_fill(v, leaves, shown) for v in structure])
    return structure


def _leaves(parts: list[tuple[list[Any], Any]]) -> list[Any]:
    return [leaf for leaves, _ in parts for leaf in leaves]


def _same_container(container: Any, items: list[Any]) -> Any:
    if isinstance(container, list):
        return items
    return type(container)(*items) if hasattr(container, "_fields") else tuple(items)


def fingerprint(structure: Any) -> Any:
    """Return a hashable key of a structure: Python values by type and value, others by identity."""
    if structure is LEAF:
        return "*"
    if isinstance(structure, ObjectStructure):
        return (structure.kind, fingerprint(structure.parts), fingerprint(structure.rest))
    if isinstance(structure, dict):
        return ("dict", *((k, fingerprint(v)) for k, v in structure.items()))
    if isinstance(structure, tuple | list):
        return (type(structure), *map(fingerprint, structure))
    if isinstance(structure, slice):
        return (slice, *map(fingerprint, (structure.start, structure.stop, structure.step)))
    if isinstance(structure, float):
        return structure.hex()
    if structure is None or isinstance(structure, _COMPARED_BY_VALUE):
        return (type(structure), structure)
    return IdentityKey(structure)
