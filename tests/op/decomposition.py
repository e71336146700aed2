"""What the operators of `meta/op/decomposition.py` have to do.

What is asked of special matrices, and gradients of several results or of symmetric matrices, is in
`test_decomposition.py`.
"""

import torch

from meta.base.dtype import TO_TORCH
from meta.testing import C, F, I, OpCase, error, refusals, sample
from meta.testing.case import Spec

ONLY = {"dialects": ("torch",), "dtypes": ("float32", "float64"), "rtol": {"float32": 1e-3}}
ONLY["atol"] = {"float32": 1e-4}
# Matrices whose elements are all equal are singular.
REGULAR = {**ONLY, "expanded": False}
# The signs of singular vectors and eigenvectors are the library's: test_decomposition.py and
# tests/cuda test what does not depend on them.
SIGNED = {**REGULAR, "devices": ("cpu",)}
SYMMETRIC = "among symmetric matrices only, which test_decomposition.py does"
SEVERAL = "of all results at once, which test_decomposition.py does"


def regular(*shape):
    """Matrices that are far from singular; their values are given, so that nobody reshapes them."""

    def make(dtype, generator):
        values = torch.empty(shape, dtype=torch.float64).uniform_(-1, 1, generator=generator)
        values = values + 2 * torch.eye(shape[-2], shape[-1], dtype=torch.float64)
        return values.to(TO_TORCH[dtype])

    return Spec(make, f"regular{list(shape)}", numbers=True)


def positive(*shape):
    """Symmetric positive definite matrices."""

    def make(dtype, generator):
        values = torch.empty(shape, dtype=torch.float64).uniform_(-1, 1, generator=generator)
        values = values @ values.mT + torch.eye(shape[-1], dtype=torch.float64)
        return values.to(TO_TORCH[dtype])

    return Spec(make, f"positive{list(shape)}", numbers=True)


def cofactor(x):
    """The determinants of what remains without a row and a column, with their signs."""
    n = x.shape[-1]

    def minor(i, j):
        rows, columns = ([k for k in range(n) if k != gone] for gone in (i, j))
        return (-1) ** (i + j) * torch.linalg.det(x[..., rows, :][..., columns])

    if not n:
        return x
    return torch.stack([torch.stack([minor(i, j) for j in range(n)], -1) for i in range(n)], -2)


def solve(x1, x2):
    """By the inverse."""
    inverse = torch.linalg.inv(x1)
    return (inverse @ x2.unsqueeze(-1)).squeeze(-1) if x2.ndim == 1 else inverse @ x2


def solve_triangular(x1, x2, upper, unitriangular=False):
    """By the inverse of the triangle."""
    triangle = x1.triu() if upper else x1.tril()
    if unitriangular:
        eye = torch.eye(x1.shape[-1], dtype=x1.dtype)
        triangle = triangle * (1 - eye) + eye
    return torch.linalg.inv(triangle) @ x2


def pinv(x, rtol=None):
    """Of the normal equations, for a full rank."""
    if x.shape[-2] >= x.shape[-1]:
        return torch.linalg.inv(x.mT @ x) @ x.mT
    return x.mT @ torch.linalg.inv(x @ x.mT)


def lu_solve(lu, pivots, x2, adjoint=False):
    """By the product of the three matrices."""
    eye = torch.eye(lu.shape[-1], dtype=lu.dtype)
    rows = list(range(lu.shape[-1]))
    for i, pivot in enumerate(pivots.tolist()):
        rows[i], rows[pivot - 1] = rows[pivot - 1], rows[i]
    x1 = eye[rows].mT @ (lu.tril(-1) + eye) @ lu.triu()
    return torch.linalg.inv(x1.mT if adjoint else x1) @ x2


def matrix_exp(x):
    """By its series."""
    total = term = torch.eye(x.shape[-1], dtype=x.dtype).expand(x.shape)
    for k in range(1, 60):
        term = term @ x / k
        total = total + term
    return total


SQUARES = [sample(regular(3, 3)), sample(regular(2, 1, 4, 4)), sample(regular(1, 1))]
NOTHING = [sample(F(0, 0)), sample(F(0, 3, 3))]
SYMMETRICS = [
    sample(positive(4, 4)),
    sample(positive(2, 3, 3)),
    sample(F(0, 0)),
    sample(F(0, 2, 2)),
]
EIGEN = [
    sample(C([[1.0, 2.0, 0.0], [-2.0, 1.0, 0.5], [0.0, 0.0, 5.0]])),
    sample(C([[[4.0, 1.0], [0.0, 2.0]], [[0.0, 1.0], [-1.0, 0.5]]])),
    sample(F(0, 0)),
]
SHAPES = [(4, 3), (3, 4), (3, 3), (2, 3, 2), (1, 1)]
MATRICES = [regular(*shape) for shape in SHAPES]
EMPTY = [F(0, 3), F(3, 0), F(0, 2, 3)]

CASES = [
    OpCase("linalg_inv", [*SQUARES, *NOTHING], torch.linalg.inv, **REGULAR),
    OpCase("linalg_pinv", [sample(x) for x in MATRICES], pinv, **REGULAR),
    OpCase("linalg_pinv", [sample(x) for x in EMPTY], lambda x: x.mT, **ONLY),
    OpCase(
        "linalg_pinv",
        [
            sample(C([[1.0, 0.0], [0.0, 0.125]]), 0.25),
            sample(C([[1.0, 0.0], [0.0, 0.125]]), None, 0.25),
            sample(C([[1.0, 5.0], [0.0, -0.125]]), 0.1, 0.25, True),  # one triangle is read
        ],
        lambda x, rtol, atol=0.0, hermitian=False: torch.tensor([[1.0, 0.0], [0.0, 0.0]]),
        grad=False,
        **ONLY,
    ),
    OpCase(
        "linalg_pinv",
        [sample(positive(3, 3), None, 0.0, True)],
        lambda x, *_: pinv(x),
        grad=False,  # of one triangle, where it is defined of symmetric matrices
        **ONLY,
    ),
    OpCase(
        "linalg_solve",
        [
            sample(regular(3, 3), F(3, 2)),
            sample(regular(3, 3), F(3)),
            sample(regular(2, 1, 3, 3), F(4, 3, 2)),
            sample(regular(3, 3), F(2, 3, 1)),
            sample(regular(2, 3, 3), F(3)),
            sample(regular(3, 3, 3), F(3, 3)),  # a matrix, not three vectors
            sample(F(0, 0), F(0, 2)),
            sample(regular(3, 3), F(3, 0)),
            sample(F(0, 3, 3), F(3)),
        ],
        solve,
        **REGULAR,
    ),
    OpCase(
        "linalg_solve_triangular",
        [
            sample(regular(3, 3), F(3, 2), True),
            sample(regular(3, 3), F(3, 2), False),
            sample(regular(2, 1, 3, 3), F(4, 3, 2), upper=False, unitriangular=True),
            sample(regular(3, 3), F(2, 3, 1), upper=True, unitriangular=True),
            sample(F(0, 0), F(0, 2), True),
        ],
        solve_triangular,
        **REGULAR,
    ),
    OpCase("linalg_det", [*SQUARES, *NOTHING], torch.linalg.det, second=False, **REGULAR),
    OpCase("linalg_cofactor", [*SQUARES, *NOTHING], cofactor, **REGULAR),
    OpCase(
        "linalg_slogdet",
        [
            *SQUARES,
            *NOTHING,
            sample(C([[1.0, 2.0], [2.0, 4.0]])),
            sample(C([[0.0, 1.0], [1.0, 0.0]])),
        ],
        torch.linalg.slogdet,
        grad=False,
        why=SEVERAL,
        **REGULAR,
    ),
    OpCase(
        "linalg_cholesky",
        [*SYMMETRICS, sample(positive(3, 3), upper=True)],
        lambda x, upper=False: torch.linalg.cholesky(x, upper=upper),
        grad=False,
        why=SYMMETRIC,
        **REGULAR,
    ),
    OpCase(
        "linalg_qr",
        [
            *(sample(x) for x in MATRICES),
            *(sample(regular(*shape), "complete") for shape in [(3, 4), (2, 3, 3), (1, 1)]),
            *(sample(x) for x in EMPTY),
        ],
        torch.linalg.qr,
        **REGULAR,
    ),
    OpCase(
        "linalg_qr",
        [sample(MATRICES[0], "complete"), sample(EMPTY[1], mode="complete")],
        torch.linalg.qr,
        grad=False,
        **REGULAR,
    ),
    OpCase(
        "linalg_svd",
        [sample(x, False) for x in (*MATRICES, *EMPTY)],
        torch.linalg.svd,
        **SIGNED,
    ),
    OpCase(
        "linalg_svd",
        [sample(x) for x in (*MATRICES, *EMPTY)],
        torch.linalg.svd,
        grad=False,
        **SIGNED,
    ),
    OpCase(
        "linalg_svdvals", [sample(x) for x in (*MATRICES, *EMPTY)], torch.linalg.svdvals, **REGULAR
    ),
    OpCase("linalg_eigh", SYMMETRICS, torch.linalg.eigh, grad=False, why=SYMMETRIC, **SIGNED),
    OpCase(
        "linalg_eigvalsh", SYMMETRICS, torch.linalg.eigvalsh, grad=False, why=SYMMETRIC, **REGULAR
    ),
    OpCase(
        "linalg_lu_factor",
        [*SQUARES, *NOTHING, *(sample(x) for x in MATRICES)],
        lambda x: torch.linalg.lu_factor(x),
        grad=False,
        **REGULAR,
    ),
    OpCase(
        "linalg_lu_solve",
        [
            sample(regular(3, 3), C([1, 2, 3], "int32"), F(3, 2)),
            sample(regular(3, 3), C([3, 3, 3], "int32"), F(2, 3, 1), True),
            sample(F(0, 0), C([], "int32"), F(0, 2)),
        ],
        lu_solve,
        grad=False,
        **REGULAR,
    ),
    OpCase("linalg_eig", EIGEN[1:], torch.linalg.eig, grad=False, **SIGNED),
    OpCase("linalg_eigvals", EIGEN, torch.linalg.eigvals, grad=False, **REGULAR),
    OpCase("linalg_matrix_exp", [*SQUARES, *NOTHING], matrix_exp, **REGULAR),
]

_VECTOR, _WIDE = F(3), F(2, 3)
MATRIX = [
    error(_VECTOR, match="x must be a matrix"),
    error(I(2, 2, low=0, high=2), match="x must be float32 or float64"),
    error(C([[1.0]], "float16"), match="not of half precision"),
]
SQUARE = [*MATRIX, error(_WIDE, match="x must be a square matrix")]
SYSTEM = [
    error(_WIDE, F(2, 1), match="x1 must be a square matrix"),
    error(F(3, 3), C([[1.0]], "float64"), match="cast the float32 one"),
    error(F(3, 3), F(2, 2), match="another number of rows"),
]
CASES += refusals(
    {
        "linalg_inv linalg_det linalg_cofactor linalg_slogdet linalg_cholesky": SQUARE,
        "linalg_eigh linalg_eigvalsh linalg_eig linalg_eigvals linalg_matrix_exp": SQUARE,
        "linalg_svd linalg_svdvals linalg_lu_factor": MATRIX,
        "linalg_pinv": [
            *MATRIX,
            error(_WIDE, None, 0.0, True, match="x must be a square matrix"),
            error(_WIDE, None, -1.0, match="atol is at least 0"),
        ],
        "linalg_lu_solve": [
            error(_WIDE, C([1, 2], "int32"), F(2, 1), match="lu must be a square matrix"),
            error(F(2, 2), C([1, 2, 2], "int32"), F(2, 1), match="pivots do not fit lu"),
            error(F(2, 2), F(2), F(2, 1), match="pivots do not fit lu"),
            error(F(2, 2), C([1, 2], "int32"), F(3, 1), match="another number of rows"),
        ],
        "linalg_qr": [*MATRIX, error(_WIDE, "raw", match="unknown mode")],
        "linalg_solve": [*SYSTEM, error(F(3, 3), F(), match="x2 must be a vector or a matrix")],
        "linalg_solve_triangular": [
            *(error(*e.args, True, match=e.match) for e in SYSTEM),
            error(F(3, 3), F(3), True, match="x2 must be a matrix"),
        ],
    }
)
