"""Limits of arrays and of a call's results; what exceeds them is an error before it is tried."""

MAX_AXES = 64
"""Axes of an array; numpy and torch's operators take no more."""
MAX_BYTES = (1 << 63) - 1
"""Bytes of an array: addresses and strides are int64."""
MAX_RESULTS = 1 << 16
"""Arrays that one call returns."""
