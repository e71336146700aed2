"""Cases of operators that make tensors of numbers, and of Fourier transforms."""

from __future__ import annotations

import numpy as np

from tests.frontend.onnx.records import OnnxCase, calls, data

ZEROS = np.zeros((3, 4), np.float32)
SIGNAL = data(2, 12, 1)
PAIRS = data(2, 9, 3, 2)


CASES: list[OnnxCase] = [
    *calls("ConstantOfShape", np.array([2, 3]), opsets=(9, 20), constants="a"),
    *calls("ConstantOfShape", np.array([2, 3]), opsets=(9,), label="of an input"),
    *(c for k in (0, 1, -1) for c in calls("EyeLike", ZEROS, opsets=(9, 22), k=k)),
    *calls("EyeLike", ZEROS, opsets=(9,), dtype=7),
    *calls("Range", np.int64(1), np.int64(12), np.int64(3), opsets=(11, 27), constants="abc"),
    *calls(
        "Range", np.float32(3), np.float32(-1.1), np.float32(-0.5), opsets=(11,), constants="abc"
    ),
    *calls(
        "Range",
        np.int64(1),
        np.int64(1),
        np.int64(3),
        opsets=(11,),
        constants="abc",
        label="nothing",
    ),
    *calls("Range", np.int64(1), np.int64(12), np.int64(3), opsets=(11,), label="of inputs"),
    *(
        calls(
            "Range",
            *map(np.float32, bounds),
            opsets=(11,),
            constants="abc",
            refused="no range" if bounds[2] else "a step of 0 has no end",
            label=str(bounds),
        )[0]
        for bounds in ((0, np.inf, 1), (np.nan, 2, 1), (0, 2, np.nan), (0, 2, 0))
    ),
    *(
        c
        for n in ("HannWindow", "HammingWindow", "BlackmanWindow")
        for periodic in (0, 1)
        for c in calls(n, np.int64(10), opsets=(17,), constants="a", periodic=periodic)
    ),
    *calls("HannWindow", np.int64(8), opsets=(17,), constants="a", output_datatype=11),
    *(
        c
        for axis in (0, 1, -2)
        for c in (
            *calls("DFT", PAIRS, opsets=(17,), axis=axis, tolerance=1e-4),
            *calls("DFT", PAIRS, opsets=(17,), axis=axis, inverse=1, tolerance=1e-4),
            *calls(
                "DFT",
                PAIRS,
                None,
                np.int64(axis),
                opsets=(20,),
                constants="c",
                label=f"{axis}",
                tolerance=1e-4,
            ),
        )
    ),
    *calls("DFT", SIGNAL, opsets=(17,), onesided=1, tolerance=1e-4),
    *calls("DFT", SIGNAL, np.int64(16), opsets=(20,), constants="b", onesided=1, tolerance=1e-4),
    *calls("DFT", SIGNAL, np.int64(7), opsets=(20,), constants="b", tolerance=1e-4),
    *calls(
        "DFT",
        PAIRS,
        np.int64(12),
        np.int64(1),
        opsets=(20,),
        constants="bc",
        inverse=1,
        onesided=1,
        tolerance=1e-4,
    ),
    *calls(
        "DFT",
        PAIRS,
        np.int64(7),
        np.int64(1),
        opsets=(20,),
        constants="bc",
        inverse=1,
        onesided=1,
        tolerance=1e-4,
        label="an odd length",
    ),
    *calls(
        "STFT",
        SIGNAL,
        np.int64(2),
        None,
        np.int64(5),
        opsets=(17,),
        constants="bd",
        onesided=0,
        tolerance=1e-4,
    ),
    *calls(
        "STFT",
        data(1, 10, 2),
        np.int64(2),
        data(4),
        np.int64(4),
        opsets=(17,),
        constants="bd",
        onesided=0,
        tolerance=1e-4,
    ),
]
