"""From nodes to values: everything that the root reaches, each node once, children first.

Nothing recurses over the graph: chains of 10^5 nodes are normal. What the kinds of nodes are is
said elsewhere (`nodes.py`, `program.py`), as a `Kind` each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn, TypeVar

import torch

from meta.base.progress import bar
from meta.frontend.relay import ast
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.graph_json.document import (
    OBJECT,
    PROGRESS_DELAY,
    STRING,
    BadField,
    Document,
    decode_base64,
    length_prefixed,
    scalar,
)
from meta.frontend.relay.params import BadRecord, read_record

MAX_EXPANDED, MAX_EXPANDED_PER_NODE = 200_000, 100
"""How many parts types, patterns and attribute values may have when what they share is written out:
each of them, and all in the places where they stand together; so many, and more for each node.
"""

STRING_KEYS = frozenset({"runtime.String", "Str"})
_INDEX = re.compile(r"[0-9]{1,9}")
_DATA = (tuple, dict, ast.Attrs, ast.Opaque)
_UNREAD = object()
_T = TypeVar("_T")


@dataclass(frozen=True)
class Kind:
    """How the nodes of one type key are read.

    Attributes
    ----------
    build: from the resolver, the node's index and its decoded fields, makes the value.
    fields: encodings by name; a field that the node lacks is None. items: whether the node's data
    are references. nests: whether what it holds stands one level deeper. open: whether fields that
    are not listed are worth a warning.
    """

    build: Callable[[Resolver, int, dict[str, Any]], Any]
    fields: Mapping[str, str] = field(default_factory=dict)
    items: bool = False
    nests: bool = False
    open: bool = False

    @cached_property
    def references(self) -> tuple[str, ...]:
        """The fields that refer to a node."""
        return tuple(name for name, encoding in self.fields.items() if encoding is OBJECT)


class Resolver:
    """The state of reading one document."""

    def __init__(self, document: Document, kind_of: Callable[[Resolver, int], Kind]) -> None:
        self.document, self._kind_of = document, kind_of
        count = len(document.nodes)
        self.values: list[Any] = [_UNREAD] * count
        self._depth, self._size = [0] * count, [1] * count
        self._expanded, self._most = 0, MAX_EXPANDED + MAX_EXPANDED_PER_NODE * count
        self._warnings: dict[str, None] = {}
        self.constructor_fields: dict[ast.Constructor, tuple[ast.Type, ...]] = {}
        self._arrays: dict[int, torch.Tensor | None] = {}
        self._type_names: dict[str, int] = {}

    @property
    def warnings(self) -> list[str]:
        """What was read otherwise than TVM would."""
        return list(self._warnings)

    # What builders use.

    def fail(self, index: int, what: str, hint: str | None = None) -> NoReturn:
        """Raise a RelayError about a node."""
        key = self.document.nodes[index].type_key
        raise RelayError(f"{key}: {what}" if key else what, place=self.place(index), hint=hint)

    def place(self, index: int) -> ast.Location:
        """Return where a node stands."""
        return ast.Location(self.document.source, node=index)

    def warn(self, sentence: str) -> None:
        """Note what is read otherwise than TVM would, once."""
        self._warnings[sentence] = None

    def expect(
        self, index: int, value: Any, kinds: type[_T], what: str, absent: _T | None = None
    ) -> _T:
        """Return a value that has to be of a class; ``absent`` is what null stands for."""
        value = absent if value is None else value
        if not isinstance(value, kinds):
            found = "nothing" if value is None else f"a {type(value).__name__}"
            self.fail(index, f"{what} is {found}")
        return value

    def each(self, index: int, value: Any, kinds: type[_T], what: str) -> tuple[_T, ...]:
        """Return an array whose items all have to be of a class; null is an empty one."""
        items = self.expect(index, value, tuple, f"the list of {what}s", ())
        for item in items:
            self.expect(index, item, kinds, f"a {what}")
        return items

    def text(self, index: int) -> str:
        """Return the text of a node that is given by it."""
        node = self.document.nodes[index]
        if node.text is None:
            return ""
        try:
            data = length_prefixed(node.text, "a text") if node.encoded else None
            return node.text if data is None else data.decode()
        except BadField as error:
            self.fail(index, str(error))
        except UnicodeDecodeError:
            self.fail(index, "a text that is not valid UTF-8")

    def string(self, text: str) -> str:
        """Read a string, which some versions write in place and others as a node."""
        nodes = self.document.nodes
        index = int(text) if _INDEX.fullmatch(text) else len(nodes)
        is_node = index < len(nodes) and nodes[index].type_key in STRING_KEYS
        return self.text(index) if is_node else text

    def array(self, index: int, number: int) -> torch.Tensor | None:
        """Return an encoded array by its number; None if the file has lost its bytes."""
        if number not in self._arrays:
            arrays = self.document.arrays
            if not 0 <= number < len(arrays):
                self.fail(index, f"it refers to array {number} of {len(arrays)}")
            self._arrays[number] = self.decode_array(index, arrays[number])
        return self._arrays[number]

    def decode_array(self, index: int, text: str) -> torch.Tensor | None:
        """Return the array that a base64 text holds."""
        try:
            data = decode_base64(text, "an array")
            tensor, end = read_record(memoryview(data), lost_bool=True)
        except (BadField, BadRecord) as error:
            self.fail(index, f"its array cannot be read: {error}")
        if end != len(data):
            self.fail(index, f"its array has {len(data) - end} bytes too many")
        return tensor

    def constant(self, index: int, tensor: torch.Tensor | None) -> ast.Constant:
        """Return the constant of an array that was read."""
        if tensor is not None:
            return ast.Constant(tensor)
        self.warn("TVM 0.6 did not write the bytes of bool constants: their values are unknown")
        return ast.Constant(None, missing=f"the bool constant of node {index}, written by TVM 0.6")

    def type_variable_name(self, name: str) -> str:
        """Return a name that no other type variable of the program has."""
        unique = name
        while unique in self._type_names:
            self._type_names[name] += 1
            unique = f"{name}{self._type_names[name]}"
        self._type_names[unique] = 0
        return unique

    # Resolution.

    def resolve(self, root: int) -> Any:
        """Return what a node is; RelayError, with the node, for one that cannot be read."""
        if root == 0:
            return None
        with bar(len(self.values), f"resolving {self.document.source}", PROGRESS_DELAY) as progress:
            for count in self._run(root):
                if count % 4096 == 0:
                    progress.update(4096)
        return self.values[root]

    def _run(self, root: int) -> Iterator[int]:
        values = self.values
        values[0] = None
        stack, built = [root], 0
        path: dict[int, tuple[Kind, list[int]]] = {}
        while stack:
            index = stack[-1]
            if values[index] is not _UNREAD:
                stack.pop()
                continue
            if index in path:
                stack.pop()
                self._build(index, *path.pop(index))
                built += 1
                yield built
                continue
            kind = self._kind_of(self, index)
            children = self._children(index, kind)
            path[index] = kind, children
            for child in reversed(children):  # the first one is read first
                if child in path:
                    self.fail(index, f"it contains itself, by way of node {child}")
                if values[child] is _UNREAD:
                    stack.append(child)

    def _children(self, index: int, kind: Kind) -> list[int]:
        node = self.document.nodes[index]
        attrs = node.attrs
        found = [self._reference(index, attrs[n], n) for n in kind.references if n in attrs]
        if kind.items:
            for item in node.data:
                if not 0 <= item < len(self.values):
                    self.fail(index, f"it refers to node {item} of {len(self.values)}")
            found += node.data
        return found

    def _reference(self, index: int, text: str, name: str) -> int:
        if not _INDEX.fullmatch(text):
            self.fail(index, f"the field {name!r} is {text[:40]!r} where a node's index belongs")
        if int(text) >= len(self.values):
            self.fail(index, f"the field {name!r} refers to node {text} of {len(self.values)}")
        return int(text)

    def _build(self, index: int, kind: Kind, children: list[int]) -> None:
        node = self.document.nodes[index]
        attrs, values = node.attrs, self.values
        decoded: dict[str, Any] = {}
        for name, encoding in kind.fields.items():
            text = attrs.get(name)
            if text is None:
                decoded[name] = None
            elif encoding is OBJECT:
                decoded[name] = values[int(text)]
            else:
                decoded[name] = self._decode(index, name, encoding, text)
        for name in attrs if kind.open else ():
            if name not in kind.fields:
                what = f"{node.type_key} has a field {name[:60]!r} that is not known: left out"
                self.warn(what)
        try:
            value = self.values[index] = kind.build(self, index, decoded)
        except BadField as error:
            self.fail(index, str(error))
        self._measure(index, kind, children, value)

    def _decode(self, index: int, name: str, encoding: str, text: str) -> Any:
        if encoding is STRING:
            return self.string(text)
        try:
            return scalar(encoding, text)
        except BadField as error:
            self.fail(index, f"the field {name!r} cannot be read: {error}")

    def _measure(self, index: int, kind: Kind, children: list[int], value: Any) -> None:
        """Bound how deep things nest, and how large data grow that share their parts.

        Calls, tuples and the bodies of lets are chains, which may be of any length.
        """
        values, depths = self.values, self._depth
        is_data = isinstance(value, _DATA)
        body = self.document.nodes[index].attrs.get("body")
        depth = 0
        for child in children:
            item, inner = values[child], depths[child]
            is_inner_let = type(item) is ast.Let and str(child) != body
            if is_inner_let or (is_data and isinstance(item, _DATA)):
                inner += 1
            if inner > depth:
                depth = inner
        if depth > ast.MAX_NESTING:
            self.fail(index, f"nested more than {ast.MAX_NESTING} levels deep")
        depths[index] = depth + kind.nests
        size = 1 + sum(map(self._size.__getitem__, children))
        if is_data or isinstance(value, ast.Type | ast.Pattern):
            self._size[index] = size
        else:
            self._expanded += size
        if max(size, self._expanded) > self._most:
            self.fail(index, f"written out it would have more than {self._most} parts")
