"""What other systems call an operator that computes the same of the same operands.

An operator states it (`@op(names=...)`): its importers register it from there, and the namespace of
the Array API takes it. What has other arguments there has a converter of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meta.base.errors import RegistrationError
from meta.base.registry import OPERATORS

SYSTEMS = ("array_api", "onnx", "relax", "relay")


class Names:
    """The names of an operator in `SYSTEMS`.

    same: systems that call it as we do, with spaces between them; ONNX in its own spelling:
    ``greater_equal`` is ``GreaterEqual``. others: other names, by system.
    """

    def __init__(self, same: str = "", **others: str) -> None:
        self.same, self.others = tuple(same.split()), others
        unknown = [s for s in (*self.same, *others) if s not in SYSTEMS]
        if unknown:
            raise RegistrationError(
                "names= of @op has a system that is not known",
                expected=f"some of {SYSTEMS}",
                found=unknown[0],
            )

    def of(self, name: str) -> Mapping[str, str]:
        """Return the name of the operator ``name`` in each system that has it."""
        spelt = {"onnx": "".join(word.capitalize() for word in name.split("_"))}
        return {system: spelt.get(system, name) for system in self.same} | self.others


NO_NAMES = Names()
EVERYWHERE = Names(" ".join(SYSTEMS))


def named_in(system: str) -> dict[str, Any]:
    """Return the operators that state a name in a system, by it."""
    known = map(OPERATORS.__getitem__, OPERATORS)
    return {op.names[system]: op for op in known if system in op.names}
