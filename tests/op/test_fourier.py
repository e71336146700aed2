"""What the records cannot say of complex numbers and Fourier transforms: gradients, which are by
real and imaginary parts, the functions of `meta.fft`, and complex arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import fft, op
from meta.base.errors import ArgumentError, GradientError, TypeInferError
from meta.ir import parse, structural_equal, text
from meta.model import trace
from meta.passes import autodiff, infer_type
from meta.runtime.ndarray import ndarray
from meta.testing import check
from meta.testing.compare import numeric_gradient

NORMS = ("backward", "ortho", "forward")


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(shape, dtype=torch.float64).uniform_(-1, 1, generator=generator)


def weighted(y: Any) -> Any:
    """One number that depends on every part of every element."""
    count = int(np.prod(y.shape))
    first, second = (np.sin(np.arange(count) * k + k).reshape(y.shape) for k in (1.3, 0.7))
    if isinstance(y, torch.Tensor):
        w1, w2 = torch.from_numpy(first), torch.from_numpy(second)
        return (y.real * w1 + y.imag * w2).sum() if y.is_complex() else (y * w1).sum()
    if y.dtype in ("complex64", "complex128"):
        parts = op.real(y) * meta.array(first) + op.imag(y) * meta.array(second)
        return op.sum(parts, tuple(range(y.ndim))) if y.ndim else parts
    return op.sum(y * meta.array(first), tuple(range(y.ndim)))


X, Y = values(4, 6), values(4, 6, seed=1)


def z(x: Any) -> Any:
    """Complex numbers whose parts both depend on x."""
    if isinstance(x, torch.Tensor):
        return torch.complex(x, x * x + 0.5)
    return op.complex(x, x * x + 0.5)


# name -> (ours, torch's), functions of real numbers of 4 x 6
FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "add": (lambda x: z(x) + z(x)[:1] * 2.0, lambda x: z(x) + z(x)[:1] * 2.0),
    "subtract": (lambda x: z(x) - op.conj(z(x)), lambda x: z(x) - z(x).conj()),
    "multiply": (lambda x: z(x) * z(x)[:, :1], lambda x: z(x) * z(x)[:, :1]),
    "divide": (lambda x: z(x) / z(x)[:1], lambda x: z(x) / z(x)[:1]),
    "negative": (lambda x: -z(x), lambda x: -z(x)),
    "abs": (lambda x: op.abs(z(x)), lambda x: z(x).abs()),
    "angle": (lambda x: op.angle(z(x)), lambda x: z(x).angle()),
    "real of a square": (lambda x: op.real(z(x) * z(x)), lambda x: (z(x) * z(x)).real),
    "sum": (lambda x: op.sum(z(x), 1), lambda x: z(x).sum(1)),
    "cast": (
        lambda x: op.astype(x, "complex128") * z(x),
        lambda x: x.to(torch.complex128) * z(x),
    ),
    "vecdot": (
        lambda x: meta.vecdot(z(x), z(x) * z(x)),
        lambda x: torch.linalg.vecdot(z(x), z(x) * z(x)),
    ),
    "slices": (lambda x: z(x)[1:, ::2], lambda x: z(x)[1:, ::2]),
    "fftshift": (lambda x: fft.fftshift(z(x)), lambda x: torch.fft.fftshift(z(x))),
    "ifftshift": (
        lambda x: fft.ifftshift(z(x)[:, :5], axes=1),
        lambda x: torch.fft.ifftshift(z(x)[:, :5], 1),
    ),
    "power spectrum": (
        lambda x: op.abs(fft.rfft(x)) * op.abs(fft.rfft(x)),
        lambda x: torch.fft.rfft(x).abs() ** 2,
    ),
    "convolution": (
        lambda x: fft.irfft(fft.rfft(x, n=8) * fft.rfft(x[:1], n=8), n=8),
        lambda x: torch.fft.irfft(torch.fft.rfft(x, 8) * torch.fft.rfft(x[:1], 8), 8),
    ),
}
for _norm in NORMS:
    for _name in ("fft", "ifft", "irfft", "hfft"):
        for _n in (None, 4, 5, 9):
            FUNCTIONS[f"{_name}, {_n}, {_norm}"] = (
                lambda x, f=_name, n=_n, o=_norm: getattr(fft, f)(z(x), n=n, axis=0, norm=o),
                lambda x, f=_name, n=_n, o=_norm: getattr(torch.fft, f)(z(x), n, 0, o),
            )
    for _name in ("rfft", "ihfft"):
        for _n in (None, 5, 8):
            FUNCTIONS[f"{_name}, {_n}, {_norm}"] = (
                lambda x, f=_name, n=_n, o=_norm: getattr(fft, f)(x, n=n, norm=o),
                lambda x, f=_name, n=_n, o=_norm: getattr(torch.fft, f)(x, n, norm=o),
            )
    for _name in ("fft2", "ifft2", "irfft2", "fftn", "ifftn", "irfftn"):
        for _s in (None, (3, 7)):
            FUNCTIONS[f"{_name}, {_s}, {_norm}"] = (
                lambda x, f=_name, s=_s, o=_norm: getattr(fft, f)(z(x), s=s, norm=o),
                lambda x, f=_name, s=_s, o=_norm: getattr(torch.fft, f)(z(x), s, norm=o),
            )
    for _name in ("rfft2", "rfftn"):
        for _s in (None, (3, 7)):
            FUNCTIONS[f"{_name}, {_s}, {_norm}"] = (
                lambda x, f=_name, s=_s, o=_norm: getattr(fft, f)(x, s=s, norm=o),
                lambda x, f=_name, s=_s, o=_norm: getattr(torch.fft, f)(x, s, norm=o),
            )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_torch(name: str) -> None:
    ours, theirs = FUNCTIONS[name]
    leaf = X.clone().requires_grad_()
    expected = theirs(leaf)
    (dx,) = torch.autograd.grad(weighted(expected), leaf)
    array = ndarray(X.clone())
    array.requires_grad = True
    found = ours(array)
    check(found, expected, 1e-12, 1e-12, what=name)
    weighted(found).backward()
    check(array.grad, dx, 1e-10, 1e-10, what=f"gradient of {name}")
    (numeric,) = numeric_gradient(
        lambda t: weighted(ours(ndarray(t.clone()))).torch(), [X.clone()], torch.ones(())
    )
    check(array.grad, numeric, 1e-4, 1e-5, what=f"numeric gradient of {name}")


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if "ortho" not in n and "forward" not in n])
def test_compiled_programs_have_the_same_values_and_gradients(name: str) -> None:
    ours, theirs = FUNCTIONS[name]
    leaf = X.clone().requires_grad_()
    expected = theirs(leaf)
    (dx,) = torch.autograd.grad(weighted(expected), leaf)
    array, dy = ndarray(X.clone()), meta.array(1.0, "float64")
    check(meta.vm.compile(trace(ours), array)(array), expected, 1e-12, 1e-12, what=name)
    program = trace(lambda x: weighted(ours(x))).program(array)
    module = infer_type(autodiff(program.module, wrt=[0]))
    y, (found,) = meta.vm.compile(module, dy, array)(dy, array)
    check(y, weighted(expected), 1e-12, 1e-12, what=name)
    check(found, dx, 1e-10, 1e-10, what=f"gradient of {name}")


def test_a_complex_leaf_has_torchs_gradient() -> None:
    leaf = torch.complex(X, Y).requires_grad_()
    (expected,) = torch.autograd.grad(weighted(torch.fft.ifft(leaf * leaf).abs()), leaf)
    array = ndarray(torch.complex(X, Y))
    array.requires_grad = True
    weighted(op.abs(fft.ifft(array * array))).backward()
    check(array.grad, expected, 1e-10, 1e-10)
    assert array.grad is not None and array.grad.dtype == "complex128"


def test_a_gradient_of_a_transform_has_a_gradient() -> None:
    leaf = X.clone().requires_grad_()
    y = (torch.fft.rfft(leaf).abs() ** 3).sum()
    (first,) = torch.autograd.grad(y, leaf, create_graph=True)
    (expected,) = torch.autograd.grad(weighted(first), leaf)
    array = ndarray(X.clone())
    array.requires_grad = True
    size = op.abs(fft.rfft(array))
    dx = meta.grad.grad(op.sum(size * size * size, (0, 1)), array, create_graph=True)
    check(meta.grad.grad(weighted(dx), array), expected, 1e-9, 1e-9)


FREQUENCIES = {
    "fftfreq": (lambda: fft.fftfreq(5, d=0.5), lambda: np.fft.fftfreq(5, 0.5)),
    "rfftfreq": (lambda: fft.rfftfreq(6), lambda: np.fft.rfftfreq(6)),
    "fftfreq, float64": (
        lambda: fft.fftfreq(4, dtype="float64"),
        lambda: np.fft.fftfreq(4),
    ),
}


@pytest.mark.parametrize("name", FREQUENCIES)
def test_frequencies(name: str) -> None:
    ours, expected = FREQUENCIES[name]
    check(ours(), expected(), 1e-6, 1e-7)


class TestArrays:
    def test_made_of_numbers(self) -> None:
        assert meta.array([1 + 2j, 3]).dtype == "complex64"
        assert meta.array(1j).item() == 1j
        assert complex(meta.array(2.5 + 1j)) == 2.5 + 1j
        assert meta.array([1, 2], "complex128").dtype == "complex128"
        assert meta.array(0.1 + 0.1j, "complex128").item() == 0.1 + 0.1j

    def test_exchanged(self) -> None:
        numbers = np.array([1 + 2j, -3j])
        x = meta.array(numbers)
        assert x.dtype == "complex128" and x.numpy().dtype == np.complex128
        assert (x.numpy() == numbers).all() and (np.asarray(x) == numbers).all()
        assert meta.array(torch.tensor([1 + 2j]).conj()).item() == 1 - 2j
        assert op.astype(x, "complex64").dtype == "complex64"
        assert meta.array([1.5]).to(dtype="complex64").item() == 1.5

    def test_shown_in_programs(self) -> None:
        constant = meta.array([1 + 2j, 0.1j])
        program = trace(lambda x: x * constant).program(constant)
        assert structural_equal(program.module, parse(text(program.module)))

    @pytest.mark.parametrize(
        "call",
        [
            lambda x: meta.array(x, "float32"),
            lambda x: meta.array(1j, "float64"),
            lambda x: meta.array([1j], "int64"),
            lambda x: x.to(dtype="int32"),
            lambda x: float(x[0]),
            lambda x: int(x[0]),
            lambda x: [0, 1][x[0]],
        ],
    )
    def test_no_part_is_dropped_in_silence(self, call: Any) -> None:
        with pytest.raises(ArgumentError):
            call(meta.array([1 + 2j]))

    def test_a_complex_result_has_no_single_gradient(self) -> None:
        x = meta.array(1 + 2j)
        x.requires_grad = True
        with pytest.raises(GradientError, match="many directions"):
            (x * x).backward()


REFUSED: dict[str, tuple[Any, str]] = {
    "rfft of complex": (lambda: fft.rfft(z(X)), "no such transform"),
    "fft of half precision": (lambda: fft.fft(meta.array([1.0], "float16")), "no such transform"),
    "fft of integers": (lambda: fft.fft([1, 2]), "no such transform"),
    "n": (lambda: fft.fft(X, n=0), "at least 1"),
    "irfft of one": (lambda: fft.irfft([1j]), "at least 1"),
    "s": (lambda: fft.fft2(X, s=(1, 2, 3)), "differ in length"),
    "axes": (lambda: fft.fft2(X, axes=(1, 1)), "named twice"),
    "no axes": (lambda: fft.irfftn(z(X), axes=()), "needs an axis"),
    "norm": (lambda: fft.hfft(z(X), norm="none"), "unknown norm"),
    "fftfreq": (lambda: fft.fftfreq(0), "no such frequencies"),
    "complex and real": (lambda: meta.array(z(X)) * meta.array(X), "differ in dtype"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name: str) -> None:
    call, match = REFUSED[name]
    with meta.strict_dtypes(), pytest.raises(TypeInferError, match=match):
        call()
