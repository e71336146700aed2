"""The registry of Relay's converters; the families in `converters/` fill it.

To convert a further operator, write a function in the family file of `converters/` that fits (see
`meta.frontend.core.converter`).
"""

from __future__ import annotations

from typing import Any

from meta.frontend.core import Converters
from meta.frontend.relay.operator_table import operators


def _attributes(name: str) -> dict[str, Any] | None:
    facts = operators().get(name)
    return None if facts is None else {n: f.default for n, f in facts.fields.items()}


relay = Converters("relay", _attributes)
