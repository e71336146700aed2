"""Objects that hold tensors: what a module takes and returns besides tuples, lists and dicts.

A dataclass, an output class or a cache of a library is a container here, once
`register_containers` has met one: its attributes are its parts, or what torch's pytree says of its
class. An imported model is given such objects with arrays in them, and returns them. torch.export
is given their tensors alone.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from meta.op.core import tree

_PLAIN = (tuple, list, dict, OrderedDict)
_SYMBOL = torch.SymInt | torch.SymFloat | torch.SymBool


def register_containers(value: Any, above: tuple[int, ...] = ()) -> bool:
    """Let the objects in a value that hold tensors be containers; return whether any does."""
    if tree.is_array(value):
        return True
    if id(value) in above or isinstance(value, torch.nn.Module | type | _SYMBOL):
        return False
    found = [register_containers(part, (*above, id(value))) for part in _children(value)]
    if any(found) and _is_object(value):
        register_class(type(value))
    return any(found)


def register_class(kind: type) -> None:
    """Let the objects of a class be containers."""
    registered = kind in pytree.SUPPORTED_NODES
    tree.register_container(kind, *(_by_pytree if registered else _by_attributes)(kind))


def register_classes(spec: pytree.TreeSpec) -> None:
    """Let the objects of the classes that torch's pytree has met be containers."""
    if spec.type is not None and spec.type not in (*_PLAIN, namedtuple):
        register_class(spec.type)
    for inner in spec.children():
        register_classes(inner)


def _is_object(value: Any) -> bool:
    if type(value) in pytree.SUPPORTED_NODES:
        return type(value) not in _PLAIN
    return not isinstance(value, tuple | list | dict)


def _children(value: Any) -> list[Any]:
    """Return what a container or an object holds."""
    if type(value) in pytree.SUPPORTED_NODES:
        return list(pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)[0])
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    return list(_attributes(value).values())


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an instance of a Python class."""
    if dataclasses.is_dataclass(value):
        fields = [f.name for f in dataclasses.fields(value)]
        return {**{n: getattr(value, n) for n in fields}, **getattr(value, "__dict__", {})}
    return dict(getattr(value, "__dict__", {}))


def _by_attributes(kind: type) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return (lambda value: (_attributes(value), None)), partial(_with_attributes, kind)


def _with_attributes(kind: Any, parts: dict[str, Any], _: Any) -> Any:
    made = kind.__new__(kind)
    for name, part in parts.items():
        object.__setattr__(made, name, part)
    return made


def _by_pytree(kind: type) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return how torch takes objects of a class apart, and puts them together."""
    node = pytree.SUPPORTED_NODES[kind]

    def opened(value: Any) -> tuple[dict[str, Any], Any]:
        parts, context = node.flatten_fn(value)
        names = list(value) if isinstance(value, dict) else range(len(parts))
        return dict(zip(map(str, names), parts, strict=True)), context

    return opened, lambda parts, context: node.unflatten_fn(list(parts.values()), context)


def is_leaf(value: object) -> bool:
    """Whether a value is an input or a result of a program of torch: a tensor or a number."""
    return tree.is_array(value) or isinstance(value, bool | int | float | _SYMBOL)


def _is_foreign(value: object) -> bool:
    return type(value) in tree.CONTAINER_KINDS and type(value) not in pytree.SUPPORTED_NODES


def flatten(value: Any) -> tuple[Any, list[Any]]:
    """Return a value as torch.export and its programs take it, with a list of its leaves for each
    object of a class that torch does not know; and the structures of these objects.
    """
    structures = []

    def leaves(part: Any) -> Any:
        if not _is_foreign(part):
            return part
        found, structure = tree.flatten(part, is_leaf)
        structures.append(structure)
        return found

    return pytree.tree_map(leaves, value, is_leaf=_is_foreign), structures
