"""Test records of products of matrices."""

from itertools import pairwise

import torch

from meta.testing import B, C, F, I, OpCase, error, refusals, sample
from tests.op.float8 import E5M2, float8

# A product of two half precision operands is rounded once; its terms nearly cancel sometimes.
HALF = {"atol": {"float16": 1e-2, "bfloat16": 8e-2}}


def _sample(extents, t1, t2, batch1=(), batch2=(), make=F):
    m, k, n = extents
    x1, x2 = (k, m) if t1 else (m, k), (n, k) if t2 else (k, n)
    return sample(make(*batch1, *x1), make(*batch2, *x2))


def _integers(*shape):
    return I(*shape, low=-9, high=9)


def _products(t1, t2):
    """Plain, longer than a vector register, a dot product, empty in every extent."""
    extents = [(3, 4, 5), (17, 70, 9), (1, 7, 1), (3, 0, 2), (0, 3, 2), (2, 3, 0)]
    return [_sample(e, t1, t2) for e in extents]


def _batches(t1, t2):
    """Every pairing of batch extents, and nothing to sum."""
    pairs = [((3,), (3,)), ((1,), (3,)), ((3,), (1,)), ((1,), (1,)), ((0,), (1,)), ((0,), (0,))]
    return [
        *(_sample((3, 4, 5), t1, t2, *pair) for pair in pairs),
        _sample((2, 0, 3), t1, t2, (2,), (1,)),
    ]


FORMS = {"": (False, False), "_nt": (False, True), "_tn": (True, False), "_tt": (True, True)}


def _oracle(t1, t2):
    return lambda x1, x2: (x1.mT if t1 else x1) @ (x2.mT if t2 else x2)


def _of_integers(name, t1, t2, *batches):
    samples = [_sample((3, 4, 5), t1, t2, *batches, make=_integers)]
    return OpCase(name, samples, _oracle(t1, t2), dtypes=(), grad=False)


CASES = [
    OpCase("dense", _products(False, True), torch.nn.functional.linear, **HALF),
    _of_integers("dense", False, True),
    *(OpCase(f"matmul{f}", _products(*t), _oracle(*t), **HALF) for f, t in FORMS.items()),
    *(_of_integers(f"matmul{f}", *t) for f, t in FORMS.items()),
    *(OpCase(f"batch_matmul{f}", _batches(*t), _oracle(*t), **HALF) for f, t in FORMS.items()),
    *(_of_integers(f"batch_matmul{f}", *t, (2,), (1,)) for f, t in FORMS.items()),
]

_SQUARE = F(3, 3)

PRODUCTS = [
    error(_SQUARE, F(4, 4), match="the inner extents 3 and 4 differ"),
    error(_SQUARE, I(3, 3, low=0, high=2), match="cast the int64 one"),
    error(B(3, 3), B(3, 3), match="bools have no product"),
]

BATCHES = [
    error(F(2, 3, 3), _SQUARE, match="x2 must have 3 axes"),
    error(F(2, 3, 3), F(5, 3, 3), match="broadcast"),
    error(F(2, 3, 3), F(2, 4, 4), match="the inner extents 3 and 4 differ"),
    error(F(2, 3, 3), I(2, 3, 3, low=0, high=2), match="cast the int64 one"),
]

CASES += refusals(
    {
        "matmul": [
            *PRODUCTS,
            error(_SQUARE, F(), match="needs vectors or matrices"),
            error(F(2, 3, 3), F(4, 3, 3), match="broadcast"),
        ],
        "matmul_nt matmul_tn matmul_tt dense": [
            *PRODUCTS,
            error(_SQUARE, F(3), match="x2 must have 2 axes"),
        ],
        "batch_matmul batch_matmul_nt batch_matmul_tn batch_matmul_tt": BATCHES,
    }
)


def _grouped(t1, t2):
    """Return the oracle of products in groups: one after the other, with zeros elsewhere."""

    def oracle(x1, x2, offs):
        x1, x2 = x1.mT if t1 else x1, x2.mT if t2 else x2
        bounds = list(pairwise([0, *offs.tolist()]))
        if x1.ndim == x2.ndim:
            empty = x1[:, :0] @ x2[:0]
            return (
                torch.stack([x1[:, a:b] @ x2[a:b] for a, b in bounds])
                if bounds
                else empty[None][:0]
            )
        if x1.ndim == 3:
            parts = [x1[i] @ x2[:, a:b] for i, (a, b) in enumerate(bounds)]
            rest = x1.sum(0) @ x2[:, bounds[-1][1] if bounds else 0 :] * 0
            return torch.cat([*parts, rest], 1)
        parts = [x1[a:b] @ x2[i] for i, (a, b) in enumerate(bounds)]
        rest = x1[bounds[-1][1] if bounds else 0 :] @ x2.sum(0) * 0
        return torch.cat([*parts, rest])

    return oracle


def _in_groups(kind, t1, t2, extents, ends, dtype="int32"):
    """Return a sample: groups of "rows", "columns" or the "inner" extent, with these ends."""
    m, k, n = extents
    x1, x2 = (k, m) if t1 else (m, k), (n, k) if t2 else (k, n)
    x1 = (len(ends), *x1) if kind == "columns" else x1
    x2 = (len(ends), *x2) if kind == "rows" else x2
    return sample(F(*x1), F(*x2), C(ends, dtype))


def _groups(t1, t2):
    """All that is divided: with rows after the last group, empty groups, one group, none; nothing
    to be divided, nothing to be summed, and more than a tile.
    """
    return [
        _in_groups("rows", t1, t2, (5, 2, 3), [2, 2, 4]),
        _in_groups("columns", t1, t2, (3, 2, 5), [1, 3, 3]),
        _in_groups("inner", t1, t2, (2, 5, 3), [0, 3, 4], "int64"),
        _in_groups("rows", t1, t2, (4, 3, 2), [4]),
        _in_groups("columns", t1, t2, (2, 3, 4), [0, 4]),
        _in_groups("inner", t1, t2, (3, 4, 2), [4, 4]),
        _in_groups("rows", t1, t2, (0, 3, 2), [0, 0]),
        _in_groups("columns", t1, t2, (2, 3, 0), [0, 0]),
        _in_groups("inner", t1, t2, (3, 0, 2), [0, 0]),
        _in_groups("rows", t1, t2, (4, 0, 2), [1, 3]),
        _in_groups("columns", t1, t2, (4, 0, 2), [1, 2]),
        _in_groups("inner", t1, t2, (0, 3, 2), [1, 2]),
        _in_groups("rows", t1, t2, (70, 33, 17), [0, 1, 40, 40, 66]),
        _in_groups("columns", t1, t2, (17, 33, 70), [3, 3, 69]),
        _in_groups("inner", t1, t2, (17, 70, 33), [33, 33, 70]),
        sample(
            F(*((3, 4) if t1 else (4, 3))), F(0, *((2, 3) if t2 else (3, 2))), I(0, low=0, high=1)
        ),
    ]


_ENDS, _ROWS, _OF_GROUPS = C([1, 3, 3], "int32"), F(3, 3), F(3, 3, 3)

GROUPED = [
    error(_OF_GROUPS, _OF_GROUPS, _ENDS, match="are no matrices in groups"),
    error(F(3), _OF_GROUPS, _ENDS, match="are no matrices in groups"),
    error(_ROWS, _OF_GROUPS, F(3), match="offs must be integers"),
    error(_ROWS, _OF_GROUPS, C([1, 3, 3], "int16"), match="offs must be integers"),
    error(_ROWS, _OF_GROUPS, C([[1, 3, 3]], "int32"), match="offs must have 1 axes"),
    error(_ROWS, _OF_GROUPS, C([1, 3], "int32"), match="2 ends of groups and 3 matrices"),
    error(_OF_GROUPS, _ROWS, C([3], "int32"), match="1 ends of groups and 3 matrices"),
    error(_ROWS, F(3, 4, 4), _ENDS, match="inner extents 3 and 4 differ"),
    error(_integers(3, 3), _integers(3, 3, 3), _ENDS, match="x1 must be floating point"),
    error(_ROWS, _integers(3, 3, 3), _ENDS, match="the operands differ in dtype"),
]

CASES += [
    OpCase(
        f"grouped_matmul{f}", _groups(*t), _grouped(*t), dialects=("torch",), errors=GROUPED, **HALF
    )
    for f, t in FORMS.items()
]

CASES += refusals(
    {
        "grouped_matmul": [
            error(_ROWS, _OF_GROUPS, match="without offs there is a matrix"),
            error(_OF_GROUPS, F(2, 3, 3), match="other matrices of x1 than of x2"),
        ]
    }
)


def _scale(*shape):
    return F(*shape, low=0.25, high=2.0)


def _scaled(x1, x2, scale1, scale2, dtype="bfloat16"):
    return (x1 * scale1.reshape(-1, 1)) @ (x2 * scale2.reshape(-1, 1)).T


_SMALL = float8(3, 16), float8(5, 16)

_ONE = C(1.0, "float32")

CASES += [
    OpCase(
        "scaled_matmul",
        [
            sample(*_SMALL, _scale(), _scale(), "float32"),
            sample(float8(32, 48), float8(16, 48), _scale(), _scale(), dtype="float32"),
            sample(float8(16, 64), float8(32, 64), _scale(16), _scale(32), "float32"),
            sample(float8(4, 16), float8(32, 16), _scale(4), _scale(), "float32"),
            sample(float8(7, 32, dtype=E5M2), float8(16, 32), _scale(), _scale(), "float32"),
            sample(float8(7, 32), float8(16, 32, dtype=E5M2), _scale(7), _scale(16), "float32"),
            sample(*(float8(16, 16, dtype=E5M2) for _ in "12"), _scale(), _scale(), "float32"),
            sample(float8(3, 0), float8(5, 0), _scale(), _scale(), "float32"),
            sample(float8(0, 16), float8(5, 16), _scale(0), _scale(5), "float32"),
        ],
        _scaled,
        dtypes=("float32",),
        dialects=("torch",),
        grad=False,
        rtol={"float32": 2e-3},  # matrix units keep fewer bits of a sum of float8 products
        atol={"float32": 1e-2},
        errors=[
            error(F(3, 4), float8(5, 4), _ONE, _ONE, match="x1 must be float8"),
            error(float8(3), float8(5, 4), _ONE, _ONE, match="x1 must have 2 axes"),
            error(float8(3, 4), float8(5, 3), _ONE, _ONE, match="inner extents 4 and 3 differ"),
            error(*_SMALL, C(1.0, "float64"), _ONE, match="scale1 must be float32"),
            error(*_SMALL, _ONE, C([1.0, 2.0], "float32"), match="scale2 does not fit x2"),
            error(*_SMALL, _ONE, _ONE, "float64", match="dtype is that of no such product"),
        ],
    ),
    OpCase(
        "scaled_matmul",
        [
            sample(float8(17, 32), float8(48, 32), _scale(), _scale()),
            sample(float8(17, 32), float8(48, 32), _scale(17), _scale(48), "float16"),
        ],
        _scaled,
        dtypes=("float32",),
        dialects=("torch",),
        grad=False,
        rtol={"float32": 1e-2},  # results are of half precision
        atol={"float32": 1e-2},
    ),
]


def einsum(equation, inputs):
    """Take diagonals, broadcast the operands to all labels, multiply, and sum; no matrix products.

    Digits label the axes of an ellipsis, 0 the last one.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")

    def digits(count):
        return "".join(str(k) for k in reversed(range(count)))

    terms = left.split(",")
    counts = [x.ndim - len(t.replace("...", "")) for x, t in zip(inputs, terms, strict=True)]
    terms = [t.replace("...", digits(n)) for t, n in zip(terms, counts, strict=True)]
    joined = "".join(terms)
    if not arrow:
        once = sorted(c for c in set(joined) if joined.count(c) == 1 and c.isalpha())
        right = "..." + "".join(once)
    right = right.replace("...", digits(max(counts)))
    every = sorted(set(joined))
    product = torch.ones((), dtype=inputs[0].dtype)
    for x, labels in zip(inputs, terms, strict=True):
        for label in every:
            while labels.count(label) > 1:
                first, second = [i for i, c in enumerate(labels) if c == label][:2]
                x = x.diagonal(dim1=first, dim2=second)
                rest = [c for i, c in enumerate(labels) if i not in (first, second)]
                labels = "".join(rest) + label
        x = x.permute([labels.index(c) for c in every if c in labels])
        product = product * x[tuple(slice(None) if c in labels else None for c in every)]
    over = [i for i, c in enumerate(every) if c not in right]
    total = product.sum(over) if over else product
    kept = [c for c in every if c in right]
    return total.permute([kept.index(c) for c in right]).to(inputs[0].dtype)


CASES += [
    OpCase(
        "einsum",
        samples=[
            sample("bij,bjk->bik", (F(2, 3, 4), F(2, 4, 5))),
            sample("ij,jk", (F(3, 4), F(4, 2))),
            sample("ij->ji", (F(3, 4),)),
            sample("ba", (F(3, 4),)),
            sample("ij->j", (F(3, 4),)),
            sample("ij->", (F(3, 4),)),
            sample("ii", (F(3, 3),)),
            sample("ii->i", (F(3, 3),)),
            sample("abaca->b", (F(2, 3, 2, 3, 2),)),
            sample("ijii->ji", (F(3, 2, 3, 3),)),
            sample("ii,i->i", (F(3, 3), F(3))),
            sample("aab,bba->ba", (F(2, 2, 3), F(3, 3, 2))),
            sample("i,j", (F(3), F(4))),
            sample(",i->i", (F(), F(3))),
            sample("", (F(),)),
            sample("ab,bc,cd->ad", (F(2, 3), F(3, 4), F(4, 2))),
            sample("ij,ij,ij->i", (F(2, 3), F(2, 3), F(2, 3))),
            sample("...ij,jk->...ik", (F(5, 2, 3), F(3, 4))),
            sample("...ab,...bc->...ac", (F(2, 1, 3, 4), F(5, 4, 3))),
            sample("...a", (F(2, 3, 4),)),
            sample("...a,...a", (F(2, 3, 4), F(4))),
            sample("a...->...", (F(2, 3, 4),)),
            sample("i...->i", (F(2, 3, 4),)),
            sample("...,...->...", (F(2, 3), F(2, 3))),
            sample("ij,jk->ik", (F(3, 1), F(4, 2))),
            sample("ij,ij->j", (F(1, 4), F(3, 4))),
            sample("ij,ij->ij", (F(1, 4), F(3, 4))),
            sample("ij,jk->ik", (F(2, 0), F(0, 3))),
            sample("ij,jk->ik", (F(0, 3), F(3, 2))),
            sample("ii", (F(0, 0),)),
            sample("ii->i", (F(0, 0),)),
            sample("ii", (F(1, 1),)),
            sample(" Zb , bA -> AZ ", (F(2, 3), F(3, 2))),
            sample("Zb,bA", (F(2, 3), F(3, 2))),
            sample(
                "ij,jk->ik",
                (I(2, 3, low=-9, high=9, dtype="int32"), I(3, 2, low=-9, high=9, dtype="int32")),
            ),
            sample("ii->i", (I(3, 3, low=0, high=9, dtype="uint8"),)),
            sample("ij,jk->ki", (F(40, 33), F(33, 50))),
        ],
        oracle=einsum,
    ),
]
