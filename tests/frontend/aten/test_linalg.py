"""Linear algebra: what torch's samples do not reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.base.errors import LinAlgError
from meta.frontend.aten.graph import convert
from meta.frontend.core import Unconvertible
from tests.frontend.aten.calls import Call, call, check

A = torch.tensor([[4.0, 1.0, -1.0], [2.0, 0.5, 3.0], [1.0, -2.0, 5.0]])
S = A @ A.mT + torch.eye(3)
B = torch.tensor([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]])
C = A + 1j * A.flip(0)
BATCH = torch.stack((A, A.mT + torch.eye(3)))
LU = torch.linalg.lu_factor(A)
LU_C = torch.linalg.lu_factor(C)

CASES = [
    call("_linalg_det", A),
    call("_linalg_det", C),
    call("_linalg_slogdet", BATCH),
    call("_linalg_solve_ex", A, B),
    call("_linalg_solve_ex", A, B.mT, left=False),
    call("_linalg_solve_ex", BATCH, B[:, 0].expand(2, 3), label="vectors"),
    call("linalg_lu_factor_ex", BATCH),
    *(
        call("linalg_lu_solve", *LU, b, left=left, adjoint=turned)
        for b, left in ((B, True), (B.mT.contiguous(), False))
        for turned in (False, True)
    ),
    call("linalg_lu_solve", *LU_C, (C[:, :2]).mT.contiguous(), left=False, adjoint=True),
    call("linalg_lu", torch.cat((A, B), 1)),
    call("linalg_lu", torch.cat((BATCH, BATCH), 1)),
    call("linalg_cholesky_ex", S, upper=True),
    call("cholesky_solve", B, torch.linalg.cholesky(S)),
    call("cholesky_inverse", torch.linalg.cholesky(S, upper=True), True),
    call("linalg_inv_ex", C),
    call("linalg_solve_triangular", A, B, upper=True),
    call("linalg_solve_triangular", A, B.mT, upper=False, left=False, unitriangular=True),
    call("triangular_solve", B, BATCH, False, True),
    call("linalg_qr", B, "complete"),
    call("linalg_qr", B, "r"),
    call("_linalg_svd", B, True),
    call("_linalg_svd", B, False, False),
    call("_linalg_eigh", S, "L", False),
    call("linalg_eig", S),
    call("_linalg_eigvals", A),
    call("linalg_matrix_exp", BATCH),
    call("linalg_cross", A, B.mT[:1]),
    call("linalg_householder_product", *torch.geqrf(B)),
    *(call("linalg_matrix_norm", B, p, label=str(p)) for p in (1, -1, 2, -2, float("inf"))),
    call("linalg_matrix_norm.str_ord", BATCH, "nuc", [0, 2], True),
    call("linalg_norm", B, label="all elements"),
    call("linalg_norm", B, 1),
    call("linalg_norm", BATCH, 3, [1], True),
    call("linalg_norm.ord_str", BATCH, "fro", [0, 1]),
    call("nuclear_norm", B, True),
    call("nuclear_norm.dim", BATCH, [2, 0]),
    call("logdet", BATCH),
    call("logdet", -A),
    call("svd", B, False),
    call("svd", B, True, False),
    call("qr", B, False),
    call("linalg_vecdot", C, A.to(torch.complex64), dim=0),
    call("linalg_multi_dot", [A, B, B.mT]),
    call("linalg_matrix_power", A, -3),
    call("linalg_matmul", A, B),
    call("linalg_pinv.atol_rtol_tensor", B, atol=torch.tensor(0.1)),
    call("linalg_pinv.atol_rtol_tensor", BATCH, rtol=torch.tensor([0.1, 0.5])),
    call("linalg_pinv.atol_rtol_float", A, rtol=0.1),
    call("linalg_pinv.atol_rtol_float", A @ A.mT, atol=0.3, hermitian=True),
    call("linalg_pinv", B, 0.1),
    call("pinverse", B, 0.1),
]


@pytest.mark.parametrize("one", CASES, ids=lambda c: c.id)
def test_as_torch(one: Call) -> None:
    check(one)


def test_a_matrix_without_a_result_is_an_error() -> None:
    singular = meta.array(torch.ones(2, 2))
    with pytest.raises(LinAlgError, match="a matrix is singular"):
        convert(torch.ops.aten.linalg_inv_ex.default, (singular,), {})


@pytest.mark.parametrize(
    ("name", "args", "why"),
    [
        ("linalg_lu_factor_ex", {"pivot": False}, "without exchanges"),
        ("geqrf", {}, "packed form"),
        ("linalg_ldl_factor_ex", {}, "packed form"),
    ],
)
def test_what_is_declined(name: str, args: dict[str, Any], why: str) -> None:
    overload = getattr(torch.ops.aten, name).default
    with pytest.raises(Unconvertible, match=why):
        convert(overload, (meta.array(A),), args)
