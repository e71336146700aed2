"""What the converters of `meta/frontend/relay/converters/unary.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

X = np.array([[-1.5, 0.0, 2.5]], np.float32)

CASES = [
    Case("nn.relu", (X,), np.array([[0.0, 0.0, 2.5]], np.float32)),
]
