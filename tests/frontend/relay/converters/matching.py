"""What the converters of `meta/frontend/relay/converters/image.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case
from tests.frontend.relay.tensors import floats

A, B = floats(1, 3, 5, 6), floats(1, 3, 5, 6, seed=1)


def correlation(padding, multiply):
    """Displacements by one element, without a window: products of shifted images."""

    def run(a, b):
        a, b = (np.pad(x, ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2)) for x in (a, b))
        h, w = a.shape[2] - 2, a.shape[3] - 2
        own = a[:, :, 1:-1, 1:-1]
        others = [b[:, :, i : i + h, j : j + w] for i in range(3) for j in range(3)]
        found = [own * x if multiply else np.abs(own - x) for x in others]
        return np.stack([f.mean(1) for f in found], 1)

    return run


CASES = [
    Case("nn.correlation", (A, B), correlation(0, True)),
    Case("nn.correlation", (A, B), correlation(2, True), {"padding": (2, 2)}),
    Case("nn.correlation", (A, B), correlation(0, False), {"is_multiply": False}),
    Case(
        "nn.correlation",
        (A, B),
        lambda a, b: correlation(0, True)(a, b)[:, :, ::2, ::2],
        {"stride1": 2},
    ),
    Case("nn.correlation", (A, B), refused="for NCHW alone", attrs={"layout": "NHWC"}),
]
