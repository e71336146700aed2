"""What the converters of `meta/frontend/relay/converters/math.py` have to give."""

import numpy as np
import torch

from tests.frontend.relay.records import ConverterCase as Case

X = np.array([[-1.5, 0.0, 2.5]], np.float32)
POSITIVE = np.array([[0.25, 1.0, 3.5], [9.0, 0.5, 100.0]], np.float32)
WITHIN = np.array([[-0.9, -0.25, 0.0], [0.3, 0.75, 0.99]], np.float32)
WILD = np.array([np.nan, np.inf, -np.inf, 1.0, 0.0], np.float32)
INTS = np.array([[-7, 0, 3], [9, -2, 5]], np.int32)
HALVES = np.array([-2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5, 0.49999997, -7.2, np.inf], np.float32)


def exact(function):
    """A function of numpy or torch, computed in float64."""
    return lambda x: np.asarray(function(x.astype(np.float64))).astype(x.dtype)


def of_torch(function):
    return exact(lambda x: function(torch.from_numpy(x)).numpy())


def away(x):
    """Round halves away from zero, in float64, where adding a half is exact."""
    wide = x.astype(np.float64)
    return (np.sign(wide) * np.floor(np.abs(wide) + 0.5)).astype(x.dtype)


CASES = [
    Case("nn.relu", (X,), np.array([[0.0, 0.0, 2.5]], np.float32)),
    Case("abs", (X,), np.abs),
    Case("abs", (INTS,), np.abs, label="of ints"),
    Case("negative", (X,), np.negative),
    Case("sign", (X,), np.sign),
    *[Case(n, (X,), exact(getattr(np, n)))
      for n in ("ceil", "cos", "cosh", "exp", "floor", "sin", "sinh", "tan", "tanh", "trunc")],
    *[Case(n, (POSITIVE,), exact(getattr(np, n))) for n in ("log", "log2", "log10", "sqrt")],
    *[Case(f"a{n}", (WITHIN,), exact(getattr(np, f"arc{n}"))) for n in ("cos", "sin", "tan")],
    Case("acosh", (POSITIVE + 1,), exact(np.arccosh)),
    Case("asinh", (X,), exact(np.arcsinh)),
    Case("atanh", (WITHIN,), exact(np.arctanh)),
    Case("rsqrt", (POSITIVE,), exact(lambda x: 1 / np.sqrt(x))),
    Case("sigmoid", (X,), exact(lambda x: 1 / (1 + np.exp(-x)))),
    Case("erf", (X,), of_torch(torch.erf)),
    Case("fast_erf", (X,), of_torch(torch.erf), tolerance=1e-3),
    Case("fast_exp", (X,), exact(np.exp), tolerance=1e-3),
    Case("fast_tanh", (X,), exact(np.tanh), tolerance=1e-3),
    *[Case(n, (WILD,), getattr(np, n)) for n in ("isfinite", "isinf", "isnan")],
    Case("round", (HALVES,), away),
    Case("round", (HALVES.astype(np.float64),), away, label="float64"),
    Case("round", (INTS,), INTS, label="of ints"),
    Case("zeros_like", (INTS,), np.zeros_like),
    Case("ones_like", (X,), np.ones_like),
    Case("clip", (X,), lambda x: np.clip(x, -1, 2), {"a_min": -1.0, "a_max": 2.0}),
    Case("clip", (X,), lambda x: np.clip(x, None, 2), {"a_min": -np.inf, "a_max": 2.0}),
    Case("clip", (INTS,), lambda x: np.clip(x, -2, 4), {"a_min": -2.75, "a_max": 4.5},
         label="ints: a bound loses its fraction"),
    Case("clip", (INTS,), lambda x: np.clip(x, 0, None), {"a_min": 0.0, "a_max": np.inf},
         label="ints without a bound"),
    Case("clip", (INTS.astype(np.uint8),), lambda x: x, {"a_min": -5.0, "a_max": 300.0},
         label="bounds beyond uint8"),
    Case("clip", (X,), attrs={"a_min": None, "a_max": None}, refused="no bounds"),
    Case("clip", (INTS,), attrs={"a_min": np.nan, "a_max": 1.0}, refused="no number"),
    Case("cast", (X,), np.array([[-1, 0, 2]], np.int32), {"dtype": "int32"}),
    Case("cast", (X,), np.array([[True, False, True]]), {"dtype": "bool"}),
    Case("cast", (X > 0,), np.array([[0, 0, 1]], np.int64), {"dtype": "int64"}),
    Case("cast", (INTS,), INTS.astype(np.float16), {"dtype": "float16"}),
    Case("cast_like", (X, INTS), np.array([[-1, 0, 2]], np.int32)),
    Case("reinterpret", (X,), lambda x: x.view(np.int32), {"dtype": "int32"}),
    Case("reinterpret", (INTS,), lambda x: x.view(np.float32), {"dtype": "float32"}),
]  # fmt: skip
