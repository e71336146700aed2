"""What the converters of `meta/frontend/relay/converters/nn.py` have to give."""

import numpy as np
import torch

from tests.frontend.relay.records import ConverterCase as Case
from tests.frontend.relay.tensors import floats

X, ALPHA = floats(2, 3, 4), np.array([0.1, -2.0, 0.0], np.float32)


def softmax(axis):
    return lambda x: torch.softmax(torch.as_tensor(x), axis)


CASES = [
    Case("nn.softmax", (X,), softmax(-1)),
    Case("nn.softmax", (X,), softmax(1), {"axis": 1}),
    Case("nn.fast_softmax", (X,), softmax(0), {"axis": 0}),
    Case("nn.log_softmax", (X,), lambda x: torch.log_softmax(torch.as_tensor(x), -1)),
    Case("nn.log_softmax", (X,), lambda x: torch.log_softmax(torch.as_tensor(x), 1), {"axis": 1}),
    Case("nn.bias_add", (X, ALPHA), lambda x, b: x + b[:, None]),
    Case("nn.bias_add", (X, floats(4)), lambda x, b: x + b, {"axis": -1}),
    Case("nn.bias_add", (X.astype(np.int32), np.arange(3, dtype=np.int32)),
         lambda x, b: x + b[:, None], label="integers"),
    Case("nn.batch_flatten", (X,), X.reshape(2, 12)),
    Case("nn.leaky_relu", (X,), lambda x: np.where(x > 0, x, np.float32(0.25) * x)),
    Case("nn.leaky_relu", (X,), lambda x: np.where(x > 0, x, np.float32(0.01) * x),
         {"alpha": 0.01}),
    Case("nn.prelu", (X, ALPHA), lambda x, a: np.where(x > 0, x, a[:, None] * x)),
    Case("nn.prelu", (X, floats(4)), lambda x, a: np.where(x > 0, x, a * x), {"axis": 2}),
    Case(
        "nn.fifo_buffer",
        (X[:, :, :1], X),
        lambda data, buffer: np.concatenate([buffer[:, :, 1:], data], 2),
        {"axis": 2},
    ),
    Case("nn.fifo_buffer", (X, X), X, label="all new"),
    Case("nn.fifo_buffer", (X, X[:1]), refused="do not fit into a buffer"),
]  # fmt: skip
