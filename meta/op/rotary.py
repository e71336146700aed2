"""Rotary position embedding."""

from meta.ir.types import TensorType
from meta.op.core import Tensor, op
from meta.op.core.check import broadcast_shapes, require, require_float
from meta.op.norm import statistics_dtype


def _pairs(x: TensorType) -> TensorType:
    """Return the type of one member of each pair."""
    require_float(x, "x")
    width = x.shape[-1] if x.ndim else 1
    even = not isinstance(width, int) or width % 2 == 0
    require(even, "the last axis of x must hold pairs", expected="an even extent", found=x)
    return x.with_shape((*x.shape[:-1], width // 2 if isinstance(width, int) else width))


def _table(x: TensorType, table: TensorType, name: str) -> None:
    half = _pairs(x)
    dtypes = {x.dtype, statistics_dtype(x.dtype)}
    known = half.is_static and table.is_static
    fits = not known or (
        table.ndim <= half.ndim and broadcast_shapes(table.shape, half.shape) == half.shape
    )
    expected = f"{' or '.join(sorted(dtypes))} that broadcasts to {list(half.shape)}"
    require(fits and table.dtype in dtypes, f"{name} does not fit", expected=expected, found=table)


@op
def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Rotate pairs of features by the angles of their position.

    ``(a, b) -> (a cos - b sin, b cos + a sin)`` (Su et al., arXiv:2104.09864). A pair is feature i
    and i + d / 2 of the last axis, or, if ``interleaved``, features 2 i and 2 i + 1.

    x: floating point [..., d], d even. cos, sin: one type, that broadcasts to [..., d / 2]; of x's
    dtype, or float32 where x is half. Result: x's type; half precision is computed in float32.

    Raises TypeInferError for an odd d, and for a table that does not fit.
    """
    _table(x, cos, "cos")
    require(cos == sin or not cos.is_static, "cos and sin differ", expected=cos, found=sin)
    return x


@op
def rotary_embedding_dtable(
    x: Tensor, dy: Tensor, cos: Tensor, interleaved: bool = False
) -> tuple[TensorType, TensorType]:
    """Gradients of `rotary_embedding` with respect to cos and sin.

    For pairs (a, b) of x and (p, q) of dy: ``dcos = p a + q b``, ``dsin = q a - p b``, summed over
    the axes along which the tables are broadcast.

    x, dy: of one type. Of ``cos`` only the type counts; it is that of both results.
    """
    _table(x, cos, "cos")
    require(dy == x or not dy.is_static, "dy is not of x's type", expected=x, found=dy)
    return cos, cos
