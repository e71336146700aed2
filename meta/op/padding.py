"""Operators that put elements around a tensor. Add one here; modes: `meta/op/core/padding.py`."""

from meta.ir.types import UNKNOWN, Dim, UnknownDim
from meta.op.core import Ints, Scalar, Tensor, op
from meta.op.core.check import require
from meta.op.core.padding import MODES, pad_pairs, reach

MIRRORS = {"SYMMETRIC": "symmetric", "REFLECT": "reflect"}
"""The modes of `mirror_pad`, and what `pad` calls them."""


def _require_mode(mode: str) -> None:
    require(mode in MODES, "unknown padding mode", expected=", ".join(MODES), found=mode)


def _padded(x: Tensor, pad_width: Ints, mode: str) -> Tensor:
    pairs = pad_pairs(pad_width, x.ndim)
    shape: list[Dim] = []
    for extent, pair in zip(x.shape, pairs, strict=True):
        if isinstance(extent, UnknownDim):
            shape.append(UNKNOWN if any(pair) else extent)
            continue
        if isinstance(extent, int):
            require(
                mode == "constant" or max(pair) <= reach(extent, mode),
                f"an axis of extent {extent} has too few elements for the {mode} padding",
                expected=f"at most {reach(extent, mode)} on a side",
                found=f"pad_width={pad_width} of {x}",
            )
        shape.append(extent + sum(pair))
    return x.with_shape(tuple(shape))


@op
def pad(x: Tensor, pad_width: Ints, pad_value: Scalar = 0.0, pad_mode: str = "constant") -> Tensor:
    """``x`` with elements before and after it along every axis.

    x: any dtype. pad_width: (before, after) of the first axis, then of the second, ..., flat; an
    int holds for all sides. pad_value: what "constant" puts there, a number that x's dtype has.
    pad_mode: "constant"; "edge" repeats the outermost element; "reflect" mirrors at the outermost
    element (b a of a b c gives c b a b c), "symmetric" at its outer border (b a a b c c b).
    Result: extents grown by before + after. The modes are numpy's.

    Raises TypeInferError for a wrong number of widths, a negative one, or where there is less to
    mirror or repeat than asked for.
    """
    _require_mode(pad_mode)
    return _padded(x, pad_width, pad_mode)


@op
def mirror_pad(x: Tensor, pad_width: Ints, mode: str = "SYMMETRIC") -> Tensor:
    """`pad` with a mirror: "SYMMETRIC", or "REFLECT", which does not repeat the outermost element.

    x: any dtype. pad_width: as in `pad`. Raises TypeInferError as `pad` does.
    """
    require(mode in MIRRORS, "unknown mirror", expected=", ".join(MIRRORS), found=mode)
    return _padded(x, pad_width, MIRRORS[mode])


@op
def pad_dx(dy: Tensor, pad_width: Ints, pad_mode: str = "constant") -> Tensor:
    """The gradient of `pad`: every element of x gets the sum of dy at the places that read it.

    dy: of the padded shape. Result: the shape of x. Half precision is added in float32.
    """
    _require_mode(pad_mode)
    pairs = pad_pairs(pad_width, dy.ndim)
    shape = tuple(
        d - sum(pair) if not isinstance(d, UnknownDim) else UNKNOWN if any(pair) else d
        for d, pair in zip(dy.shape, pairs, strict=True)
    )
    require(
        all(not isinstance(d, int) or d >= 0 for d in shape),
        "dy is smaller than its padding",
        found=f"pad_width={pad_width} of {dy}",
    )
    _padded(dy.with_shape(shape), pad_width, pad_mode)
    return dy.with_shape(shape)
