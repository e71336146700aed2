"""What conditionals give for a batch: the results of both blocks, selected by a condition that is
batched, or made alike, as one block of many examples runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meta import op
from meta.base.errors import TraceError
from meta.dialect.core.ir_calls import has_effect
from meta.ir import Binding, Block, Call, GlobalVar, If, Module, TensorType
from meta.ir.printer import first_line
from meta.passes.batching.site import Operand
from meta.passes.call_graph import callees


def with_flags(leaves: Sequence[Operand], flags: Sequence[bool], size: Any) -> list[Any]:
    """Return the tensors, those repeated for each example that are batched elsewhere."""
    return [
        op.broadcast_to(o.value, (size, *o.shape)) if f and not o.batched else o.value
        for o, f in zip(leaves, flags, strict=True)
    ]


def selected(condition: Operand, first: Operand, second: Operand, size: Any) -> Operand:
    """Return of each example the one or the other; TraceError for what is no tensor."""
    if not isinstance(first.value.type, TensorType):
        raise TraceError(
            "which data value, reference or function there is depends on the example",
            found=first.value.type,
            hint="select tensors: meta.where(condition, a, b)",
        )
    which = op.reshape(condition.value, (size, *[1] * first.ndim))
    return Operand(op.where(which, *with_flags([first, second], [True, True], size)), True)


def require_selectable(
    module: Module, blocks: Sequence[Block], binding: Binding, loops: set[str]
) -> None:
    """Raise TraceError where both blocks must not run: for one that writes, and for one that
    goes on with a loop.
    """
    for block in blocks:
        for inner in block.bindings:
            call = inner.value
            if isinstance(call, Call) and isinstance(call.callee, GlobalVar):
                if _reaches(module, call.callee.name, loops):
                    raise TraceError(
                        "how often a loop runs depends on the example",
                        hint="run it as often as any example needs, and select within it: "
                        "meta.where(done, old, new)",
                        span=binding.span,
                    )
            elif has_effect(inner):
                raise TraceError(
                    "a conditional that depends on the example writes to an array",
                    found=first_line(block, inner),
                    span=inner.span,
                )
            if isinstance(call, If):
                require_selectable(module, (call.then_block, call.else_block), binding, loops)


def _reaches(module: Module, name: str, targets: set[str]) -> bool:
    """Whether a function is among targets, or calls one of them, directly or not."""
    seen, stack = set[str](), [name]
    while stack:
        current = stack.pop()
        if current in targets:
            return True
        if current not in seen:
            seen.add(current)
            stack.extend(callees(module.functions[current]))
    return False
