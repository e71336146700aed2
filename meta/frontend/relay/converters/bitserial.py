"""Converters of arithmetic on a few bits: packing, and products of packed operands.

Packing is a matter of speed on certain processors; the products are those of small integers, which
are computed here as such, and are the same.
"""

from __future__ import annotations

from meta import op
from meta.base.device import Device
from meta.frontend.core import Unconvertible
from meta.frontend.core.arithmetic import cast_to, product_dtype
from meta.frontend.relay.converters.conv import require_kernel
from meta.frontend.relay.layout import per_axis
from meta.frontend.relay.registry import relay
from meta.runtime.ndarray import array

WORD = 8
"""Bits of the one unsigned dtype that has arithmetic here."""


def _require_words(dtype: str) -> None:
    if dtype != "uint8":
        raise Unconvertible(f"words of {dtype}, of which there is no arithmetic", "words of uint8")


def _require_bits(*counts: int) -> None:
    if not all(1 <= count <= WORD for count in counts):
        raise Unconvertible(f"{counts} bits of an operand: it has 1 to {WORD}")


def _weights_of_bits(device: Device):
    """Return what the bits of a word stand for, the first one highest."""
    return array([1 << (WORD - 1 - k) for k in range(WORD)], "int32", device=device)


@relay("nn.bitpack", op.bitwise_and, op.right_shift, op.stack, ignore=("name",))
def bitpack(data, *, bits, pack_axis, bit_axis, pack_type, call):
    """Bit b of as many elements along ``pack_axis`` as a word has bits, the first one highest, is
    a word; the words of bit 0, 1, ... lie along a new axis ``bit_axis``.
    """
    _require_words(pack_type)
    _require_bits(bits)
    if not (0 <= bit_axis <= data.ndim and 0 <= pack_axis < data.ndim):
        raise Unconvertible(f"bit_axis={bit_axis} and pack_axis={pack_axis} of {data.ndim} axes")
    before, rest = tuple(data.shape[:pack_axis]), tuple(data.shape[pack_axis + 1 :])
    words = data.shape[pack_axis] // WORD
    x = op.reshape(cast_to(data, "int32"), (*before, words, WORD, *rest))
    along = op.reshape(_weights_of_bits(call.device), (WORD, *[1] * len(rest)))
    planes = []
    for b in range(bits):
        plane = op.bitwise_and(op.right_shift(x, b), 1) * along
        planes.append(op.cast(op.sum(plane, pack_axis + 1), pack_type))
    return op.stack(tuple(planes), bit_axis)


def _unpacked(words, pack_axis: int, bit_axis: int, device: Device):
    """Return the numbers, int32, that `bitpack` packed: those of ``words`` without ``bit_axis``."""
    _require_words(words.dtype)
    x = op.expand_dims(cast_to(words, "int32"), words.ndim)
    x = op.bitwise_and(x, _weights_of_bits(device))
    x = op.cast(op.not_equal(x, 0), "int32")
    counts = [1 << b for b in range(words.shape[bit_axis])]
    shape = [len(counts) if i == bit_axis else 1 for i in range(x.ndim)]
    counted = x * op.reshape(array(counts, "int32", device=device), tuple(shape))
    x = op.cast(op.sum(counted, bit_axis), "int32")
    at = pack_axis - (bit_axis < pack_axis)
    order = [*range(at + 1), x.ndim - 1, *range(at + 1, x.ndim - 1)]
    x = op.transpose(x, tuple(order))
    return op.reshape(x, (*x.shape[:at], x.shape[at] * WORD, *x.shape[at + 2 :]))


def _lowest(x, bits: int):
    return op.bitwise_and(cast_to(x, "int32"), (1 << bits) - 1)


def _signed(weight, bits: int, unipolar: bool):
    """Return the weights' numbers. With ``unipolar`` a bit that is not set counts as -1."""
    w = _lowest(weight, bits)
    return w * 2 - ((1 << bits) - 1) if unipolar else w


@relay("nn.bitserial_conv2d", op.conv2d, op.bitwise_and, ignore=("channels", "pack_dtype"))
def bitserial_conv2d(
    data,
    weight,
    *,
    strides,
    padding,
    kernel_size,
    activation_bits,
    weight_bits,
    data_layout,
    kernel_layout,
    out_dtype,
    unipolar,
    call,
):
    """The weight may be packed: OIHW with I packed, HWIO alike, and the bits as a last axis."""
    _require_bits(activation_bits, weight_bits)
    kernel = kernel_layout[:4]
    if weight.ndim == 5:
        weight = _unpacked(weight, kernel.index("I"), 4, call.device)
    require_kernel(weight, kernel, kernel_size)
    w = _signed(weight, weight_bits, bool(unipolar))
    window = (per_axis(strides), per_axis(padding), 1, 1)
    y = op.conv2d(_lowest(data, activation_bits), w, *window, data_layout, kernel, data_layout)
    return cast_to(y, product_dtype(data, out_dtype))


@relay("nn.bitserial_dense", op.dense, op.bitwise_and, ignore=("units", "pack_dtype"))
def bitserial_dense(data, weight, *, data_bits, weight_bits, out_dtype, unipolar, call):
    """The weight may be packed: [units, bits, inputs in words]."""
    _require_bits(data_bits, weight_bits)
    if weight.ndim == 3:
        weight = _unpacked(weight, 2, 1, call.device)
    y = op.dense(_lowest(data, data_bits), _signed(weight, weight_bits, bool(unipolar)))
    return cast_to(y, product_dtype(data, out_dtype))
