"""What the converters of `meta/frontend/relay/converters/transform.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case
from tests.frontend.relay.tensors import floats

X, N = floats(2, 3, 4), np.arange(6, dtype=np.int32).reshape(2, 3)
WIDTHS = ((0, 0), (1, 0), (2, 1))
HALF = np.float32(0.5)


def padded(value):
    return lambda x, *_: np.pad(x, WIDTHS, constant_values=value)


def dilated(x, strides, value=0.0):
    """Every element at its multiple of the strides, the rest filled."""
    shape = [(n - 1) * s + 1 for n, s in zip(x.shape, strides, strict=True)]
    y = np.full(shape, value, x.dtype)
    y[tuple(slice(None, None, s) for s in strides)] = x
    return y


CASES = [
    Case("nn.pad", (X,), padded(0), {"pad_width": WIDTHS}, version=(0, 6)),
    Case("nn.pad", (X,), padded(2.5), {"pad_width": WIDTHS, "pad_value": 2.5}, version=(0, 7)),
    Case("nn.pad", (X, HALF), padded(0.5), {"pad_width": WIDTHS}, constants=(1,)),
    Case("nn.pad", (X, HALF), padded(0.5), {"pad_width": WIDTHS}, label="value of an input"),
    Case(
        "nn.pad",
        (N, np.int32(-7)),
        lambda x, _: np.pad(x, ((1, 0), (0, 2)), constant_values=-7),
        {"pad_width": ((1, 0), (0, 2))},
        label="integers",
    ),
    *(
        Case(
            "nn.pad",
            (X, HALF),
            lambda x, _, mode=mode: np.pad(x, WIDTHS, mode=mode),
            {"pad_width": WIDTHS, "pad_mode": mode},
        )
        for mode in ("edge", "reflect")
    ),
    *(
        Case(
            "nn.mirror_pad",
            (X,),
            lambda x, mode=mode: np.pad(x, WIDTHS, mode=mode.lower()),
            {"pad_width": WIDTHS, "mode": mode},
        )
        for mode in ("SYMMETRIC", "REFLECT")
    ),
    Case("nn.dilate", (X,), lambda x: dilated(x, (1, 3, 2)), {"strides": (1, 3, 2)}),
    Case(
        "nn.dilate",
        (N,),
        lambda x: dilated(x, (2, 1), 5),
        {"strides": (2, 1), "dilation_value": 5.0},
    ),
]
