"""Operators and a dialect as an author outside of the package registers them, for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from meta.base.registry import OPERATORS
from meta.dialect import Dialect
from meta.dialect.core import DIALECTS
from meta.dialect.core.preference import forget
from meta.ir import OP_RESOLVERS
from meta.op.core import Op, op


def remove_dialects(*dialects: Dialect) -> None:
    """Remove dialects and their kernels."""
    for dialect in dialects:
        DIALECTS.remove(dialect.name)
        del OP_RESOLVERS[dialect.name]
        for one in dialect.ops.values():
            one.base.aspects.dialect_ops.remove(one)
    forget()


class Author:
    """Who registers: ``dialect`` has the kernels."""

    def __init__(self) -> None:
        self.dialect = Dialect("author", devices=("cpu",))
        self.ops: list[Op] = []

    def op(self, function: Callable[..., Any], **options: Any) -> Op:
        """Define an operator by its type function."""
        name = f"authored{len(self.ops)}"
        self.ops.append(op(name=name, **options)(function))
        return self.ops[-1]

    def kernel(self, function: Callable[..., Any], run: Callable[..., Any], **options: Any) -> Op:
        """Define an operator with a kernel."""
        made = self.op(function)
        self.dialect.kernel(made, **options)(run)
        return made


@contextmanager
def author() -> Iterator[Author]:
    """Give an author, whose dialect and operators are forgotten after the block."""
    made = Author()
    try:
        yield made
    finally:
        remove_dialects(made.dialect)
        for one in made.ops:
            OPERATORS.remove(one.name)
            for kernel in one.aspects.dialect_ops:
                kernel.dialect.ops.pop(one.name)
