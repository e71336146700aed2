"""The `torch` dialect: every operator on PyTorch's ATen.

It is the reference and the last resort in general (REFERENCE). A kernel that beats generated code
by measurement, or that calls a tuned library, states LIBRARY. Add a kernel in the operator's family
file.
"""

from collections.abc import Callable
from typing import Any

from meta.base.source import Span
from meta.dialect.core import REFERENCE, Dialect
from meta.dialect.core.dialect_op import DialectOp, Maker
from meta.dialect.core.plevel import Levels
from meta.dialect.torch.unsigned import carried, declines
from meta.op.core.op import Op


class _Aten(Dialect):
    """The dialect, whose kernels serve the dtypes that ATen hardly has by those that it has."""

    def register(
        self,
        base: Op,
        make: Maker,
        site: Span,
        plevel: Levels | None = None,
        *,
        init: Callable[..., Any] | None = None,
        state_of: Op | None = None,
    ) -> DialectOp:
        """As `Dialect.register`."""
        made = carried(make)
        return super().register(base, made, site, plevel, init=init, state_of=state_of)


torch = _Aten(
    "torch",
    devices=("cpu", "cuda"),
    plevel=REFERENCE,
    package=__name__,
    by_family=True,
    declines=declines,
)
