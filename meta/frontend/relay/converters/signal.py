"""Converters of Fourier transforms."""

from __future__ import annotations

from math import sqrt

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.relay.registry import relay

relay.same("dft", op.dft)


@relay("stft", op.take, op.dft, op.stack)
def stft(data, window, *, n_fft, hop_length, win_length, normalized, onesided, call):
    """Transforms of frames, [batch, frequencies, frames, 2]; a vector has no batch.

    Frames are as long as the window, and begin at multiples of the hop, as far as ``n_fft``
    elements are left.
    """
    extent = data.shape[-1]
    if not 0 < win_length <= n_fft <= extent or hop_length < 1 or window.shape != (win_length,):
        raise Unconvertible(
            f"n_fft={n_fft}, win_length={win_length}, hop_length={hop_length} do not fit a signal "
            f"of {extent} and a window of {window.shape}"
        )
    device = str(call.device)
    count = (extent - n_fft) // hop_length + 1
    starts = op.arange(0, count * hop_length, hop_length, dtype="int32", device=device)
    steps = op.arange(0, win_length, 1, dtype="int32", device=device)
    places = op.add(op.expand_dims(starts, 1), steps)
    frames = op.multiply(op.take(data, places, -1), window)
    re, im = op.dft(frames, op.zeros_like(frames))
    rows = n_fft // 2 + 1 if onesided else n_fft
    if rows != win_length:
        # Frequencies are multiples of that of the window: behind the last one they repeat.
        numbers = op.arange(0, rows, 1, dtype="int32", device=device)
        chosen = op.mod(numbers, win_length)
        re, im = op.take(re, chosen, -1), op.take(im, chosen, -1)
    both = op.swap_axis(op.stack((re, im), -1), -2, -3)
    return op.divide(both, sqrt(n_fft)) if normalized else both
