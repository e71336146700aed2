"""What the converters of `meta/frontend/relay/converters/transform.py` have to give."""

from cmath import exp, pi
from functools import partial

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

RNG = np.random.default_rng(8)
F = np.float32
RE, IM = RNG.normal(size=(2, 2, 3, 10)).astype(F)


def stft(data, window, n_fft, hop_length, win_length, normalized=False, onesided=True):
    """Sum by sum."""
    batch = data.reshape(-1, data.shape[-1])
    rows = n_fft // 2 + 1 if onesided else n_fft
    frames = (data.shape[-1] - n_fft) // hop_length + 1
    y = np.zeros((len(batch), rows, frames, 2))
    for b, signal in enumerate(batch):
        for r in range(rows):
            for f in range(frames):
                total = sum(
                    float(window[k]) * float(signal[f * hop_length + k])
                    * exp(-2j * pi * r * k / win_length)
                    for k in range(win_length)
                )  # fmt: skip
                y[b, r, f] = total.real, total.imag
    if normalized:
        y /= np.sqrt(n_fft)
    return y.reshape(*data.shape[:-1], *y.shape[1:]).astype(F)


def _case(data, **attrs):
    window = RNG.uniform(0.1, 1, attrs["win_length"]).astype(F)
    return Case("stft", (data, window), partial(stft, **attrs), attrs, label=f"{attrs}")


SIGNAL = RNG.normal(size=(2, 30)).astype(F)

CASES = [
    Case(
        "dft",
        (RE, IM),
        lambda re, im, f=function: tuple(p(f(re + 1j * im)).astype(F) for p in (np.real, np.imag)),
        {"inverse": inverse},
    )
    for inverse, function in ((False, np.fft.fft), (True, np.fft.ifft))
] + [
    _case(SIGNAL, n_fft=8, hop_length=3, win_length=8),
    _case(SIGNAL, n_fft=8, hop_length=8, win_length=8, onesided=False),
    _case(SIGNAL, n_fft=7, hop_length=2, win_length=7, normalized=True),
    _case(SIGNAL, n_fft=8, hop_length=4, win_length=3),
    _case(SIGNAL[0], n_fft=8, hop_length=4, win_length=6, onesided=False),
    Case(
        "stft",
        (SIGNAL, np.ones(8, F)),
        attrs={"n_fft": 80, "hop_length": 3, "win_length": 8},
        refused="do not fit a signal",
    ),
]
