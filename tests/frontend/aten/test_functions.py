"""Activations, special functions, complex numbers and transforms: what torch's samples do not
reach.
"""

from __future__ import annotations

import pytest
import torch

import meta
from meta.frontend.aten.graph import convert
from meta.frontend.core import Unconvertible
from tests.frontend.aten.calls import Call, call, check

X = torch.tensor([-4.0, -3.0, -0.5, 0.0, 0.5, 3.0, 6.0, 20.0, float("nan")])
DY = torch.linspace(0.5, 2, 9)
M = torch.linspace(-2, 2, 8).reshape(2, 4)
DM = torch.linspace(1, 2, 8).reshape(2, 4)
C = torch.tensor([1 + 2j, -3j, 0j, -2 + 0j])
HALVES = (torch.float16, torch.bfloat16)

CASES = [
    *(
        call(f"{name}_backward", DY, X, *args)
        for name, args in {
            "threshold": (0.5,),
            "gelu": (),
            "silu": (),
            "mish": (),
            "hardswish": (),
            "hardsigmoid": (),
            "hardtanh": (-3, 3),
            "leaky_relu": (0.1, False),
            "softplus": (1, 20),
            "softshrink": (0.5,),
            "hardshrink": (0.5,),
            "sigmoid": (),
            "tanh": (),
            "logit": (),
        }.items()
    ),
    call("gelu_backward", DY, X, approximate="tanh"),
    call("logit_backward", DY, DY / 2, 0.3),
    call("elu_backward", DY, 1.5, 2, 0.5, False, X),
    call("elu_backward", DY, 1.5, 2, 1, True, X),
    call("elu", X, 1.5, 2, 0.5),
    call("log_sigmoid_forward", X),
    call("log_sigmoid_backward", DY, X, (-X.abs()).exp()),
    call("glu_backward", DM[:, :2], M, 1),
    call("_prelu_kernel", M, torch.tensor([0.1, 0.2, 0.3, 0.4])),
    call("_prelu_kernel_backward", DM, M, torch.tensor([0.1, 0.2, 0.3, 0.4])),
    call("prelu", M, torch.tensor([0.1, 0.2, 0.3, 0.4])),
    call("rrelu", X),
    call("rrelu_with_noise_backward", DY, X, X, 0.1, 0.3, True, False),
    call("rrelu_with_noise_backward", DY, X, X, 0.1, 0.3, False, False),
    call("hardtanh", torch.tensor([-3, 0, 3]), -1, 1),
    call("relu6", torch.tensor([-3, 0, 8])),
    call("sigmoid", torch.tensor([-3, 0, 8])),
    call("tanh", C),
    *(call("softplus", X.to(d), 2, 5, label=str(d)) for d in HALVES),
    *(call("gelu", X.to(d), label=str(d)) for d in HALVES),
    *(call("silu_backward", DY.to(d), X.to(d), label=str(d)) for d in HALVES),
    call("softmax.int", M, 0, torch.float64),
    call("softmax.int", torch.tensor(2.0), 0),
    call("log_softmax.int", torch.tensor([[1, 2]]), 1, torch.float32),
    call("_softmax", M, -1, False),
    call("_safe_softmax", torch.tensor([[-float("inf")] * 2, [0.0, 1.0]]), 1),
    call("_softmax_backward_data", DM, M.softmax(1), 1, torch.float32),
    call("_log_softmax_backward_data", DM, M.log_softmax(1), 1, torch.float32),
    call("polygamma", 3, torch.tensor([0.3, 2.5, 30.0, -1.3, -7.6, 0.0, -2.0])),
    call("polygamma", 1, torch.tensor([1, 2])),
    call("special_zeta", torch.tensor([2.0, 3.5, 1.0, 0.5, 2.0]), torch.tensor([0.3, 9, 2, 2, -3])),
    call("special_zeta.other_scalar", torch.tensor([2.0, 3.0]), 2),
    call("mvlgamma", torch.tensor([2.5, 9.0]), 3),
    call("xlogy.Scalar_Self", 0, torch.tensor([0.0, 2.0, float("nan")])),
    call("xlogy.Tensor", torch.tensor([0, 2]), torch.tensor([0, 3])),
    call("special_hermite_polynomial_h.n_scalar", DY, 5),
    call("special_shifted_chebyshev_polynomial_t.n_scalar", DY / 2, 4),
    call("angle", X),
    call("angle", C),
    call("angle", torch.tensor([-2, 3])),
    call("conj_physical", C),
    call("real", X),
    call("view_as_real", C),
    call("view_as_complex", torch.ones(3, 2)),
    call("polar", DY, X),
    call("_fft_r2c", M, [0, 1], 1, True),
    call("_fft_r2c", M, [1], 2, False, label="both halves"),
    call("_fft_c2c", C, [0], 2, False),
    call("_fft_c2c", C, [0], 0, True),
    call("_fft_c2r", C, [0], 2, 7),
    call("_fft_c2r", C, [0], 1, 6),
    *(call(f"fft_{n}", M, norm="ortho") for n in ("fft", "ifft", "rfft", "ihfft")),
    *(call(f"fft_{n}", C, 5, 0, "forward") for n in ("irfft", "hfft")),
    *(call(f"fft_{n}", M, [3, -1]) for n in ("fft2", "ifft2", "rfft2", "fftn")),
    call("fft_irfftn", M + 0j, [5], None),
    call("fft_fft", torch.tensor([1, 2, 3])),
    call("fft_fftshift", M),
    call("fft_ifftshift", M, [1]),
]


@pytest.mark.parametrize("one", CASES, ids=lambda c: c.id)
def test_as_torch(one: Call) -> None:
    check(one)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("special_bessel_j0", "Bessel"),
        ("special_erfcx", "tail is lost"),
        ("special_airy_ai", "Bessel"),
    ],
)
def test_functions_without_base_operator_are_declined(name: str, reason: str) -> None:
    overload = getattr(torch.ops.aten, name).default
    with pytest.raises(Unconvertible, match=reason):
        convert(overload, (meta.array(X),), {})


def test_a_polynomial_of_a_large_order_is_declined() -> None:
    overload = torch.ops.aten.special_laguerre_polynomial_l.n_scalar
    with pytest.raises(Unconvertible, match="order above 64"):
        convert(overload, (meta.array(X), 99), {})
