"""Windows for Fourier transforms: numbers that are known while converting."""

import numpy as np

from meta.frontend.aten.arguments import constant, default_dtype, require_strided
from meta.frontend.aten.registry import aten

PLACES = ("device", "pin_memory")


def cosines(length, periodic, coefficients):
    """A sum of cosines: c0 - c1 * cos(t) + c2 * cos(2 t), t once around in the window."""
    around = np.arange(length) * (2 * np.pi / max(length if periodic else length - 1, 1))
    signs = (c * (-1) ** k * np.cos(k * around) for k, c in enumerate(coefficients))
    return sum(signs)


def triangle(length, periodic, _):
    last = max(length if periodic else length - 1, 1)
    return 1 - np.abs(2 * np.arange(length) / last - 1)


def made(function, length, periodic, parameters, dtype, layout, call):
    require_strided(layout)
    values = np.ones(length) if length == 1 else function(length, periodic, parameters)
    return constant(values, dtype or default_dtype(), call)


def _register(name, function, parameters):
    @aten(f"{name}_window", ignore=PLACES)
    def window(*, window_length, dtype, layout, call):
        return made(function, window_length, True, parameters, dtype, layout, call)

    @aten(f"{name}_window.periodic", ignore=PLACES)
    def stated(*, window_length, periodic, dtype, layout, call):
        return made(function, window_length, periodic, parameters, dtype, layout, call)


_register("bartlett", triangle, ())
_register("blackman", cosines, (0.42, 0.5, 0.08))
_register("hamming", cosines, (0.54, 0.46))
_register("hann", cosines, (0.5, 0.5))


@aten("hamming_window.periodic_alpha", ignore=PLACES)
def hamming_window(*, window_length, periodic, alpha, dtype, layout, call):
    return made(cosines, window_length, periodic, (alpha, 0.46), dtype, layout, call)


@aten("hamming_window.periodic_alpha_beta", ignore=PLACES)
def hamming_window_by(*, window_length, periodic, alpha, beta, dtype, layout, call):
    return made(cosines, window_length, periodic, (alpha, beta), dtype, layout, call)


def kaiser(length, periodic, beta):
    """Kaiser and Schafer, "On the use of the I0-sinh window for spectrum analysis", 1980."""
    values = np.kaiser(length + periodic, beta)
    return values[:length]


@aten("kaiser_window", ignore=PLACES)
def kaiser_window(*, window_length, dtype, layout, call):
    return made(kaiser, window_length, True, 12.0, dtype, layout, call)


@aten("kaiser_window.periodic", ignore=PLACES)
def kaiser_window_stated(*, window_length, periodic, dtype, layout, call):
    return made(kaiser, window_length, periodic, 12.0, dtype, layout, call)


@aten("kaiser_window.beta", ignore=PLACES)
def kaiser_window_by(*, window_length, periodic, beta, dtype, layout, call):
    return made(kaiser, window_length, periodic, beta, dtype, layout, call)
