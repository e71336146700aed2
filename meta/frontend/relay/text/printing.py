"""What the writers of a module's functions share: metadata, numbers, the names of the module."""

from __future__ import annotations

from meta.frontend.relay import ast
from meta.frontend.relay.text.graph_writer import cannot_write
from meta.frontend.relay.text.metadata_writer import MetadataWriter
from meta.frontend.relay.text.print_types import TypeWriter
from meta.frontend.relay.text.quoting import bare_name


class Shared:
    """State of writing one module.

    Attributes
    ----------
    metadata: collects the metadata section. types: writes types. reserved: names of free variables.
    """

    def __init__(self, module: ast.Module) -> None:
        self.metadata = MetadataWriter()
        self.types = TypeWriter(self.metadata)
        self.reserved: set[str] = set()
        self._arity = {
            c.name: (t.name, len(c.fields)) for t in module.types.values() for c in t.constructors
        }
        self._numbers = 0

    def next_number(self) -> int:
        """Return the next number of a graph binding; they are unique in the text."""
        self._numbers += 1
        return self._numbers - 1

    def operator(self, name: str) -> str:
        """Return an operator's name. Raises RelayError if it would be read as a constructor."""
        if name in self._arity:
            raise cannot_write(name, "operators and constructors with different names")
        return bare_name(name)

    def constructor(self, constructor: ast.Constructor) -> str:
        """Return a constructor's name. Raises RelayError if the module does not define it."""
        known = self._arity.get(constructor.name)
        if known is None or known[0] != constructor.data_type:
            raise cannot_write(constructor.name, "constructors that the module defines")
        return bare_name(constructor.name)

    def is_nullary(self, constructor: ast.Constructor) -> bool:
        """Tell whether a constructor has no fields: its name is its value then."""
        return self._arity[constructor.name][1] == 0
