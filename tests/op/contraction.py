"""What the operators of `meta/op/contraction.py` have to do."""

import torch

from meta.testing import F, I, OpCase, sample


def einsum(inputs, equation):
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


CASES = [
    OpCase(
        "einsum",
        samples=[
            sample((F(2, 3, 4), F(2, 4, 5)), "bij,bjk->bik"),
            sample((F(3, 4), F(4, 2)), "ij,jk"),
            sample((F(3, 4),), "ij->ji"),
            sample((F(3, 4),), "ba"),
            sample((F(3, 4),), "ij->j"),
            sample((F(3, 4),), "ij->"),
            sample((F(3, 3),), "ii"),
            sample((F(3, 3),), "ii->i"),
            sample((F(2, 3, 2, 3, 2),), "abaca->b"),
            sample((F(3, 2, 3, 3),), "ijii->ji"),
            sample((F(3, 3), F(3)), "ii,i->i"),
            sample((F(2, 2, 3), F(3, 3, 2)), "aab,bba->ba"),
            sample((F(3), F(4)), "i,j"),
            sample((F(), F(3)), ",i->i"),
            sample((F(),), ""),
            sample((F(2, 3), F(3, 4), F(4, 2)), "ab,bc,cd->ad"),
            sample((F(2, 3), F(2, 3), F(2, 3)), "ij,ij,ij->i"),
            sample((F(5, 2, 3), F(3, 4)), "...ij,jk->...ik"),
            sample((F(2, 1, 3, 4), F(5, 4, 3)), "...ab,...bc->...ac"),
            sample((F(2, 3, 4),), "...a"),
            sample((F(2, 3, 4), F(4)), "...a,...a"),
            sample((F(2, 3, 4),), "a...->..."),
            sample((F(2, 3, 4),), "i...->i"),
            sample((F(2, 3), F(2, 3)), "...,...->..."),
            sample((F(3, 1), F(4, 2)), "ij,jk->ik"),
            sample((F(1, 4), F(3, 4)), "ij,ij->j"),
            sample((F(1, 4), F(3, 4)), "ij,ij->ij"),
            sample((F(2, 0), F(0, 3)), "ij,jk->ik"),
            sample((F(0, 3), F(3, 2)), "ij,jk->ik"),
            sample((F(0, 0),), "ii"),
            sample((F(0, 0),), "ii->i"),
            sample((F(1, 1),), "ii"),
            sample((F(2, 3), F(3, 2)), " Zb , bA -> AZ "),
            sample((F(2, 3), F(3, 2)), "Zb,bA"),
            sample(
                (I(2, 3, low=-9, high=9, dtype="int32"), I(3, 2, low=-9, high=9, dtype="int32")),
                "ij,jk->ik",
            ),
            sample((I(3, 3, low=0, high=9, dtype="uint8"),), "ii->i"),
            sample((F(40, 33), F(33, 50)), "ij,jk->ki"),
        ],
        oracle=einsum,
    ),
]
