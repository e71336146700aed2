"""What the converters of `meta/frontend/relay/converters/dynamic.py` have to give.

Every call is tried with its shape as a constant, and as an input, where the compiled program does
not know the shape of its result.
"""

from dataclasses import replace

import numpy as np
import torch

from tests.frontend.relay.records import ConverterCase as Case

X = np.arange(12, dtype=np.float32).reshape(2, 6)
IMAGE = np.random.default_rng(7).normal(size=(1, 2, 4, 6)).astype(np.float32)
BYTES = np.random.default_rng(8).integers(0, 256, (1, 2, 4, 6)).astype(np.uint8)
HALF = np.array(1.5, np.float32)
INDICES = np.array([2, 0], np.int32)


def vector(*values, dtype=np.int64):
    return np.array(values, dtype)


def hot(i, on, off, depth):
    return np.where(np.arange(depth) == i[:, None], on, off).astype(np.float32)


def interpolated(*size):
    return lambda x, *_: torch.nn.functional.interpolate(
        torch.from_numpy(x), size, mode="bilinear", align_corners=False
    )


def doubled(x, *_):
    return x.repeat(2, 2).repeat(3, 3)


def both(name, args, expected, attrs=None, shapes=1, **more):
    """The last ``shapes`` arguments as constants, then as inputs."""
    count = len(args)
    known = Case(name, args, expected, attrs or {}, constants=tuple(range(count)[-shapes:]), **more)
    label = "-".join(p for p in (known.label, "unknown shape") if p)
    return [known, replace(known, constants=(), label=label)]


SCALES = (np.array(2.0, np.float32), np.array(3.0, np.float32))

CASES = [
    *both("dyn.reshape", (X, vector(3, -1)), lambda x, s: x.reshape(3, -1), {"newshape": ()}),
    *both("dyn.reshape", (X, vector(0, 3, 2)), lambda x, s: x.reshape(2, 3, 2), label="copied"),
    Case("dyn.reshape", (X, vector(-4, 1, 2, 6)), lambda x, s: x.reshape(1, 2, 6), constants=(1,),
         label="codes"),
    *both("vm.reshape_tensor", (X, vector(12)), lambda x, s: x.reshape(12),
          {"newshape": (12,)}),
    *both("dyn.broadcast_to", (X[:, :1], vector(3, 2, 4)),
          lambda x, s: np.broadcast_to(x, (3, 2, 4))),
    *both("dyn.full", (HALF, vector(2, 3)), np.full((2, 3), 1.5, np.float32),
          {"dtype": "float32"}),
    *both("dyn.full", (HALF, vector(4)), np.full(4, 1, np.int32), {"dtype": "int32"}),
    *both("dyn.zeros", (vector(2, 3),), np.zeros((2, 3), np.int64), {"dtype": "int64"}),
    *both("dyn.ones", (vector(2, dtype=np.int32),), np.ones(2, np.float32), {"dtype": "float32"}),
    *both("dyn.tile", (X, vector(2, 1, 3)), lambda x, s: np.tile(x, (2, 1, 3))),
    *both("dyn.topk", (X, np.array(2)), lambda x, k: (x[:, :3:-1], np.array([[5, 4]] * 2)),
          {"axis": 1, "dtype": "int64"}),
    *both("dyn.topk", (X, vector(0)), lambda x, k: x[:, ::-1], {"ret_type": "values"}),
    *both("dyn.one_hot", (INDICES, np.float32(2), np.float32(-1), np.array(4)), hot,
          {"dtype": "float32"}),
    *both("dyn.strided_slice", (X, vector(1, 5), vector(2, 0), vector(1, -2)),
          lambda x, *_: x[1:2, 5:0:-2], shapes=3),
    *both("dyn.strided_slice", (X, vector(0, 2), vector(-1, 3), vector(1)),
          lambda x, *_: x[:, 2:5], {"slice_mode": "size"}, shapes=3),
    *both("dyn.strided_slice", (X, vector(0, -3), vector(1, 99), vector(1)),
          lambda x, *_: x[:1, -3:], shapes=3, label="one stride for all"),
    *both("dyn.squeeze", (X[None], vector(0)), lambda x, a: x[0]),
    *both("dyn.expand_dims", (X, np.array(1)), lambda x, a: x[:, None]),
    *both("dyn.expand_dims", (X, np.array(-1)), lambda x, a: x[..., None, None],
          {"num_newaxis": 2}),
    Case("dyn.nn.pad", (X, np.array([[1, 0], [0, 2]]), HALF),
         lambda x, w, v: np.pad(x, w, constant_values=1.5), constants=(2,), label="unknown shape"),
    Case("dyn.nn.pad", (X, np.array([[1, 0], [0, 2]]), HALF),
         lambda x, w, v: np.pad(x, w, constant_values=1.5), constants=(1, 2)),
    Case("dyn.nn.pad", (X, np.array([[1, 0], [0, 2]]), HALF),
         lambda x, w, v: np.pad(x, w, "reflect"), {"pad_mode": "reflect"}, constants=(1, 2)),
    *both("dyn.image.resize2d", (IMAGE, vector(7, 3), np.zeros(0, np.float32)),
          interpolated(7, 3), shapes=2),
    *both("dyn.image.resize", (IMAGE, vector(7, 3)), interpolated(7, 3), version=(0, 7)),
    *both("dyn.image.resize", (BYTES, vector(8, 12)),
          lambda x, s: interpolated(8, 12)(x.astype(np.float32)).to(torch.uint8), version=(0, 7),
          label="integers"),
    *both("dyn.nn.upsampling", (IMAGE, *SCALES), doubled, shapes=2),
    *both("dyn.nn.upsampling", (IMAGE, *SCALES), lambda x, *_: torch.nn.functional.interpolate(
        torch.from_numpy(x), (8, 18), mode="bilinear", align_corners=True), {"method": "bilinear",
        "align_corners": True}, shapes=2),
    Case("dyn.nn.upsampling3d", (IMAGE[None], *SCALES[:1] * 3),
         lambda x, *_: x.repeat(2, 2).repeat(2, 3).repeat(2, 4),
         {"coordinate_transformation_mode": "asymmetric"}, constants=(1, 2, 3)),
]  # fmt: skip
