"""Floor 2: what operators are: schema, type, declare.

One file per family; `core` holds what they are made of. ``meta.op.<name>`` is the operator of that
name, ``meta.op.<dialect>`` the namespace of a dialect's operators. Both come from the registry:
nothing is listed here. To add an operator, add a function with `@op` to its family file.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from meta.base.call_context import Default
from meta.base.registry import FUNCTIONS, OPERATORS
from meta.ir.operators import OP_RESOLVERS


class DialectNamespace:
    """The operators of one dialect as attributes: ``meta.op.tvm.softmax``.

    >>> isinstance(meta.op.torch, meta.op.DialectNamespace), meta.op.torch.softmax.name
    (True, 'torch.softmax')
    """

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return OP_RESOLVERS[self._dialect](name)

    def __repr__(self) -> str:
        return f"<operators of dialect {self._dialect}>"


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
OPERATORS.rest = FUNCTIONS.rest = None
OPERATORS.show_in(globals())
FUNCTIONS.show_in(globals())


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    if name not in OP_RESOLVERS and name not in OPERATORS:
        Default.complete()  # it may be a dialect's
    if name in OP_RESOLVERS:
        return DialectNamespace(name)
    return OPERATORS[name]  # raises UnknownName, which is an AttributeError, with the nearest names
