"""Equality and hash by content: what two programs mean, not which objects they are.

Bound variables may have any names, spans are ignored, constants compare by their bytes and literals
with their type (1 is not 1.0 is not True, nan is nan, 0.0 is not -0.0). Free variables are equal if
they are the same object.

Both walk a program once into a flat list of words, in which variables are numbered in the order of
their binding; programs are equal exactly if their words are.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from itertools import zip_longest
from typing import Any

import torch

from meta.ir.constants import tensor_bytes
from meta.ir.expr import (
    Binding,
    Block,
    Constant,
    Function,
    GlobalVar,
    Module,
    OpNode,
    Tuple,
    TypeDefinition,
    Var,
)
from meta.ir.literals import literal_text
from meta.ir.names import quote
from meta.ir.node import Expr, Node
from meta.ir.printer import atom_text, first_line, global_text


def structural_equal(a: Node, b: Node) -> bool:
    """Tell whether two modules, functions, blocks or expressions are the same but for names.

    >>> one = meta.ir.parse_function("fn(%x: float32[3]) { %y = exp(%x) return %y }")
    >>> other = meta.ir.parse_function("fn(%a: float32[3]) { %b = exp(%a) return %b }")
    >>> meta.ir.structural_equal(one, other)
    True
    """
    digests: dict[int, str] = {}
    return a is b or Words(a, digests).words == Words(b, digests).words


def structural_hash(node: Node) -> int:
    """Return a 64-bit hash that equal nodes share.

    It is the same in every process, unless the node has free variables, which hash by identity.

    >>> one = meta.ir.parse_function("fn(%x: float32[3]) { %y = exp(%x) return %y }")
    >>> other = meta.ir.parse_function("fn(%a: float32[3]) { %b = exp(%a) return %b }")
    >>> meta.ir.structural_hash(one) == meta.ir.structural_hash(other)
    True
    """
    joined = "\n".join(Words(node, {}).words).encode()
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "little")


def first_difference(a: Node, b: Node) -> str | None:
    """Return where two nodes differ first, as a message for a test; None if they are equal.

    >>> one = meta.ir.parse_function("fn(%x: float32[3]) { %y = exp(%x) return %y }")
    >>> other = meta.ir.parse_function("fn(%x: float32[3]) { %y = log(%x) return %y }")
    >>> print(meta.ir.first_difference(one, other).splitlines()[-1])
      operator "exp"  is not  operator "log"
    """
    digests: dict[int, str] = {}
    one, two = Words(a, digests), Words(b, digests)
    for i, (x, y) in enumerate(zip_longest(one.words, two.words, fillvalue="nothing more")):
        if x != y:
            return f"{one.place(i)}\n{two.place(i)}\n  {x}  is not  {y}"
    return None


class Words:
    """The words of one node, and at which word each binding and result begins.

    The fields of node kinds (`fields.py`) add their own.
    """

    def __init__(self, node: Node, digests: dict[int, str]) -> None:
        self.words: list[str] = []
        self._digests = digests
        self._numbers: dict[Var, str] = {}
        self._starts: list[int] = []
        self._places: list[tuple[str, Function | Block, Binding | Expr | None]] = []
        self._owner: tuple[str, Function | Block] | None = None
        # What the words before the first mark are about.
        self._unmarked = "the signature"
        match node:
            case Module():
                self._unmarked = "the data types"
                for definition in sorted(node.types.values(), key=lambda d: d.name):
                    self._definition(definition)
                for name, function in sorted(node.functions.items()):
                    self._owner = (global_text(name), function)
                    self._mark(None)
                    self.words.append(f"func {quote(name)}")
                    self._value(function)
            case Block():
                self._owner = ("the block", node)
                self.block(node)
            case Binding():
                self._owner = ("the binding", Block((node,), node.var))
                self.block(self._owner[1])
            case Function():
                self._owner = ("the function", node)
                self._value(node)
            case Expr():
                self._unmarked = "the expression"
                self._value(node)

    def _definition(self, definition: TypeDefinition) -> None:
        # In their order: a constructor's place may be its tag.
        self.words.append(f"type {quote(definition.name)} {len(definition.constructors)}")
        for constructor in definition.constructors:
            fields = ", ".join(map(str, constructor.fields))
            self.words.append(f"constructor {quote(constructor.name)}({fields})")

    def place(self, index: int) -> str:
        """Return the function and the printed binding to which a word belongs."""
        at = bisect_right(self._starts, index) - 1
        if at < 0:
            return f"  {self._unmarked}"
        owner, root, part = self._places[at]
        match part:
            case None:
                shown = "its signature"
            case Binding():
                shown = first_line(root, part)
            case _:
                shown = f"the result {atom_text(root, part)}"
        return f"  in {owner}: {shown}"

    def _mark(self, part: Binding | Expr | None) -> None:
        if self._owner is not None:
            self._starts.append(len(self.words))
            self._places.append((*self._owner, part))

    def add(self, word: str) -> None:
        """Add one word."""
        self.words.append(word)

    def bind(self, var: Var) -> None:
        """Number a variable; add its type."""
        self._numbers[var] = f"%{len(self._numbers)}"
        self.words.append(str(var.type))

    def block(self, block: Block) -> None:
        """Add a block."""
        self.words.append("{")
        for binding in block.bindings:
            self._mark(binding)
            self._value(binding.value)
            self.bind(binding.var)
        self._mark(block.result)
        self.words.append("result")
        self.words.append(self.atom(block.result))
        self.words.append("}")

    def _value(self, value: Expr) -> None:
        if value.spec.is_atom:
            self.words.append(self.atom(value))
            return
        self.words.append(type(value).__name__)
        for name, field in value.spec.fields:
            field.words(getattr(value, name), self)

    def atom(self, atom: Any) -> str:
        """Return the word for an atom or a literal."""
        match atom:
            case Var():
                return self._numbers.get(atom) or f"free variable {id(atom)}"
            case Constant():
                return f"const {atom.type} {self._digest(atom.data)}"
            case GlobalVar():
                return f"@{quote(atom.name)}"
            case OpNode():
                return f"operator {quote(atom.name)}"
            case Tuple():
                return f"tuple({', '.join(map(self.atom, atom.fields))})"
            case Expr():
                raise TypeError(f"an atom is needed here, not a {type(atom).__name__}")
            case _:
                return literal_text(atom)

    def _digest(self, data: torch.Tensor) -> str:
        """Return a tensor's content in 256 bits, computed once per tensor and comparison."""
        if id(data) not in self._digests:
            self._digests[id(data)] = hashlib.blake2b(
                tensor_bytes(data), digest_size=32
            ).hexdigest()
        return self._digests[id(data)]
