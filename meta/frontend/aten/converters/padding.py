"""Padding, by a number and by what a tensor holds, and its backward."""

from meta import op
from meta.base.dtype import COMPLEX
from meta.frontend.aten.arguments import apply_to_parts, number
from meta.frontend.aten.converters.slices import WHOLE, sliced
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible

MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
NUMBERED = ("reflect", "replicate", "circular", "constant")


def widths_of(pad, ndim):
    """Pairs (before, after) for every axis, of torch's list, which begins with the last axis."""
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    return ((0, 0),) * (ndim - len(pairs)) + tuple(pairs)


def _is_negative(width):
    return isinstance(width, int) and width < 0


def _positive(pairs):
    return tuple(tuple(0 if _is_negative(w) else w for w in pair) for pair in pairs)


def _cropped(x, pairs):
    """x without what negative widths take off."""
    for axis, (before, after) in enumerate(pairs):
        if _is_negative(before) or _is_negative(after):
            begin = -before if _is_negative(before) else 0
            x = sliced(x, axis, begin, after if _is_negative(after) else WHOLE)
    return x


def padded(x, pad, mode, value, call):
    """x with elements around it; negative widths take elements off."""
    pairs = widths_of(pad, x.ndim)
    if mode == "constant":
        if x.dtype in COMPLEX:
            value = complex(value)
            real, imag = (
                op.pad(part, _positive(pairs), constant_values=v)
                for part, v in ((op.real(x), value.real), (op.imag(x), value.imag))
            )
            return _cropped(op.complex(real, imag), pairs)
        x = _cropped(x, pairs)
        if not any(w != 0 for pair in _positive(pairs) for w in pair):
            return x
        return op.pad(x, _positive(pairs), constant_values=number(value, x.dtype, call.device))
    # What is taken off is still mirrored or repeated.
    wide = apply_to_parts(lambda part: op.pad(part, _positive(pairs), mode=MODES[mode]), x)
    return _cropped(wide, pairs)


@aten("constant_pad_nd", op.pad)
def constant_pad_nd(x, *, pad, value, call):
    return padded(x, pad, "constant", value, call)


@aten("pad", op.pad)
def pad(x, *, pad: tuple, mode, value, call):
    if mode not in MODES:
        raise Unconvertible(f"the padding mode {mode!r} is unknown")
    return padded(x, pad, mode, 0 if value is None else value, call)


@aten("_pad_enum", op.pad)
def pad_enum(x, *, pad: tuple, mode, value, call):
    return padded(x, pad, NUMBERED[mode], 0 if value is None else value, call)


@aten("_pad_circular", op.pad)
def pad_circular(x, *, pad: tuple, call):
    return padded(x, pad, "circular", 0, call)


def _register(mode, axes):
    name = {"reflect": "reflection", "replicate": "replication"}[mode]

    @aten(f"{name}_pad{axes}d", op.pad)
    def forward(x, *, padding, call):
        return padded(x, padding, mode, 0, call)

    @aten(f"{name}_pad{axes}d_backward", op.pad_dx)
    def backward(dy, x, *, padding, call):
        pairs = widths_of(padding, x.ndim)
        # Where elements were taken off, nothing flows back.
        taken = tuple(tuple(-w if _is_negative(w) else 0 for w in pair) for pair in pairs)
        flat = tuple(w for pair in _positive(pairs) for w in pair)

        def back(part):
            if any(w for pair in taken for w in pair):
                part = op.pad(part, taken)
            return op.pad_dx(part, flat, MODES[mode])

        return apply_to_parts(back, dy)


for _axes in (1, 2, 3):
    _register("reflect", _axes)
    _register("replicate", _axes)
