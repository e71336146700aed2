"""Cases of `Resize` and `Upsample`."""

from __future__ import annotations

import itertools

import numpy as np

from tests.frontend.onnx.records import OnnxCase, calls, data

X = data(1, 2, 4, 5)
ROW = data(1, 2, 6)
UP = np.float32([1, 1, 2, 3])
DOWN = np.float32([1, 1, 0.6, 0.7])
ROI = np.float32([0, 0, 0.2, -0.1, 1, 1, 0.9, 1.2])
SIZES = np.array([1, 2, 6, 3])
POSITIONS = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
ROUNDING = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")

CASES: list[OnnxCase] = [
    *(
        c
        for mode, position, (scales, label) in itertools.product(
            ("linear", "cubic"), (*POSITIONS, "half_pixel_symmetric"), ((UP, "up"), (DOWN, "down"))
        )
        for c in calls(
            "Resize",
            X,
            None,
            scales,
            opsets=(19,),
            constants="c",
            label=f"{mode}-{position}-{label}",
            tolerance=1e-4,
            mode=mode,
            coordinate_transformation_mode=position,
        )
    ),
    *(
        c
        for rounding, position, (scales, label) in itertools.product(
            ROUNDING, POSITIONS[:3], ((UP, "up"), (DOWN, "down"))
        )
        for c in calls(
            "Resize",
            X,
            None,
            scales,
            opsets=(13,),
            constants="c",
            label=f"{rounding}-{position}-{label}",
            mode="nearest",
            nearest_mode=rounding,
            coordinate_transformation_mode=position,
        )
    ),
    *(
        c
        for mode in ("linear", "cubic")
        for c in (
            *calls(
                "Resize",
                X,
                None,
                None,
                SIZES,
                opsets=(18, 19),
                constants="d",
                mode=mode,
                tolerance=1e-4,
            ),
            *calls(
                "Resize",
                X,
                None,
                None,
                SIZES,
                opsets=(18,),
                constants="d",
                mode=mode,
                antialias=1,
                tolerance=1e-4,
            ),
            *calls(
                "Resize",
                X,
                None,
                DOWN,
                opsets=(18,),
                constants="c",
                mode=mode,
                antialias=1,
                exclude_outside=1,
                tolerance=1e-4,
            ),
        )
    ),
    *calls(
        "Resize",
        X,
        None,
        UP,
        opsets=(13,),
        constants="c",
        mode="cubic",
        exclude_outside=1,
        cubic_coeff_a=-0.5,
        tolerance=1e-4,
    ),
    *calls(
        "Resize",
        X,
        ROI,
        None,
        SIZES,
        opsets=(13,),
        constants="bd",
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=7.5,
        tolerance=1e-4,
    ),
    *calls(
        "Resize",
        X,
        None,
        None,
        np.array([7, 9]),
        opsets=(19,),
        constants="d",
        mode="linear",
        axes=[2, 3],
        keep_aspect_ratio_policy="not_larger",
        tolerance=1e-4,
    ),
    *calls(
        "Resize",
        ROW,
        None,
        np.float32([1, 1, 1.5]),
        opsets=(13,),
        constants="c",
        mode="linear",
        label="one axis",
    ),
    *calls(
        "Resize",
        X,
        UP,
        opsets=(10,),
        constants="b",
        mode="nearest",
        expected=lambda x, s: x.repeat(2, 2).repeat(3, 3),
    ),
    *calls(
        "Resize",
        X,
        None,
        None,
        SIZES,
        opsets=(19,),
        mode="linear",
        antialias=1,
        refused="depend on the values of inputs",
    ),
    *calls("Resize", X, None, UP, opsets=(13,), refused="depend on the values of inputs"),
    *calls(
        "Upsample",
        X,
        opsets=(7,),
        mode="nearest",
        scales=[1.0, 1.0, 2.0, 3.0],
        expected=lambda x: x.repeat(2, 2).repeat(3, 3),
    ),
]
