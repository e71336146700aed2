"""What the converters of `image_resize.py` have to give; the oracle is torch's interpolate."""

import numpy as np
import torch

from tests.frontend.relay.converters.image_sampling import crop_and_resize, first
from tests.frontend.relay.records import ConverterCase as Case

RNG = np.random.default_rng(1)


def floats(*shape):
    return RNG.uniform(-2, 2, shape).astype(np.float32)


def interpolate(size, mode, align=None):
    def run(x):
        return torch.nn.functional.interpolate(
            torch.from_numpy(x), size, mode=mode, align_corners=align
        )

    return run


X = floats(1, 8, 4, 5)
BLOCKED = X.reshape(1, 2, 4, 4, 5).transpose(0, 1, 3, 4, 2)
LINEAR = interpolate((7, 3), "bilinear", False)
LINE, VOLUME = floats(2, 4, 3), floats(1, 2, 3, 4, 5)
WHOLE = RNG.integers(-50, 50, (1, 2, 3, 3)).astype(np.int32)
ROI = (0.1, 0.2, 0.9, 1.1)


def blocked(y):
    return y.reshape(1, 2, 4, *y.shape[2:]).permute(0, 1, 3, 4, 2)


def truncated(x):
    y = interpolate((5, 5), "bilinear", True)(x.astype(np.float32))
    return y.to(torch.int32)


def part(data):
    """The roi of both images, which lies beyond the right edge."""
    images = data.transpose(0, 2, 3, 1)
    boxes = np.array([ROI] * len(images))
    return first(crop_and_resize(images, boxes, [0, 1], (3, 4), outside=-1.5))


CASES = [
    Case("image.resize2d", (X,), LINEAR, {"size": (7, 3), "rounding_method": ""}),
    Case(
        "image.resize2d",
        (BLOCKED,),
        lambda _: blocked(LINEAR(X)),
        {"size": (7, 3), "layout": "NCHW4c", "roi": (0.0, 0.0, 0.0, 0.0)},
    ),
    Case(
        "image.resize2d",
        (X.transpose(0, 2, 3, 1),),
        lambda _: interpolate((7, 3), "nearest")(X).permute(0, 2, 3, 1),
        {
            "size": (7, 3),
            "layout": "NHWC",
            "method": "nearest_neighbor",
            "coordinate_transformation_mode": "asymmetric",
            "rounding_method": "floor",
        },
    ),
    Case(
        "image.resize2d",
        (X,),
        interpolate((3, 9), "bicubic", True),
        {
            "size": (3, 9),
            "method": "cubic",
            "coordinate_transformation_mode": "align_corners",
            "cubic_alpha": -0.75,
        },
    ),
    Case(
        "image.resize2d",
        (WHOLE,),
        truncated,
        {"size": (5, 5), "coordinate_transformation_mode": "align_corners"},
        label="integers",
    ),
    Case(
        "image.resize2d",
        (X,),
        lambda x: LINEAR(x).double(),
        {"size": (7, 3), "out_dtype": "float64"},
    ),
    Case(
        "image.resize2d",
        (floats(2, 3, 4, 5),),
        part,
        {
            "size": (3, 4),
            "roi": ROI,
            "coordinate_transformation_mode": "tf_crop_and_resize",
            "extrapolation_value": -1.5,
        },
    ),
    Case(
        "image.resize2d",
        (X,),
        attrs={"size": (3, 4), "coordinate_transformation_mode": "tf_crop_and_resize"},
        refused="needs a roi",
    ),
    Case("image.resize2d", (X,), refused="size is missing"),
    Case(
        "image.resize1d",
        (LINE,),
        lambda x: interpolate((7,), "linear", False)(x.transpose(0, 2, 1).copy()).permute(0, 2, 1),
        {"size": (7,), "layout": "NWC", "rounding_method": ""},
    ),
    Case(
        "image.resize1d",
        (LINE,),
        attrs={"size": (7,), "coordinate_transformation_mode": "tf_crop_and_resize"},
        refused="is for images",
    ),
    Case(
        "image.resize3d",
        (VOLUME,),
        interpolate((5, 2, 6), "trilinear", False),
        {"size": (5, 2, 6), "method": "trilinear", "rounding_method": ""},
        version=(0, 7),
    ),
    Case(
        "image.resize3d",
        (VOLUME,),
        interpolate((6, 8, 2), "nearest"),
        {
            "size": (6, 8, 2),
            "method": "nearest_neighbor",
            "coordinate_transformation_mode": "asymmetric",
            "rounding_method": "floor",
        },
    ),
    Case(
        "image.resize3d",
        (VOLUME,),
        attrs={"size": (2, 2, 2), "coordinate_transformation_mode": "tf_crop_and_resize"},
        refused="is for images",
    ),
    Case("image.resize", (X,), LINEAR, {"size": (7, 3)}, version=(0, 7)),
    Case(
        "image.resize",
        (X,),
        interpolate((7, 3), "bilinear", True),
        {"size": (7, 3)},
        version=(0, 6),
        label="not stated: corners align",
    ),
    Case(
        "image.resize",
        (X,),
        interpolate((7, 3), "bilinear", True),
        {"size": (7, 3), "method": "BILINEAR", "align_corners": True},
        version=(0, 6),
    ),
    Case(
        "image.resize",
        (X,),
        interpolate((8, 10), "nearest"),
        {"size": (8, 10), "method": "NEAREST_NEIGHBOR", "align_corners": False},
        version=(0, 6),
    ),
]
