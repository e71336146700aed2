"""Tensor expressions that an importer knows by name.

TVM's ONNX importer writes some operators (`Pad`, `Tile`, `Einsum`) not as calls of Relax operators
but as tensor expressions, of which only loops are left. `NamingBuilder` is a block builder that
notes in each function made that way which function of TOPI it is, and with what numbers; the
converters of "te.*" in `converters/` go by that. To know a further one, add it to `KNOWN` and write
its converter.
"""

from __future__ import annotations

import contextlib
import inspect
import json
from typing import Any

from tvm import topi
from tvm.relax import BlockBuilder

from meta.frontend.core import Unconvertible
from meta.frontend.relax.values import plain

MARK = "meta.te"
ONLY_LOOPS = "of a function in TIR only loops are left, which are not converted"
KNOWN = {
    topi.nn.pad: ("pad", "data"),
    topi.nn.mirror_pad: ("mirror_pad", "data"),
    topi.nn.replicate_pad: ("replicate_pad", "data"),
    topi.nn.circular_pad: ("circular_pad", "data"),
    topi.tile: ("tile", "a"),
    topi.flip: ("flip", "a"),
    topi.maximum: ("maximum", "lhs", "rhs"),
    topi.minimum: ("minimum", "lhs", "rhs"),
    topi.einsum: ("einsum", "operand"),
}
"""By function of TOPI, its name here and those of its parameters that are tensors."""


class NamingBuilder(BlockBuilder):  # type: ignore[misc]  # TVM declares no types
    """A block builder whose tensor expressions can be told apart by name."""

    def emit_te(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Emit a call of a tensor expression, marked if it is known."""
        call = self.call_te(func, *args, **kwargs)
        if func in KNOWN:
            bound = inspect.signature(func).bind(*args, **kwargs)
            bound.apply_defaults()
            known, *tensors = KNOWN[func]
            numbers = {n: plain(v) for n, v in bound.arguments.items() if n not in tensors}
            # One that is an expression has no JSON: the loops stay without a mark.
            with contextlib.suppress(TypeError):
                text = json.dumps({"function": known, "numbers": numbers})
                name = call.args[0]
                self.update_func(name, self.get()[name].with_attr(MARK, text))
        return self.emit(call)


def marked(function: Any) -> tuple[str, dict[str, Any]]:
    """Return a tensor expression's name and attributes; Unconvertible if it has no mark."""
    attrs = function.attrs or {}
    if MARK not in attrs:
        raise Unconvertible(ONLY_LOOPS)
    found = json.loads(str(attrs[MARK]))
    return f"te.{found['function']}", plain(found["numbers"])
