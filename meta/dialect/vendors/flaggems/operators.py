"""Operators of FlagGems that vendors' files call: ``from flag_gems.ops.max import max_dim``.

They are ATen's of the same name, which on the vendor's device are whatever is registered there. The
name is that of one of `meta.dialect.torch.aten_calls`, of an operator of ATen, or of an operator
and one of its overloads (``max_dim``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from meta.dialect.torch.aten_calls import BY_FUNCTION


def operator(name: str) -> Callable[..., Any] | None:
    """Return ATen's operator of a name of FlagGems, None if there is none."""
    if name.startswith("__"):
        return None
    packet: Any = getattr(torch.ops.aten, name, None)
    found: Callable[..., Any] = packet
    if found is not None:
        return found
    for form in BY_FUNCTION.get(name, ()):
        if form.overload is not None:
            operator, _, overload = form.overload.partition(".")
            found = getattr(getattr(torch.ops.aten, operator), overload or "default")
            return found
    words = name.removesuffix("_").split("_")
    for cut in range(len(words) - 1, 0, -1):
        in_place = "_" if name.endswith("_") else ""
        packet = getattr(torch.ops.aten, "_".join(words[:cut]) + in_place, None)
        for overload in () if packet is None else packet.overloads():
            if overload.lower() == "_".join(words[cut:]):
                found = getattr(packet, overload)
                return found
    return None
