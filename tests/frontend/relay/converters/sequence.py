"""What the converters of `meta/frontend/relay/converters/transform.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

X = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
LENGTHS = np.array([1, 4, 0], np.int32)
OF_FOUR = np.array([2, 0, 3, 1], np.int64)


def masked(x, lengths, axis, value):
    x = x.copy()
    for b, n in enumerate(lengths.astype(int)):
        if axis == 0:
            x[n:, b] = value
        else:
            x[b, n:] = value
    return x


def reversed_each(x, lengths, seq_axis, batch_axis):
    x = np.moveaxis(x, (batch_axis, seq_axis), (0, 1)).copy()
    for b, n in enumerate(lengths):
        x[b, :n] = x[b, :n][::-1]
    return np.moveaxis(x, (0, 1), (batch_axis, seq_axis))


CASES = [
    Case("sequence_mask", (X, LENGTHS), lambda x, n: masked(x, n, 0, 0)),
    Case("sequence_mask", (X, OF_FOUR), lambda x, n: masked(x, n, 1, -2.5),
         {"axis": 1, "mask_value": -2.5}),
    Case("sequence_mask", (X.astype(np.int32), LENGTHS.astype(np.float32)),
         lambda x, n: masked(x, n, 0, 7), {"mask_value": 7.0}, label="ints, lengths in floats"),
    Case("reverse_sequence", (X, OF_FOUR), lambda x, n: reversed_each(x, n, 1, 0)),
    Case("reverse_sequence", (X, LENGTHS), lambda x, n: reversed_each(x, n, 0, 1),
         {"seq_axis": 0, "batch_axis": 1}),
]  # fmt: skip
