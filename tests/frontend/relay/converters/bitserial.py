"""What the converters of `meta/frontend/relay/converters/qnn.py` have to give: loops over
bits as TVM describes them, words of 8 elements with the first one highest.
"""

import numpy as np

from tests.frontend.relay.converters.conv import conv, numpy_of
from tests.frontend.relay.records import ConverterCase as Case
from tests.frontend.relay.tensors import integers, moved

X = integers(2, 16, 4, 5, low=0, high=4, dtype="uint8")
W = integers(3, 16, 3, 2, low=0, high=8, dtype="uint8")
ROWS, UNITS = X[:, :, 0, 0].copy(), W[:, :, 0, 0].copy()


def packed(x, bits, pack_axis, bit_axis):
    planes = [np.packbits((x >> b) & 1, axis=pack_axis) for b in range(bits)]
    return np.stack(planes, bit_axis)


def meant(w, bits, unipolar):
    """Bits of 1 and -1, or of 1 and 0, each times its power of 2."""
    w = w.astype(np.int64)
    parts = [(2 * ((w >> b) & 1) - 1 if unipolar else (w >> b) & 1) << b for b in range(bits)]
    return sum(parts)


def convolved(unipolar):
    def run(x, _):
        return conv(padding=(1, 0))(x & 3, meant(W, 3, unipolar)).numpy().astype(np.int16)

    return run


BITS = {"activation_bits": 2, "weight_bits": 3, "out_dtype": "int16", "padding": (1, 0)}
CONV = {**BITS, "channels": 3, "kernel_size": (3, 2)}
DENSE = {"data_bits": 2, "weight_bits": 3, "out_dtype": "int16", "units": 3}
NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
IN_LAST = numpy_of(X, "NCHW", "NHWC")
HWIO = numpy_of(W, "OIHW", "HWIO")
PACK = {"bits": 2, "pack_axis": 1, "pack_type": "uint8"}

CASES = [
    Case("nn.bitpack", (X,), packed(X, 2, 1, 2), {**PACK, "bit_axis": 2}),
    Case("nn.bitpack", (X,), packed(X, 2, 1, 4), {**PACK, "bit_axis": 4}),
    Case("nn.bitpack", (ROWS,), packed(ROWS, 2, 1, 1), {**PACK, "bit_axis": 1}),
    Case("nn.bitpack", (X,), refused="words of uint32", attrs={**PACK, "pack_type": "uint32"}),
    Case("nn.bitpack", (X,), refused="bit_axis=-1", attrs=PACK),
    Case("nn.bitpack", (X,), refused="it has 1 to 8", attrs={**PACK, "bits": 10**9}),
    Case("nn.bitserial_conv2d", (X, W), convolved(True), CONV),
    Case("nn.bitserial_conv2d", (X, W), convolved(False), {**CONV, "unipolar": False}),
    Case("nn.bitserial_conv2d", (X, packed(W, 3, 1, 4)), convolved(True), CONV, label="packed"),
    Case(
        "nn.bitserial_conv2d",
        (IN_LAST, HWIO),
        moved(convolved(True)(X, W), "NCHW", "NHWC"),
        {**CONV, **NHWC},
    ),
    Case(
        "nn.bitserial_conv2d",
        (IN_LAST, packed(HWIO, 3, 2, 4)),
        moved(convolved(True)(X, W), "NCHW", "NHWC"),
        {**CONV, **NHWC},
        label="packed NHWC",
    ),
    *(
        Case(
            "nn.bitserial_dense",
            (ROWS, UNITS if plain else packed(UNITS, 3, 1, 1)),
            lambda x, _, u=unipolar: (x.astype(np.int64) @ meant(UNITS, 3, u).T).astype(np.int16),
            {**DENSE, "unipolar": unipolar},
            label=f"plain={plain},unipolar={unipolar}",
        )
        for plain in (True, False)
        for unipolar in (True, False)
    ),
]
