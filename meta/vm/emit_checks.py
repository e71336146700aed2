"""What looks at indices before a kernel uses them, emitted: see `index_checks.py`.

Where extents are known at run time only, so are the bounds: `kernels.py` makes such calls as
eager calls are made, and they look for themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import meta.ir as ir
from meta.base.errors import IRError
from meta.base.source import Span
from meta.ir import Expr
from meta.op.core.indices import IndexRange, checks_indices
from meta.passes.buffers import Buffers
from meta.passes.calls import base_op
from meta.passes.index_ranges import IndexRanges, Range
from meta.vm.bytecode import CheckIndices, Register
from meta.vm.emit_values import Values
from meta.vm.index_checks import bounds_of, looker


class CheckEmitter:
    """Emits the looks at the indices of one function's calls, behind what ``values`` has emitted.

    A constant is looked at now, which raises IndexOutOfRange; what is known to be in range, and on
    CUDA without META_CHECK_INDICES everything, is not looked at.
    """

    def __init__(self, values: Values, function: ir.Function) -> None:
        self.values, self.function = values, function
        self.tables = values.tables
        self.active = checks_indices(self.tables.device)

    @cached_property
    def ranges(self) -> IndexRanges:
        """What is known of the integers of the function."""
        buffers = Buffers(self.function, self.tables.summaries)
        return IndexRanges(self.function, buffers, self.tables.functions)

    def operator(self, call: ir.Call, sources: Sequence[Register], span: Span | None) -> None:
        """Emit what an operator's call needs, whose tensors and numbers are in ``sources``."""
        op = base_op(call.callee)
        if op is None or op.indices is None or not self.active:
            return
        for place, atom, wanted in self.ranges.open(call):
            self.look(atom, sources[place], op.name, wanted, span)

    def fused(
        self,
        function: ir.Function,
        call: ir.Call,
        sources: Sequence[Register],
        span: Span | None,
    ) -> None:
        """Emit what a call of a fused function needs, whose arguments are in ``sources``."""
        inner = [b for b in function.body.bindings if _has_indices(b)] if self.active else ()
        if not inner:
            return
        found = {p: self.ranges.of(a) for p, a in zip(function.params, call.args, strict=True)}
        given: dict[Expr, Range] = {p: r for p, r in found.items() if r is not None}
        ranges = IndexRanges(function, None, self.tables.functions, given)
        for binding in inner:
            assert isinstance(binding.value, ir.Call)
            op = base_op(binding.value.callee)
            assert op is not None
            for _, atom, wanted in ranges.open(binding.value):
                line = binding.span or span
                if isinstance(atom, ir.Constant):
                    self.look(atom, -1, op.name, wanted, line)
                elif atom in function.params:
                    place = function.params.index(atom)
                    self.look(call.args[place], sources[place], op.name, wanted, line)
                else:
                    raise IRError(
                        "a fused kernel computes indices itself, which nobody can look at",
                        op=op.name,
                        found=function.attrs,
                        hint="let the kernel's pattern capture the indices",
                        span=line,
                    )

    def look(
        self, atom: Any, source: Register, op: str, wanted: IndexRange, span: Span | None
    ) -> None:
        """Look at a constant, or emit what looks at what is in a register."""
        bounds = bounds_of(op, wanted)
        if isinstance(atom, ir.Constant):
            looker(bounds, span)(atom.data)
        else:
            self.values.add(CheckIndices(source, bounds, span))


def _has_indices(binding: ir.Binding) -> bool:
    op = base_op(binding.value.callee) if isinstance(binding.value, ir.Call) else None
    return op is not None and op.indices is not None
