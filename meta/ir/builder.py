"""Builds a block binding by binding: the tool of the tracer and of passes that write new code."""

from __future__ import annotations

from collections.abc import Sequence

from meta.base.errors import IRError
from meta.base.source import Span
from meta.ir.expr import Binding, Block, Var
from meta.ir.names import Names
from meta.ir.node import Expr, type_of
from meta.ir.types import Type


class BlockBuilder:
    """Collects bindings in evaluation order.

    Parameters
    ----------
    names: the names already in use; pass the outer builder's ``names`` when building the blocks of
        an `If` or the body of a closure.

    >>> x = meta.ir.Var("x", meta.ir.parse_type("float32[3]"))
    >>> builder = meta.ir.BlockBuilder()
    >>> y = builder.emit(meta.ir.Call(meta.op.exp, (x,)))
    >>> print(meta.ir.Function((x,), builder.finish(y)))
    fn(%x: float32[3]) {
      %0 = exp(%x)
      return %0
    }
    """

    def __init__(self, names: Names | None = None) -> None:
        self.names = names if names is not None else Names()
        self._bindings: list[Binding] = []
        self._finished = False

    def emit(
        self, value: Expr, type: Type | None = None, name: str = "", span: Span | None = None
    ) -> Var:
        """Bind ``value`` to a new variable and return it.

        ``type`` may be left out where it follows from the value (`type_of`). A ``name`` is made
        unique; without one, the printer numbers the variable.
        """
        var = Var(self.names.unique(name) if name else "", type or type_of(value))
        self.append(Binding(var, value, span))
        return var

    def append(self, binding: Binding) -> None:
        """Add a binding as it is, with its own variable: what a pass does not change."""
        if self._finished:
            raise IRError("this block is finished; nothing can be added to it")
        self._bindings.append(binding)

    @property
    def bindings(self) -> Sequence[Binding]:
        """The bindings up to now, in order."""
        return self._bindings

    def finish(self, result: Expr) -> Block:
        """Return the block; nothing can be added afterwards."""
        self._finished = True
        return Block(tuple(self._bindings), result)
