"""What the converters of `meta/frontend/relay/converters/matrix.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
SQUARE = np.arange(9, dtype=np.int32).reshape(3, 3)
ONE = -1 - np.arange(6, dtype=np.float32).reshape(2, 3)
BAND = -1 - np.arange(24, dtype=np.float32).reshape(2, 4, 3)


def with_diagonals(k1, k2, upper_right, lower_right):
    """Walk along every diagonal; the shorter ones start where their alignment says."""

    def expected(x, diagonal):
        x = x.copy()
        rows, columns = x.shape[-2:]
        for k in range(k1, k2 + 1):
            places = [(i, i + k) for i in range(rows) if 0 <= i + k < columns]
            values = diagonal if k1 == k2 else diagonal[..., k2 - k, :]
            right = upper_right if k >= 0 else lower_right
            shift = values.shape[-1] - len(places) if k1 != k2 and right else 0
            for n, (i, j) in enumerate(places):
                x[..., i, j] = values[..., n + shift]
        return x

    return expected  # fmt: skip


def band(upper_right, lower_right):
    return {"k1": -1, "k2": 2, "super_diag_right_align": upper_right,
            "sub_diag_right_align": lower_right}  # fmt: skip


K = np.array(1, np.int32)

CASES = [
    Case("trilu", (X, K), lambda x, k: np.triu(x, 1), constants=(1,)),
    Case("trilu", (X, -K), lambda x, k: np.tril(x, -1), {"upper": False}, constants=(1,)),
    Case("trilu", (SQUARE, K), lambda x, k: np.triu(x, 1), label="k is an input"),
    Case("trilu", (X, -K), lambda x, k: np.tril(x, -1), {"upper": False}, label="k is an input"),
    Case("matrix_set_diag", (X, ONE), with_diagonals(0, 0, True, False)),
    Case("matrix_set_diag", (X, ONE), with_diagonals(1, 1, False, True),
         {"k1": 1, "k2": 1, "super_diag_right_align": False, "sub_diag_right_align": True}),
    Case("matrix_set_diag", (X, ONE[:, :2]), with_diagonals(-1, -1, True, False),
         {"k1": -1, "k2": -1}),
    *[Case("matrix_set_diag", (X, BAND), with_diagonals(-1, 2, a, b), band(a, b),
           label=f"several, aligned {a} {b}") for a in (True, False) for b in (True, False)],
    Case("matrix_set_diag", (X, ONE), attrs={"k1": 1, "k2": 0}, refused="are none"),
    Case("matrix_set_diag", (ONE[0], ONE[0]), refused="a matrix is needed"),
]  # fmt: skip
