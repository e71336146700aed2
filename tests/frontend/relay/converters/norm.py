"""What the converters of `meta/frontend/relay/converters/nn.py` have to give."""

import numpy as np
import torch
import torch.nn.functional as F

from tests.frontend.relay.converters.conv import numpy_of
from tests.frontend.relay.records import ConverterCase as Case
from tests.frontend.relay.tensors import floats, moved

X = floats(2, 4, 3, 5)
GAMMA, BETA, MEAN = floats(4), floats(4, seed=1), floats(4, seed=2)
VAR = np.abs(floats(4, seed=3)) + 0.5
BATCH = (X, GAMMA, BETA, MEAN, VAR)


def batch_norm(x, gamma, beta, mean, var, scale=True, center=True, eps=1e-5, training=False):
    gamma = torch.as_tensor(gamma) if scale else None
    beta = torch.as_tensor(beta) if center else None
    mean, var = torch.tensor(mean), torch.tensor(var)
    y = F.batch_norm(torch.as_tensor(x), mean, var, gamma, beta, training=training, eps=eps)
    return y, mean, var


def in_nhwc(*args, **options):
    y, mean, var = batch_norm(*BATCH, **options)
    return moved(y, "NCHW", "NHWC"), mean, var


def normalised(x, axes, eps=1e-5):
    """x less its mean, over its standard deviation, along axes."""
    x = x.astype(np.float64)
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def affine(x, gamma, beta, axis):
    shape = [-1 if i == axis else 1 for i in range(x.ndim)]
    return (x * gamma.reshape(shape) + beta.reshape(shape)).astype(np.float32)


ONE, ZERO = np.ones(4, np.float32), np.zeros(4, np.float32)
IN_LAST = numpy_of(X, "NCHW", "NHWC")
LAST, THIRD = floats(5, seed=4), floats(3, seed=5)


def grouped(x, gamma, beta):
    return affine(normalised(x.reshape(2, 2, 2, 15), (2, 3)).reshape(x.shape), gamma, beta, 1)


def lrn(x, size, bias, alpha, beta):
    """The formula, channel by channel."""
    x = x.astype(np.float64)
    y = np.empty_like(x)
    for c in range(x.shape[1]):
        first = c - size // 2
        near = x[:, max(first, 0) : first + size]
        y[:, c] = x[:, c] / (bias + alpha / size * (near**2).sum(1)) ** beta
    return y.astype(np.float32)


def unit(x, axes, eps=1e-12):
    return x / np.sqrt(np.maximum((x**2).sum(axes, keepdims=True), eps))


CASES = [
    Case("nn.batch_norm", BATCH, batch_norm),
    Case("nn.batch_norm", BATCH, lambda *a: batch_norm(*a, scale=False), {"scale": False}),
    Case("nn.batch_norm", BATCH, lambda *a: batch_norm(*a, center=False), {"center": False}),
    Case("nn.batch_norm", BATCH, lambda *a: batch_norm(*a, eps=0.1), {"epsilon": 0.1}),
    Case("nn.batch_norm", (IN_LAST, *BATCH[1:]), in_nhwc, {"axis": 3}),
    Case(
        "nn.batch_norm",
        (IN_LAST, *BATCH[1:]),
        lambda *_: in_nhwc(scale=False, center=False),
        {"axis": -1, "scale": False, "center": False},
    ),
    Case(
        "nn.batch_norm",
        BATCH,
        lambda *a: batch_norm(*a, training=True),
        training=True,
        label="training",
    ),
    Case(
        "nn.batch_norm",
        (IN_LAST, *BATCH[1:]),
        lambda *_: in_nhwc(training=True),
        {"axis": 3},
        training=True,
        label="training NHWC",
    ),
    Case("nn.layer_norm", (X, LAST, LAST), lambda x, g, b: affine(normalised(x, 3), g, b, 3)),
    Case(
        "nn.layer_norm",
        (X, THIRD, THIRD),
        lambda x, g, b: affine(normalised(x, 2, 0.1), g, b, 2),
        {"axis": 2, "epsilon": 0.1},
    ),
    Case(
        "nn.layer_norm",
        (X, GAMMA, BETA),
        lambda x, g, b: affine(normalised(x, 1), g, ZERO, 1),
        {"axis": 1, "center": False},
    ),
    Case(
        "nn.layer_norm",
        (X, GAMMA, BETA),
        lambda x, g, b: affine(normalised(x, 1), ONE, b, 1),
        {"axis": 1, "scale": False},
    ),
    Case(
        "nn.instance_norm",
        (X, GAMMA, BETA),
        lambda x, g, b: affine(normalised(x, (2, 3)), g, b, 1),
    ),
    Case(
        "nn.instance_norm",
        (IN_LAST, GAMMA, BETA),
        lambda x, g, b: affine(normalised(x, (1, 2), 0.1), g, b, 3),
        {"axis": 3, "epsilon": 0.1},
    ),
    Case(
        "nn.instance_norm",
        (X, GAMMA, BETA),
        lambda x, g, b: affine(normalised(x, (2, 3)), g, ZERO, 1),
        {"center": False},
    ),
    Case("nn.group_norm", (X, GAMMA, BETA), grouped, {"num_groups": 2}),
    Case(
        "nn.group_norm",
        (X, GAMMA, BETA),
        lambda x, g, b: grouped(x, ONE, b),
        {"num_groups": 2, "scale": False},
    ),
    Case(
        "nn.group_norm",
        (IN_LAST, GAMMA, BETA),
        moved(grouped(X, GAMMA, BETA), "NCHW", "NHWC"),
        {"num_groups": 2, "axis": 3},
    ),
    Case("nn.lrn", (X,), lambda x: lrn(x, 5, 2, 0.0001, 0.75)),
    Case(
        "nn.lrn",
        (X,),
        lambda x: lrn(x, 3, 1, 0.5, 0.9),
        {"size": 3, "bias": 1.0, "alpha": 0.5, "beta": 0.9},
    ),
    Case(
        "nn.lrn",
        (IN_LAST,),
        moved(lrn(X, 4, 2, 0.5, 0.75), "NCHW", "NHWC"),
        {"axis": 3, "size": 4, "alpha": 0.5},
    ),
    Case("nn.l2_normalize", (X,), lambda x: unit(x, 1), {"eps": 1e-12, "axis": (1,)}),
    Case("nn.l2_normalize", (X,), lambda x: unit(x, (2, 3), 9.0), {"eps": 9.0, "axis": (2, 3)}),
    Case("nn.l2_normalize", (X,), lambda x: unit(x, None), {"eps": 1e-12, "axis": None}),
    Case("nn.dropout", (X,), lambda x: (x, np.ones_like(x)), {"rate": 0.3}),
    Case("nn.dropout", (X,), lambda x: (x, np.ones_like(x)), {"rate": 0.0}, training=True),
]
