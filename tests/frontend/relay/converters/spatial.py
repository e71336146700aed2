"""What the converters of `meta/frontend/relay/converters/image.py` have to give."""

import numpy as np
import torch
import torch.nn.functional as F

from tests.frontend.relay.converters.conv import numpy_of
from tests.frontend.relay.records import ConverterCase as Case
from tests.frontend.relay.tensors import blocked, floats, moved
from tests.op.resize import resize

X, DEEP = floats(2, 8, 2, 3), floats(1, 2, 4, 6)
BYTES = np.random.default_rng(3).integers(0, 256, DEEP.shape).astype(np.uint8)
BATCHES, VOLUME = floats(2, 4, 6, 3), floats(1, 2, 2, 3, 4)


def shuffled(x, mode):
    """Channels over blocks of 2 by 2 places, place by place."""
    n, c, h, w = x.shape
    y = np.empty((n, c // 4, h * 2, w * 2), x.dtype)
    for i in range(2):
        for j in range(2):
            k = i * 2 + j
            part = x[:, k * (c // 4) : (k + 1) * (c // 4)] if mode == "DCR" else x[:, k::4]
            y[:, :, i::2, j::2] = part
    return y


def gathered(x):
    """The inverse of `shuffled` with DCR."""
    places = [x[:, :, i::2, j::2] for i in range(2) for j in range(2)]
    return np.concatenate(places, 1)


def to_batch(x, block, value=0.0, paddings=((0, 0), (0, 0))):
    """Every place of a block of two spatial axes is a batch of its own."""
    x = np.pad(x, ((0, 0), *paddings, *[(0, 0)] * (x.ndim - 3)), constant_values=value)
    parts = [x[:, i :: block[0], j :: block[1]] for i in range(block[0]) for j in range(block[1])]
    return np.concatenate(parts, 0)


def interpolate(scale, mode, **options):
    def run(x):
        return F.interpolate(torch.as_tensor(x), scale_factor=scale, mode=mode, **options)

    return run


TWICE = {"scale_h": 2.0, "scale_w": 3.0}
IN_3D = {"scale_d": 2.0, "scale_h": 1.0, "scale_w": 3.0}

CASES = [
    *(
        Case(
            "nn.depth_to_space",
            (X,),
            lambda x, m=mode: shuffled(x, m),
            {"block_size": 2, "mode": mode},
        )
        for mode in ("DCR", "CRD")
    ),
    Case(
        "nn.depth_to_space",
        (numpy_of(X, "NCHW", "NHWC"),),
        moved(shuffled(X, "DCR"), "NCHW", "NHWC"),
        {"block_size": 2, "layout": "NHWC"},
    ),
    Case("nn.space_to_depth", (DEEP,), gathered, {"block_size": 2}),
    Case("nn.space_to_depth", (DEEP,), gathered, {"block_size": 2, "mode": "CRD"}),
    Case(
        "nn.space_to_depth",
        (numpy_of(DEEP, "NCHW", "NHWC"),),
        moved(gathered(DEEP), "NCHW", "NHWC"),
        {"block_size": 2, "layout": "NHWC"},
    ),
    Case(
        "nn.space_to_batch_nd",
        (BATCHES,),
        lambda x: to_batch(x, (2, 3)),
        {"block_shape": (2, 3), "paddings": ((0, 0), (0, 0))},
    ),
    Case(
        "nn.space_to_batch_nd",
        (BATCHES,),
        lambda x: to_batch(x, (3, 2), 1.5, ((1, 1), (0, 2))),
        {"block_shape": (3, 2), "paddings": ((1, 1), (0, 2)), "pad_value": 1.5},
    ),
    Case(
        "nn.batch_to_space_nd",
        (to_batch(BATCHES, (2, 3)),),
        BATCHES,
        {"block_shape": (2, 3), "crops": ((0, 0), (0, 0))},
    ),
    Case(
        "nn.batch_to_space_nd",
        (to_batch(BATCHES, (2, 3)),),
        BATCHES[:, 1:3, 2:],
        {"block_shape": (2, 3), "crops": ((1, 1), (2, 0))},
    ),
    Case("nn.upsampling", (DEEP,), lambda x: x.repeat(2, 2).repeat(3, 3), TWICE),
    Case(
        "nn.upsampling",
        (numpy_of(DEEP, "NCHW", "NHWC"),),
        lambda x: x.repeat(2, 1).repeat(3, 2),
        {**TWICE, "layout": "NHWC"},
    ),
    Case(
        "nn.upsampling",
        (blocked(DEEP, 1, 2),),
        blocked(DEEP.repeat(2, 2).repeat(3, 3), 1, 2),
        {**TWICE, "layout": "NCHW2c"},
    ),
    Case(
        "nn.upsampling",
        (DEEP,),
        interpolate((2, 3), "bilinear", align_corners=True),
        {**TWICE, "method": "bilinear", "align_corners": True},
    ),
    Case(
        "nn.upsampling",
        (DEEP,),
        lambda x: resize(torch.as_tensor(x), (8, 18), "NCHW", "cubic", "asymmetric").float(),
        {**TWICE, "method": "bicubic"},
    ),
    Case(
        "nn.upsampling",
        (BYTES,),
        lambda x: resize(
            torch.as_tensor(x).double(), (8, 12), "NCHW", "linear", "asymmetric"
        ).byte(),
        {"scale_h": 2.0, "scale_w": 2.0, "method": "bilinear"},
        label="integers",
    ),
    Case(
        "nn.upsampling3d",
        (VOLUME,),
        lambda x: x.repeat(2, 2).repeat(3, 4),
        {**IN_3D, "coordinate_transformation_mode": "asymmetric"},
    ),
    # Sample o is at (o + 0.5) / scale - 0.5, which is rounded down, as TVM does.
    Case(
        "nn.upsampling3d",
        (VOLUME,),
        lambda x: x[:, :, [0, 0, 0, 1]][..., [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]],
        IN_3D,
    ),
    Case(
        "nn.upsampling3d",
        (VOLUME,),
        interpolate((2, 1, 3), "trilinear", align_corners=False),
        {**IN_3D, "method": "trilinear"},
    ),
    Case(
        "nn.upsampling3d",
        (numpy_of(VOLUME, "NCDHW", "NDHWC"),),
        moved(interpolate((2, 1, 3), "trilinear", align_corners=True)(VOLUME), "NCDHW", "NDHWC"),
        {
            **IN_3D,
            "method": "trilinear",
            "coordinate_transformation_mode": "align_corners",
            "layout": "NDHWC",
        },
    ),
]
