"""Convolutions over images whose channels come last: each channel by itself, or in groups, these
also with what follows them.
"""

from __future__ import annotations

from collections.abc import Callable

from meta import op
from meta.dialect.core import OpEnv, shared_patterns
from meta.dialect.core.knobs import tunable
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda import depthwise, grouped
from meta.ir.types import TensorType
from meta.op.core.call import CallValues

Maker = Callable[[CallValues], OpEnv]


def _either(alone: Maker, in_groups: Maker, kernel: Callable[[CallValues], TensorType]) -> Maker:
    """Return a maker by how many channels of x a group has."""

    @tunable
    def make(call: CallValues) -> OpEnv:
        extents, letters = kernel(call).shape, call.args.kernel_layout
        return (alone if extents[letters.index("I")] == 1 else in_groups)(call)

    return make


dialect.op(op.conv2d)(_either(depthwise.forward, grouped.forward, lambda call: call.args.w))
dialect.op(op.conv2d_dx)(
    _either(depthwise.by_input, grouped.by_input, lambda call: call.args.x_or_w)
)
dialect.op(op.conv2d_dw)(
    _either(depthwise.by_kernel, grouped.by_kernel, lambda call: call.outputs[0])
)
shared_patterns.register_conv_epilogues(dialect, tunable(grouped.followed))
